//! What the contract promises, and what only a journal in a file can get wrong.
#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

mod conformance;
mod crashes;
mod handles;
mod scene;
