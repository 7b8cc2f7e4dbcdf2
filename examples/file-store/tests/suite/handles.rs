//! Many handles on one journal.

use std::fs;
use std::sync::Arc;

use evenhand_store::{ReservationStore as _, RunQueue as _, StoreErrorKind};
use evenhand_testkit::history::{Evidence, StormOptions, check, storm};

use crate::scene::{Scene, policy, request, run};

#[tokio::test(flavor = "multi_thread")]
async fn what_clients_of_many_handles_saw_is_what_every_handle_has_on_record() {
    let (scene, policy) = (Scene::start(), policy());
    let first = scene.registered(&policy).await;
    let runs: Vec<_> = ["large", "small"]
        .iter()
        .flat_map(|tenant| vec![run(tenant); 100])
        .collect();
    first.enqueue_many(&runs).await.unwrap();
    let handles: Vec<_> = (0..4).map(|_| Arc::new(scene.open())).collect();
    let history = storm(&handles, &policy, &StormOptions::default()).await;
    assert!(history.calls_len() > 500, "{}", history.calls_len());
    assert_eq!(history.unknown_len(), 0);

    let evidence = Evidence::read(&first, policy.shard()).await.unwrap();
    assert_eq!(check(&history, &evidence), Ok(()));
    for handle in handles {
        let seen = Evidence::read(&*handle, policy.shard()).await.unwrap();
        assert_eq!(seen.reservations, evidence.reservations);
        assert_eq!(seen.sequences, evidence.sequences);
    }
}

#[tokio::test]
async fn a_refused_call_and_a_look_leave_the_journal_as_it_is() {
    let (scene, policy) = (Scene::start(), policy());
    let store = scene.registered(&policy).await;
    let before = fs::read(scene.path()).unwrap();
    let mut refused = request(&policy, 1);
    refused.cycle_length += 1;
    let error = store.reserve(&refused).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::PolicyConflict);
    store.ready_tenants(policy.shard()).await.unwrap();
    assert_eq!(fs::read(scene.path()).unwrap(), before);
    store.reserve(&request(&policy, 1)).await.unwrap();
    assert!(fs::read(scene.path()).unwrap().len() > before.len());
}

#[tokio::test]
async fn a_fraction_is_the_same_number_in_every_handle() {
    let (scene, policy) = (Scene::start(), policy());
    let store = scene.registered(&policy).await;
    let mut spec = run("large");
    // A parser that is not exact changes some of these in the last bit.
    let fractions: Vec<f64> = (1..200).map(|n| f64::from(n).recip().exp()).collect();
    spec.payload = evenhand_store::Payload::new(serde_json::json!(fractions)).unwrap();
    spec.idempotency_key = Some("fractions".parse().unwrap());
    let run = store.enqueue(&spec).await.unwrap();
    assert_eq!(
        store.run(run.run).await.unwrap(),
        scene.open().run(run.run).await.unwrap()
    );
    let again = scene.open().enqueue(&spec).await.unwrap();
    assert_eq!((again.run, again.created), (run.run, false));
}
