//! Evenhand's store contract on PostgreSQL 15 to 18.
//!
//! [`PostgresStore`] implements [`ReservationStore`](evenhand_store::ReservationStore) and
//! [`RunQueue`](evenhand_store::RunQueue). Everything in the database lives in the schema `evenhand`; [`migrate`] puts it
//! there, and nothing else does: a store never changes the schema.
//!
//! The API of the database is its functions. A reservation is one statement that calls one function, and so one round
//! trip; whatever has to be decided under a lock is decided there.
//!
//! # Examples
//!
//! ```no_run
//! use evenhand_store::ReservationStore;
//! use evenhand_store_postgres::{ConnectOptions, PostgresStore, migrate};
//!
//! # async fn example() -> Result<(), Box<dyn core::error::Error>> {
//! let options = ConnectOptions::parse("postgres://app@localhost/app")?;
//! migrate(&options).await?;
//! let store = PostgresStore::connect(options).await?;
//! let policy = store.load_policy(&"primary-v1".parse()?).await?;
//! println!("{} slots", policy.cycle_length());
//! # Ok(())
//! # }
//! ```

mod combine;
mod complete;
mod connect;
mod control;
mod error;
mod history;
mod limits;
mod migrate;
mod queue;
mod reservations;
mod retention;
mod round;
mod rows;
mod session;
mod succession;
mod wake;
mod watch;

pub use connect::{ConnectOptions, ConnectOptionsError, PostgresStore, Transport};
pub use migrate::{MigrateError, migrate};
pub use queue::{CompletedIn, EnqueuedIn};
