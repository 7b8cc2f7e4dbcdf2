//! A block whose worker is gone is found, and settled by another worker for the same tenants.

use core::time::Duration;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenhand_store::{Reservation, Round, RunQueue};

use super::StoreUnderTest;
use super::optional::Method;
use super::rounds::{claimed, slots};
use super::scene::{Must, Scene, at_once, ran, round, run};

/// What the leases of this suite last.
const LEASE: Duration = Duration::from_secs(30);

pub(super) async fn a_lost_block_is_found_after_a_lease_length<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    if !scene.offers([Method::LostBlocks]).await {
        return;
    }
    scene
        .store
        .enqueue_many(&vec![run("a"); 20])
        .await
        .must("a backlog");
    let lost = scene.reserve(4).await;
    let half_settled = scene.reserve(3).await;
    scene.claim(half_settled.first_sequence + 1).await;
    let settled = scene.reserve(4).await;
    scene.round(&settled).await;
    let single = scene.reserve(1).await;
    scene.claim(single.first_sequence).await;
    assert_eq!(
        found(&scene, 10).await,
        [],
        "nothing is a lease length old yet"
    );
    scene.advance(LEASE + Duration::from_secs(1)).await;
    let young = scene.reserve(2).await;

    let blocks = found(&scene, 10).await;
    assert_eq!(
        ids(&blocks),
        [lost.id, half_settled.id],
        "oldest first, and no others"
    );
    for (block, reserved) in blocks.iter().zip([lost, half_settled]) {
        assert_eq!(block.sequences(), reserved.sequences());
        assert_eq!(block.reserved_at, reserved.reserved_at);
    }
    assert_eq!(
        ids(&found(&scene, 1).await),
        [lost.id],
        "no more than asked for"
    );
    for block in &blocks {
        scene.round(block).await;
    }
    assert_eq!(
        found(&scene, 10).await,
        [],
        "what is settled is lost no more"
    );
    scene.advance(LEASE + Duration::from_secs(1)).await;
    assert_eq!(ids(&found(&scene, 10).await), [young.id]);
}

pub(super) async fn the_late_owner_of_a_lost_block_gets_nothing<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    if !scene.offers([Method::LostBlocks]).await {
        return;
    }
    scene
        .store
        .enqueue_many(&vec![run("a"); 8])
        .await
        .must("a backlog");
    let block = scene.reserve(4).await;
    let owner = scene.handles(1).await.remove(0);
    scene.advance(LEASE + Duration::from_secs(1)).await;
    let blocks = found(&scene, 10).await;
    assert_eq!(ids(&blocks), [block.id]);
    let finder = round(&scene.policy, &blocks[0], "finder", 4);
    let settled = scene
        .store
        .claim_round(&finder)
        .await
        .must("the settlement");
    assert_eq!(settled.claimed.len(), 3);

    let late = round(&scene.policy, &block, "owner", 4);
    let answer = owner
        .claim_round(&late)
        .await
        .must("the round of the late owner");
    assert_eq!(answer.claimed, [], "a run was given to the late owner too");
    assert_eq!(answer.moved_on, slots(&scene, &block, "a"));
    assert_eq!(scene.count(|counts| counts.running).await, 3);
    for claimed in &settled.claimed {
        scene
            .store
            .complete(&claimed.lease)
            .await
            .must("the completion of the finder");
    }
}

pub(super) async fn settling_lost_blocks_keeps_the_shares_of_runs<S: StoreUnderTest>() {
    const CYCLES: usize = 8;
    let scene = Scene::<S>::start().await;
    if !scene.offers([Method::LostBlocks]).await {
        return;
    }
    let backlog: Vec<_> = (0..80).map(|number| run(["a", "b"][number % 2])).collect();
    scene.store.enqueue_many(&backlog).await.must("a backlog");
    // The cycle is AABA. One worker always gets AA; the other always gets BA, and dies before it claims.
    let (mut lively, mut settled) = (BTreeMap::new(), BTreeMap::new());
    for _ in 0..CYCLES {
        let block = scene.reserve(2).await;
        run_all(&scene, &block, &mut lively).await;
        scene.reserve(2).await;
        scene.advance(LEASE + Duration::from_secs(1)).await;
        for lost in found(&scene, 10).await {
            run_all(&scene, &lost, &mut settled).await;
        }
    }
    assert_eq!(
        lively.get("b"),
        None,
        "without settlement the light tenant gets nothing"
    );
    let of = |name| [&lively, &settled].map(|runs| runs.get(name).copied().unwrap_or(0));
    assert_eq!(of("a"), [2 * CYCLES, CYCLES]);
    assert_eq!(
        of("b"),
        [0, CYCLES],
        "the light tenant gets one run a cycle"
    );
}

pub(super) async fn workers_that_settle_one_block_at_once_share_no_run<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    if !scene.offers([Method::LostBlocks]).await {
        return;
    }
    scene
        .store
        .enqueue_many(&vec![run("a"); 40])
        .await
        .must("a backlog");
    for _ in 0..4 {
        scene.reserve(8).await;
    }
    scene.advance(LEASE + Duration::from_secs(1)).await;
    let handles = scene.handles(3).await;
    let answers: Vec<Vec<Round>> = at_once((0..6).map(|task| {
        let store = Arc::clone(&handles[task % 3]);
        let policy = scene.policy.clone();
        async move {
            let mut rounds = Vec::new();
            let blocks = store
                .lost_blocks(policy.shard(), LEASE, 10)
                .await
                .must("lost blocks");
            for block in blocks {
                let asked = round(&policy, &block, &format!("worker-{task}"), 8);
                rounds.push(store.claim_round(&asked).await.must("a settlement"));
            }
            rounds
        }
    }))
    .await;
    let all: Vec<_> = answers.iter().flatten().flat_map(claimed).collect();
    let runs: BTreeSet<_> = all.iter().map(|(_, run)| run).collect();
    let sequences: BTreeSet<_> = all.iter().map(|(sequence, _)| sequence).collect();
    assert_eq!(
        (runs.len(), sequences.len()),
        (24, 24),
        "24 slots of `a`, each with a run"
    );
    assert_eq!(all.len(), 24, "a run was given to two");
    assert_eq!(found(&scene, 10).await, []);
}

pub(super) async fn a_claim_that_was_made_singly_is_not_lost<S: StoreUnderTest>() {
    let scene = Scene::<S>::start().await;
    if !scene.offers([Method::LostBlocks]).await {
        return;
    }
    scene
        .store
        .enqueue_many(&vec![run("a"); 8])
        .await
        .must("a backlog");
    let block = scene.reserve(4).await;
    let before = ran(scene.claim(block.first_sequence).await);
    scene.advance(LEASE / 2).await;
    scene
        .store
        .renew(
            core::slice::from_ref(&before.lease),
            super::scene::lease(60),
        )
        .await
        .must("a renewal");
    scene.advance(LEASE / 2 + Duration::from_secs(1)).await;
    assert_eq!(
        ids(&found(&scene, 10).await),
        [block.id],
        "the rest of the block is lost"
    );
    let finder = round(&scene.policy, &block, "finder", 4);
    let answer = scene
        .store
        .claim_round(&finder)
        .await
        .must("the settlement");
    assert_eq!(answer.moved_on, [block.first_sequence]);
    assert_eq!(answer.claimed.len(), 2, "the two other slots of `a`");
    scene
        .store
        .complete(&before.lease)
        .await
        .must("the completion of the first worker");
}

/// The blocks that are lost for longer than a lease.
async fn found<S: StoreUnderTest>(scene: &Scene<S>, limit: u32) -> Vec<Reservation> {
    let shard = scene.policy.shard();
    scene
        .store
        .lost_blocks(shard, LEASE, limit)
        .await
        .must("the lost blocks")
}

fn ids(blocks: &[Reservation]) -> Vec<evenhand_store::ReservationId> {
    blocks.iter().map(|block| block.id).collect()
}

/// Makes a round over the block and completes what it claimed, counted by tenant.
async fn run_all<S: StoreUnderTest>(
    scene: &Scene<S>,
    block: &Reservation,
    runs: &mut BTreeMap<String, usize>,
) {
    for claimed in scene.round(block).await.claimed {
        scene
            .store
            .complete(&claimed.lease)
            .await
            .must("a completion");
        *runs.entry(claimed.run.spec.tenant.to_string()).or_default() += 1;
    }
}
