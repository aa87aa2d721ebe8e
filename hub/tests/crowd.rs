//! More connections than the server has room for.

mod common;

use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};

use callsight_format::*;
use common::server::*;
use common::*;
use rustix::process::{Resource, getrlimit, setrlimit};

/// One crowd at a time, with as many descriptors as this machine allows: both ends of every
/// connection are in this process.
static ROOM: Mutex<()> = Mutex::new(());

fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    setrlimit(Resource::Nofile, raised).expect("more descriptors");
}

#[test]
fn three_hundred_idle_connections_keep_nobody_out() {
    let _alone = ROOM.lock().unwrap_or_else(PoisonError::into_inner);
    raise_descriptor_limit();
    let served = serve(Some(1), |at| {
        let idle: Vec<_> = (0..300).map(|_| TcpStream::connect(at).expect("connect")).collect();
        let mut device = connect(at, LE);
        send(&mut device, &chunk(CHUNK_EVENTS, &calls(1, 10, LE), LE));
        wait_closed(device);
        drop(idle);
    });
    assert_eq!(served.totals.stored_events, 20);
    assert!(served.said("no handshake yet"), "the oldest ones had to go");
}

#[test]
fn the_257th_stream_is_refused_and_a_later_one_is_not() {
    let _alone = ROOM.lock().unwrap_or_else(PoisonError::into_inner);
    raise_descriptor_limit();
    let served = serve(None, |at| {
        let mut open: Vec<_> = (0..256).map(|_| connect(at, LE)).collect();
        let one_more = connect(at, LE);
        wait_closed(one_more);
        wait_closed(open.pop().expect("a stream"));
        let mut later = connect(at, LE);
        send(&mut later, &chunk(CHUNK_EVENTS, &calls(1, 10, LE), LE));
        wait_closed(later);
    });
    assert!(served.said("256 streams are open already"), "{:?}", served.lines.first());
    assert_eq!((served.totals.refused, served.totals.stored_events), (1, 20));
}
