//! One sequence, one tenant, at most one run.

use core::time::Duration;

use std::sync::Arc;

use async_trait::async_trait;
use evenhand_policy::WeightedFairnessPolicy;
use evenhand_scheduler::{
    BoxError, DurableFairScheduler, Handlers, JobOutcome, QueueTenantScheduler, RunContext, RunEnd,
    RunReport, SchedulerOptions, Selection, TenantOutcome, TenantScheduler, TickOutcome,
};
use evenhand_store::{
    ReservationCount, ReservationId, ReservationStore, ReserveRequest, RunQueue, RunState,
    SchedulerFairnessRetentionPolicy, SequenceOutcome, StoreErrorKind,
};
use tokio_util::sync::CancellationToken;

use crate::store::{Fault, Task, TestStore, policy};

type QueueScheduler = DurableFairScheduler<TestStore, QueueTenantScheduler<TestStore>>;

async fn done(_: Task, _: RunContext) -> Result<JobOutcome, BoxError> {
    Ok(JobOutcome::Done)
}

async fn scheduler(store: &TestStore, policy: &WeightedFairnessPolicy) -> QueueScheduler {
    let queue = QueueTenantScheduler::new(store.clone(), Handlers::new().on::<Task>(done));
    let options = SchedulerOptions::default();
    DurableFairScheduler::register(store.clone(), policy.clone(), queue, options)
        .await
        .expect("registered")
}

#[tokio::test(start_paused = true)]
async fn slot_of_an_idle_tenant_is_consumed_and_not_given_away() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1), ("b", 1)]));
    let scheduler = scheduler(&store, &policy).await;
    let runs = store.add("b", 2).await;
    let cancel = CancellationToken::new();
    for sequence in 0..4 {
        let tick = scheduler
            .tick(&cancel)
            .await
            .expect("reserved")
            .expect("not cancelled");
        assert_eq!(tick.sequence(), sequence);
        assert_eq!(&tick.tenant, policy.tenant_for_sequence(sequence));
        assert_eq!(tick.bound.maximum_reservations_until_selection(), 2);
        assert_eq!(tick.retries, 0);
        match (tick.tenant.as_str(), tick.outcome) {
            ("a", TickOutcome::Idle) => {}
            ("b", TickOutcome::Ran(report)) => {
                assert_eq!(report.end, RunEnd::Completed);
                assert_eq!(report.run, Some(runs[usize::from(sequence == 3)]));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(store.consumed(&policy).await, 4);
}

#[tokio::test(start_paused = true)]
async fn cancelled_token_consumes_nothing() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let scheduler = scheduler(&store, &policy).await;
    store.add("a", 1).await;
    let cancel = CancellationToken::new();
    cancel.cancel();
    assert!(scheduler.tick(&cancel).await.expect("no error").is_none());
    let request = scheduler.mint_request();
    assert!(
        scheduler
            .settle(request, &cancel)
            .await
            .expect("no error")
            .is_none()
    );
    assert_eq!(store.consumed(&policy).await, 0);
    assert_eq!(store.count("reserve"), 0);
}

#[tokio::test(start_paused = true)]
async fn reservation_whose_reply_was_lost_is_asked_for_again_with_its_id() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let scheduler = scheduler(&store, &policy).await;
    store.inject("reserve", Fault::LoseReply, 2);
    let tick = scheduler
        .tick(&CancellationToken::new())
        .await
        .expect("reserved")
        .expect("ticked");
    assert_eq!((tick.sequence(), tick.retries), (0, 2));
    assert_eq!(store.consumed(&policy).await, 1);
}

#[tokio::test(start_paused = true)]
async fn unanswered_reservation_is_settled_by_another_process() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let first = scheduler(&store, &policy).await;
    let run = store.add("a", 2).await[0];
    store.inject("reserve", Fault::LoseReply, usize::MAX);
    let error = first
        .tick(&CancellationToken::new())
        .await
        .expect_err("never answered");
    assert_eq!(error.kind(), StoreErrorKind::OutcomeUnknown);
    assert_eq!(error.retries(), 10);
    assert!(error.may_have_reserved() && error.is_retryable());
    let written_down = error.request().id.to_string();
    drop(first);

    store.mend();
    let second = scheduler(&store, &policy).await;
    let id: ReservationId = written_down.parse().expect("an id");
    let request = ReserveRequest::new(&policy, id, ReservationCount::ONE);
    assert_eq!(&request, error.request());
    let cancel = CancellationToken::new();
    let tick = second
        .settle(request.clone(), &cancel)
        .await
        .expect("answered")
        .expect("ticked");
    assert_eq!(tick.sequence(), 0);
    assert!(matches!(tick.outcome, TickOutcome::Ran(report) if report.run == Some(run)));

    // Settled again, it is the same sequence, and the second run is left alone.
    let again = second
        .settle(request, &cancel)
        .await
        .expect("answered")
        .expect("ticked");
    assert_eq!(again.sequence(), 0);
    assert!(matches!(again.outcome, TickOutcome::Ran(report) if report.end == RunEnd::LeaseLost));
    assert_eq!(store.ran(&policy).await.len(), 1);
    assert_eq!(store.consumed(&policy).await, 1);
}

#[tokio::test(start_paused = true)]
async fn refused_reservation_consumes_nothing_and_is_not_repeated_for_ever() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let scheduler = scheduler(&store, &policy).await;
    let cancel = CancellationToken::new();
    store.inject("reserve", Fault::Refuse(StoreErrorKind::Unavailable), 11);
    let error = scheduler
        .tick(&cancel)
        .await
        .expect_err("refused eleven times");
    assert!(error.is_retryable() && !error.may_have_reserved());
    assert_eq!((store.count("reserve"), error.retries()), (11, 10));

    store.inject("reserve", Fault::Refuse(StoreErrorKind::Corrupt), 1);
    let error = scheduler.tick(&cancel).await.expect_err("refused for good");
    assert_eq!(
        (error.kind(), error.retries()),
        (StoreErrorKind::Corrupt, 0)
    );
    assert_eq!(store.consumed(&policy).await, 0);
}

#[tokio::test(start_paused = true)]
async fn cancellation_ends_the_retries_and_hands_the_request_back() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let scheduler = scheduler(&store, &policy).await;
    store.inject("reserve", Fault::LoseReply, usize::MAX);
    let cancel = CancellationToken::new();
    let stop = cancel.clone();
    let (ticked, ()) = tokio::join!(scheduler.tick(&cancel), async move {
        tokio::time::sleep(Duration::from_millis(1)).await;
        stop.cancel();
    });
    let error = ticked.expect_err("no answer");
    assert!(error.may_have_reserved() && error.retries() < 10);

    store.mend();
    let cancel = CancellationToken::new();
    let tick = scheduler
        .settle(error.into_request(), &cancel)
        .await
        .expect("answered");
    assert_eq!(tick.map(|tick| tick.sequence()), Some(0));
}

struct Broken;

#[async_trait]
impl TenantScheduler for Broken {
    async fn tick(
        &self,
        selection: &Selection,
        _: &CancellationToken,
    ) -> Result<TenantOutcome, BoxError> {
        match selection.tenant().as_str() {
            "fails" => Err("no such queue".into()),
            "panics" => panic!("no such thread"),
            _ => Ok(TenantOutcome::Ran(RunReport::new(RunEnd::Completed))),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tenant_that_fails_costs_its_own_sequence_only() {
    let (store, policy) = (
        TestStore::new(),
        policy(&[("fails", 1), ("panics", 1), ("works", 1)]),
    );
    let tenants: Arc<dyn TenantScheduler> = Arc::new(Broken);
    let scheduler = DurableFairScheduler::register(
        &store,
        policy.clone(),
        tenants,
        SchedulerOptions::default(),
    )
    .await
    .expect("registered");
    for sequence in 0..6 {
        let cancel = CancellationToken::new();
        let tick = scheduler
            .tick(&cancel)
            .await
            .expect("reserved")
            .expect("ticked");
        assert_eq!(tick.sequence(), sequence);
        let outcome = if let TickOutcome::Failed(error) = &tick.outcome {
            error.to_string()
        } else {
            tick.outcome.as_str().to_owned()
        };
        let expected = match tick.tenant.as_str() {
            "fails" => "no such queue",
            "panics" => "the tenant's tick panicked: no such thread",
            _ => "ran",
        };
        assert_eq!(outcome, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn claim_that_is_refused_for_good_is_on_record_as_failed() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let scheduler = scheduler(&store, &policy).await;
    let run = store.add("a", 1).await[0];
    store.inject("claim", Fault::Refuse(StoreErrorKind::Corrupt), 1);
    store.inject("record_failed", Fault::LoseReply, 1);
    let cancel = CancellationToken::new();
    let tick = scheduler
        .tick(&cancel)
        .await
        .expect("reserved")
        .expect("ticked");
    assert!(matches!(tick.outcome, TickOutcome::Failed(_)));
    assert_eq!(
        store.records(&policy).await[0].outcome,
        SequenceOutcome::Failed
    );
    // The run is still there for the next sequence.
    let tick = scheduler
        .tick(&cancel)
        .await
        .expect("reserved")
        .expect("ticked");
    assert!(matches!(tick.outcome, TickOutcome::Ran(report) if report.run == Some(run)));
}

#[tokio::test(start_paused = true)]
async fn claim_whose_reply_was_lost_gives_the_same_run() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let scheduler = scheduler(&store, &policy).await;
    let run = store.add("a", 2).await[0];
    store.inject("claim", Fault::LoseReply, 3);
    store.inject("complete", Fault::LoseReply, 3);
    let cancel = CancellationToken::new();
    let tick = scheduler
        .tick(&cancel)
        .await
        .expect("reserved")
        .expect("ticked");
    let TickOutcome::Ran(report) = tick.outcome else {
        panic!("{:?}", tick.outcome)
    };
    assert_eq!((report.run, report.end), (Some(run), RunEnd::Completed));
    assert_eq!(store.get(run).await.attempt, 1);
    assert_eq!(store.ran(&policy).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn request_for_another_shard_or_for_a_block_is_refused_unsent() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let scheduler = scheduler(&store, &policy).await;
    let mut elsewhere = scheduler.mint_request();
    elsewhere.shard = "elsewhere".parse().expect("a shard");
    let mut block = scheduler.mint_request();
    block.count = ReservationCount::new(2).expect("a count");
    for request in [elsewhere, block] {
        let cancel = CancellationToken::new();
        let error = scheduler
            .settle(request.clone(), &cancel)
            .await
            .expect_err("refused");
        assert_eq!(error.kind(), StoreErrorKind::Invalid);
        assert_eq!(error.into_request(), request);
    }
    assert_eq!(store.count("reserve"), 0);
}

#[tokio::test(start_paused = true)]
async fn other_policy_under_a_known_shard_is_refused_before_anything_is_claimed() {
    let store = TestStore::new();
    scheduler(&store, &policy(&[("a", 1)])).await;
    let options = SchedulerOptions::default();
    let other = policy(&[("a", 2)]);
    let error = DurableFairScheduler::register(&store, other, Broken, options)
        .await
        .expect_err("another policy");
    assert_eq!(error.kind(), StoreErrorKind::PolicyConflict);
    assert_eq!(error.to_string(), "cannot bind shard shard to pool default");
}

#[tokio::test(start_paused = true)]
async fn registration_survives_an_outage() {
    let store = TestStore::new();
    store.inject(
        "register_policy",
        Fault::Refuse(StoreErrorKind::Unavailable),
        3,
    );
    store.inject("register_policy", Fault::LoseReply, 3);
    scheduler(&store, &policy(&[("a", 1)])).await;
    assert_eq!(store.count("register_policy"), 7);
}

#[tokio::test(start_paused = true)]
async fn inline_tick_keeps_the_lease_of_a_long_run() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let slow = |_: Task, _: RunContext| async {
        tokio::time::sleep(Duration::from_secs(100)).await;
        Ok::<_, BoxError>(JobOutcome::Done)
    };
    let queue = QueueTenantScheduler::new(store.clone(), Handlers::new().on::<Task>(slow));
    let options = SchedulerOptions::default();
    let scheduler = DurableFairScheduler::register(&store, policy.clone(), queue, options)
        .await
        .expect("registered");
    let run = store.add("a", 1).await[0];
    scheduler
        .tick(&CancellationToken::new())
        .await
        .expect("reserved")
        .expect("ticked");
    assert_eq!(store.get(run).await.state, RunState::Done);
    assert!(store.count("renew") >= 9);
}

#[tokio::test(start_paused = true)]
async fn id_that_was_refused_for_its_time_is_not_minted_twice() {
    let (policy, hour) = (policy(&[("a", 1)]), Duration::from_hours(1));
    let model = TestStore::new().model;
    let scheduler =
        DurableFairScheduler::register(&model, policy.clone(), Broken, SchedulerOptions::default())
            .await
            .expect("registered");
    let cancel = CancellationToken::new();
    let earlier = model.clock().checked_sub(hour).expect("in range");
    model.set_clock(earlier);
    let error = scheduler
        .tick(&cancel)
        .await
        .expect_err("an hour ahead of the store");
    assert_eq!(error.kind(), StoreErrorKind::ClockSkew);
    for sequence in 0..3 {
        let tick = scheduler
            .tick(&cancel)
            .await
            .expect("reserved")
            .expect("ticked");
        assert_eq!(tick.sequence(), sequence);
        // A clock that steps back behind what is reserved stops nobody.
        model.set_clock(model.clock().checked_sub(hour).expect("in range"));
    }
    let cursor = model.cursor(policy.shard()).await.expect("registered");
    assert_eq!(cursor.next_sequence, Some(3));
}

#[tokio::test(start_paused = true)]
async fn clock_behind_what_was_pruned_stops_nobody() {
    let (policy, hour) = (policy(&[("a", 1)]), Duration::from_hours(1));
    let model = TestStore::new().model;
    let register = || {
        let options = SchedulerOptions::default();
        DurableFairScheduler::register(model.clone(), policy.clone(), Broken, options)
    };
    let cancel = CancellationToken::new();
    for _ in 0..2 {
        // Each is a process of its own, which learns of the clock by registering.
        let scheduler = register().await.expect("registered");
        scheduler
            .tick(&cancel)
            .await
            .expect("reserved")
            .expect("ticked");
        model.advance(3 * hour);
    }
    let retention = SchedulerFairnessRetentionPolicy::new(hour, 10).expect("a retention policy");
    let pruned = model
        .prune_scheduler_fairness_reservations(retention)
        .await
        .expect("pruned");
    assert_eq!(pruned.deleted, 1);

    model.set_clock(model.clock().checked_sub(24 * hour).expect("in range"));
    let scheduler = register().await.expect("registered");
    let error = scheduler
        .tick(&cancel)
        .await
        .expect_err("an id of a day before");
    assert_eq!(error.kind(), StoreErrorKind::Expired);
    for sequence in 2..5 {
        let tick = scheduler
            .tick(&cancel)
            .await
            .expect("reserved")
            .expect("ticked");
        assert_eq!(tick.sequence(), sequence);
    }
}

#[tokio::test(start_paused = true)]
async fn claim_of_a_process_that_died_is_taken_over_with_what_is_left_of_its_lease() {
    let (store, policy) = (TestStore::new(), policy(&[("a", 1)]));
    let slow = |_: Task, _: RunContext| async {
        tokio::time::sleep(Duration::from_secs(100)).await;
        Ok::<_, BoxError>(JobOutcome::Done)
    };
    let register = || {
        let queue = QueueTenantScheduler::new(store.clone(), Handlers::new().on::<Task>(slow));
        let options = SchedulerOptions::default();
        DurableFairScheduler::register(store.clone(), policy.clone(), queue, options)
    };
    let cancel = CancellationToken::new();
    let run = store.add("a", 1).await[0];
    let first = register().await.expect("registered");
    let request = first.mint_request();
    let cut = tokio::time::timeout(
        Duration::from_millis(1),
        first.settle(request.clone(), &cancel),
    )
    .await;
    assert!(cut.is_err(), "it was still at work");

    // Five seconds before the lease ends, another process takes over, while a third one recovers what expires.
    tokio::time::advance(Duration::from_secs(25)).await;
    let second = register().await.expect("registered");
    let recover = async {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            store.recover(10).await.expect("answered");
        }
    };
    let tick = tokio::select! {
        ticked = second.settle(request, &cancel) => ticked.expect("answered").expect("ticked"),
        () = recover => unreachable!(),
    };
    assert!(
        matches!(tick.outcome, TickOutcome::Ran(report) if report.end == RunEnd::Completed),
        "{:?}",
        tick.outcome
    );
    assert_eq!(store.get(run).await.attempt, 1);
}
