//! Callers of one process that reserve at the same time share a transaction, and nothing else.

use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};

use std::collections::BTreeSet;

use evenhand_policy::WeightedFairnessPolicy;
use evenhand_store::{PolicyRegistration, ReservationStore, ReserveRequest, StoreErrorKind};
use futures::future::join_all;
use sqlx::{Connection as _, PgConnection};

use crate::scene::{Scene, execute, kind, policy, request, wait_until};

/// Holds the shard's row until it is dropped or committed, so that whoever reserves has to wait.
const HOLD_SHARD: &str = "BEGIN; SELECT FROM evenhand.shards FOR UPDATE";

/// How many backends wait for a lock in this database.
const BACKENDS_WAITING: &str = "SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'";

#[tokio::test(flavor = "multi_thread")]
async fn callers_that_come_while_a_call_is_under_way_share_the_next_transaction() {
    let scene = Scene::start().await;
    let mut holder = scene.database.connect().await;
    execute(&mut holder, HOLD_SHARD).await;
    let requests: Vec<ReserveRequest> = (0..60).map(|n| scene.request(1 + n % 3)).collect();
    let calls: Vec<_> = requests
        .iter()
        .cloned()
        .map(|request| {
            let store = scene.store.clone();
            tokio::spawn(async move { store.reserve(&request).await })
        })
        .collect();
    wait_until("the first call waits for the shard", async || {
        scene.number(BACKENDS_WAITING).await > 0
    })
    .await;
    assert_eq!(scene.number(BACKENDS_WAITING).await, 1);
    execute(&mut holder, "COMMIT").await;

    let mut taken = Vec::new();
    for (call, request) in calls.into_iter().zip(&requests) {
        let reservation = call.await.unwrap().unwrap();
        assert_eq!(
            (reservation.id, reservation.count),
            (request.id, request.count)
        );
        taken.extend(reservation.sequences());
    }
    taken.sort_unstable();
    assert!(taken.iter().copied().eq(0..120), "{taken:?}");
    let transactions = "SELECT count(DISTINCT reserved_at) FROM evenhand.reservations";
    let moments = scene.number(transactions).await;
    assert!(
        moments < 20,
        "60 reservations were made at {moments} moments"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_id_fails_nobody_who_came_along() {
    let scene = Scene::start().await;
    let known = scene.request(2);
    let first = scene.store.reserve(&known).await.unwrap();
    let mut conflicting = request(&scene.policy, 3);
    conflicting.id = known.id;
    let mut holder = scene.database.connect().await;
    execute(&mut holder, HOLD_SHARD).await;
    let fresh: Vec<ReserveRequest> = (0..6).map(|_| scene.request(1)).collect();
    // The first waits alone, and all others together for its end.
    let mut all = vec![fresh[0].clone(), conflicting, known, fresh[1].clone()];
    all.extend(fresh[1..].iter().cloned());
    let calls: Vec<_> = all
        .into_iter()
        .map(|request| {
            let store = scene.store.clone();
            tokio::spawn(async move { store.reserve(&request).await })
        })
        .collect();
    wait_until("the first call waits for the shard", async || {
        scene.number(BACKENDS_WAITING).await > 0
    })
    .await;
    execute(&mut holder, "COMMIT").await;
    let answers: Vec<_> = join_all(calls)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();

    let mut sequences = BTreeSet::new();
    for (place, answer) in answers.into_iter().enumerate() {
        match place {
            1 => assert_eq!(kind(answer), StoreErrorKind::ReservationConflict),
            2 => assert_eq!(answer.unwrap().first_sequence, first.first_sequence),
            _ => drop(sequences.insert(answer.unwrap().first_sequence)),
        }
    }
    // The same id came twice and got one answer.
    assert_eq!(sequences, (2..8).collect());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_call_serves_those_who_waited_for_it() {
    let scene = Scene::start().await;
    let mut holder = scene.database.connect().await;
    execute(&mut holder, HOLD_SHARD).await;
    let (leading, following, dropped) = (scene.request(1), scene.request(1), scene.request(1));
    let leader = {
        let store = scene.store.clone();
        tokio::spawn(async move { store.reserve(&leading).await })
    };
    wait_until("the first call waits for the shard", async || {
        scene.number(BACKENDS_WAITING).await > 0
    })
    .await;
    let mut follower = Box::pin(scene.store.reserve(&following));
    let mut nothing = Context::from_waker(Waker::noop());
    assert!(follower.as_mut().poll(&mut nothing).is_pending());
    {
        let mut gone = pin!(scene.store.reserve(&dropped));
        assert!(matches!(gone.as_mut().poll(&mut nothing), Poll::Pending));
    }
    leader.abort();
    assert!(leader.await.unwrap_err().is_cancelled());
    execute(&mut holder, "COMMIT").await;
    follower.await.unwrap();
    // The leader's statement went on without it; whoever was dropped before being sent consumed nothing.
    let kept = "SELECT count(*) FROM evenhand.reservations";
    assert!(scene.number(kept).await <= 2);
    let again = scene.store.reserve(&dropped).await.unwrap();
    assert!(again.first_sequence <= 2, "{again:?}");
}

/// Makes the reservation in the transaction of `connection`.
async fn reserve_in(
    connection: &mut PgConnection,
    policy: &WeightedFairnessPolicy,
    request: &ReserveRequest,
) {
    sqlx::query("SELECT evenhand.reserve($1, $2, $3, $4, 1)")
        .bind(policy.shard().as_str())
        .bind(request.id.as_uuid())
        .bind(policy.digest().as_bytes().as_slice())
        .bind(i32::try_from(policy.cycle_length()).unwrap())
        .execute(connection)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_id_that_comes_in_another_shard_meanwhile_fails_nobody_who_came_along() {
    // Ids that are all new are taken by one statement, and one by one beside one that is known.
    for (beside_a_known_one, refusal) in [
        (false, StoreErrorKind::ReservationConflict),
        // Whoever asks again learns more.
        (true, StoreErrorKind::Unavailable),
    ] {
        let scene = Scene::start().await;
        let elsewhere = policy("elsewhere-v1", &[("a", 1)]);
        let registration = PolicyRegistration::new(elsewhere.clone());
        let registration = registration.in_pool("elsewhere".parse().unwrap());
        scene.store.register_policy(&registration).await.unwrap();
        let mut together: Vec<ReserveRequest> = (0..5).map(|_| scene.request(1)).collect();
        if beside_a_known_one {
            scene.store.reserve(&together[0]).await.unwrap();
        } else {
            scene.reserve(1).await;
        }
        let twice = together[2].clone();
        let mut other = scene.database.connect().await;
        let mut reserving = other.begin().await.unwrap();
        reserve_in(&mut reserving, &elsewhere, &twice).await;

        // The first call is made alone, and the others are made together at its end, in order.
        let mut holder = scene.database.connect().await;
        let hold = "BEGIN; SELECT FROM evenhand.shards WHERE shard = 'primary-v1' FOR UPDATE";
        execute(&mut holder, hold).await;
        let (store, leading) = (scene.store.clone(), scene.request(1));
        let leader = tokio::spawn(async move { store.reserve(&leading).await });
        let waits_for = async |what: &str| {
            let waiting = format!("{BACKENDS_WAITING} AND wait_event = '{what}'");
            wait_until("a call waits", async || scene.number(&waiting).await == 1).await;
        };
        waits_for("transactionid").await;
        let mut calls = join_all(together.iter().map(|request| scene.store.reserve(request)));
        let mut nothing = Context::from_waker(Waker::noop());
        assert!(pin!(&mut calls).poll(&mut nothing).is_pending());
        execute(&mut holder, "COMMIT").await;
        assert_eq!(leader.await.unwrap().unwrap().first_sequence, 1);
        let commit = async {
            waits_for("transactionid").await;
            reserving.commit().await.unwrap();
        };
        let (answers, ()) = tokio::join!(calls, commit);

        let mut sequences = Vec::new();
        for (place, answer) in answers.into_iter().enumerate() {
            match place {
                2 => assert_eq!(kind(answer), refusal, "{beside_a_known_one}"),
                _ => sequences.push(answer.unwrap().first_sequence),
            }
        }
        let expected = if beside_a_known_one {
            [0, 2, 3, 4]
        } else {
            [2, 3, 4, 5]
        };
        assert_eq!(sequences, expected);
        let again = scene.store.reserve(&twice).await;
        assert_eq!(kind(again), StoreErrorKind::ReservationConflict);
        together.remove(2);
        for (request, sequence) in together.iter().zip(expected) {
            let again = scene.store.reserve(request).await.unwrap();
            assert_eq!(again.first_sequence, sequence);
        }
    }
}
