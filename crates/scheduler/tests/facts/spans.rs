//! What is told through tracing: who and where, and never what.

use core::fmt;
use core::time::Duration;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use evenhand_scheduler::{
    BoxError, DurableFairScheduler, Handlers, JobOutcome, QueueTenantScheduler, RunContext,
    SchedulerOptions, Worker,
};
use evenhand_store::{Payload, StoreErrorKind};
use tokio_util::sync::CancellationToken;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Metadata, Subscriber};

use crate::store::{Fault, Task, TestStore, policy, run_of};

/// The fields of one span or event; the text of an event is its `message`.
#[derive(Clone, Debug, Default)]
struct Told {
    name: &'static str,
    fields: BTreeMap<&'static str, String>,
}

impl Visit for Told {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.fields.insert(field.name(), format!("{value:?}"));
    }
}

/// Hears every span and every event of this thread, at every level.
#[derive(Clone, Default)]
struct Listener {
    spans: Arc<Mutex<Vec<Told>>>,
    events: Arc<Mutex<Vec<Told>>>,
}

/// A second subscriber, nobody's default. As long as there is only one, tracing asks the thread that comes to a span or
/// event first whether anybody listens, and remembers its answer for all threads.
static SECOND: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(Listener::default()));

/// Hears this thread until the guard is dropped.
fn listen() -> (Listener, DefaultGuard) {
    LazyLock::force(&SECOND);
    let listener = Listener::default();
    let listening = tracing::subscriber::set_default(listener.clone());
    (listener, listening)
}

impl Listener {
    fn spans(&self) -> MutexGuard<'_, Vec<Told>> {
        self.spans.lock().expect("no panic")
    }

    fn events(&self) -> MutexGuard<'_, Vec<Told>> {
        self.events.lock().expect("no panic")
    }

    /// What the spans of this name say in these fields, each of which has to be there.
    fn fields<const N: usize>(&self, span: &str, fields: [&str; N]) -> Vec<[String; N]> {
        let spans = self.spans();
        let spans = spans.iter().filter(|told| told.name == span);
        spans
            .map(|told| {
                fields.map(|field| {
                    let value = told.fields.get(field);
                    value
                        .unwrap_or_else(|| panic!("no {field} in {told:?}"))
                        .clone()
                })
            })
            .collect()
    }

    fn everything(&self) -> String {
        format!("{:?} {:?}", self.spans(), self.events())
    }
}

impl Subscriber for Listener {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut told = Told {
            name: span.metadata().name(),
            fields: BTreeMap::new(),
        };
        span.record(&mut told);
        let mut spans = self.spans();
        spans.push(told);
        Id::from_u64(u64::try_from(spans.len()).expect("few spans"))
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let place = usize::try_from(span.into_u64()).expect("few spans") - 1;
        values.record(&mut self.spans()[place]);
    }

    fn event(&self, event: &Event<'_>) {
        let mut told = Told::default();
        event.record(&mut told);
        self.events().push(told);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

async fn done(_: Task, _: RunContext) -> Result<JobOutcome, BoxError> {
    Ok(JobOutcome::Done)
}

#[tokio::test(start_paused = true)]
async fn rounds_and_runs_are_spans_that_say_shard_sequence_and_tenant() {
    let (listener, _listening) = listen();
    let (store, policy) = (TestStore::new(), policy(&[("a", 1), ("b", 1)]));
    let runs = [store.add("a", 1).await[0], store.add("b", 1).await[0]];
    let worker = Worker::builder(store.clone(), policy).on::<Task>(done);
    worker.build().run_until_idle().await.expect("ended well");

    let block = ["shard", "first_sequence", "count"];
    assert_eq!(listener.fields("reserve", block), [["shard", "0", "16"]]);
    let claim = ["shard", "first_sequence", "count", "ran"];
    assert_eq!(listener.fields("claim", claim), [["shard", "0", "16", "2"]]);
    let [a, b] = runs.map(|run| run.to_string());
    let mut told = listener.fields("run", ["shard", "sequence", "tenant", "run", "attempt"]);
    told.sort();
    assert_eq!(
        told,
        [["shard", "0", "a", &a, "1"], ["shard", "1", "b", &b, "1"]]
    );
    let mut told = listener.fields("complete", ["shard", "sequence", "tenant"]);
    told.sort();
    assert_eq!(told, [["shard", "0", "a"], ["shard", "1", "b"]]);
}

#[tokio::test(start_paused = true)]
async fn ticks_are_spans_too_and_name_the_tenant_of_the_claim() {
    let (listener, _listening) = listen();
    let (store, policy) = (TestStore::new(), policy(&[("a", 1), ("b", 1)]));
    store.add("b", 1).await;
    let queue = QueueTenantScheduler::new(store.clone(), Handlers::new().on::<Task>(done));
    let options = SchedulerOptions::default();
    let scheduler = DurableFairScheduler::register(store, policy, queue, options);
    let scheduler = scheduler.await.expect("registered");
    for _ in 0..2 {
        let tick = scheduler.tick(&CancellationToken::new()).await;
        tick.expect("ticked");
    }
    let place = ["shard", "sequence", "tenant"];
    assert_eq!(
        listener.fields("claim", place),
        [["shard", "0", "a"], ["shard", "1", "b"]]
    );
    for span in ["run", "complete"] {
        assert_eq!(listener.fields(span, place), [["shard", "1", "b"]]);
    }
    assert_eq!(
        listener.fields("reserve", ["shard", "first_sequence"]),
        [["shard", "0"], ["shard", "1"]]
    );
}

#[tokio::test(start_paused = true)]
async fn runs_that_nobody_serves_are_warned_of_while_that_changes() {
    let (listener, _listening) = listen();
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("stranger", 2).await;
    let worker = Worker::builder(store, policy).on::<Task>(done);
    let five_minutes = tokio::time::sleep(Duration::from_mins(5));
    worker
        .build()
        .run_until(five_minutes)
        .await
        .expect("ended well");
    let events = listener.events();
    let warnings = events.iter().filter_map(|event| {
        let message = event.fields.get("message")?;
        let [pool, tenant, queued] =
            ["pool", "tenant", "queued"].map(|field| event.fields.get(field));
        message
            .contains("no active shard serves this tenant")
            .then_some((pool?.as_str(), tenant?.as_str(), queued?.as_str()))
    });
    // Once, though it is looked for every minute.
    assert_eq!(warnings.collect::<Vec<_>>(), [("default", "stranger", "2")]);
}

#[tokio::test(start_paused = true)]
async fn payloads_and_keys_are_never_told() {
    let (listener, _listening) = listen();
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let mut undecodable = run_of("a", 1);
    undecodable.payload = Payload::new(serde_json::json!({"number": "hidden"})).expect("allowed");
    undecodable.idempotency_key = Some("hidden".parse().expect("a key"));
    let mut odd = undecodable.clone();
    odd.payload = Payload::new(serde_json::json!({"number": 1, "more": "hidden"})).expect("odd");
    odd.idempotency_key = Some("hidden-too".parse().expect("a key"));
    let mut stray = odd.clone();
    stray.kind = "stray".parse().expect("a kind");
    stray.idempotency_key = Some("hidden-stray".parse().expect("a key"));
    let undecodable = store.add_all(&[undecodable, odd, stray]).await[0];
    // What goes wrong is told as well.
    store.inject("claim_round", Fault::Refuse(StoreErrorKind::Corrupt), 1);
    store.inject("complete", Fault::Refuse(StoreErrorKind::Unavailable), 2);
    let worker = Worker::builder(store.clone(), policy).on::<Task>(done);
    let two_minutes = tokio::time::sleep(Duration::from_mins(2));
    let report = worker.build().run_until(two_minutes).await;
    let report = report.expect("ended well");
    assert_eq!((report.completed, report.dead), (1, 1));
    let error = store.get(undecodable).await.last_error;
    assert!(
        error.is_some_and(|error| error.contains("hidden")),
        "it is kept with the run"
    );

    assert!(!listener.fields("run", ["kind"]).is_empty());
    assert!(!listener.events().is_empty());
    let everything = listener.everything();
    assert!(!everything.contains("hidden"), "{everything}");
}
