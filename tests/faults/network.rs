//! Networks that fail: F7 a link that goes down, F8 delay, jitter, loss and hanging connections.

use std::process::Command;
use std::time::{Duration, Instant};

use callsight_tests::{Ran, Shell, callsight};

use crate::job::{Job, wait_until};
use crate::outcome::{Outcome, Plan};
use crate::relay::{Hang, Relay, Weather};
use crate::scene::{Scene, drain, ended_well, listening_port, tally};
use crate::seed::Chance;
use crate::truth::{Account, Truth};

/// Two network namespaces with a cable between them; they go with the value.
struct Cable {
    shell: Shell,
    ends: [String; 2],
}

const SERVER_ADDRESS: &str = "10.77.31.1";
const DRAIN_ADDRESS: &str = "10.77.31.2";

impl Cable {
    fn new(shell: Shell) -> Result<Cable, String> {
        let id = std::process::id();
        let ends = ["s", "d"].map(|end| format!("callsight-{id}-{end}"));
        let cable = Cable { shell, ends };
        let [server, drain] = &cable.ends;
        let made = cable.shell.run(&format!(
            "ip netns add {server}; ip netns add {drain}
             ip link add cs{id}s netns {server} type veth peer name cs{id}d netns {drain}
             ip -n {server} addr add {SERVER_ADDRESS}/24 dev cs{id}s
             ip -n {drain} addr add {DRAIN_ADDRESS}/24 dev cs{id}d
             ip -n {server} link set cs{id}s up; ip -n {drain} link set cs{id}d up"
        ));
        if made.code == 0 { Ok(cable) } else { Err(made.stderr.trim().to_owned()) }
    }

    /// A command at one of the ends.
    fn at(&self, end: usize) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.ends[end]]);
        command
    }

    /// Pulls or plugs the server's end; the drain's kernel does not hear of it.
    fn set(&self, state: &str) {
        let id = std::process::id();
        self.shell.ok(&format!("ip -n {} link set cs{id}s {state}", self.ends[0]));
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.ends.iter().for_each(|end| drop(self.shell.run(&format!("ip netns del {end}"))));
    }
}

/// F7: the cable is pulled, so that no end hears of it; then plugged again.
pub fn half_open(plan: &Plan) -> Outcome {
    let scene = Scene::new(16 << 20);
    let cable = match Cable::new(scene.shell()) {
        Ok(cable) => cable,
        Err(reason) => return Outcome::Skipped(format!("network namespaces: {reason}")),
    };
    let down = Duration::from_secs(plan.either(9, 20));
    let mut serve = cable.at(0);
    serve.arg(callsight()).args(["serve", "--host", SERVER_ADDRESS, "--port", "0", "--out"]);
    let server = Job::start(&scene.shell(), serve.arg("traces"));
    let mut port = None;
    wait_until("the server listens", || {
        port = listening_port(&server.so_far());
        port.is_some()
    });
    let mut command = cable.at(1);
    command.arg(drain()).args(["--reconnect", scene.ring.name(), SERVER_ADDRESS]);
    let drain = Job::start(&scene.shell(), command.arg(port.expect("a port").to_string()));
    let file = scene.path("tally");
    let calls = (60_000 * (down.as_secs() + 4)).to_string();
    let words = [file.to_str().expect("a path"), "2", &calls, "16000"];
    let target = scene.program(tally(), &words);
    wait_until("events arrive", || scene.stored_bytes() > 50_000);
    cable.set("down");
    let begin = Instant::now();
    wait_until("the drain finds that the connection is dead", || {
        drain.so_far().contains("again") || begin.elapsed() > down
    });
    let found = begin.elapsed();
    std::thread::sleep(down.saturating_sub(found));
    cable.set("up");
    let ran = target.end();
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "done 2\n", ""), "{ran}");
    let drained = drain.end();
    ended_well(&drained);
    let served = server.stop();
    let account = complete(&scene, Truth::read(&file), &[&drained, &served]);
    assert!(found < down, "the drain did not find out within {} s: {drained}", down.as_secs());
    Outcome::Holds(format!(
        "down for {} s, found after {:.1} s, {account} unaccounted=0",
        down.as_secs(),
        found.as_secs_f64()
    ))
}

/// The account, which holds and has lost nothing.
#[track_caller]
fn complete(scene: &Scene, truth: Truth, said: &[&Ran]) -> Account {
    let account = scene.account();
    account.holds(truth, &format!("{said:?}"));
    assert_eq!(account.lost_events(), 0, "{account}: {said:?}");
    account
}

/// F8: a network with delay, jitter, loss of 1 to 10 %, connections that break, and some that hang.
pub fn bad_weather(plan: &Plan) -> Outcome {
    let mut chance = plan.chance("F8");
    let mut sum = Account::default();
    let mut connections = 0;
    let rounds = plan.either(2, 10);
    for round in 0..rounds {
        let weather = Weather {
            delay: Duration::from_millis(chance.of_range(1..60)),
            loss_percent: chance.of_range(1..11),
            breaks: chance.of_range(50..500),
            ..Weather::default()
        };
        connections += through(weather, &mut chance, &mut sum, round);
    }
    let hanging = plan.either(2, 6);
    for round in 0..hanging {
        let hang = Hang {
            connections: plan.either(1, chance.of_range(1..3)),
            behind_bytes: chance.of_range(10_000..60_000),
            swallows: round % 2 == 0,
        };
        let weather = Weather { hang: Some(hang), ..Weather::default() };
        let needed = through(weather, &mut chance, &mut sum, round);
        assert!(needed > hang.connections, "round {round}, {hang:?}: {needed} connections");
    }
    Outcome::Holds(format!(
        "{rounds} networks with delay to 120 ms and loss to 10 %, {connections} connections, \
         {hanging} with connections that hang, {sum} unaccounted=0"
    ))
}

/// A stream through such a network; how many connections it took.
fn through(weather: Weather, chance: &mut Chance, sum: &mut Account, round: u64) -> u64 {
    let scene = Scene::new(16 << 20);
    let server = scene.server();
    let relay = Relay::start(server.port, weather, chance);
    let drain = scene.drain_with(&["--reconnect", "127.0.0.1", &relay.port.to_string()]);
    let file = scene.path("tally");
    let words = [file.to_str().expect("a path"), "2", "600000", "4000"];
    let ran = scene.program(tally(), &words).end();
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "done 2\n"), "round {round}: {ran}");
    let drained = drain.end();
    ended_well(&drained);
    let served = server.stop();
    let account = scene.account();
    let what = format!("round {round}, {weather:?}: {drained} {served}");
    account.holds(Truth::read(&file), &what);
    assert_eq!(account.lost_events(), account.lost_for("full"), "{what}: {account}");
    sum.add(&account);
    relay.connections()
}
