//! Nothing but the README, so that its examples compile.
#![doc = include_str!("../../README.md")]
