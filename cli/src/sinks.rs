//! Where events go: flags before the environment, the environment before callsight.toml.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use callsight_hub::local::Address;
use callsight_integrations::sinks_of;

/// Folder of captures where nothing at all is said.
const DEFAULT_PATH: &str = "traces";

/// The destinations of a run; none of both is possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sinks {
    /// Folder of captures.
    pub path: Option<PathBuf>,
    /// A server.
    pub live: Option<Address>,
}

impl Sinks {
    /// The folder of captures; without one, where a program that cannot use its ring writes.
    pub fn folder(&self) -> &Path {
        self.path.as_deref().unwrap_or(Path::new(DEFAULT_PATH))
    }
}

/// The flag that names a server.
const FLAG_LIVE: &str = "--live";

/// What was said of a sink, and where; nothing in it means that it is not wanted.
type Said = Option<(&'static str, OsString)>;

/// The sinks that these flags, the environment and the nearest callsight.toml ask for. `note` is told
/// which of them is left out and why, where it is not the flags that are wrong: what is configured
/// for a program never keeps it from running.
///
/// # Errors
/// What is wrong with the flags.
pub fn choose(
    path: Option<OsString>,
    live: Option<OsString>,
    note: fn(&str),
) -> anyhow::Result<Sinks> {
    let found = std::env::current_dir()
        .context("find the current folder")
        .and_then(|here| sinks_of(&here).map_err(Into::into));
    let file = found.unwrap_or_else(|error: anyhow::Error| {
        note(&format!("{error:#}; its sinks are left out"));
        callsight_integrations::Sinks::default()
    });
    let variable = |name: &'static str| std::env::var_os(name).map(|value| (name, value));
    // The runtime takes an empty one for none.
    let runtimes = variable("TRACE_DIR").filter(|(_, folder)| !folder.is_empty());
    let in_file = |folder: &String| match folder.as_str() {
        "" => OsString::new(),
        folder => file.root.join(folder).into(),
    };
    let path = path
        .map(|folder| ("--path", folder))
        .or_else(|| variable("CALLSIGHT_PATH"))
        .or(runtimes)
        .or_else(|| file.path.as_ref().map(|folder| ("callsight.toml", in_file(folder))));
    let live = live
        .map(|address| (FLAG_LIVE, address))
        .or_else(|| variable("CALLSIGHT_LIVE"))
        .or_else(|| file.live.as_ref().map(|address| ("live in callsight.toml", address.into())));
    resolve(path, live, note)
}

fn resolve(path: Said, live: Said, note: fn(&str)) -> anyhow::Result<Sinks> {
    let live = match live.filter(|(_, address)| !address.is_empty()) {
        Some((place, address)) => match parse(place, &address) {
            Ok(live) => Some(live),
            Err(error) if place == FLAG_LIVE => return Err(error),
            Err(error) => {
                note(&format!("{error}; it is left out"));
                None
            }
        },
        None => None,
    };
    let path = match path {
        Some((_, folder)) => Some(PathBuf::from(folder)).filter(|f| !f.as_os_str().is_empty()),
        None if live.is_none() => Some(DEFAULT_PATH.into()),
        None => None,
    };
    Ok(Sinks { path, live })
}

fn parse(place: &str, address: &OsString) -> anyhow::Result<Address> {
    let text = address.to_string_lossy();
    text.parse().map_err(|why| anyhow!("use the server \"{text}\" of {place}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sinks(path: Option<&str>, live: Option<&str>) -> (Option<String>, Option<String>) {
        let said = |text: Option<&str>| text.map(|text| ("here", OsString::from(text)));
        let sinks = resolve(said(path), said(live), |_| ()).expect("sinks");
        (sinks.path.map(|path| path.display().to_string()), sinks.live.map(|live| live.to_string()))
    }

    #[test]
    fn files_are_the_default_only_where_nothing_is_said() {
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(sinks(None, None), (some("traces"), None));
        assert_eq!(sinks(None, Some("")), (some("traces"), None));
        assert_eq!(sinks(None, Some("h:1")), (None, some("h:1")));
        assert_eq!(sinks(Some("a"), Some("h:1")), (some("a"), some("h:1")));
        assert_eq!(sinks(Some(""), Some("h:1")), (None, some("h:1")));
        assert_eq!(sinks(Some(""), None), (None, None));
    }

    #[test]
    fn a_flag_that_names_no_server_is_refused_and_anything_else_is_left_out() {
        let error = resolve(None, Some((FLAG_LIVE, "h".into())), |_| ()).expect_err("no port");
        let said = error.to_string();
        assert!(said.contains("\"h\" of --live: it must be HOST:PORT"), "{said}");
        assert_eq!(sinks(Some("a"), Some("h")), (Some("a".to_owned()), None));
    }
}
