//! What the policy crate promises, as facts and as laws over arbitrary input.

#![expect(
    clippy::expect_used,
    reason = "a test that cannot set itself up has failed"
)]

mod admission_laws;
mod admission_limits;
mod admission_windows;
mod canonical;
mod cycle_laws;
mod examples;
mod limits;
mod rounds;
mod support;
mod transition;
mod wire;
