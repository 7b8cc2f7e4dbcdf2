//! What a worker tells through the metrics facade.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use evenhand_policy::{
    PoolId, SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy,
};
use evenhand_scheduler::{Job, JobOutcome, RunContext, Worker};
use evenhand_store::memory::MemoryStore;
use evenhand_store::{LimitSubject, RunQueue, RunsMax};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};

#[derive(serde::Serialize, serde::Deserialize)]
struct Task {
    fails: bool,
}

impl Job for Task {
    const KIND: &'static str = "task";
}

async fn work(task: Task, _: RunContext) -> Result<JobOutcome, core::convert::Infallible> {
    Ok(if task.fails {
        JobOutcome::GiveUp("asked to".to_owned())
    } else {
        JobOutcome::Done
    })
}

/// Keeps every number by name and labels, as `name{label=value,...}`; of a histogram how often it was recorded.
#[derive(Clone, Default)]
struct Numbers(Arc<Mutex<BTreeMap<String, f64>>>);

struct Number {
    numbers: Numbers,
    name: String,
}

impl Number {
    fn change(&self, change: impl Fn(f64) -> f64) {
        let mut numbers = self.numbers.0.lock().unwrap();
        let number = numbers.entry(self.name.clone()).or_default();
        *number = change(*number);
    }
}

impl CounterFn for Number {
    fn increment(&self, value: u64) {
        self.change(|number| number + f64::from(u32::try_from(value).unwrap()));
    }

    fn absolute(&self, _: u64) {}
}

impl GaugeFn for Number {
    fn increment(&self, value: f64) {
        self.change(|number| number + value);
    }

    fn decrement(&self, value: f64) {
        self.change(|number| number - value);
    }

    fn set(&self, value: f64) {
        self.change(|_| value);
    }
}

impl HistogramFn for Number {
    fn record(&self, _: f64) {
        self.change(|number| number + 1.0);
    }
}

impl Numbers {
    fn number(&self, key: &Key) -> Arc<Number> {
        let labels = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()));
        let labels: Vec<String> = labels.collect();
        Arc::new(Number {
            numbers: self.clone(),
            name: format!("{}{{{}}}", key.name(), labels.join(",")),
        })
    }

    fn get(&self, name: &str) -> f64 {
        let numbers = self.0.lock().unwrap();
        *numbers
            .get(name)
            .unwrap_or_else(|| panic!("{name} is not among {:?}", numbers.keys()))
    }
}

impl Recorder for Numbers {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.number(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.number(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.number(key))
    }
}

fn tenant(name: &str) -> TenantId {
    TenantId::try_from(name).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_worker_tells_what_it_did_with_bounded_labels() {
    let numbers = Numbers::default();
    let _recording = metrics::set_default_local_recorder(&numbers);
    let policy = WeightedFairnessPolicy::new(
        SchedulerShardId::try_from("shard").unwrap(),
        [("a", 2), ("b", 1), ("paused", 1)]
            .map(|(name, weight)| TenantFairnessWeight::new(tenant(name), weight).unwrap()),
    )
    .unwrap();
    let store = MemoryStore::new("2026-05-01T12:00:00Z".parse().unwrap());
    for (name, fails) in [("a", false), ("a", true), ("b", false), ("paused", false)] {
        let run = Task { fails }.new_run(tenant(name)).unwrap();
        store.enqueue(&run).await.unwrap();
    }
    let paused = LimitSubject::Tenant(tenant("paused"));
    store
        .set_limit(&PoolId::default(), &paused, Some(RunsMax::new(0).unwrap()))
        .await
        .unwrap();
    let worker = Worker::builder(store, policy)
        .concurrency(8)
        .on::<Task>(work)
        .build();
    // The paused tenant stays ready, so the worker has to be stopped.
    let report = worker
        .run_until(tokio::time::sleep(core::time::Duration::from_secs(40)))
        .await
        .unwrap();

    assert_eq!((report.completed, report.dead), (2, 1));
    for (name, expected) in [
        ("evenhand_claims_total{shard=shard,tenant=a}", 2.0),
        ("evenhand_claims_total{shard=shard,tenant=b}", 1.0),
        ("evenhand_queue_wait_seconds{tenant=a}", 2.0),
        ("evenhand_runs_ended_total{end=completed}", 2.0),
        ("evenhand_runs_ended_total{end=dead}", 1.0),
        ("evenhand_sequences_total{shard=shard,outcome=ran}", 3.0),
        ("evenhand_runs_running{}", 0.0),
        (
            "evenhand_selection_bound_sequences{shard=shard,tenant=paused}",
            4.0,
        ),
        ("evenhand_queue_age_seconds{shard=shard,tenant=a}", 0.0),
    ] {
        assert!((numbers.get(name) - expected).abs() < 0.001, "{name}");
    }
    let blocks = numbers.get("evenhand_reservations_total{shard=shard}");
    assert!((numbers.get("evenhand_block_sequences{shard=shard}") - blocks).abs() < 0.001);
    assert!(numbers.get("evenhand_unserved_selections{shard=shard,tenant=paused}") > 1.0);
    assert!(numbers.get("evenhand_sequences_total{shard=shard,outcome=contended}") > 1.0);
    let gap = numbers.get("evenhand_selection_gap_sequences{shard=shard,tenant=b}");
    let bound = numbers.get("evenhand_selection_bound_sequences{shard=shard,tenant=b}");
    assert!(0.0 < gap && gap <= bound, "{gap} {bound}");

    let names = numbers.0.lock().unwrap();
    let labels: BTreeSet<&str> = names
        .keys()
        .filter_map(|name| name.split_once('{'))
        .flat_map(|(_, labels)| labels.trim_end_matches('}').split(','))
        .filter(|label| !label.is_empty())
        .collect();
    let bounded = [
        "shard=shard",
        "tenant=a",
        "tenant=b",
        "tenant=paused",
        "outcome=ran",
        "outcome=idle",
        "outcome=contended",
        "end=completed",
        "end=dead",
    ];
    for label in labels {
        assert!(bounded.contains(&label), "{label}");
    }
}
