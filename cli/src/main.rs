//! `callsight`: argv → one verb → exit code.
//!
//! Each verb is a file of its own: its arguments, one call into a crate, what it prints.

// They panic where they cannot write; `say` does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

use std::ffi::OsString;
use std::process::ExitCode;

use callsight_hub::stream::in_one_line;
use clap::{Parser, Subcommand};

mod analyze;
mod demo;
mod drain;
mod folder;
mod init;
mod rings;
mod run;
mod say;
mod serve;
mod sinks;
mod snapshot;

/// Function-level tracing for C, C++ and Rust projects.
#[derive(Parser)]
#[command(name = "callsight", version, about)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Analyze(analyze::Args),
    Demo(demo::Args),
    Drain(drain::Args),
    Init(init::Args),
    Rings(rings::Args),
    Run(Box<run::Args>),
    Serve(serve::Args),
    Snapshot(snapshot::Args),
}

/// Exit code for input that cannot be used; the message says what would help.
const BAD_INPUT: u8 = 2;

fn main() -> ExitCode {
    report_file_size_limit_as_error();
    let done = match parse::<Cli>(std::env::args_os().collect()).verb {
        Verb::Analyze(args) => analyze::run(args),
        Verb::Demo(args) => demo::run(args),
        Verb::Drain(args) => drain::run(args),
        Verb::Init(args) => init::run(args),
        Verb::Rings(args) => rings::run(args),
        Verb::Run(args) => run::run(*args),
        Verb::Serve(args) => serve::run(args),
        Verb::Snapshot(args) => snapshot::run(args),
    };
    done.unwrap_or_else(|error| {
        tell(&error);
        ExitCode::from(BAD_INPUT)
    })
}

/// A command line; a mistake in it ends the program with exit code 2. What tells the mistake has the words
/// that were given, in one line each.
fn parse<Line: Parser>(words: Vec<OsString>) -> Line {
    let shown: Vec<String> =
        words.iter().map(|word| in_one_line(&word.to_string_lossy())).collect();
    Line::try_parse_from(words).unwrap_or_else(|error| match Line::try_parse_from(shown) {
        Err(same) if same.kind() == error.kind() => same.exit(),
        _ => error.exit(),
    })
}

/// Without this a write beyond `ulimit -f` ends whatever verb it is. With a handler and not ignored, so
/// that programs started from here have the signal as it was.
fn report_file_size_limit_as_error() {
    extern "C" fn go_on(_signal: libc::c_int) {}
    // SAFETY: nothing in this program handles the signal, and the handler does nothing.
    unsafe {
        if libc::signal(libc::SIGXFSZ, libc::SIG_IGN) != libc::SIG_IGN {
            libc::signal(libc::SIGXFSZ, go_on as *const () as libc::sighandler_t);
        }
    }
}

fn tell(error: &anyhow::Error) {
    say::note(format_args!("callsight: {}", in_one_line(&format!("{error:#}"))));
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_declared_arguments_are_consistent() {
        super::Cli::command().debug_assert();
    }
}
