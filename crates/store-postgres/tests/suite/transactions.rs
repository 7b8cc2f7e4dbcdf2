//! The caller's own transactions, and calls that are dropped.

use core::time::Duration;

use evenhand_store::{NewRun, ReservationStore, RunQueue, RunState, StoreErrorKind};
use evenhand_store_postgres::{CompletedIn, ConnectOptions, EnqueuedIn, PostgresStore, Transport};
use sqlx::Connection as _;

use crate::scene::{Scene, execute, kind, number, run, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn a_run_enqueued_in_a_transaction_lives_and_dies_with_it() {
    let scene = Scene::start().await;
    let mut connection = scene.database.connect().await;
    let mut transaction = connection.begin().await.unwrap();
    let EnqueuedIn::Created(id) = PostgresStore::enqueue_in(&mut transaction, &run("a"))
        .await
        .unwrap()
    else {
        panic!("a run without a key is always new")
    };
    assert_eq!(scene.store.run(id).await.unwrap(), None);
    transaction.rollback().await.unwrap();
    assert_eq!(scene.store.run(id).await.unwrap(), None);

    let mut transaction = connection.begin().await.unwrap();
    let EnqueuedIn::Created(id) = PostgresStore::enqueue_in(&mut transaction, &run("a"))
        .await
        .unwrap()
    else {
        panic!("a run without a key is always new")
    };
    transaction.commit().await.unwrap();
    assert_eq!(
        scene.store.run(id).await.unwrap().unwrap().state,
        RunState::Queued
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_known_does_not_end_the_transaction() {
    let scene = Scene::start().await;
    let keyed = |tenant: &str| -> NewRun {
        let mut run = run(tenant);
        run.idempotency_key = Some("key-1".parse().unwrap());
        run
    };
    let first = scene.store.enqueue(&keyed("a")).await.unwrap().run;
    let mut connection = scene.database.connect().await;
    let mut transaction = connection.begin().await.unwrap();
    execute(&mut transaction, "CREATE TABLE public.work (done int)").await;
    assert_eq!(
        PostgresStore::enqueue_in(&mut transaction, &keyed("a"))
            .await
            .unwrap(),
        EnqueuedIn::Known(first)
    );
    assert_eq!(
        PostgresStore::enqueue_in(&mut transaction, &keyed("b"))
            .await
            .unwrap(),
        EnqueuedIn::Conflict(first)
    );
    transaction.commit().await.unwrap();
    assert_eq!(scene.number("SELECT count(*) FROM public.work").await, 0);
    assert_eq!(
        kind(scene.store.enqueue(&keyed("b")).await),
        StoreErrorKind::RunConflict
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_a_long_transaction_holds_keeps_no_other_from_being_completed() {
    let scene = Scene::start().await;
    let leases = [
        scene.claimed("a").await.lease,
        scene.claimed("a").await.lease,
        scene.claimed("a").await.lease,
    ];
    let mut connection = scene.database.connect().await;
    let mut holding = connection.begin().await.unwrap();
    PostgresStore::complete_in(&mut holding, &leases[1])
        .await
        .unwrap();

    let answers = scene.store.complete_many(&leases).await.unwrap();
    let kinds: Vec<_> = answers
        .into_iter()
        .map(|answer| answer.err().map(|error| error.kind()))
        .collect();
    assert_eq!(kinds, [None, Some(StoreErrorKind::Unavailable), None]);

    holding.commit().await.unwrap();
    let again = scene.store.complete_many(&leases[1..]).await.unwrap();
    assert!(again.iter().all(Result::is_ok), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_commits_with_what_the_run_wrote() {
    let scene = Scene::start().await;
    scene.sql("CREATE TABLE public.work (done int)").await;
    let claimed = scene.claimed("a").await;
    let mut connection = scene.database.connect().await;

    let mut transaction = connection.begin().await.unwrap();
    execute(&mut transaction, "INSERT INTO public.work VALUES (1)").await;
    let completed = PostgresStore::complete_in(&mut transaction, &claimed.lease)
        .await
        .unwrap();
    assert_eq!(completed, CompletedIn::Completed);
    transaction.rollback().await.unwrap();
    assert_eq!(
        scene
            .store
            .run(claimed.run.id)
            .await
            .unwrap()
            .unwrap()
            .state,
        RunState::Running
    );

    let mut transaction = connection.begin().await.unwrap();
    execute(&mut transaction, "INSERT INTO public.work VALUES (1)").await;
    PostgresStore::complete_in(&mut transaction, &claimed.lease)
        .await
        .unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(
        scene
            .store
            .run(claimed.run.id)
            .await
            .unwrap()
            .unwrap()
            .state,
        RunState::Done
    );
    // The worker's own completion, afterwards.
    scene.store.complete(&claimed.lease).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_lease_does_not_end_the_transaction() {
    let scene = Scene::start().await;
    let claimed = scene.claimed("a").await;
    scene
        .store
        .release(&claimed.lease, Duration::ZERO)
        .await
        .unwrap();
    let mut connection = scene.database.connect().await;
    let mut transaction = connection.begin().await.unwrap();
    let completed = PostgresStore::complete_in(&mut transaction, &claimed.lease)
        .await
        .unwrap();
    assert_eq!(completed, CompletedIn::LeaseLost);
    assert_eq!(number(&mut transaction, "SELECT 1::bigint").await, 1);
    transaction.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_call_leaves_no_lock_and_no_transaction() {
    for transport in [Transport::Direct, Transport::TransactionPooler] {
        let scene = Scene::start().await;
        let options = ConnectOptions::parse(&scene.database.url())
            .unwrap()
            .transport(transport)
            .connections_max(2);
        let store = PostgresStore::connect(options).await.unwrap();
        // Somebody holds the shard, so that the call surely waits inside the server when it is dropped.
        let mut holder = scene.database.connect().await;
        let mut holding = holder.begin().await.unwrap();
        execute(&mut holding, "SELECT FROM evenhand.shards FOR UPDATE").await;
        let request = scene.request(1);
        let call = tokio::spawn({
            let (store, request) = (store.clone(), request.clone());
            async move { store.reserve(&request).await }
        });
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()";
        wait_until("the call waits for the lock", async || {
            scene.number(waiting).await == 1
        })
        .await;
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        holding.rollback().await.unwrap();
        // What the server still finishes, or not, is decided before the next call with this id is answered.
        let answer = store.reserve(&request).await.unwrap();
        assert_eq!(answer.first_sequence, 0);
        let open = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
                    AND state <> 'idle'";
        wait_until("no transaction is open", async || {
            scene.number(open).await == 0
        })
        .await;
        assert_eq!(
            scene
                .number("SELECT count(*) FROM evenhand.reservations")
                .await,
            1
        );
    }
}
