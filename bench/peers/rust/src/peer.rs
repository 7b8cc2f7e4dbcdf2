//! What the commands ask of a peer.

use std::error::Error;
use std::future::Future;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPool;
use tokio_util::sync::CancellationToken;

pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// A no-op job, which only knows whose it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Payload {
    pub(crate) tenant: String,
}

/// What a handler does with its job.
pub(crate) type OnJob = Arc<dyn Fn(String) + Send + Sync>;

/// How a worker is to be set up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Purpose {
    /// To drain a full queue, this many jobs at a time, with fetches of as many as `fetch`.
    Drain { concurrency: usize, fetch: usize },
    /// To wait for single jobs: the setting that wakes it fastest.
    Idle,
}

pub(crate) trait Peer: 'static {
    const NAME: &'static str;
    const VERSION: &'static str;
    /// How many jobs at a time are fastest.
    const CONCURRENCY: usize;
    /// Fetches of how many jobs are fastest.
    const FETCH: usize;
    /// The fastest setting in the words of the peer.
    const FASTEST: &'static str;

    /// Enqueues, each call by itself.
    type Queue: Queue;

    fn setup(pool: &PgPool) -> impl Future<Output = Outcome<()>> + Send;

    /// How many jobs wait or are in work.
    fn remaining(pool: &PgPool) -> impl Future<Output = Outcome<i64>> + Send;

    fn queue(pool: &PgPool) -> Self::Queue;

    /// Works until it is stopped, and returns when everything is completed that was begun.
    fn work(
        pool: PgPool,
        purpose: Purpose,
        on_job: OnJob,
        stop: CancellationToken,
    ) -> impl Future<Output = Outcome<()>> + Send;
}

pub(crate) trait Queue: Send + Sync {
    /// Adds a job for each of the tenants, in one call of the peer.
    fn add(&self, tenants: Vec<String>) -> impl Future<Output = Outcome<()>> + Send;
}
