//! `callsight rings`: what is in shared memory → a list; abandoned rings removed, others told what
//! to do.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use callsight_drain::RingWords;
use callsight_format::RING_VERSION;
use callsight_hub::local::{Found, Member, RingCommand, RingFile, RingState, Unborn, rings_here};
use callsight_hub::stream::in_one_line;
use serde_json::{Value, json};

use crate::say;

/// Lists the rings in shared memory, and who uses them
#[derive(clap::Args)]
pub struct Args {
    /// Print one object for programs
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    action: Action,
}

#[derive(clap::Args)]
#[group(multiple = false, conflicts_with = "json")]
struct Action {
    /// Remove the rings that no living process uses: these, or all
    #[arg(long, value_name = "NAME", num_args = 0..)]
    remove: Option<Vec<String>>,
    /// Let the programs of this ring record nothing until --resume; that is no loss
    #[arg(long, value_name = "NAME")]
    pause: Option<String>,
    /// Let them record again, after --pause or --stop
    #[arg(long, value_name = "NAME")]
    resume: Option<String>,
    /// Let them record nothing until --resume; what they call meanwhile is counted as lost
    #[arg(long, value_name = "NAME")]
    stop: Option<String>,
}

/// See [`Args`].
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let action = args.action;
    let told = [
        (action.pause, RingCommand::Pause),
        (action.resume, RingCommand::Record),
        (action.stop, RingCommand::Stop),
    ];
    if let Some((name, command)) = told.into_iter().find_map(|(name, c)| Some((name?, c))) {
        return tell(&name, command);
    }
    let found = rings_here().context("look for rings in /dev/shm")?;
    if let Some(names) = action.remove {
        return remove(&found, &names);
    }
    let listed = found.iter().map(look).collect::<Vec<_>>();
    say::result("the list", |mut out| match args.json {
        true => {
            writeln!(out, "{}", json!({ "rings": listed.iter().map(as_json).collect::<Value>() }))
        }
        false => listed.iter().try_for_each(|listed| write_text(&mut out, listed)),
    })
}

/// What the list says of one ring.
struct Listed {
    name: String,
    bytes: u64,
    abandoned: bool,
    /// It is for processes of another pid namespace.
    is_foreign: bool,
    what: What,
}

enum What {
    Ring(RingState),
    Unborn { maker: u32, is_spare: bool },
    Unusable { why: String },
}

fn look(found: &Found) -> Listed {
    match found {
        Found::Ring(ring) => look_at_ring(ring),
        Found::Unborn(unborn) => Listed {
            name: unborn.name(),
            bytes: unborn.bytes,
            abandoned: unborn.is_abandoned,
            is_foreign: unborn.is_foreign,
            what: What::Unborn { maker: unborn.maker, is_spare: unborn.is_spare },
        },
        Found::Damaged { name, bytes, error } => Listed {
            name: name.clone(),
            bytes: *bytes,
            abandoned: false,
            is_foreign: false,
            what: What::Unusable { why: error.to_string() },
        },
    }
}

fn look_at_ring(ring: &RingFile) -> Listed {
    let (abandoned, what) = match ring.state() {
        Ok(state) => (ring.is_abandoned(&state), What::Ring(state)),
        Err(error) => (false, What::Unusable { why: error.to_string() }),
    };
    let is_foreign = ring.is_foreign();
    Listed { name: ring.name(), bytes: ring.bytes(), abandoned, is_foreign, what }
}

fn command_name(state: &RingState) -> &'static str {
    match (state.version, state.command) {
        (_, Some(command)) => command.name(),
        (RING_VERSION, None) => "unknown",
        (_, None) => "record",
    }
}

fn write_text(out: &mut impl Write, listed: &Listed) -> io::Result<()> {
    let (name, size) = (in_one_line(&listed.name), in_units(listed.bytes));
    match &listed.what {
        What::Unborn { maker, is_spare: true } => {
            writeln!(out, "{name}: {size}, made in advance by the drain {maker}")?;
        }
        What::Unborn { maker, is_spare: false } => {
            writeln!(out, "{name}: {size}, not yet named by its maker{}", process_text(*maker))?;
        }
        What::Unusable { why } => writeln!(out, "{name}: {size}, unusable: {why}")?,
        What::Ring(state) => {
            let (version, told) = (state.version, command_name(state));
            writeln!(out, "{name}: version {version}, {size}, told to {told}")?;
            for member in &state.processes {
                writeln!(out, "    process {}", member_text(member))?;
            }
            match &state.drain {
                Some(drain) => writeln!(out, "    drain {}", member_text(drain))?,
                None if state.version == RING_VERSION => writeln!(out, "    no drain")?,
                None => {}
            }
            let (used, held) = (in_units(state.used_bytes), state.held_events);
            writeln!(out, "    {used} in use, {held} events to be taken, {}", dropped_text(state))?;
        }
    }
    if listed.abandoned {
        writeln!(out, "    abandoned: `callsight rings --remove` removes it")?;
    }
    if listed.is_foreign {
        writeln!(
            out,
            "    of another pid namespace, as of another container: look at it there; \
             `callsight rings --remove {name}` removes it if nobody seen from here has it"
        )?;
    }
    Ok(())
}

/// Numbers behind the largest pid are of no process: those of makers in other pid namespaces.
fn process_text(maker: u32) -> String {
    match maker {
        0..=4_194_304 => format!(", process {maker}"),
        _ => String::new(),
    }
}

fn member_text(member: &Member) -> String {
    let life = match (member.is_alive, member.is_attached) {
        (None, _) => "elsewhere",
        (Some(false), _) => "dead",
        (Some(true), true) => "alive",
        (Some(true), false) => "alive, done recording",
    };
    match member.executable() {
        Some(path) => {
            format!("{} ({life}): {}", member.id.pid, in_one_line(&path.to_string_lossy()))
        }
        None => format!("{} ({life})", member.id.pid),
    }
}

fn dropped_text(state: &RingState) -> String {
    let causes: Vec<_> = state.dropped.iter().map(|(c, n)| format!("{} {n}", c.name())).collect();
    match state.dropped_events() {
        0 => "0 dropped".to_owned(),
        sum => format!("{sum} dropped ({})", causes.join(", ")),
    }
}

fn in_units(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / (1024.0 * 1024.0)),
    }
}

fn as_json(listed: &Listed) -> Value {
    let mut object = json!({
        "name": listed.name,
        "bytes": listed.bytes,
        "abandoned": listed.abandoned,
        "foreign": listed.is_foreign,
    });
    let more = match &listed.what {
        What::Unborn { maker, is_spare } => {
            json!({ "unborn": true, "spare": is_spare, "maker": maker })
        }
        What::Unusable { why } => json!({ "unusable": why }),
        What::Ring(state) => json!({
            "version": state.version,
            "capacity": state.capacity,
            "command": command_name(state),
            "processes": state.processes.iter().map(member_json).collect::<Value>(),
            "drain": state.drain.as_ref().map(member_json),
            "used_bytes": state.used_bytes,
            "held_events": state.held_events,
            "dropped": state.dropped.iter().map(|(c, n)| (c.name().to_owned(), json!(n)))
                .collect::<serde_json::Map<_, _>>(),
        }),
    };
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

fn member_json(member: &Member) -> Value {
    json!({
        "pid": member.id.pid,
        "start": member.id.start,
        "alive": member.is_alive,
        "attached": member.is_attached,
        "executable": member.executable().map(|path| path.to_string_lossy().into_owned()),
    })
}

/// Removes what is abandoned; of `names`, where there are any, each has to be there and go.
fn remove(found: &[Found], names: &[String]) -> anyhow::Result<ExitCode> {
    let removed: Vec<_> = match names {
        [] => found.iter().map(|found| remove_found(found, false)).collect(),
        // Each of them once.
        _ => BTreeSet::from_iter(names).into_iter().map(|name| remove_named(found, name)).collect(),
    };
    let mut errors = removed.into_iter().filter_map(Result::err).collect::<Vec<_>>();
    let last = errors.pop();
    errors.iter().for_each(crate::tell);
    last.map_or(Ok(ExitCode::SUCCESS), Err)
}

fn remove_named(found: &[Found], name: &str) -> anyhow::Result<()> {
    let Some(found) = found.iter().find(|found| is_named(found, name)) else {
        // No ring of ours, or none at all; whoever opens it says why.
        return remove_ring(&RingFile::open(name)?, true);
    };
    if let Found::Damaged { error, .. } = found {
        bail!("remove the ring {}: {error}", in_one_line(name));
    }
    remove_found(found, true)?;
    let left = rings_here().context("look for rings in /dev/shm")?;
    ensure!(
        !left.iter().any(|left| is_named(left, name)),
        "remove the ring {}: it is in use; `callsight rings` says by whom",
        in_one_line(name)
    );
    Ok(())
}

fn remove_found(found: &Found, is_named: bool) -> anyhow::Result<()> {
    match found {
        Found::Ring(ring) => remove_ring(ring, is_named),
        Found::Unborn(unborn) if unborn.is_abandoned => remove_unborn(unborn),
        Found::Unborn(unborn) if is_named && unborn.is_foreign && unborn.is_let_go() => {
            remove_unborn(unborn)
        }
        Found::Unborn(_) | Found::Damaged { .. } => Ok(()),
    }
}

fn is_named(found: &Found, name: &str) -> bool {
    name.strip_prefix('/').unwrap_or(name) == found.name().trim_start_matches('/')
}

fn remove_unborn(unborn: &Unborn) -> anyhow::Result<()> {
    let name = unborn.name();
    unborn.remove().with_context(|| format!("remove the ring {}", in_one_line(&name)))?;
    let what = if unborn.is_spare { "used" } else { "named" };
    say(&format!(
        "removed {name}: its maker{} ended before it was {what}",
        process_text(unborn.maker)
    ));
    Ok(())
}

/// One of another pid namespace goes where it is named and nobody who can be seen has it.
fn remove_ring(ring: &RingFile, is_named: bool) -> anyhow::Result<()> {
    let state = ring.state()?;
    let is_over = match ring.is_foreign() {
        true => is_named && ring.mapped_by().is_empty(),
        false => ring.is_abandoned(&state),
    };
    if !is_over || !ring.lock_out_drains() {
        return Ok(());
    }
    // A process may be coming to it just now: under the ring's lock it is either seen, or finds
    // the ring finished and makes a new one.
    let is_used = || match ring.is_foreign() {
        true => !ring.mapped_by().is_empty(),
        false => ring.state().map_or(true, |state| state.is_used()),
    };
    let is_closed = match ring.version() {
        RING_VERSION => words(ring)?.close_unless(is_used),
        _ => !is_used(),
    };
    if is_closed && ring.remove()? {
        let (held, dropped) = (state.held_events, dropped_text(&state));
        say(&format!("removed {}: {held} events were in it, {dropped}", ring.name()));
    }
    Ok(())
}

fn tell(name: &str, command: RingCommand) -> anyhow::Result<ExitCode> {
    let ring = RingFile::open(name)?;
    let name = ring.name();
    let doing = format!("tell the ring {} to {}", in_one_line(&name), command.name());
    if ring.version() != RING_VERSION {
        bail!("{doing}: it has version 2, which has no place for that; TRACE_RING=3 makes others");
    }
    let told = words(&ring)?.tell(command.number());
    ensure!(told, "{doing}: it is finished; `callsight rings` lists those that are in use");
    say(&format!("{name} is told to {}", command.name()));
    Ok(ExitCode::SUCCESS)
}

fn words(ring: &RingFile) -> anyhow::Result<RingWords> {
    let file = ring.open_to_write()?;
    RingWords::map(&file).with_context(|| {
        format!("write to the ring {}", in_one_line(&ring.path().to_string_lossy()))
    })
}

fn say(line: &str) {
    say::line(in_one_line(line));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_in_the_unit_that_shows_them() {
        assert_eq!(in_units(16 << 20), "16.0 MiB");
        assert_eq!(in_units((16 << 20) + (256 << 10)), "16.2 MiB");
        assert_eq!(in_units(84 << 10), "84.0 KiB");
        assert_eq!(in_units(0), "0.0 KiB");
    }
}
