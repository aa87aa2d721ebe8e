//! `callsight`: argv → one verb → exit code.
//!
//! Each verb is a file of its own: its arguments, one call into a crate, what it prints.

use std::process::ExitCode;

use callsight_hub::stream::in_one_line;
use clap::{Parser, Subcommand};

mod analyze;
mod demo;
mod drain;
mod init;
mod rings;
mod run;
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
    let done = match Cli::parse().verb {
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

fn tell(error: &anyhow::Error) {
    eprintln!("callsight: {}", in_one_line(&format!("{error:#}")));
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_declared_arguments_are_consistent() {
        super::Cli::command().debug_assert();
    }
}
