# find_package(Callsight): instruments targets of a C or C++ project, and gives executables the
# callsight runtime.
#
# Goes in: the targets a project has, and the selection in callsight.toml. Comes out: two compile
# options on targets, one object on the link line of executables, and `<target>.instr` beside each
# of them. Leaves alone: CMAKE_<LANG>_FLAGS, configure checks, everything that is installed or
# exported, and, without -DCALLSIGHT=ON, all of it.
#
# Works as a copy inside a project (`callsight init`) and from an installed prefix, wherever either
# is moved. Needs CMake 3.16; below 3.19 only the top project can be instrumented as a whole, and
# below 3.18 files can be left out only in the folder that calls callsight_instrument().
#
# Variables of the user:
#   CALLSIGHT                ON builds with hooks; OFF, the default, changes nothing
#   CALLSIGHT_TARGET_TRIPLE  the runtime to link, where the compiler's own answer is wrong
#   CALLSIGHT_SELECTION      another callsight.toml

if(CMAKE_VERSION VERSION_LESS 3.16)
  message(FATAL_ERROR "callsight: this is CMake ${CMAKE_VERSION}, 3.16 or later is needed")
endif()

# Ours, not the project's: functions keep the policies they were defined under.
cmake_policy(VERSION 3.16...3.25)

foreach(_callsight_component IN LISTS Callsight_FIND_COMPONENTS)
  if(Callsight_FIND_REQUIRED_${_callsight_component})
    set(Callsight_FOUND FALSE)
    set(Callsight_NOT_FOUND_MESSAGE "Callsight has no component `${_callsight_component}`")
    return()
  endif()
endforeach()

option(CALLSIGHT "Build with callsight's function-level tracing" OFF)
set(CALLSIGHT_TARGET_TRIPLE "" CACHE STRING "Target triple of the callsight runtime; empty: as the compiler says")
set(CALLSIGHT_SELECTION "" CACHE FILEPATH "What callsight instruments; empty: the project's callsight.toml")
mark_as_advanced(CALLSIGHT_TARGET_TRIPLE CALLSIGHT_SELECTION)

# Functions run where they are called, so they find their package through these.
set_property(GLOBAL PROPERTY CALLSIGHT_PACKAGE "${CMAKE_CURRENT_LIST_DIR}")
include("${CMAKE_CURRENT_LIST_DIR}/CallsightTriple.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/CallsightSelection.cmake")

# callsight_instrument(<target>)
#
# Compiles the C and C++ sources of <target> with hooks and debug information, as far as
# callsight.toml selects them; where it is an executable, links the runtime into it and adds a
# target `<target>.instr`, part of `all` if <target> is, that makes `<file>.instr`, a symbolic link
# beside the executable.
#
# <target> is an executable or a library (static, shared, module or object) of this project. The
# work is done at the end of the current directory (by CMake 3.16 to 3.18 outside the top one: at
# once). A second call for the same target does nothing; so does any call without -DCALLSIGHT=ON.
# Any other argument is an error.
function(callsight_instrument target)
  if(ARGC GREATER 1)
    message(FATAL_ERROR
      "callsight_instrument: unknown argument `${ARGV1}`: it takes the name of one target")
  endif()
  if(NOT TARGET "${target}")
    message(FATAL_ERROR
      "callsight_instrument: there is no target `${target}`: call it after the target is added")
  endif()
  get_target_property(real "${target}" ALIASED_TARGET)
  if(real)
    set(target "${real}")
  endif()
  get_target_property(imported "${target}" IMPORTED)
  get_target_property(type "${target}" TYPE)
  get_property(types GLOBAL PROPERTY CALLSIGHT_TYPES)
  if(imported OR NOT type MATCHES "${types}")
    message(FATAL_ERROR
      "callsight_instrument: `${target}` is not built here from C or C++: "
      "it must be an executable or a static, shared, module or object library of this project")
  endif()
  if(CALLSIGHT)
    # Later, so that sources are seen that are still to be added.
    set_property(DIRECTORY APPEND PROPERTY CALLSIGHT_TARGETS "${target}")
    _callsight_defer(deferred)
    if(NOT deferred)
      _callsight_instrument("${target}")
    endif()
  endif()
endfunction()

# callsight_instrument_project()
#
# Calls callsight_instrument() for every target of the current directory and those below it, at the
# end of the current directory, when all of them are known: also targets that are added after this
# call, or below directories that are. Takes no argument. Does nothing without -DCALLSIGHT=ON.
function(callsight_instrument_project)
  if(ARGC GREATER 0)
    message(FATAL_ERROR
      "callsight_instrument_project: unknown argument `${ARGV0}`: it takes none")
  endif()
  if(CALLSIGHT)
    set_property(DIRECTORY PROPERTY CALLSIGHT_INSTRUMENTS TRUE)
    _callsight_defer(deferred)
    if(NOT deferred)
      message(WARNING
        "callsight: CMake ${CMAKE_VERSION} cannot instrument ${CMAKE_CURRENT_SOURCE_DIR} as a "
        "whole inside another project: use CMake 3.19, or callsight_instrument(<target>)")
    endif()
  endif()
endfunction()

# ---- from here on: not for others to call ----

set_property(GLOBAL PROPERTY CALLSIGHT_TYPES
  "^(EXECUTABLE|STATIC_LIBRARY|SHARED_LIBRARY|MODULE_LIBRARY|OBJECT_LIBRARY)$")

# What callsight.cmake in a project calls: `folder` is where it lies, in the project's folder `root`.
# Of projects within projects, the selection of the outermost holds for all.
function(_callsight_adopt folder root)
  get_property(selection GLOBAL PROPERTY CALLSIGHT_SELECTION_FILE)
  if(NOT selection)
    set_property(GLOBAL PROPERTY CALLSIGHT_SELECTION_FILE "${folder}/callsight.toml")
    set_property(GLOBAL PROPERTY CALLSIGHT_SELECTION_ROOT "${root}")
  endif()
  if(EXISTS "${folder}/trace_stream.c")
    _callsight_keep_drain_out("${folder}")
  endif()
  callsight_instrument_project()
endfunction()

# A project that globs its sources recursively finds the drain among them, which is a program of its
# own: takes it out of targets that have other sources too. `folder` is where the drain lies.
function(_callsight_keep_drain_out folder)
  set_property(DIRECTORY PROPERTY CALLSIGHT_DRAIN "${folder}")
  _callsight_defer(deferred)
endfunction()

# Sees to it that _callsight_finish() is called once, at the end of the current directory; FALSE
# where this CMake cannot.
function(_callsight_defer result)
  get_property(deferred DIRECTORY PROPERTY CALLSIGHT_DEFERRED)
  if(NOT deferred)
    set(deferred TRUE)
    if(NOT CMAKE_VERSION VERSION_LESS 3.19)
      cmake_language(DEFER CALL _callsight_end_of_directory)
    elseif(CMAKE_CURRENT_SOURCE_DIR STREQUAL CMAKE_SOURCE_DIR)
      variable_watch(CMAKE_CURRENT_LIST_DIR _callsight_list_dir_changed)
    else()
      set(deferred FALSE)
    endif()
    set_property(DIRECTORY PROPERTY CALLSIGHT_DEFERRED ${deferred})
  endif()
  set(${result} ${deferred} PARENT_SCOPE)
endfunction()

# Goes to the end of the queue once more: behind calls that the project itself has deferred.
macro(_callsight_end_of_directory)
  cmake_language(DEFER CALL _callsight_finish)
endmacro()

# CMake 3.16 to 3.18 cannot defer calls. When it has read the last line of the top CMakeLists.txt
# (or a return() in it), it sets CMAKE_CURRENT_LIST_DIR back to nothing.
function(_callsight_list_dir_changed variable access value)
  if(access STREQUAL "MODIFIED_ACCESS" AND value STREQUAL ""
      AND CMAKE_CURRENT_SOURCE_DIR STREQUAL CMAKE_SOURCE_DIR)
    _callsight_finish()
  endif()
endfunction()

function(_callsight_finish)
  get_property(drain DIRECTORY PROPERTY CALLSIGHT_DRAIN)
  get_property(instruments DIRECTORY PROPERTY CALLSIGHT_INSTRUMENTS)
  get_property(chosen DIRECTORY PROPERTY CALLSIGHT_TARGETS)
  _callsight_targets_below("${CMAKE_CURRENT_SOURCE_DIR}" targets)
  if(drain)
    foreach(target IN LISTS targets)
      _callsight_drop_drain("${target}" "${drain}")
    endforeach()
  endif()
  if(instruments)
    list(APPEND chosen ${targets})
  endif()
  foreach(target IN LISTS chosen)
    _callsight_instrument("${target}")
  endforeach()
  if(instruments)
    _callsight_report()
  endif()
endfunction()

function(_callsight_report)
  get_property(count GLOBAL PROPERTY CALLSIGHT_COUNT)
  get_property(triple GLOBAL PROPERTY CALLSIGHT_TRIPLE)
  if(count)
    message(STATUS "callsight: targets with hooks for ${triple}: ${count}")
  else()
    message(WARNING "callsight: nothing to instrument in ${CMAKE_CURRENT_SOURCE_DIR}: "
      "no target has C or C++ sources that callsight.toml selects")
  endif()
endfunction()

function(_callsight_drop_drain target folder)
  get_target_property(sources "${target}" SOURCES)
  set(others "${sources}")
  foreach(name IN ITEMS trace_stream.c zstd.c)
    list(REMOVE_ITEM others "${folder}/${name}" "callsight/${name}")
  endforeach()
  if(NOT others STREQUAL "" AND NOT others STREQUAL sources)
    set_target_properties("${target}" PROPERTIES SOURCES "${others}")
  endif()
endfunction()

# Every target of `directory` and below that is built from sources.
function(_callsight_targets_below directory result)
  get_property(types GLOBAL PROPERTY CALLSIGHT_TYPES)
  get_property(targets DIRECTORY "${directory}" PROPERTY BUILDSYSTEM_TARGETS)
  set(found "")
  foreach(target IN LISTS targets)
    get_target_property(type "${target}" TYPE)
    if(type MATCHES "${types}")
      list(APPEND found "${target}")
    endif()
  endforeach()
  get_property(subdirectories DIRECTORY "${directory}" PROPERTY SUBDIRECTORIES)
  foreach(subdirectory IN LISTS subdirectories)
    _callsight_targets_below("${subdirectory}" below)
    list(APPEND found ${below})
  endforeach()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

function(_callsight_instrument target)
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  get_target_property(done "${target}" CALLSIGHT_INSTRUMENTED)
  if(done OR NOT languages MATCHES "(^|;)(C|CXX)(;|$)")
    return()
  endif()
  _callsight_selects_target("${target}" selected)
  if(NOT selected)
    return()
  endif()
  _callsight_runtime_object(object)
  set_target_properties("${target}" PROPERTIES CALLSIGHT_INSTRUMENTED TRUE)
  _callsight_compile_with_hooks("${target}")
  get_target_property(type "${target}" TYPE)
  if(type STREQUAL "EXECUTABLE")
    _callsight_link_runtime("${target}" "${object}")
    _callsight_add_instr("${target}")
  endif()
  get_property(count GLOBAL PROPERTY CALLSIGHT_COUNT)
  math(EXPR count "${count} + 1")
  set_property(GLOBAL PROPERTY CALLSIGHT_COUNT ${count})
endfunction()

# Options on the target; where callsight.toml leaves out some of its sources, on each of the others
# instead, since not every compiler has a way to take the option back.
function(_callsight_compile_with_hooks target)
  set(hooks "$<$<COMPILE_LANGUAGE:C,CXX>:-finstrument-functions>")
  _callsight_split_sources("${target}" with without)
  if(without STREQUAL "")
    set_property(TARGET "${target}" APPEND PROPERTY COMPILE_OPTIONS "${hooks}")
  else()
    foreach(source IN LISTS with)
      _callsight_add_source_option("${target}" "${source}" "${hooks}")
    endforeach()
  endif()
  set_property(TARGET "${target}" APPEND PROPERTY COMPILE_OPTIONS "$<$<COMPILE_LANGUAGE:C,CXX>:-g>")
endfunction()

function(_callsight_add_source_option target source option)
  set(where "")
  if(NOT CMAKE_VERSION VERSION_LESS 3.18)
    set(where TARGET_DIRECTORY "${target}")
  else()
    get_target_property(directory "${target}" SOURCE_DIR)
    if(NOT directory STREQUAL CMAKE_CURRENT_SOURCE_DIR)
      message(FATAL_ERROR
        "callsight: callsight.toml leaves out files of `${target}` in ${directory}, which takes "
        "CMake 3.18 (this is ${CMAKE_VERSION}); leave out the whole target, under [targets]")
    endif()
  endif()
  get_property(options SOURCE "${source}" ${where} PROPERTY COMPILE_OPTIONS)
  if(NOT "${option}" IN_LIST options)
    set_property(SOURCE "${source}" ${where} APPEND PROPERTY COMPILE_OPTIONS "${option}")
  endif()
endfunction()

# The object as a source: what a target links as a library is exported and installed with it, and an
# archive in the wrong place loses to the hooks of libc, which do nothing.
function(_callsight_link_runtime target object)
  get_target_property(options "${target}" LINK_OPTIONS)
  get_target_property(flags "${target}" LINK_FLAGS)
  if("${options} ${flags}" MATCHES "version-script")
    message(WARNING "callsight: `${target}` is linked with a version script: it must list "
      "__cyg_profile_func_enter and __cyg_profile_func_exit as global, or calls inside shared "
      "libraries are not traced")
  endif()
  set_property(TARGET "${target}" APPEND PROPERTY SOURCES "${object}")
endfunction()

# A target of its own, because a command after the build can only be added in the directory that
# has added the executable.
function(_callsight_add_instr target)
  if(TARGET "${target}.instr")
    message(WARNING "callsight: the project has a target `${target}.instr`, no link is made")
    return()
  endif()
  _callsight_is_in_all("${target}" in_all)
  if(in_all)
    set(in_all ALL)
  else()
    set(in_all "")
  endif()
  add_custom_target("${target}.instr" ${in_all}
    COMMAND "${CMAKE_COMMAND}" -E create_symlink
      "$<TARGET_FILE_NAME:${target}>" "$<TARGET_FILE:${target}>.instr"
    VERBATIM)
  set_target_properties("${target}.instr" PROPERTIES FOLDER "callsight")
endfunction()

function(_callsight_is_in_all target result)
  set(${result} TRUE PARENT_SCOPE)
  get_target_property(excluded "${target}" EXCLUDE_FROM_ALL)
  get_target_property(directory "${target}" SOURCE_DIR)
  while(directory AND NOT excluded)
    get_property(excluded DIRECTORY "${directory}" PROPERTY EXCLUDE_FROM_ALL)
    get_property(directory DIRECTORY "${directory}" PROPERTY PARENT_DIRECTORY)
  endwhile()
  if(excluded)
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()
