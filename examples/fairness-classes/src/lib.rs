//! Many customers that come and go, served by a fixed set of fairness classes.
//!
//! A policy names its tenants once and for ever, and at most 1,024 of them. Customers sign up every day. So do not make
//! a tenant of each customer: make a tenant of each *bucket* of customers, and put every customer into one bucket of the
//! class that it pays for.
//!
//! ```text
//! acme     enterprise ─┐                      enterprise-00 … enterprise-15   6 slots each a cycle
//! bolt     team       ─┼─ stable hash of the  team-00       … team-15         3 slots each
//! you      free       ─┘  customer's name     free-00       … free-15         1 slot each
//! ```
//!
//! * **A new customer needs no new policy.** Its name alone says which bucket it is in: [`Customer::tenant`] is a pure
//!   function, the same in every process and every release. A change of plan is a change of class: runs that are enqueued
//!   from then on are served by the new one, those that wait already stay where they are.
//! * **A noisy customer is felt in its own bucket only.** The other 47 buckets have their slots whatever it does, and the
//!   bound of each bucket says after how many sequences it is selected again, for certain.
//! * **Within its bucket** a customer's runs wait in line with those of about every sixteenth customer of its class. Two
//!   things keep one customer from filling the line there. Each run names its customer as its *team* ([`Export::run`]),
//!   so [`set_limit`] caps how many runs of this one customer are running at once, over all workers. And a worker's team
//!   window caps how many of its runs one round may take.
//!
//! # How to choose the numbers
//!
//! The weight of a class is the weight of *each* of its buckets. With 16 buckets a class and weights 6, 3 and 1 a cycle has
//! 160 slots, and the enterprise class as a whole gets 96 of them as long as all of its buckets have work. A bucket without
//! work does not give its slot to its own class, it is passed over; so shares between classes are exact only while
//! customers of all buckets wait. More buckets isolate customers better from each other, and make the cycle longer.
//! Never change the number of buckets or the hash under a running shard: register a new shard, whose policy has the new
//! buckets, and retire the old one. Runs that still wait for a bucket which the new policy does not name are reported
//! as unserved.
//!
//! # Try it
//!
//! ```text
//! cargo run -p fairness-classes
//! ```
//!
//! enqueues the runs of 301 customers, one of which floods its bucket, lets a worker loose, and prints who got which share
//! of the first cycles.
//!
//! [`set_limit`]: evenhand_store::RunQueue::set_limit

mod class;
mod export;
mod simulation;

pub use class::{BUCKETS, Customer, FairnessClass, policy};
pub use export::Export;
pub use simulation::{Demand, Turn, serve};
