//! Typed work: jobs, their handlers, and what a handler is told and answers.

use core::fmt;
use core::future::Future;
use core::time::Duration;

use std::collections::BTreeMap;
use std::sync::Arc;

use evenhand_policy::TenantId;
use evenhand_store::{
    ClaimedRun, Fence, Lease, NameError, NewRun, Payload, PayloadError, Run, RunId, RunKind,
};
use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::tenant::BoxError;

/// A type of work, and the name under which its runs are enqueued.
///
/// The value travels as JSON, so treat its fields like a wire format: a run may be handled by a newer build than the
/// one that enqueued it. A payload that no longer decodes goes to the dead letter.
///
/// # Examples
///
/// ```
/// use evenhand_policy::TenantId;
/// use evenhand_scheduler::Job;
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct SendInvoice {
///     invoice: u64,
/// }
///
/// impl Job for SendInvoice {
///     const KIND: &'static str = "invoice.send";
/// }
///
/// let mut run = SendInvoice { invoice: 7 }.new_run(TenantId::try_from("tenant-a")?)?;
/// run.idempotency_key = Some("invoice-7".parse()?);
/// assert_eq!(run.kind.as_str(), "invoice.send");
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// The name of this type of work: 1 to 128 bytes of printable ASCII. Runs keep it, so never change it.
    const KIND: &'static str;

    /// A run that does this job for `tenant`, with every default of [`NewRun`].
    ///
    /// # Errors
    ///
    /// When [`KIND`](Self::KIND) is no [`RunKind`], or when the job's JSON is no [`Payload`].
    fn new_run(&self, tenant: TenantId) -> Result<NewRun, NewRunError> {
        let kind = RunKind::try_from(Self::KIND).map_err(NewRunError::Kind)?;
        let value = serde_json::to_value(self).map_err(NewRunError::Encode)?;
        let payload = Payload::new(value).map_err(NewRunError::Payload)?;
        Ok(NewRun::new(tenant, kind, payload))
    }
}

/// Why a job cannot be enqueued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NewRunError {
    /// The kind is not a name.
    #[error("the job's kind cannot be used")]
    Kind(#[source] NameError),
    /// The job does not encode as JSON.
    #[error("the job does not encode as JSON")]
    Encode(#[source] serde_json::Error),
    /// The JSON is too long, or holds what a store cannot keep.
    #[error("the job's JSON cannot be kept")]
    Payload(#[source] PayloadError),
}

/// What a handler made of its run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobOutcome {
    /// The run is done.
    Done,
    /// The attempt failed; try again after this long, unless it was the last attempt.
    RetryAfter(Duration),
    /// The run can never succeed, for this reason: to the dead letter at once.
    GiveUp(String),
    /// The attempt was interrupted because [`RunContext::cancellation`] fired: put the run back uncounted, for anybody
    /// to take at once. If nobody asked it to stop, it waits as after a first failure.
    Release,
}

/// What a handler is told about its run, and its right to it. Cheap to clone.
#[derive(Clone)]
pub struct RunContext {
    claimed: Arc<ClaimedRun>,
    cancellation: CancellationToken,
}

impl RunContext {
    /// The context of a claimed run, for tests of a handler.
    pub fn new(claimed: ClaimedRun, cancellation: CancellationToken) -> Self {
        Self {
            claimed: Arc::new(claimed),
            cancellation,
        }
    }

    /// The run, as it was when it was claimed.
    pub fn run(&self) -> &Run {
        &self.claimed.run
    }

    /// Its name.
    pub fn run_id(&self) -> RunId {
        self.claimed.run.id
    }

    /// Whose run it is.
    pub fn tenant(&self) -> &TenantId {
        &self.claimed.run.spec.tenant
    }

    /// Which attempt this is, from 1; at most the run's `attempts_max`.
    pub fn attempt(&self) -> u32 {
        self.claimed.run.attempt
    }

    /// The right to the run, for completing it in a transaction of the handler's own. Completing it again afterwards,
    /// which the worker does, changes nothing.
    pub fn lease(&self) -> &Lease {
        &self.claimed.lease
    }

    /// The number that tells this attempt from earlier and later ones, for whatever the handler writes to.
    pub fn fence(&self) -> Fence {
        self.claimed.lease.fence
    }

    /// Fires when the worker is asked to stop, when somebody cancelled the run, when the lease is lost, and when the
    /// handler's future has ended.
    ///
    /// A handler that ignores a shutdown or a cancelled run may go on for the grace period, and is then dropped. When the lease is lost, or
    /// the run's time is up, the handler is dropped at once: what it spawned should watch this token.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.cancellation
    }
}

// Written by hand because a payload has no place in logs.
impl fmt::Debug for RunContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunContext")
            .field("run", &self.run_id())
            .field("tenant", self.tenant())
            .field("attempt", &self.attempt())
            .field("fence", &self.fence())
            .finish_non_exhaustive()
    }
}

/// Does the jobs of one type.
///
/// Every `async fn(J, RunContext) -> Result<JobOutcome, E>` is one, if `E` converts into [`BoxError`]; so is a closure
/// that returns such a future. Implement it for a type of your own that holds what its jobs need.
///
/// A run is handled at least once: an attempt whose lease was lost may have done its work already. Make handlers
/// idempotent, with the run's id or its fence.
///
/// # Examples
///
/// ```
/// use evenhand_scheduler::{BoxError, Handler, Handlers, Job, JobOutcome, RunContext};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct SendInvoice;
/// # impl Job for SendInvoice {
/// #     const KIND: &'static str = "invoice.send";
/// # }
///
/// struct Mailer {
///     sender: String,
/// }
///
/// impl Handler<SendInvoice> for Mailer {
///     async fn handle(&self, _: SendInvoice, context: RunContext) -> Result<JobOutcome, BoxError> {
///         println!("{} writes to {}", self.sender, context.tenant());
///         Ok(JobOutcome::Done)
///     }
/// }
///
/// let handlers = Handlers::new().on::<SendInvoice>(Mailer { sender: "billing".into() });
/// ```
pub trait Handler<J: Job>: Send + Sync + 'static {
    /// Does one job.
    ///
    /// # Errors
    ///
    /// Any error fails the attempt; the run is tried again after a growing delay, until its attempts are used up. The
    /// error's text, with its causes, is kept with the run.
    fn handle(
        &self,
        job: J,
        context: RunContext,
    ) -> impl Future<Output = Result<JobOutcome, BoxError>> + Send;
}

impl<J, F, Fut, E> Handler<J> for F
where
    J: Job,
    F: Fn(J, RunContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<JobOutcome, E>> + Send,
    E: Into<BoxError>,
{
    async fn handle(&self, job: J, context: RunContext) -> Result<JobOutcome, BoxError> {
        self(job, context).await.map_err(Into::into)
    }
}

/// Why a handler has no outcome.
#[derive(Debug)]
pub(crate) enum HandlerError {
    Undecodable(serde_json::Error),
    Failed(BoxError),
}

type ErasedHandler =
    Arc<dyn Fn(RunContext) -> BoxFuture<'static, Result<JobOutcome, HandlerError>> + Send + Sync>;

/// Which handler does which kind of run. Cheap to clone.
#[derive(Clone, Default)]
pub struct Handlers {
    by_kind: BTreeMap<&'static str, ErasedHandler>,
}

impl Handlers {
    /// No handlers yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same handlers, and this one for the jobs of type `J`.
    ///
    /// # Panics
    ///
    /// When there is a handler for [`J::KIND`](Job::KIND) already: one of the two would never be called.
    #[must_use]
    pub fn on<J: Job>(mut self, handler: impl Handler<J>) -> Self {
        let handler = Arc::new(handler);
        let erased: ErasedHandler = Arc::new(move |context: RunContext| {
            let handler = Arc::clone(&handler);
            Box::pin(async move {
                // The payload is read in place: the context keeps it for the handler.
                let payload = context.run().spec.payload.as_value();
                let job = J::deserialize(payload).map_err(HandlerError::Undecodable)?;
                let handled = handler.handle(job, context).await;
                handled.map_err(HandlerError::Failed)
            })
        });
        let former = self.by_kind.insert(J::KIND, erased);
        assert!(former.is_none(), "two handlers for the kind {:?}", J::KIND);
        self
    }

    /// The kinds that have a handler, in order.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.by_kind.keys().copied()
    }

    /// The kind as its handler names it, so that whoever tells of it needs to remember no others.
    pub(crate) fn known_kind(&self, kind: &RunKind) -> Option<&'static str> {
        let (known, _) = self.by_kind.get_key_value(kind.as_str())?;
        Some(known)
    }

    /// Starts the handler of the context's run, if there is one for its kind.
    pub(crate) fn start(
        &self,
        context: &RunContext,
    ) -> Option<BoxFuture<'static, Result<JobOutcome, HandlerError>>> {
        let handler = self.by_kind.get(context.run().spec.kind.as_str())?;
        Some(handler(context.clone()))
    }
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_kind.keys()).finish()
    }
}
