//! What a call costs on the wire, counted between client and server.

use evenhand_store::{Claim, ReservationStore, RunQueue};
use evenhand_testkit::postgres::MessageCounts;

use crate::scene::{Scene, ran, run, through_proxy};

fn assert_one_statement_in_one_round_trip(counts: &MessageCounts, calls: u64) {
    assert_eq!(counts.statements(), calls, "{counts:?}");
    assert_eq!(counts.round_trips, calls, "{counts:?}");
    assert_eq!(counts.parse, 0, "{counts:?}");
    assert_eq!(counts.sync, calls, "{counts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_warm_reservation_is_one_statement_in_one_round_trip() {
    let scene = Scene::start().await;
    let (proxy, store) = through_proxy(&scene).await;
    store.reserve(&scene.request(1)).await.unwrap();
    proxy.reset_counts();
    for count in [1, 64, 1 << 20] {
        store.reserve(&scene.request(count)).await.unwrap();
    }
    assert_one_statement_in_one_round_trip(&proxy.counts(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_and_complete_are_one_statement_in_one_round_trip_each() {
    let scene = Scene::start().await;
    scene.store.enqueue_many(&vec![run("a"); 3]).await.unwrap();
    scene.reserve(3).await;
    let (proxy, store) = through_proxy(&scene).await;
    for sequence in 0..3 {
        if sequence == 1 {
            proxy.reset_counts();
        }
        if scene.policy.tenant_for_sequence(sequence).as_str() == "a" {
            let claimed = ran(store.claim(&scene.claim_request(sequence)).await.unwrap());
            store.complete(&claimed.lease).await.unwrap();
        } else {
            assert_eq!(
                store.claim(&scene.claim_request(sequence)).await.unwrap(),
                Claim::Idle
            );
        }
    }
    let calls = (1..3)
        .map(|sequence| {
            if scene.policy.tenant_for_sequence(sequence).as_str() == "a" {
                2
            } else {
                1
            }
        })
        .sum();
    assert_one_statement_in_one_round_trip(&proxy.counts(), calls);
}
