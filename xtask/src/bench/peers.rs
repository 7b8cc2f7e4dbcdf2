//! Other job queues on the same server, each a program of its own behind the command line of bench/peers.

mod build;
mod contest;
mod measure;
mod program;

use std::collections::BTreeMap;

use serde::Deserialize;
use tokio::sync::OnceCell;

pub(crate) use self::contest::{Contest, or_alone};
pub(crate) use self::measure::{EnqueueLoad, Load};
use self::program::Program;
use super::Result;
use super::server::Database;
use crate::progress::Progress;

/// What is measured beside ours.
#[derive(Debug)]
pub(crate) enum Peers {
    /// Nothing, because nobody wanted it.
    LeftOut,
    /// These, as far as they can be had.
    Prepared(Vec<Peer>),
}

/// A job queue, or the reason why it cannot be had.
#[derive(Debug)]
pub(crate) struct Peer {
    name: &'static str,
    found: core::result::Result<Found, String>,
    /// A database with nothing but the peer's schema in it, made when it is first needed.
    template: OnceCell<Database>,
    template_name: String,
}

#[derive(Debug)]
struct Found {
    program: Program,
    description: Description,
}

/// What a peer says of itself.
#[derive(Debug, Deserialize)]
struct Description {
    version: String,
    runtime: String,
    /// Its own words for each of its modes.
    modes: BTreeMap<Mode, String>,
}

/// How a peer's workers are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// In its fastest documented setting.
    Fastest,
    /// In the setting that it documents against one tenant taking everything, where it has one.
    Fair,
}

/// Builds what is written in Rust and installs what runs on Node, below target/bench/peers.
///
/// Without downloads, only what was installed before, or can be built from what was downloaded before, is found. A peer
/// that cannot be had says why, and costs nothing but its lines.
///
/// # Cancel safety
///
/// Builds and installations are ended; the next call makes them anew.
pub(crate) async fn prepare(progress: Progress, downloads_allowed: bool) -> Peers {
    progress.step("building the peers that are written in Rust; once, this takes minutes");
    let rust = build::rust(downloads_allowed).await;
    progress.step("installing the peers that run on Node");
    let node = build::node(downloads_allowed).await;
    let mut peers = Vec::new();
    for (name, runtime) in [
        ("graphile-worker", &node),
        ("pg-boss", &node),
        ("apalis-postgres", &rust),
        ("graphile_worker", &rust),
    ] {
        let found = match runtime {
            Ok(program) => find(program.with_argument(name)).await,
            Err(error) => Err(crate::with_causes(error.as_ref())),
        };
        if let Err(why) = &found {
            progress.step(&format!("  no {name}: {why}"));
        }
        peers.push(Peer {
            name,
            found,
            template: OnceCell::new(),
            template_name: format!("peer_{}", peers.len()),
        });
    }
    Peers::Prepared(peers)
}

/// A program that can be started describes itself.
async fn find(program: Program) -> core::result::Result<Found, String> {
    match program.answer(None, ["describe"]).await {
        Ok(description) => Ok(Found {
            program,
            description,
        }),
        Err(error) => Err(crate::with_causes(error.as_ref())),
    }
}

impl Peers {
    /// Which they are and how they are set, in one sentence.
    pub(crate) fn sentence(&self) -> String {
        match self {
            Self::LeftOut => "Peers were left out.".to_owned(),
            Self::Prepared(peers) => {
                let peers: Vec<String> = peers.iter().map(Peer::sentence).collect();
                format!("Peers: {}.", peers.join("; "))
            }
        }
    }
}

impl Peer {
    fn sentence(&self) -> String {
        let name = self.name;
        match &self.found {
            Err(why) => format!("{name} cannot be had: {why}"),
            Ok(found) => {
                let Description {
                    version,
                    runtime,
                    modes,
                } = &found.description;
                let modes: Vec<String> = modes
                    .iter()
                    .map(|(mode, setting)| format!("{}: {setting}", mode.name()))
                    .collect();
                format!("{name} {version} on {runtime} ({})", modes.join("; "))
            }
        }
    }

    /// What its lines call it.
    fn name_in(&self, mode: Mode) -> String {
        match mode {
            Mode::Fastest => self.name.to_owned(),
            Mode::Fair => format!("{}, {}", self.name, mode.name()),
        }
    }

    fn has(&self, mode: Mode) -> bool {
        let found = self.found.as_ref();
        found.is_ok_and(|found| found.description.modes.contains_key(&mode))
    }

    fn program(&self) -> Result<&Program> {
        match &self.found {
            Ok(found) => Ok(&found.program),
            Err(why) => Err(why.clone().into()),
        }
    }
}

impl Mode {
    fn name(self) -> &'static str {
        match self {
            Self::Fastest => "fastest",
            Self::Fair => "fair",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A peer that is there, in a fastest mode and perhaps a fair one.
    pub(super) fn found(name: &'static str, fair: bool) -> Peer {
        let mut modes = json!({"fastest": "batch 500"});
        if fair {
            modes["fair"] = json!("limit 2");
        }
        let description = json!({"version": "1.2", "runtime": "Node 24", "modes": modes});
        Peer {
            name,
            found: Ok(Found {
                program: Program::new("nothing".into()),
                description: serde_json::from_value(description).unwrap(),
            }),
            template: OnceCell::new(),
            template_name: "peer_0".to_owned(),
        }
    }

    /// A peer that is not there.
    pub(super) fn missing(name: &'static str) -> Peer {
        Peer {
            name,
            found: Err("no npm".to_owned()),
            template: OnceCell::new(),
            template_name: "peer_0".to_owned(),
        }
    }

    #[test]
    fn the_sentence_says_how_each_peer_is_set_or_why_it_is_not_there() {
        let peers = Peers::Prepared(vec![found("a", true), missing("b")]);
        assert_eq!(
            peers.sentence(),
            "Peers: a 1.2 on Node 24 (fastest: batch 500; fair: limit 2); b cannot be had: no npm."
        );
        assert_eq!(Peers::LeftOut.sentence(), "Peers were left out.");
    }

    #[tokio::test]
    async fn a_program_that_does_not_describe_itself_is_missing() {
        let nothing = Program::new("/nowhere/peer".into());
        let why = find(nothing).await.unwrap_err();
        assert!(why.starts_with("cannot run /nowhere/peer: "), "{why}");
    }
}
