//! Evenhand.

extern crate alloc;

#[cfg(feature = "postgres")]
pub mod postgres;
