//! An acknowledged reservation is never lost, and the order is that of real time.

use core::fmt::Write;

use evenhand_store::RunQueue;

use super::StoreUnderTest;
use super::scene::{Must, Scene, run};
use crate::history::{Evidence, StormOptions, check, storm};

pub(super) async fn acknowledged_calls_are_on_record_in_the_order_of_real_time<
    S: StoreUnderTest,
>() {
    let scene = Scene::<S>::start().await;
    let backlog: Vec<_> = (0..60)
        .map(|number| run(if number % 3 == 0 { "b" } else { "a" }))
        .collect();
    scene.store.enqueue_many(&backlog).await.must("a backlog");
    let handles = scene.handles(3).await;
    let options = StormOptions {
        clients: 6,
        reservations_per_client: 8,
        ..StormOptions::default()
    };
    let history = storm(&handles, &scene.policy, &options).await;
    let evidence = Evidence::read(&*scene.store, scene.policy.shard())
        .await
        .must("the evidence");
    assert!(
        !evidence.reservations.is_empty(),
        "the storm must have reserved something"
    );
    if let Err(violations) = check(&history, &evidence) {
        let mut report = format!("{} violations:", violations.len());
        for violation in violations.iter().take(10) {
            write!(report, "\n  {violation}").must("text");
        }
        panic!("{report}");
    }
}
