//! PostgresStore on a real server. One executable, because linking many takes longer than running them.
#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

mod batches;
mod blocks;
mod claims;
mod combine;
mod completions;
mod concurrency;
mod conformance;
mod control;
mod dropped;
mod faults;
mod guards;
mod history;
mod limits;
mod migrations;
mod other_languages;
mod plans;
mod retention;
mod roles;
mod round_trips;
mod rounds;
mod scene;
mod settings;
mod statements;
mod storm;
mod succession;
mod terms;
mod transactions;
mod wake;
mod watch;
