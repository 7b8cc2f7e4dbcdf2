//! What has to be proven on every major, and by which tests.

use super::runner::{Ending, TestRun};

/// A property that every major must have, with the tests that prove it.
#[derive(Debug)]
pub(super) struct Requirement {
    pub(super) title: &'static str,
    /// Patterns of [full names](super::programs::TestCase::full_name); each of them must match a test that ran.
    pub(super) proofs: &'static [&'static str],
}

/// All of them. A test that is renamed or removed shows up here as a missing proof.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    Requirement {
        title: "immutable registration",
        proofs: &[
            "suite::conformance::registration::*",
            "suite::concurrency::the_same_policy_registered_*",
            "suite::guards::a_policy_that_was_tampered_with_is_corrupt",
        ],
    },
    Requirement {
        title: "concurrent calls with one id",
        proofs: &[
            "suite::conformance::identity::*",
            "suite::concurrency::one_id_*",
        ],
    },
    Requirement {
        title: "concurrent calls with unique ids",
        proofs: &["suite::concurrency::unique_ids_*"],
    },
    Requirement {
        title: "contiguous reservations",
        proofs: &[
            "suite::conformance::contiguity::*",
            "suite::conformance::refusals::*",
            "suite::guards::a_block_that_does_not_continue_*",
        ],
    },
    Requirement {
        title: "lost acknowledgement: reserve",
        proofs: &["suite::faults::a_reservation_whose_acknowledgement_was_lost_*"],
    },
    Requirement {
        title: "lost acknowledgement: claim",
        proofs: &["suite::faults::a_claim_whose_acknowledgement_was_lost_*"],
    },
    Requirement {
        title: "lost acknowledgement: complete",
        proofs: &["suite::faults::a_completion_whose_acknowledgement_was_lost_*"],
    },
    Requirement {
        title: "a storm of crashes and lost replies",
        proofs: &["suite::storm::*", "suite::faults::killed_backends_*"],
    },
    Requirement {
        title: "bounded retention",
        proofs: &[
            "suite::conformance::retention::*",
            "suite::retention::batches_are_bounded_*",
        ],
    },
    Requirement {
        title: "a retry after pruning",
        proofs: &["suite::retention::a_retry_after_pruning_*"],
    },
    Requirement {
        title: "a retry while its row is being pruned",
        proofs: &["suite::retention::a_retry_while_its_row_is_being_pruned_*"],
    },
    Requirement {
        title: "migrations: an edited one is refused",
        proofs: &["suite::migrations::an_edited_*"],
    },
    Requirement {
        title: "migrations: a removed one is refused",
        proofs: &["suite::migrations::a_removed_*"],
    },
    Requirement {
        title: "migrations: reordered ones are refused",
        proofs: &["suite::migrations::reordered_*"],
    },
    Requirement {
        title: "migrations: a newer one is refused",
        proofs: &["suite::migrations::a_newer_*"],
    },
    Requirement {
        title: "a 3:1 share across four processes",
        proofs: &["processes::*"],
    },
    Requirement {
        title: "role default serializable",
        proofs: &["suite::settings::role_default_serializable"],
    },
    Requirement {
        title: "role default repeatable read",
        proofs: &["suite::settings::role_default_repeatable_read"],
    },
    Requirement {
        title: "role default synchronous_commit off",
        proofs: &["suite::settings::role_default_synchronous_commit_off_*"],
    },
    Requirement {
        title: "the whole store contract",
        proofs: &["suite::conformance::*"],
    },
    Requirement {
        title: "guards of the evidence",
        proofs: &["suite::guards::*"],
    },
    Requirement {
        title: "least privilege",
        proofs: &["suite::roles::*"],
    },
    Requirement {
        title: "one round trip a reservation",
        proofs: &["suite::round_trips::*reservation*"],
    },
    Requirement {
        title: "every statement prepares",
        proofs: &["suite::statements::*"],
    },
    Requirement {
        title: "plans of claim, reserve and prune",
        proofs: &["suite::plans::*"],
    },
    Requirement {
        title: "the exact order of claims",
        proofs: &["suite::claims::*", "suite::conformance::queue_order::*"],
    },
    Requirement {
        title: "the caller's own transactions",
        proofs: &["suite::transactions::*"],
    },
    Requirement {
        title: "rounds: one claim for a block",
        proofs: &["suite::conformance::rounds::*", "suite::rounds::*"],
    },
    Requirement {
        title: "lost blocks are settled",
        proofs: &["suite::conformance::lost_blocks::*", "suite::blocks::*"],
    },
    Requirement {
        title: "leases that are renewed together",
        proofs: &["suite::conformance::leases::*", "suite::terms::*"],
    },
    Requirement {
        title: "limits are exact",
        proofs: &["suite::conformance::limits::*", "suite::limits::*"],
    },
    Requirement {
        title: "completions of the same runs meet without a deadlock",
        proofs: &[
            "suite::conformance::completions::*",
            "suite::completions::*",
        ],
    },
    Requirement {
        title: "a worker with nothing to do writes nothing",
        proofs: &["postgres_worker::*"],
    },
    Requirement {
        title: "one active shard a pool",
        proofs: &["suite::conformance::succession::*", "suite::succession::*"],
    },
    Requirement {
        title: "a change of weights under load",
        proofs: &["policy_change::*"],
    },
    Requirement {
        title: "a dropped call leaves nothing locked or half done",
        proofs: &["suite::dropped::*"],
    },
    Requirement {
        title: "cancel, requeue, discard",
        proofs: &["suite::conformance::control::*", "suite::control::*"],
    },
    Requirement {
        title: "history and its retention",
        proofs: &["suite::conformance::history::*", "suite::history::*"],
    },
    Requirement {
        title: "watching a store's health",
        proofs: &[
            "suite::conformance::history::health_tells_*",
            "suite::watch::*",
        ],
    },
    Requirement {
        title: "idle workers are woken",
        proofs: &["suite::conformance::waiting::*", "suite::wake::*"],
    },
    Requirement {
        title: "combined reservations",
        proofs: &["suite::combine::*"],
    },
    Requirement {
        title: "enqueue from SQL and other languages",
        proofs: &[
            "suite::other_languages::defaults_and_arguments_*",
            "suite::other_languages::sql_refuses_*",
            "suite::other_languages::psql_enqueues_*",
            "suite::other_languages::a_client_in_node_*",
            "suite::other_languages::levels_and_numbers_*",
            "suite::other_languages::a_payload_that_is_longer_*",
            "suite::other_languages::a_transaction_that_wakes_*",
        ],
    },
    Requirement {
        title: "examples on PostgreSQL",
        proofs: &["service::*", "outbox::*"],
    },
];

/// Whether a requirement holds on one major.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// So many tests prove it.
    Proven(usize),
    /// These tests failed.
    Refuted(Vec<String>),
    /// No test that ran has a name like this.
    Absent(&'static str),
}

impl Requirement {
    /// What the tests that ran say about it.
    pub(super) fn judge(&self, runs: &[TestRun]) -> Proof {
        let mut proven = 0;
        let mut refuted = Vec::new();
        for &pattern in self.proofs {
            let mut of_pattern = runs
                .iter()
                .filter(|run| matches(pattern, &run.name))
                .peekable();
            if of_pattern.peek().is_none() {
                return Proof::Absent(pattern);
            }
            for run in of_pattern {
                match run.ending {
                    Ending::Passed => proven += 1,
                    Ending::Failed { .. } => refuted.push(run.name.clone()),
                }
            }
        }
        if refuted.is_empty() {
            Proof::Proven(proven)
        } else {
            Proof::Refuted(refuted)
        }
    }
}

/// Whether `name` is as the pattern says, in which `*` stands for any text.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(mut name) = name.strip_prefix(start) else {
        return false;
    };
    // The first place where a piece fits leaves the most for the pieces after it.
    let (pieces, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    for piece in pieces.split('*') {
        let Some(at) = name.find(piece) else {
            return false;
        };
        name = &name[at + piece.len()..];
    }
    name.ends_with(end)
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    const REQUIREMENT: Requirement = Requirement {
        title: "pruning",
        proofs: &["suite::retention::*", "suite::claims::late"],
    };

    fn run(name: &str, passed: bool) -> TestRun {
        let output = "it panicked".to_owned();
        TestRun {
            name: name.to_owned(),
            ending: if passed {
                Ending::Passed
            } else {
                Ending::Failed { output }
            },
            took: Duration::ZERO,
        }
    }

    #[test]
    fn a_requirement_needs_a_passing_test_for_each_of_its_patterns() {
        let late = run("suite::claims::late", true);
        let pruned = run("suite::retention::pruned", true);
        let failed = run("suite::retention::kept", false);
        let judge = |runs: &[&TestRun]| {
            let runs: Vec<TestRun> = runs.iter().copied().cloned().collect();
            REQUIREMENT.judge(&runs)
        };
        assert_eq!(judge(&[&late, &pruned]), Proof::Proven(2));
        assert_eq!(judge(&[&late]), Proof::Absent("suite::retention::*"));
        assert_eq!(judge(&[&pruned]), Proof::Absent("suite::claims::late"));
        let refuted = Proof::Refuted(vec![failed.name.clone()]);
        assert_eq!(judge(&[&late, &pruned, &failed]), refuted);
    }

    #[test]
    fn a_star_stands_for_any_text() {
        for (pattern, name, expected) in [
            ("a::b", "a::b", true),
            ("a::b", "a::bc", false),
            ("a::*", "a::b::c", true),
            ("a::*", "b::a::c", false),
            ("*::c", "a::c", true),
            ("*::c", "a::cd", false),
            ("a*c", "ac", true),
            ("a*b*c", "a-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("ab*ba", "aba", false),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
