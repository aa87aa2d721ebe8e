//! `callsight serve`: streams of devices → captures in a folder, until it is told to end.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use callsight_format::STREAM_PORT;
use callsight_hub::capture::CaptureLimits;
use callsight_hub::ingest::{Options, Server};
use callsight_hub::local::ending_signals;

/// Receives streams from devices and writes captures
#[derive(clap::Args)]
pub struct Args {
    /// Address to listen on
    #[arg(long, default_value = "0.0.0.0")]
    host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = STREAM_PORT)]
    port: u16,
    /// Folder of the captures
    #[arg(long, default_value = "traces", value_name = "DIR")]
    out: PathBuf,
    /// Most megabytes a stream may take; 0 for no limit
    #[arg(long, default_value_t = 4096, value_name = "MB")]
    max_mb: u32,
    /// Size of a capture file in megabytes; 0 for one file
    #[arg(long, default_value_t = 256, value_name = "MB")]
    seg_mb: u32,
}

/// See [`Args`].
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    report_file_size_limit_as_error();
    let out = args.out;
    let server = Server::bind(Options {
        host: args.host,
        port: args.port,
        out: out.clone(),
        limits: limits(args.max_mb, args.seg_mb),
        streams: None,
        say: Box::new(say),
    })?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in ending_signals() {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("catch Ctrl-C")?;
    }
    say(&format!("listening on {}, writing {}", server.local_addr(), out.display()));
    let totals = server.run(&stop);
    say(&format!("ended: {totals}"));
    Ok(ExitCode::SUCCESS)
}

/// Limits given in megabytes.
pub fn limits(max_mb: u32, seg_mb: u32) -> CaptureLimits {
    let bytes = |mb: u32| u64::from(mb) << 20;
    CaptureLimits { segment_bytes: bytes(seg_mb), budget_bytes: bytes(max_mb) }
}

/// A line for whoever watches. When nobody does any more, receiving goes on.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "callsight serve: {line}");
}

/// Without this a write beyond `ulimit -f` ends the server with every other stream.
fn report_file_size_limit_as_error() {
    // SAFETY: no other code in this program handles the signal, and ignoring it runs none.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
