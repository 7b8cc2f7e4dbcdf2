//! Facts about ticks and workers, over the model store and on paused time.
#![expect(
    clippy::expect_used,
    reason = "a fact that cannot be set up is a failed fact"
)]

mod control;
mod leases;
mod lost;
mod metrics;
mod moving;
mod outage;
mod retention;
mod rounds;
mod runs;
mod send;
mod settling;
mod shutdown;
mod signals;
mod spans;
mod store;
mod tick;
mod waiting;
mod worker;
