//! Peers in turns with ours: each turn measures every peer once, and a peer that fails loses its own lines only.

use super::{Mode, Peer, Peers};
use crate::bench::Result;
use crate::bench::line::{Figure, Line, Target};

/// All peers that have a mode, and what each turn found of them.
pub(crate) struct Contest<'a, T> {
    sides: Vec<Side<'a, T>>,
}

struct Side<'a, T> {
    name: String,
    /// The runs of a peer, or why it has none.
    measured: core::result::Result<(&'a Peer, Vec<T>), String>,
}

impl<'a, T> Contest<'a, T> {
    pub(crate) fn new(peers: &'a Peers, mode: Mode) -> Self {
        let side = |peer: &'a Peer| Side {
            name: peer.name_in(mode),
            measured: match &peer.found {
                Ok(_) => Ok((peer, Vec::new())),
                Err(why) => Err(why.clone()),
            },
        };
        let sides = match (peers, mode) {
            (Peers::LeftOut, Mode::Fastest) => vec![Side {
                name: "peers".to_owned(),
                measured: Err("left out".to_owned()),
            }],
            (Peers::LeftOut, Mode::Fair) => Vec::new(),
            (Peers::Prepared(peers), Mode::Fastest) => peers.iter().map(side).collect(),
            // Whoever is missing is missing once, among the fastest.
            (Peers::Prepared(peers), Mode::Fair) => peers
                .iter()
                .filter(|peer| peer.has(mode))
                .map(side)
                .collect(),
        };
        Self { sides }
    }

    /// Measures each peer once more, unless it has failed before.
    pub(crate) async fn turn(&mut self, measure: impl AsyncFn(&'a Peer) -> Result<T>) {
        for side in &mut self.sides {
            let Ok((peer, runs)) = &mut side.measured else {
                continue;
            };
            match measure(*peer).await {
                Ok(run) => runs.push(run),
                Err(error) => side.measured = Err(crate::with_causes(error.as_ref())),
            }
        }
    }

    /// Our line once more for each peer, with the peer's figure beside it, or with the reason why there is none.
    pub(crate) fn lines(&self, ours: &Line, figure: impl Fn(&[T]) -> Figure) -> Vec<Line> {
        let line = |side: &Side<'_, T>| match &side.measured {
            Ok((_, runs)) => Line {
                beside: Some((side.name.clone(), figure(runs))),
                target: Target::Stated,
                ..ours.clone()
            },
            Err(why) => Line {
                regime: ours.regime,
                ..Line::not_measured(format!("{}, beside {}", ours.what, side.name), why)
            },
        };
        self.sides.iter().map(line).collect()
    }
}

/// The lines beside peers, and before them our own where it would be told nowhere else.
pub(crate) fn or_alone(ours: Line, beside: Vec<Line>) -> Vec<Line> {
    if beside.iter().any(|line| line.beside.is_some()) {
        return beside;
    }
    core::iter::once(ours).chain(beside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::line::Unit;
    use crate::bench::peers::tests::{found, missing};
    use crate::bench::server::Regime;

    fn ours() -> Line {
        Line::new("runs", Figure::one(10.0, Unit::PerSecond))
            .regime(Regime::Native)
            .target(Target::AtLeast(1.0))
    }

    fn total(runs: &[f64]) -> Figure {
        Figure::one(runs.iter().sum(), Unit::PerSecond)
    }

    #[tokio::test]
    async fn each_turn_measures_every_peer_that_has_not_failed() {
        let peers = Peers::Prepared(vec![found("a", false), found("b", true), missing("c")]);
        let mut contest = Contest::new(&peers, Mode::Fastest);
        for turn in [1.0, 2.0] {
            contest
                .turn(async |peer: &Peer| match peer.name {
                    "b" if turn > 1.0 => Err("b is gone".into()),
                    _ => Ok(turn),
                })
                .await;
        }
        let lines = contest.lines(&ours(), total);
        assert_eq!(lines.len(), 3);
        let (name, figure) = lines[0].beside.as_ref().unwrap();
        assert_eq!((&**name, figure.to_string()), ("a", "3/s".to_owned()));
        assert_eq!(lines[0].is_met(), None);
        assert_eq!(lines[1].what, "runs, beside b");
        assert_eq!(lines[1].not_measured.as_deref(), Some("b is gone"));
        assert_eq!(lines[1].regime, Some(Regime::Native));
        assert_eq!(lines[2].not_measured.as_deref(), Some("no npm"));
    }

    #[test]
    fn only_peers_with_a_fair_mode_are_measured_in_it() {
        let peers = Peers::Prepared(vec![found("a", false), found("b", true), missing("c")]);
        let lines = Contest::<f64>::new(&peers, Mode::Fair).lines(&ours(), total);
        let names: Vec<_> = lines
            .iter()
            .filter_map(|line| line.beside.as_ref())
            .collect();
        assert_eq!((lines.len(), &*names[0].0), (1, "b, fair"));
    }

    #[test]
    fn peers_that_were_left_out_are_one_line() {
        let lines = Contest::<f64>::new(&Peers::LeftOut, Mode::Fastest).lines(&ours(), total);
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].what, "runs, beside peers");
        assert_eq!(lines[0].not_measured.as_deref(), Some("left out"));
        let fair = Contest::<f64>::new(&Peers::LeftOut, Mode::Fair);
        assert!(fair.lines(&ours(), total).is_empty());
    }

    #[test]
    fn a_line_stands_alone_where_no_peer_is_beside_it() {
        let missing = Line::not_measured("runs, beside c", "no npm");
        let alone = or_alone(ours(), vec![missing.clone()]);
        assert_eq!((alone.len(), alone[0].is_met()), (2, Some(true)));
        let beside = ours().beside("a", total(&[1.0]));
        assert_eq!(or_alone(ours(), vec![missing, beside]).len(), 2);
    }
}
