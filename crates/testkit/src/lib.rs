//! What proves a store: generators, the conformance suite and a history checker.
//!
//! * [`conformance`]: every promise of the store contract as facts, mounted on any store with
//!   [`conformance_suite!`](crate::conformance_suite).
//! * [`generators`]: bounded inputs for property tests.
//! * [`history`]: what clients saw, held against what the store has on record; and storms of clients that make it.

extern crate alloc;

pub mod broken;
pub mod conformance;
pub mod generators;
pub mod history;
#[cfg(feature = "postgres")]
pub mod postgres;
