//! Facts about ticks and workers, over the model store and on paused time.
#![expect(
    clippy::expect_used,
    reason = "a fact that cannot be set up is a failed fact"
)]

mod leases;
mod outage;
mod runs;
mod send;
mod shutdown;
mod store;
mod tick;
mod worker;
