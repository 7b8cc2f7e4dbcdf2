//! What a worker tells through the metrics facade.

use core::time::Duration;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use evenhand_policy::{PoolId, WeightedFairnessPolicy};
use evenhand_scheduler::{
    Backoff, BoxError, Job, JobOutcome, RunContext, Worker, WorkerBuilder, WorkerReport,
};
use evenhand_store::{
    LimitSubject, PolicyRegistration, ReservationStore, RunQueue, RunTimeout, RunsMax,
    StoreErrorKind,
};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use tokio::time::sleep;

use crate::store::{Fault, Task, TestStore, policy, policy_of, run_of};

/// The job that its handler gives up.
#[derive(serde::Serialize, serde::Deserialize)]
struct Hopeless;

impl Job for Hopeless {
    const KIND: &'static str = "hopeless";
}

async fn done(_: Task, _: RunContext) -> Result<JobOutcome, BoxError> {
    Ok(JobOutcome::Done)
}

async fn forever(_: Task, _: RunContext) -> Result<JobOutcome, BoxError> {
    core::future::pending().await
}

async fn give_up(_: Hopeless, _: RunContext) -> Result<JobOutcome, BoxError> {
    Ok(JobOutcome::GiveUp("asked to".to_owned()))
}

/// Keeps every number by name and labels, as `name{label=value,...}`; of a histogram how often it was recorded,
/// and what was, as `sum of name{label=value,...}`.
#[derive(Clone, Default)]
struct Numbers {
    numbers: Arc<Mutex<BTreeMap<String, f64>>>,
    described: Arc<Mutex<BTreeSet<(String, &'static str)>>>,
}

struct Number {
    numbers: Numbers,
    name: String,
}

impl Number {
    fn change(&self, change: impl Fn(f64) -> f64) {
        let mut numbers = self.numbers.numbers.lock().expect("no panic");
        let number = numbers.entry(self.name.clone()).or_default();
        *number = change(*number);
    }
}

impl CounterFn for Number {
    fn increment(&self, value: u64) {
        self.change(|number| number + f64::from(u32::try_from(value).expect("a small count")));
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
    fn record(&self, value: f64) {
        self.change(|number| number + 1.0);
        let sum = Number {
            numbers: self.numbers.clone(),
            name: format!("sum of {}", self.name),
        };
        sum.change(|number| number + value);
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
        self.find(name)
            .unwrap_or_else(|| panic!("{name} was never told"))
    }

    fn find(&self, name: &str) -> Option<f64> {
        self.numbers.lock().expect("no panic").get(name).copied()
    }

    fn expect(&self, expected: &[(&str, f64)]) {
        for (name, expected) in expected {
            let found = self.get(name);
            assert!((found - expected).abs() < 0.001, "{name}: {found}");
        }
    }

    /// All labels that were used, with their values.
    fn labels(&self) -> BTreeSet<String> {
        let numbers = self.numbers.lock().expect("no panic");
        let labels = numbers.keys().filter_map(|name| name.split_once('{'));
        labels
            .flat_map(|(_, labels)| labels.trim_end_matches('}').split(','))
            .filter(|label| !label.is_empty())
            .map(str::to_owned)
            .collect()
    }

    fn describe(&self, name: &KeyName, unit: Option<Unit>, kind: &'static str) {
        assert!(unit.is_some(), "{name:?} has no unit");
        let name = name.as_str().to_owned();
        self.described
            .lock()
            .expect("no panic")
            .insert((name, kind));
    }
}

impl Recorder for Numbers {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&name, unit, "counter");
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&name, unit, "gauge");
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
        self.describe(&name, unit, "histogram");
    }

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

fn worker(store: &TestStore, policy: &WeightedFairnessPolicy) -> WorkerBuilder<TestStore> {
    Worker::builder(store.clone(), policy.clone())
        .on::<Task>(done)
        .on::<Hopeless>(give_up)
}

async fn run_for(worker: WorkerBuilder<TestStore>, time: Duration) -> WorkerReport {
    let run = worker.build().run_until(sleep(time)).await;
    run.expect("ended well")
}

async fn limit(store: &TestStore, tenant: &str, runs: Option<u32>) {
    let subject = LimitSubject::Tenant(tenant.parse().expect("a tenant"));
    let runs_max = runs.map(|runs| RunsMax::new(runs).expect("a limit"));
    let pool = PoolId::default();
    let limited = store.set_limit(&pool, &subject, runs_max).await;
    limited.expect("limited");
}

#[tokio::test(start_paused = true)]
async fn rounds_and_ends_are_told_as_the_report_counts_them() {
    let numbers = Numbers::default();
    let _recording = metrics::set_default_local_recorder(&numbers);
    let policy = policy(&[("a", 2), ("b", 1), ("paused", 1), ("quiet", 1)]);
    let store = TestStore::new();
    store.add("a", 2).await;
    store.add("b", 1).await;
    store.add("paused", 1).await;
    let hopeless = Hopeless.new_run("a".parse().expect("a tenant"));
    store.add_all(&[hopeless.expect("a run")]).await;
    limit(&store, "paused", Some(0)).await;
    let report = run_for(
        worker(&store, &policy).concurrency(8),
        Duration::from_secs(40),
    )
    .await;

    assert_eq!((report.completed, report.dead), (3, 1));
    numbers.expect(&[
        ("evenhand_claims_total{shard=shard,tenant=a}", 3.0),
        ("evenhand_claims_total{shard=shard,tenant=b}", 1.0),
        ("evenhand_queue_wait_seconds{tenant=a}", 3.0),
        ("evenhand_runs_ended_total{kind=task,end=completed}", 3.0),
        ("evenhand_runs_ended_total{kind=hopeless,end=dead}", 1.0),
        ("evenhand_handler_seconds{kind=task,outcome=complete}", 3.0),
        ("evenhand_handler_seconds{kind=hopeless,outcome=fail}", 1.0),
        ("evenhand_runs_running{}", 0.0),
        (
            "evenhand_selection_bound_sequences{shard=shard,tenant=quiet}",
            5.0,
        ),
        ("evenhand_queue_age_seconds{shard=shard,tenant=a}", 0.0),
        ("evenhand_unserved_selections{shard=shard,tenant=a}", 0.0),
        (
            "evenhand_unserved_selections{shard=shard,tenant=quiet}",
            0.0,
        ),
    ]);
    let sequences = report.sequences;
    for (name, counted) in [
        ("evenhand_reservations_total{shard=shard}", report.blocks),
        ("evenhand_block_sequences{shard=shard}", report.blocks),
        (
            "evenhand_sequences_total{shard=shard,outcome=ran}",
            sequences.ran,
        ),
        (
            "evenhand_sequences_total{shard=shard,outcome=idle}",
            sequences.idle,
        ),
        (
            "evenhand_sequences_total{shard=shard,outcome=contended}",
            sequences.contended,
        ),
        // Only the paused tenant was ever ready and not served.
        (
            "evenhand_unserved_selections{shard=shard,tenant=paused}",
            sequences.contended,
        ),
    ] {
        assert!(counted > 1, "{name}: {report:?}");
        numbers.expect(&[(
            name,
            f64::from(u32::try_from(counted).expect("a small count")),
        )]);
    }
    // The newest health pass is at most 22.5 seconds old.
    for name in ["evenhand_queue_age_seconds", "evenhand_service_lag_seconds"] {
        let paused = numbers.get(&format!("{name}{{shard=shard,tenant=paused}}"));
        assert!((7.0..=41.0).contains(&paused), "{name}: {paused}");
    }
    assert!(numbers.get("evenhand_oldest_evidence_seconds{shard=shard}") > 7.0);
    // The model knows of no snapshots, and what nobody can tell is no number.
    assert!(numbers.get("evenhand_oldest_snapshot_seconds{}").is_nan());
    for tenant in ["a", "b", "paused", "quiet"] {
        let [gap, bound] = ["gap", "bound"].map(|what| {
            numbers.get(&format!(
                "evenhand_selection_{what}_sequences{{shard=shard,tenant={tenant}}}"
            ))
        });
        assert!(0.0 < gap && gap <= bound, "{tenant}: {gap} {bound}");
    }
    let bounded = "shard=shard tenant=a tenant=b tenant=paused tenant=quiet \
                   outcome=ran outcome=idle outcome=contended end=completed end=dead \
                   kind=task kind=hopeless outcome=complete outcome=fail";
    let bounded = bounded.split(' ').map(str::to_owned).collect();
    assert_eq!(numbers.labels(), bounded);
}

#[tokio::test(start_paused = true)]
async fn age_of_the_oldest_snapshot_is_told_until_it_is_hidden() {
    let numbers = Numbers::default();
    let _recording = metrics::set_default_local_recorder(&numbers);
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    // Each is told by the next health pass, which is due every 7.5 to 22.5 seconds.
    let telling = async {
        for age in [90_500, 0] {
            store.tell_snapshot_age(Some(Duration::from_millis(age)));
            sleep(Duration::from_secs(23)).await;
            let told = Duration::from_millis(age).as_secs_f64();
            numbers.expect(&[("evenhand_oldest_snapshot_seconds{}", told)]);
        }
        store.tell_snapshot_age(None);
    };
    let watching = run_for(worker(&store, &policy), Duration::from_secs(70));
    tokio::join!(watching, telling);
    assert!(numbers.get("evenhand_oldest_snapshot_seconds{}").is_nan());
}

#[tokio::test(start_paused = true)]
async fn handlers_are_timed_by_kind_and_outcome_and_kinds_without_one_are_told_as_one() {
    async fn seven_seconds(_: Task, _: RunContext) -> Result<JobOutcome, BoxError> {
        sleep(Duration::from_secs(7)).await;
        Ok(JobOutcome::Done)
    }
    let numbers = Numbers::default();
    let _recording = metrics::set_default_local_recorder(&numbers);
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 2).await;
    let mut short = run_of("a", 9);
    short.timeout = RunTimeout::new(Duration::from_secs(3)).expect("a timeout");
    let strays = ["stray-1", "stray-2", "stray-3"].map(|kind| {
        let mut stray = run_of("a", 0);
        stray.kind = kind.parse().expect("a kind");
        stray
    });
    store.add_all(&[short]).await;
    store.add_all(&strays).await;
    let worker = Worker::builder(store.clone(), policy).on::<Task>(seven_seconds);
    // It ends before the one that failed is ready again.
    let report = worker
        .backoff(Backoff::new(
            Duration::from_mins(1),
            Duration::from_hours(1),
        ))
        .build()
        .run_until_idle()
        .await
        .expect("ended well");
    assert_eq!(
        (report.completed, report.failed, report.released),
        (2, 1, 3)
    );
    let [complete, fail] = ["complete", "fail"]
        .map(|outcome| format!("evenhand_handler_seconds{{kind=task,outcome={outcome}}}"));
    numbers.expect(&[
        (&complete, 2.0),
        (&format!("sum of {complete}"), 14.0),
        (&fail, 1.0),
        (&format!("sum of {fail}"), 3.0),
        ("evenhand_runs_ended_total{kind=task,end=completed}", 2.0),
        ("evenhand_runs_ended_total{kind=task,end=requeued}", 1.0),
        ("evenhand_runs_ended_total{kind=other,end=released}", 3.0),
    ]);
    let kinds = numbers.labels();
    let kinds: Vec<_> = kinds
        .iter()
        .filter(|label| label.starts_with("kind="))
        .collect();
    assert_eq!(kinds, ["kind=other", "kind=task"]);
}

#[tokio::test(start_paused = true)]
async fn lost_lease_is_told_with_the_time_that_its_handler_had() {
    let numbers = Numbers::default();
    let _recording = metrics::set_default_local_recorder(&numbers);
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 1).await;
    store.inject("renew", Fault::Hang, usize::MAX);
    let stuck = Worker::builder(store.clone(), policy).on::<Task>(forever);
    run_for(stuck, Duration::from_secs(29)).await;
    let lost = "evenhand_handler_seconds{kind=task,outcome=lease_lost}";
    numbers.expect(&[
        ("evenhand_runs_ended_total{kind=task,end=lease_lost}", 1.0),
        (lost, 1.0),
    ]);
    let seconds = numbers.get(&format!("sum of {lost}"));
    assert!((20.0..30.0).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn selections_that_did_not_serve_are_forgotten_when_one_does() {
    let numbers = Numbers::default();
    let _recording = metrics::set_default_local_recorder(&numbers);
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 1).await;
    limit(&store, "a", Some(0)).await;
    let change = async {
        sleep(Duration::from_secs(30)).await;
        assert!(numbers.get("evenhand_unserved_selections{shard=shard,tenant=a}") > 1.0);
        assert!(numbers.get("evenhand_service_lag_seconds{shard=shard,tenant=a}") > 7.0);
        limit(&store, "a", None).await;
    };
    let worker = run_for(worker(&store, &policy), Duration::from_mins(1));
    let (report, ()) = tokio::join!(worker, change);
    assert_eq!(report.completed, 1);
    numbers.expect(&[
        ("evenhand_unserved_selections{shard=shard,tenant=a}", 0.0),
        ("evenhand_service_lag_seconds{shard=shard,tenant=a}", 0.0),
    ]);
}

#[tokio::test(start_paused = true)]
async fn selections_with_blocks_of_others_between_them_are_no_gap() {
    let numbers = Numbers::default();
    let _recording = metrics::set_default_local_recorder(&numbers);
    // The cycle is a a b a. This worker reserves the first two slots of each, and others the rest.
    let (store, policy) = (
        TestStore::new().with_deserters(),
        policy(&[("a", 3), ("b", 1)]),
    );
    store.add("a", 20).await;
    let only_own = worker(&store, &policy).concurrency(2).lost_blocks(false);
    let report = run_for(only_own, Duration::from_mins(1)).await;
    assert_eq!(report.completed, 20);
    numbers.expect(&[(
        "evenhand_selection_gap_sequences{shard=shard,tenant=a}",
        1.0,
    )]);
}

#[tokio::test(start_paused = true)]
async fn worker_that_is_dropped_leaves_nothing_running_and_its_leases_are_told_as_recovered() {
    let numbers = Numbers::default();
    let _recording = metrics::set_default_local_recorder(&numbers);
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 2).await;
    let stuck = Worker::builder(store.clone(), policy.clone()).on::<Task>(forever);
    let running = stuck.build();
    let two_run = async {
        sleep(Duration::from_secs(1)).await;
        numbers.expect(&[("evenhand_runs_running{}", 2.0)]);
    };
    tokio::select! {
        _ = running.run_until_idle() => unreachable!("its handlers never end"),
        () = two_run => {}
    }
    numbers.expect(&[("evenhand_runs_running{}", 0.0)]);
    run_for(worker(&store, &policy), Duration::from_mins(1)).await;
    numbers.expect(&[
        ("evenhand_leases_recovered_total{outcome=requeued}", 2.0),
        ("evenhand_runs_ended_total{kind=task,end=completed}", 2.0),
        ("evenhand_runs_running{}", 0.0),
    ]);
}

#[tokio::test(start_paused = true)]
async fn lost_block_is_told_by_the_one_who_settles_it() {
    let numbers = Numbers::default();
    let _recording = metrics::set_default_local_recorder(&numbers);
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 1).await;
    store.inject("claim_round", Fault::Hang, 1);
    let dying = worker(&store, &policy).build();
    let cut = tokio::time::timeout(Duration::from_secs(1), dying.run_until_idle()).await;
    assert!(cut.is_err());
    let report = run_for(worker(&store, &policy), Duration::from_mins(2)).await;
    assert_eq!((report.blocks, report.blocks_settled), (1, 1));
    numbers.expect(&[
        ("evenhand_lost_blocks_total{shard=shard}", 1.0),
        ("evenhand_reservations_total{shard=shard}", 1.0),
    ]);
}

#[tokio::test(start_paused = true)]
async fn block_whose_claim_fails_is_told_as_reserved_and_unknown() {
    let numbers = Numbers::default();
    let _recording = metrics::set_default_local_recorder(&numbers);
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 1).await;
    store.inject("claim_round", Fault::Panic, 1);
    store.inject("claim_round", Fault::Refuse(StoreErrorKind::Unavailable), 2);
    store.inject("claim_round", Fault::Refuse(StoreErrorKind::Corrupt), 1);
    let report = run_for(
        worker(&store, &policy).concurrency(1),
        Duration::from_secs(20),
    )
    .await;
    assert_eq!((report.sequences.unknown, report.completed), (2, 1));
    numbers.expect(&[
        ("evenhand_call_retries_total{call=claim}", 2.0),
        // What panicked may have been reserved, and nobody knows.
        ("evenhand_reservations_total{shard=shard}", 2.0),
        ("evenhand_sequences_total{shard=shard,outcome=unknown}", 2.0),
        ("evenhand_sequences_total{shard=shard,outcome=ran}", 1.0),
    ]);
}

#[tokio::test(start_paused = true)]
async fn pruned_rows_are_told_by_what_they_were() {
    let numbers = Numbers::default();
    let _recording = metrics::set_default_local_recorder(&numbers);
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    store.add("a", 3).await;
    let hopeless = Hopeless.new_run("a".parse().expect("a tenant"));
    store.add_all(&[hopeless.expect("a run")]).await;
    let worked = worker(&store, &policy).concurrency(1).build();
    worked.run_until_idle().await.expect("ended well");
    tokio::time::advance(Duration::from_hours(31 * 24)).await;
    run_for(worker(&store, &policy), Duration::from_mins(5)).await;
    numbers.expect(&[
        // The newest one stays.
        ("evenhand_pruned_rows_total{what=reservations}", 3.0),
        ("evenhand_pruned_rows_total{what=outcomes}", 3.0),
        ("evenhand_pruned_rows_total{what=attempts}", 3.0),
        ("evenhand_pruned_rows_total{what=finished}", 3.0),
        ("evenhand_pruned_rows_total{what=dead}", 1.0),
    ]);
}

#[tokio::test(start_paused = true)]
async fn shard_that_was_left_is_told_to_keep_nobody_waiting() {
    let numbers = Numbers::default();
    let _recording = metrics::set_default_local_recorder(&numbers);
    let store = TestStore::new();
    let [old, new] = [
        policy_of("v1", &[("a", 1), ("paused", 7)]),
        policy_of("v2", &[("a", 1), ("paused", 1)]),
    ];
    store.add("paused", 1).await;
    limit(&store, "paused", Some(0)).await;
    let registration = PolicyRegistration::new(new.clone());
    let change = async {
        sleep(Duration::from_mins(1)).await;
        assert!(numbers.get("evenhand_queue_age_seconds{shard=v1,tenant=paused}") > 30.0);
        assert!(numbers.get("evenhand_unserved_selections{shard=v1,tenant=paused}") > 1.0);
        store
            .register_policy(&registration)
            .await
            .expect("registered");
        store
            .retire(old.shard(), new.shard())
            .await
            .expect("retired");
    };
    let (_, ()) = tokio::join!(
        run_for(worker(&store, &old), Duration::from_mins(2)),
        change
    );
    numbers.expect(&[
        ("evenhand_queue_age_seconds{shard=v1,tenant=paused}", 0.0),
        ("evenhand_service_lag_seconds{shard=v1,tenant=paused}", 0.0),
        ("evenhand_unserved_selections{shard=v1,tenant=paused}", 0.0),
        ("evenhand_oldest_evidence_seconds{shard=v1}", 0.0),
        ("evenhand_selection_bound_sequences{shard=v1,tenant=a}", 8.0),
        ("evenhand_selection_bound_sequences{shard=v2,tenant=a}", 2.0),
        // A gap that was seen in the old order says nothing about the new one.
        ("evenhand_selection_gap_sequences{shard=v2,tenant=a}", 2.0),
    ]);
    assert!(numbers.get("evenhand_queue_age_seconds{shard=v2,tenant=paused}") > 90.0);
}

#[tokio::test(start_paused = true)]
async fn runs_that_nobody_serves_are_told_until_somebody_does() {
    let numbers = Numbers::default();
    let _recording = metrics::set_default_local_recorder(&numbers);
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let stranger = store.add("stranger", 1).await[0];
    let name = "evenhand_unserved_runs{pool=default}";
    let change = async {
        sleep(Duration::from_mins(3)).await;
        numbers.expect(&[(name, 1.0)]);
        store.cancel(stranger).await.expect("cancelled");
    };
    let (_, ()) = tokio::join!(
        run_for(worker(&store, &policy), Duration::from_mins(6)),
        change
    );
    numbers.expect(&[(name, 0.0)]);
    assert!(!numbers.labels().contains("tenant=stranger"));
}

#[tokio::test(start_paused = true)]
async fn health_is_asked_for_every_15_seconds_unless_it_is_off_or_not_offered() {
    let evidence = "evenhand_oldest_evidence_seconds{shard=shard}";
    for (on, fault, expected) in [
        (true, None, 6..=24),
        (false, None, 0..=0),
        (true, Some(StoreErrorKind::Unavailable), 6..=24),
        (true, Some(StoreErrorKind::Unsupported), 1..=1),
    ] {
        let numbers = Numbers::default();
        let _recording = metrics::set_default_local_recorder(&numbers);
        let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
        if let Some(kind) = fault {
            store.inject("health", Fault::Refuse(kind), usize::MAX);
        }
        run_for(worker(&store, &policy).health(on), Duration::from_mins(3)).await;
        let passes = store.count("health");
        assert!(expected.contains(&passes), "{passes} with {fault:?}");
        assert_eq!(numbers.find(evidence).is_some(), on && fault.is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn manual_lists_exactly_what_is_told() {
    let numbers = Numbers::default();
    let _recording = metrics::set_default_local_recorder(&numbers);
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    run_for(worker(&store, &policy), Duration::from_secs(1)).await;
    let manual = include_str!("../../../../docs/operations.md");
    let rows = manual
        .lines()
        .filter(|line| line.starts_with("| `evenhand_"));
    let listed: BTreeSet<(String, String)> = rows
        .map(|row| {
            let mut cells = row.split('|').map(str::trim).skip(1);
            let mut cell = || cells.next().expect("a cell").trim_matches('`').to_owned();
            (cell(), cell())
        })
        .collect();
    let described = numbers.described.lock().expect("no panic");
    let described = described
        .iter()
        .map(|(name, kind)| (name.clone(), (*kind).to_owned()));
    assert_eq!(described.collect::<BTreeSet<_>>(), listed);
}
