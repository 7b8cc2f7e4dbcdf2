//! What operators do with runs, and what it leaves to renewals and to the order of the queue.

use core::time::Duration;

use evenhand_policy::admission::{Scoring, ScoringOptions};
use evenhand_store::{
    Failure, FailureOutcome, PolicyRegistration, PoolScoring, ReadyAt, ReservationStore, Retry,
    RunQueue, RunState,
};

use crate::scene::{Scene, execute, number, policy, run, wait_until};

#[tokio::test(flavor = "multi_thread")]
async fn renewals_change_one_row_and_no_index_even_when_a_run_is_to_stop() {
    let scene = Scene::start().await;
    let mut connection = scene.database.connect().await;
    execute(
        &mut connection,
        "INSERT INTO evenhand.leases (run_id, fence, shard_key, sequence, expires_at)
         SELECT gen_random_uuid(), 1, 1, n, now() FROM generate_series(1, 64) AS n",
    )
    .await;
    for round in 0..50 {
        execute(
            &mut connection,
            "SELECT count(*) FROM evenhand.renew(
                 ARRAY(SELECT l.run_id FROM evenhand.leases AS l ORDER BY l.run_id), array_fill(1::bigint, '{64}'), 30000)",
        )
        .await;
        if round == 25 {
            execute(
                &mut connection,
                "UPDATE evenhand.leases SET stop_requested = true",
            )
            .await;
        }
    }
    execute(&mut connection, "SELECT pg_stat_force_next_flush()").await;
    // The first renewal makes their term and lets each join it; the others change the term.
    let updates = 49;
    let counted =
        "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relid = 'evenhand.terms'::regclass";
    wait_until("the updates are counted", async || {
        number(&mut connection, counted).await == updates
    })
    .await;
    let of_leases =
        "SELECT n_tup_upd FROM pg_stat_user_tables WHERE relid = 'evenhand.leases'::regclass";
    assert_eq!(number(&mut connection, of_leases).await, 64 + 64);
    let hot = number(
        &mut connection,
        "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relid = 'evenhand.terms'::regclass",
    )
    .await;
    println!("of {updates} updates of the term {hot} were HOT");
    // With an index on anything that a renewal changes there would be none. How many there are beside depends on which
    // snapshots the server knows of.
    assert!(hot * 2 >= updates, "{hot} of {updates}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_queued_again_ranks_as_its_pool_ranks_now() {
    let scene = Scene::start().await;
    let mut later = run("a");
    later.pool = "later".parse().unwrap();
    let early = scene.store.enqueue(&later).await.unwrap().run;
    scene.store.cancel(early).await.unwrap();
    // The registration ranks what is queued again, and the cancelled run is not.
    let mut options = ScoringOptions::default();
    options.value_weights.standard += 50;
    let scoring = Scoring::new(options).unwrap();
    let mut registration = PolicyRegistration::new(policy("later-v1", &[("a", 1)]));
    registration.pool = later.pool.clone();
    registration.scoring = PoolScoring::new(scoring, Duration::from_secs(7)).unwrap();
    scene.store.register_policy(&registration).await.unwrap();
    scene.store.requeue(early).await.unwrap();
    scene.store.enqueue(&later).await.unwrap();
    let alike = "SELECT count(*) FROM evenhand.runs AS a JOIN evenhand.runs AS b USING (rank)
        WHERE a.id < b.id AND a.state = 'queued' AND b.state = 'queued' AND b.ready_tick - a.ready_tick BETWEEN -1 AND 1";
    assert_eq!(scene.number(alike).await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_delay_is_too_long_to_be_read_back() {
    let scene = Scene::start().await;
    let mut waiting = run("b");
    for ready_at in [
        ReadyAt::After(Duration::MAX),
        ReadyAt::At(evenhand_store::Timestamp::MAX),
    ] {
        waiting.ready_at = ready_at;
        let id = scene.store.enqueue(&waiting).await.unwrap().run;
        let ready_at = scene.store.run(id).await.unwrap().unwrap().ready_at;
        assert!(ready_at.as_second() > 30_000_000_000, "{ready_at}");
    }
    let claimed = scene.claimed("a").await;
    let failure = Failure::new("never again", Retry::After(Duration::MAX));
    let outcome = scene.store.fail(&claimed.lease, &failure).await.unwrap();
    assert!(
        matches!(outcome, FailureOutcome::Requeued(_)),
        "{outcome:?}"
    );
    let claimed = scene.claimed("a").await;
    scene
        .store
        .release(&claimed.lease, Duration::MAX)
        .await
        .unwrap();
    let run = scene.store.run(claimed.run.id).await.unwrap().unwrap();
    assert_eq!(run.state, RunState::Queued);
}
