# The compiler → its target triple → the runtime object of that triple.
#
# Asked at most once a configure run, and only when something is instrumented. Compiles nothing.

# The object for the project's compiler; stops the configure run where there is none.
function(_callsight_runtime_object result)
  get_property(object GLOBAL PROPERTY CALLSIGHT_OBJECT)
  if(NOT object)
    get_property(package GLOBAL PROPERTY CALLSIGHT_PACKAGE)
    set(libraries "${package}/lib")
    if(NOT IS_DIRECTORY "${libraries}")
      get_filename_component(libraries "${package}/../../callsight" ABSOLUTE)
    endif()
    _callsight_target_triple(triple)
    set(object "${libraries}/${triple}/callsight_runtime.o")
    if(NOT EXISTS "${object}")
      _callsight_no_runtime("${triple}" "${libraries}")
    endif()
    if(object MATCHES ";")
      message(FATAL_ERROR "callsight: move the project: CMake cannot link ${object}, "
        "whose path has a semicolon")
    endif()
    set_property(GLOBAL PROPERTY CALLSIGHT_OBJECT "${object}")
    set_property(GLOBAL PROPERTY CALLSIGHT_TRIPLE "${triple}")
  endif()
  set(${result} "${object}" PARENT_SCOPE)
endfunction()

function(_callsight_no_runtime triple libraries)
  file(GLOB objects RELATIVE "${libraries}" "${libraries}/*/callsight_runtime.o")
  set(there "")
  foreach(object IN LISTS objects)
    get_filename_component(one "${object}" DIRECTORY)
    string(APPEND there " ${one}")
  endforeach()
  if(there STREQUAL "")
    set(there " none")
  endif()
  message(FATAL_ERROR
    "callsight: no runtime for ${triple} in ${libraries}; there is:${there}. "
    "Set -DCALLSIGHT_TARGET_TRIPLE=<triple> if one of these is right for your compiler, "
    "or run `callsight init` of a callsight that was built for ${triple}.")
endfunction()

# What the code is compiled for: as the user says, else as the compiler was told, else as it says.
function(_callsight_target_triple result)
  set(triple "${CALLSIGHT_TARGET_TRIPLE}")
  get_property(languages GLOBAL PROPERTY ENABLED_LANGUAGES)
  foreach(language IN ITEMS C CXX)
    if(triple STREQUAL "" AND language IN_LIST languages)
      set(triple "${CMAKE_${language}_COMPILER_TARGET}")
      if(triple STREQUAL "")
        set(triple "${CMAKE_${language}_LIBRARY_ARCHITECTURE}")
      endif()
      if(triple STREQUAL "")
        execute_process(COMMAND "${CMAKE_${language}_COMPILER}" -dumpmachine
          OUTPUT_VARIABLE triple OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      endif()
    endif()
  endforeach()
  _callsight_gnu_triple("${triple}" triple)
  set(${result} "${triple}" PARENT_SCOPE)
endfunction()

# x86_64-pc-linux-gnu, x86_64-redhat-linux, armv7l-unknown-linux-gnueabihf and so on, in the
# spelling of the folders: no vendor, and one name an architecture.
function(_callsight_gnu_triple triple result)
  if(triple MATCHES "^([^-]+)(-[^-]+)?-linux(-(.+))?$")
    set(arch "${CMAKE_MATCH_1}")
    set(environment "${CMAKE_MATCH_4}")
    if(environment STREQUAL "")
      set(environment gnu)
    endif()
    if(arch MATCHES "^i[3-6]86$" OR (arch STREQUAL "x86_64" AND CMAKE_SIZEOF_VOID_P EQUAL 4))
      set(arch i386)
    elseif(arch MATCHES "^(armv|thumbv)")
      set(arch arm)
    elseif(arch MATCHES "^riscv64")
      set(arch riscv64)
    endif()
    set(triple "${arch}-linux-${environment}")
  endif()
  set(${result} "${triple}" PARENT_SCOPE)
endfunction()
