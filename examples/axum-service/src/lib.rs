//! A web service that enqueues in its own transaction and works in the same process.
//!
//! Shops place orders over HTTP; each order has to be shipped, which takes a while and is done in the background. Three
//! things usually go wrong in such a service, and each has its place here:
//!
//! * **The order is there, but its job is not, or the other way round.** The service writes the order, enqueues the run
//!   with [`PostgresStore::enqueue_in`] and takes the goods from the stock, all in one transaction (`orders.rs`). Either
//!   all of it becomes visible or none. An order that is rolled back leaves no run behind, and a worker never sees a run
//!   whose order is not there yet.
//! * **The work is done, but not marked as done.** The handler (`shipping.rs`) marks the order and completes its run with
//!   [`PostgresStore::complete_in`], again in one transaction. Should its lease have been lost to another worker, nothing
//!   of what it wrote stays.
//! * **A shop with 10,000 orders makes all others wait.** Each run belongs to its shop as a tenant, and the worker gives
//!   turns by weight: `north` gets two for each one of `south` as long as both have orders waiting.
//!
//! # Starting and stopping
//!
//! The program never changes the schema unless it is told to: `migrate` does that, once per release, with a user that may;
//! `serve` needs no more than the role `evenhand_app` and its own tables. Without migrations `serve` ends with an error.
//!
//! [`serve`] runs server and worker side by side (`service.rs`). On SIGTERM, or when either of them ends by itself, the
//! server takes no new connections and answers the requests that it has, the worker takes no new runs and lets its
//! handlers come to an end. An order that was placed in the last moment waits in the database for the next worker,
//! wherever that is: several replicas of this program on one database share the work.
//!
//! # Try it
//!
//! ```text
//! export DATABASE_URL=postgres://…            # for example the one that `cargo xtask pg start` prints
//! cargo run -p axum-service -- migrate
//! cargo run -p axum-service -- serve          # listens on 127.0.0.1:3000, or on what LISTEN says
//!
//! curl -H 'content-type: application/json' -d '{"shop":"north","item":"book","quantity":2}' localhost:3000/orders
//! curl localhost:3000/orders/1
//! curl localhost:3000/healthz
//! ```
//!
//! [`PostgresStore::enqueue_in`]: evenhand_store_postgres::PostgresStore::enqueue_in
//! [`PostgresStore::complete_in`]: evenhand_store_postgres::PostgresStore::complete_in

mod http;
mod orders;
mod service;
mod shipping;

pub use service::{migrate, serve};
