//! Durable fair scheduling over any Evenhand store.
//!
//! A service author enqueues typed jobs for tenants and runs a [`Worker`] in each replica. All replicas share one durable
//! order: every cycle gives each tenant exactly as many slots as its weight, whoever takes them and whatever fails.
//!
//! * [`Worker`] is the loop that most people want: rounds, leases, timeouts, retries, changes of policy, drain.
//! * [`DurableFairScheduler`] is one step of it, for people who drive the loop themselves: one sequence, one tenant, at
//!   most one run.
//! * [`TenantScheduler`] is the trait for people whose queue is not ours.
//!
//! Runs are handled *at least once*: an attempt whose worker died, or whose lease was lost, may have done its work
//! before the next attempt starts. [`RunContext::fence`] tells attempts apart.
//!
//! Workers count and time what they do through the [`metrics`](https://docs.rs/metrics) facade, under names that begin with
//! `evenhand_`; install any of its exporters to see them. The section "Watching" of `docs/operations.md` lists them.
//!
//! # Examples
//!
//! ```
//! use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
//! use evenhand_scheduler::{BoxError, Job, JobOutcome, RunContext, Worker};
//! use evenhand_store::{RunQueue, memory::MemoryStore};
//! use std::sync::Arc;
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct SendInvoice {
//!     invoice: u64,
//! }
//!
//! impl Job for SendInvoice {
//!     const KIND: &'static str = "invoice.send";
//! }
//!
//! async fn send_invoice(job: SendInvoice, context: RunContext) -> Result<JobOutcome, BoxError> {
//!     println!("invoice {} of {}", job.invoice, context.tenant());
//!     Ok(JobOutcome::Done)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), BoxError> {
//! let (large, small) = (TenantId::try_from("large")?, TenantId::try_from("small")?);
//! let policy = WeightedFairnessPolicy::new(
//!     SchedulerShardId::try_from("primary-v1")?,
//!     [TenantFairnessWeight::new(large.clone(), 3)?, TenantFairnessWeight::new(small.clone(), 1)?],
//! )?;
//!
//! // Any store will do; a service takes the one over PostgreSQL.
//! let store = Arc::new(MemoryStore::new("2026-05-01T12:00:00Z".parse()?));
//! for invoice in 0..6 {
//!     store.enqueue(&SendInvoice { invoice }.new_run(large.clone())?).await?;
//! }
//! store.enqueue(&SendInvoice { invoice: 6 }.new_run(small)?).await?;
//!
//! // A service calls `run_until(os_signals()?)` instead.
//! let worker = Worker::builder(store, policy).concurrency(4).on::<SendInvoice>(send_invoice).build();
//! let report = worker.run_until_idle().await?;
//! assert_eq!(report.completed, 7);
//! # Ok(())
//! # }
//! ```

mod background;
mod backoff;
mod builder;
mod dispatch;
mod execute;
mod fair;
mod host;
mod job;
mod lease;
mod look;
mod lost;
mod metrics;
mod observe;
mod order;
mod queue;
mod report;
mod retention;
mod round;
mod serving;
mod settle;
mod tenant;
mod text;
mod wait;
mod worker;

pub use backoff::{Backoff, RetryPolicy};
pub use builder::WorkerBuilder;
pub use execute::ExecutionOptions;
pub use fair::{DurableFairScheduler, SchedulerOptions, Tick, TickOutcome};
pub use host::os_signals;
pub use job::{Handler, Handlers, Job, JobOutcome, NewRunError, RunContext};
pub use order::{SchedulerError, TickError};
pub use queue::QueueTenantScheduler;
pub use report::{SequenceCounts, WorkerReport};
pub use retention::WorkerRetention;
pub use tenant::{BoxError, RunEnd, RunReport, Selection, TenantOutcome, TenantScheduler};
pub use worker::{Worker, WorkerError};
