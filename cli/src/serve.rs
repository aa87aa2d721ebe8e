//! `callsight serve`: streams of devices → captures in a folder, until it is told to end.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};
use callsight_format::STREAM_PORT;
use callsight_hub::capture::CaptureLimits;
use callsight_hub::forward::Forward;
use callsight_hub::ingest::{Destinations, MakeSink, Options, Server};
use callsight_hub::local::{Address, RingError, check_name, ending_signals};
use callsight_hub::model::{Model, Overview};
use callsight_hub::stream::in_one_line;

use crate::folder::Claim;
use crate::say;

mod rings;

/// Receives streams from devices and writes captures
#[derive(clap::Args)]
pub struct Args {
    /// Address to listen on
    #[arg(long, default_value = "0.0.0.0", value_parser = bare_host)]
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
    /// Write captures of events (format 2), for tools that read no packed ones
    #[arg(long)]
    events: bool,
    /// Pass every stream on to the callsight serve there, too
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    forward: Option<String>,
    /// Drain this ring of this machine, too, each time that programs record into it (repeatable)
    #[arg(long, value_name = "NAME", value_parser = ring_name)]
    ring: Vec<String>,
    /// Say every few seconds how much has come
    #[arg(long)]
    status: bool,
}

/// How often --status says something.
const STATUS_PAUSE: Duration = Duration::from_secs(3);

/// See [`Args`].
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(forward) = &args.forward
        && is_itself(forward, &args.host, args.port)
    {
        bail!(
            "forward to {forward}: that is this very server; --forward wants another one, or leave it out"
        );
    }
    let out = args.out;
    let server = Server::bind(Options {
        host: args.host,
        port: args.port,
        out: out.clone(),
        limits: limits(args.max_mb, args.seg_mb),
        streams: None,
        say: Box::new(say),
    })?;
    // As long as it is held, no run empties the folder.
    let _claim = Claim::beside_others(&out);
    let model = args.status.then(Model::default);
    let server = server.with_destinations(Destinations {
        unpacked: args.events,
        sinks: sinks(args.forward, model.as_ref()),
    });
    let asked = Arc::new(AtomicBool::new(false));
    for signal in ending_signals() {
        signal_hook::flag::register(signal, Arc::clone(&asked)).context("catch Ctrl-C")?;
    }
    say(&format!("listening on {}, writing {}", server.local_addr(), out.display()));
    if let Some(model) = model {
        thread::spawn(move || say_status(&model));
    }
    // The drains of this machine end first: their last events are for this server.
    let stop = rings::drain(args.ring, server.local_addr(), asked);
    let totals = server.run(&stop);
    say(&format!("ended: {totals}"));
    Ok(ExitCode::SUCCESS)
}

/// The sinks of each stream beside its capture.
fn sinks(forward: Option<String>, model: Option<&Model>) -> Vec<MakeSink> {
    let forward = forward.map(|to| -> MakeSink { Box::new(move || Box::new(Forward::to(&to))) });
    let model = model.cloned().map(|model| -> MakeSink { Box::new(move || model.sink()) });
    forward.into_iter().chain(model).collect()
}

/// Whether who listens on `host` and `port` would be connected to at `forward`. Names that are not found
/// are nobody's so far.
fn is_itself(forward: &str, host: &str, port: u16) -> bool {
    let found = |at: io::Result<std::vec::IntoIter<SocketAddr>>| at.into_iter().flatten();
    let here: Vec<IpAddr> =
        found((host, port).to_socket_addrs()).map(|address| address.ip().to_canonical()).collect();
    let reaches = |to: IpAddr| match to.to_canonical() {
        // A connection to no address in particular is one to this machine.
        to if to.is_unspecified() => here.iter().any(|ip| ip.is_unspecified() || ip.is_loopback()),
        to => here.iter().any(|ip| *ip == to || (ip.is_unspecified() && is_of_this_machine(to))),
    };
    port != 0 && found(forward.to_socket_addrs()).any(|to| to.port() == port && reaches(to.ip()))
}

/// Nobody can listen on an address of another one.
fn is_of_this_machine(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

fn ring_name(text: &str) -> Result<String, RingError> {
    check_name(text).map(|_| text.to_owned())
}

/// An IPv6 address may stand in brackets, as it does where a port follows.
fn bare_host(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    Ok(bare.to_owned())
}

fn host_and_port(text: &str) -> Result<String, String> {
    text.parse::<Address>().map(|address| address.to_string())
}

/// Says how much is there and how fast it grows, until the program ends.
fn say_status(model: &Model) {
    let mut before = model.overview().events;
    loop {
        thread::sleep(STATUS_PAUSE);
        let Overview { sessions, writers, events } = model.overview();
        let rate = events.saturating_sub(before) / STATUS_PAUSE.as_secs();
        say(&format!("{sessions} streams, {writers} writers, {events} events, {rate} a second"));
        before = events;
    }
}

/// Limits given in megabytes.
pub fn limits(max_mb: u32, seg_mb: u32) -> CaptureLimits {
    let bytes = |mb: u32| u64::from(mb) << 20;
    CaptureLimits { segment_bytes: bytes(seg_mb), budget_bytes: bytes(max_mb) }
}

/// A line for whoever watches. When nobody does any more, receiving goes on.
fn say(line: &str) {
    say::line(format_args!("callsight serve: {}", in_one_line(line)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_known_under_all_its_addresses() {
        for (host, forward) in [
            ("0.0.0.0", "127.0.0.1:7000"),
            ("0.0.0.0", "0.0.0.0:7000"),
            ("0.0.0.0", "127.9.9.9:7000"),
            ("127.0.0.1", "127.0.0.1:7000"),
            ("127.0.0.1", "localhost:7000"),
            ("127.0.0.1", "0.0.0.0:7000"),
            ("127.0.0.1", "[::ffff:127.0.0.1]:7000"),
        ] {
            assert!(is_itself(forward, host, 7000), "{forward} is {host}");
        }
        for (host, forward) in [
            ("0.0.0.0", "127.0.0.1:7001"),
            ("127.0.0.1", "127.0.0.2:7000"),
            // An address that is nobody's, for documents.
            ("0.0.0.0", "192.0.2.1:7000"),
            ("0.0.0.0", "no.such.host.invalid:7000"),
        ] {
            assert!(!is_itself(forward, host, 7000), "{forward} is not {host}");
        }
        // Any free port is none that somebody could know.
        assert!(!is_itself("127.0.0.1:7000", "127.0.0.1", 0));
    }
}
