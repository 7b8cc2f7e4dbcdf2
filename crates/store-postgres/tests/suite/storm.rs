//! Storms of reservers and claimers while replies are cut and servers crash: what clients saw agrees with what is on
//! record, and both with the policy.

use std::sync::Arc;

use evenhand_store::{
    AttemptResult, PolicyRegistration, ReservationStore, RunQueue, SequenceOutcome,
};
use evenhand_store_postgres::{ConnectOptions, PostgresStore, migrate};
use evenhand_testkit::history::{Evidence, StormOptions, check, storm};
use evenhand_testkit::postgres::{Cut, Proxy, ServerOptions, StopMode, private_server};
use futures::future::join_all;

use crate::scene::{policy, run, wait_until};

async fn handle(url: &str) -> Arc<PostgresStore> {
    let options = ConnectOptions::parse(url).unwrap().connections_max(8);
    Arc::new(PostgresStore::connect(options).await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_replies_and_two_crashes_leave_no_gap_and_lose_no_acknowledgement() {
    // Flushed for real: after an immediate stop only what reached the log is there.
    let mut server = private_server(ServerOptions::new()).await;
    let url = server.url("postgres");
    migrate(&ConnectOptions::parse(&url).unwrap())
        .await
        .unwrap();
    let policy = policy("primary-v1", &[("a", 5), ("b", 2), ("c", 1)]);
    let direct = handle(&url).await;
    direct
        .register_policy(&PolicyRegistration::new(policy.clone()))
        .await
        .unwrap();
    let runs: Vec<_> = ["a", "b", "c"]
        .iter()
        .flat_map(|tenant| vec![run(tenant); 300])
        .collect();
    direct.enqueue_many(&runs).await.unwrap();

    let proxies = join_all((0..3).map(async |_| Proxy::start(&url).await.unwrap())).await;
    for (proxy, seed) in proxies.iter().zip(1..) {
        proxy.cut(Cut::reply().randomly(0.1, seed));
    }
    let handles = join_all(proxies.iter().map(async |proxy| handle(proxy.url()).await)).await;
    let mut options = StormOptions::default();
    options.clients = 24;
    options.reservations_per_client = 60;
    let blowing = tokio::spawn({
        let policy = policy.clone();
        async move { storm(&handles, &policy, &options).await }
    });
    let reserved = async || match direct.cursor(policy.shard()).await {
        Ok(cursor) => cursor.next_sequence.unwrap_or(u64::MAX),
        Err(_) => 0,
    };
    for sequences in [500, 1_500] {
        wait_until("the storm blows", async || reserved().await >= sequences).await;
        server.stop(StopMode::Immediate).await.unwrap();
        server.restart().await.unwrap();
    }
    let history = blowing.await.unwrap();
    for proxy in &proxies {
        proxy.stop_cutting();
    }

    let mut evidence = None;
    wait_until("the evidence can be read", async || {
        evidence = Evidence::read(&*direct, policy.shard()).await.ok();
        evidence.is_some()
    })
    .await;
    let evidence = evidence.unwrap();
    let cuts: u64 = proxies.iter().map(Proxy::cuts_made).sum();
    let completed = evidence
        .sequences
        .iter()
        .filter(|record| {
            matches!(&record.outcome, SequenceOutcome::Ran(attempt)
                if matches!(attempt.ended, Some((AttemptResult::Completed, _))))
        })
        .count();
    println!(
        "{} calls, {} with an unknown outcome, {cuts} replies cut, {} reservations, {completed} runs completed",
        history.calls_len(),
        history.unknown_len(),
        evidence.reservations.len()
    );
    assert!(cuts > 100, "only {cuts} replies were cut");
    assert!(history.unknown_len() > 100);
    assert!(completed > 100);
    if let Err(violations) = check(&history, &evidence) {
        let listed: Vec<String> = violations.iter().map(ToString::to_string).collect();
        panic!("{} violations:\n{}", listed.len(), listed.join("\n"));
    }
}
