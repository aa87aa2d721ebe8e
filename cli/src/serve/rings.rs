//! Rings of this machine → the server of this process, each by a drain of its own.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use callsight_hub::local::{Address, DrainPlan, DrainProcess, Pauses};

use super::say;
use crate::drain::drain_of_ours;

/// How often it is looked whether the server is asked to end.
const POLL: Duration = Duration::from_millis(20);
/// When it is tried again to drain a ring that could not be: another drain may have it, and may be
/// about to end.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// Starts a drain for each of these rings, and another one when it has ended, until the server is
/// `asked` to end. The flag that is given back is set when it may: when no drain is left.
pub fn drain(rings: Vec<String>, server: SocketAddr, asked: Arc<AtomicBool>) -> Arc<AtomicBool> {
    if rings.is_empty() {
        return asked;
    }
    let server = reachable(server);
    let drains: Vec<JoinHandle<()>> = rings
        .into_iter()
        .map(|ring| (plan(ring, server.clone()), Arc::clone(&asked)))
        .map(|(plan, asked)| thread::spawn(move || drain_again_and_again(&plan, &asked)))
        .collect();
    let stop = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&stop);
    thread::spawn(move || {
        while !asked.load(Ordering::Relaxed) {
            thread::sleep(POLL);
        }
        drains.into_iter().for_each(|drain| drop(drain.join()));
        ends.store(true, Ordering::Relaxed);
    });
    stop
}

/// Where a process of this machine finds a server that listens there.
fn reachable(server: SocketAddr) -> Address {
    let host = match server {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => "127.0.0.1".to_owned(),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => "::1".to_owned(),
        other => other.ip().to_string(),
    };
    Address { host, port: server.port() }
}

fn plan(ring: String, server: Address) -> DrainPlan {
    DrainPlan { command: drain_of_ours(), ring, file: None, budget_bytes: 0, live: Some(server) }
}

fn drain_again_and_again(plan: &DrainPlan, asked: &AtomicBool) {
    let ring = &plan.ring;
    let mut killed = Pauses::of_the_killed();
    let mut failed = Pauses::between(RETRY.0, RETRY.1);
    while !asked.load(Ordering::Relaxed) {
        let begin = Instant::now();
        let ended = DrainProcess::spawn(plan, say).and_then(|drain| drain.wait(asked));
        let pause = match ended {
            Ok(status) if status.success() => Duration::ZERO,
            Ok(status) if was_killed(status) => {
                say(&format!("the drain of {ring} was killed ({status}); another goes on with it"));
                killed.next(begin.elapsed())
            }
            Ok(status) => {
                say(&format!("the drain of {ring} failed ({status}); it is tried again"));
                failed.next(begin.elapsed())
            }
            Err(error) => {
                say(&format!("drain {ring}: {error}; it is tried again"));
                failed.next(begin.elapsed())
            }
        };
        wait(pause, asked);
    }
}

/// Waits for so long, or until the server is asked to end.
fn wait(time: Duration, asked: &AtomicBool) {
    let begin = Instant::now();
    while begin.elapsed() < time && !asked.load(Ordering::Relaxed) {
        thread::sleep(POLL);
    }
}

fn was_killed(status: ExitStatus) -> bool {
    status.signal().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_on_all_addresses_is_found_on_this_machine() {
        for (listens, found) in [
            ("0.0.0.0:1", "127.0.0.1:1"),
            ("[::]:2", "[::1]:2"),
            ("192.0.2.7:3", "192.0.2.7:3"),
            ("127.0.0.1:4", "127.0.0.1:4"),
        ] {
            let server: SocketAddr = listens.parse().expect("an address");
            assert_eq!(reachable(server).to_string(), found);
        }
    }
}
