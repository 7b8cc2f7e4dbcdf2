//! The conformance suite: what every store promises, proven fact by fact.
//!
//! The author of a store implements [`StoreUnderTest`] and mounts the suite in an integration test:
//!
//! ```
//! use core::time::Duration;
//! use evenhand_policy::SchedulerShardId;
//! use evenhand_store::memory::MemoryStore;
//! use evenhand_testkit::conformance::StoreUnderTest;
//!
//! struct Memory(MemoryStore);
//!
//! #[async_trait::async_trait]
//! impl StoreUnderTest for Memory {
//!     type Store = MemoryStore;
//!
//!     async fn start() -> Self {
//!         Self(MemoryStore::new("2026-05-01T12:00:00Z".parse().expect("a time")))
//!     }
//!
//!     async fn open(&self) -> MemoryStore {
//!         self.0.clone()
//!     }
//!
//!     async fn advance_clock(&self, by: Duration) {
//!         self.0.advance(by);
//!     }
//!
//!     async fn set_clock_back(&self, by: Duration) {
//!         self.0.set_clock(self.0.clock() - by);
//!     }
//!
//!     async fn skip_to(&self, shard: &SchedulerShardId, next_sequence: u64) {
//!         self.0.skip_to(shard, next_sequence).expect("the shard has no reservation");
//!     }
//! }
//!
//! evenhand_testkit::conformance_suite!(Memory);
//! ```
//!
//! That makes one `#[test]` per fact. No fact assumes that the clock stands still between two calls.
//!
//! Methods of the contract that have a default body are optional. A store that answers *unsupported* for one of them, on
//! every handle and every time, passes the facts about it; [`RunQueue::claim_round`] must work in every store, but a
//! store may refuse its limits.

mod acknowledged;
mod attempts;
mod cancellation;
mod claims;
mod clocks;
mod completions;
mod contiguity;
mod control;
mod enqueue;
mod history;
mod identity;
mod leases;
mod limits;
mod lost_blocks;
mod optional;
mod queue_order;
mod refusals;
mod registration;
mod retention;
mod retired;
mod round_choice;
mod rounds;
mod scene;
mod succession;
mod waiting;

use core::any::Any;
use core::time::Duration;

use async_trait::async_trait;
use evenhand_policy::SchedulerShardId;
use evenhand_store::{ReservationStore, RunQueue};
use futures::future::BoxFuture;

/// A kind of store, and what the suite needs to do with it.
///
/// The methods panic when they cannot do what they should; the fact then fails.
#[async_trait]
pub trait StoreUnderTest: Send + Sync + Sized + 'static {
    /// A handle on the store.
    type Store: ReservationStore + RunQueue + 'static;

    /// Starts an empty store that no other fact sees. Dropping it cleans up.
    async fn start() -> Self;

    /// Opens another independent handle on the same data, as another process would.
    async fn open(&self) -> Self::Store;

    /// Moves the store's clock forward.
    async fn advance_clock(&self, by: Duration);

    /// Moves the store's clock back, as the clock of a server may be set.
    async fn set_clock_back(&self, by: Duration);

    /// Lets the order of a registered shard without reservations go on at `next_sequence`. What is on record before that
    /// does not matter.
    async fn skip_to(&self, shard: &SchedulerShardId, next_sequence: u64);
}

/// A fact that does not hold of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fact} does not hold, which breaks the promise: {promise}\n{message}")]
#[non_exhaustive]
pub struct BrokenPromise {
    /// The fact, as `module::name`.
    pub fact: &'static str,
    /// The promise that it proves a part of.
    pub promise: &'static str,
    /// What the fact found.
    pub message: String,
}

/// How long a fact may take. A store that locks itself out so fails instead of hanging.
const FACT_DURATION_MAX: Duration = Duration::from_mins(2);

/// The names of all facts, as `module::name`.
pub fn facts<S: StoreUnderTest>() -> Vec<&'static str> {
    table::<S>().into_iter().map(|fact| fact.name).collect()
}

/// Checks one fact on a fresh store, in a runtime of its own with several threads.
///
/// # Errors
///
/// When the fact does not hold.
///
/// # Panics
///
/// When there is no such fact, or no runtime can be made.
pub fn check<S: StoreUnderTest>(name: &str) -> Result<(), BrokenPromise> {
    let found = table::<S>().into_iter().find(|fact| fact.name == name);
    let Some(fact) = found else {
        panic!("the suite has no fact {name}")
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .unwrap_or_else(|error| panic!("cannot make a runtime: {error}"));
    let proof = runtime.block_on(async {
        tokio::time::timeout(FACT_DURATION_MAX, tokio::spawn((fact.prove)())).await
    });
    // Tasks of a fact that failed may wait for a lock for ever.
    runtime.shutdown_background();
    let message = match proof {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(failed)) => match failed.try_into_panic() {
            Ok(panic) => panic_text(&*panic),
            Err(cancelled) => cancelled.to_string(),
        },
        Err(_) => format!("not proven within {FACT_DURATION_MAX:?}"),
    };
    Err(BrokenPromise {
        fact: fact.name,
        promise: fact.promise,
        message,
    })
}

/// Proves one fact; this is what the tests that [`conformance_suite!`](crate::conformance_suite) mounts call.
///
/// # Panics
///
/// When the fact does not hold.
pub fn prove<S: StoreUnderTest>(name: &str) {
    if let Err(broken) = check::<S>(name) {
        panic!("{broken}");
    }
}

struct Fact {
    name: &'static str,
    promise: &'static str,
    prove: fn() -> BoxFuture<'static, ()>,
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic")
        .to_owned()
}

fn table<S: StoreUnderTest>() -> Vec<Fact> {
    crate::conformance_facts!(list_conformance_facts S)
}

/// Mounts the suite: one `#[test]` per fact for the given [`StoreUnderTest`](crate::conformance::StoreUnderTest).
#[macro_export]
macro_rules! conformance_suite {
    ($store:ty) => {
        $crate::conformance_facts! { mount_conformance_facts $store }
    };
}

/// All facts, by promise. Whoever needs the list passes a macro of this crate, so that there is only one list.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_facts {
    ($then:ident $($context:tt)*) => {
        $crate::$then! {
            ($($context)*)

            registration "register is idempotent for byte-identical policies; anything else changes nothing" {
                register_is_idempotent_for_identical_policies
                register_refuses_another_policy
                racing_policies_have_one_winner
                a_pool_has_one_active_shard_and_one_scoring
                load_policy_gives_back_what_was_registered
                an_unregistered_shard_is_not_found
            }

            contiguity "sequences of a shard are contiguous from 0: no gap, no overlap, no repeat" {
                sequences_begin_at_zero_and_follow_each_other
                concurrent_reservations_are_contiguous_and_disjoint
                shards_have_independent_orders
                reservations_are_listed_from_any_sequence
            }

            identity "the same id always returns the same first sequence and count; concurrent calls with one id agree" {
                the_same_id_gives_the_same_answer
                concurrent_calls_with_one_id_agree
                the_same_id_with_another_count_is_refused
                the_same_id_under_another_shard_is_refused
                an_id_raced_in_two_shards_is_reserved_once
            }

            acknowledged "an acknowledged reservation is never lost, and the order is that of real time" {
                acknowledged_calls_are_on_record_in_the_order_of_real_time
            }

            refusals "a refused or failed call consumes nothing" {
                another_digest_or_cycle_length_is_refused
                refused_calls_consume_nothing
                a_block_that_does_not_fit_is_refused_whole
            }

            clocks "unknown ids are judged by the store's clock, known ids are answered whatever the clocks say" {
                an_unknown_id_too_far_ahead_is_clock_skew
                skew_is_measured_from_the_newest_reservation_when_the_clock_steps_back
                known_ids_are_answered_whatever_the_clocks_say
                time_never_runs_backwards_within_a_shard
            }

            retention "pruning goes oldest first, in batches, never touches policy, cursor or newest reservation; what was pruned is expired for ever" {
                pruning_deletes_only_what_is_older_than_the_window
                pruning_keeps_the_newest_reservation_and_the_cursor
                pruning_goes_oldest_first_over_all_shards
                a_pruned_id_is_expired_for_ever
                only_ids_that_were_really_pruned_move_the_mark
                a_retry_that_races_with_pruning_never_gets_a_second_sequence
                concurrent_passes_delete_each_row_once
            }

            cancellation "a dropped call leaves no lock, no open transaction and no half-made change" {
                a_dropped_reserve_leaves_no_gap_and_no_lock
                a_dropped_enqueue_is_all_or_nothing
                dropped_claims_and_endings_can_be_asked_again
                dropped_rounds_can_be_asked_again
                dropped_completions_can_be_asked_again
            }

            claims "at most one run is ever claimed against one sequence; asking again gives the same run, fence and lease" {
                only_the_tenant_of_a_reserved_sequence_is_claimed_for
                concurrent_claims_of_one_sequence_agree
                concurrent_claims_of_many_sequences_never_share_a_run
                asking_again_gives_the_same_run_fence_and_lease
                a_claim_is_answered_to_its_worker_and_to_who_takes_over
                an_idle_sequence_stays_idle
                a_failed_sequence_claims_nothing
                outcomes_are_on_record_by_sequence
                claims_stay_within_their_pool
            }

            leases "a fence only grows; a stale fence changes nothing and is answered with lease lost" {
                an_expired_lease_is_recovered_and_its_fence_is_stale
                a_stale_fence_changes_nothing
                a_renewed_lease_is_not_recovered
                an_expired_lease_holds_until_it_is_recovered
                recovery_takes_the_oldest_expiry_first
                racing_endings_have_one_winner
            }

            attempts "complete, fail and release, repeated with the same fence, are answered as the first time" {
                a_repeated_completion_succeeds
                a_failed_run_waits_and_its_repetition_is_answered_alike
                a_run_without_attempts_left_is_dead
                a_released_run_is_not_counted_and_keeps_its_place
                an_attempt_that_ended_otherwise_refuses_other_ends
            }

            completions "completions asked for together are answered in order, each as if it had been asked for alone" {
                completions_are_answered_in_their_order
                a_refused_completion_fails_nobody_else
                completions_that_overlap_agree
            }

            queue_order "within a tenant the best ready run comes first: score, then ready tick, then run id" {
                random_backlogs_are_claimed_in_the_order_of_scores
                a_forced_run_comes_before_a_better_one
                a_run_is_ready_from_its_tick_on
                ready_tenants_are_those_with_ready_runs
                the_next_ready_time_is_that_of_an_idle_tenant
                registration_ranks_what_is_already_queued
            }

            enqueue "runs are enqueued all or none, once per key, and kept as written" {
                a_keyed_run_is_enqueued_once
                other_content_under_a_key_is_refused_whole
                a_run_reads_back_as_it_was_enqueued
                runs_are_listed_by_filter_and_page_and_counted
            }

            rounds "a round ends every sequence of its block, as if each had been claimed against at one moment; asked again, it answers the same" {
                every_sequence_of_a_block_ends
                a_round_claims_no_more_than_its_runs_max
                asking_again_gives_the_same_round
                what_was_claimed_singly_stays_as_it_was
                another_workers_block_has_moved_on
                concurrent_rounds_of_one_block_agree
                concurrent_rounds_never_share_a_run
                a_round_needs_its_reservation
                idle_slots_of_a_long_block_are_on_record
            }

            round_choice "a round claims what the pure function admits, within the slots that the block gave each tenant" {
                random_rounds_claim_what_is_admitted
                a_round_looks_at_64_runs_beyond_the_window
            }

            lost_blocks "a block whose worker is gone is found after a lease length, and settled for the same tenants; no run is given to two" {
                a_lost_block_is_found_after_a_lease_length
                the_late_owner_of_a_lost_block_gets_nothing
                a_claim_that_was_made_singly_is_not_lost
                settling_lost_blocks_keeps_the_shares_of_runs
                workers_that_settle_one_block_at_once_share_no_run
            }

            limits "no more runs of a limited tenant or team run at once than its limit says; nobody waits for it" {
                limits_are_exact_under_concurrency
                concurrent_rounds_stay_within_a_teams_limit
                a_limited_tenant_is_contended_at_once
                permits_come_back_with_every_end
                a_lowered_limit_waits_for_the_runs_above_it
                a_limit_counts_what_is_running_already
                a_limited_team_lets_other_teams_pass
                limits_hold_within_their_pool
            }

            succession "a pool has one active shard; another takes its place once and for ever" {
                a_later_shard_of_a_pool_is_pending
                retiring_moves_a_pool_to_its_successor
                only_an_active_shard_is_retired_and_only_for_a_pending_one
                a_retirement_is_for_ever
                racing_retirements_have_one_winner
                nothing_is_reserved_after_the_retirement
                runs_that_a_successor_does_not_serve_are_told
            }

            retired "a retired shard reserves and settles nothing any more; what it knows is answered as ever" {
                a_retired_shard_reserves_nothing_new
                what_has_ended_is_answered_as_before
                open_sequences_stay_open
            }

            control "a cancelled run is claimed no more; a running one is asked to stop; what is dead or cancelled can be queued again or discarded" {
                a_queued_run_is_cancelled_at_once
                a_running_run_goes_on_until_its_attempt_ends
                an_attempt_that_was_to_stop_ends_as_cancelled
                who_has_ended_is_not_cancelled
                a_requeued_run_begins_anew_and_its_fence_goes_on
                a_discarded_run_is_gone_with_its_key
                racing_cancellations_and_claims_agree
            }

            history "what became of each turn is told by tenant and period, and kept as long as a reservation covers it" {
                a_tenants_turns_are_told_as_they_are_on_record
                turns_are_cut_by_period_and_limit
                pruning_keeps_what_a_reservation_covers
                history_goes_after_its_reservation
                ended_runs_are_kept_for_their_windows
                cancelled_runs_are_kept_as_long_as_done_ones
                health_tells_backlogs_and_the_oldest_evidence
            }

            waiting "who waits for work is woken by it, and waits no longer than asked" {
                a_waiting_worker_is_woken_by_an_enqueue
                nobody_waits_for_work_that_is_there
                a_wait_ends_when_its_time_is_over
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! list_conformance_facts {
    (($store:ident) $($module:ident $promise:literal { $($fact:ident)+ })+) => {
        vec![$($(
            Fact {
                name: concat!(stringify!($module), "::", stringify!($fact)),
                promise: $promise,
                prove: || Box::pin($module::$fact::<$store>()),
            },
        )+)+]
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! mount_conformance_facts {
    (($store:ty) $($module:ident $promise:literal { $($fact:ident)+ })+) => {$(
        mod $module {
            #[allow(
                clippy::wildcard_imports,
                unused_imports,
                reason = "the type of the store may be named in any way that its mounting module can"
            )]
            use super::*;

            $(
                #[test]
                fn $fact() {
                    $crate::conformance::prove::<$store>(
                        concat!(stringify!($module), "::", stringify!($fact)),
                    );
                }
            )+
        }
    )+};
}
