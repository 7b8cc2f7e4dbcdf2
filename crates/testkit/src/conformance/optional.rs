//! Which optional methods a store offers.

use core::time::Duration;

use std::sync::Arc;

use evenhand_policy::{PoolId, SchedulerShardId};
use evenhand_store::{
    HistoryRetentionPolicy, LimitSubject, Reservation, ReservationCount, ReservationId,
    ReservationStore, RoundLimits, RoundRequest, RunId, RunQueue, ShardStanding, StoreError,
    StoreErrorKind, TenantHistoryRequest, Timestamp, WaitRequest,
};

use super::StoreUnderTest;
use super::scene::{Must, Scene, lease, pool, team, tenant, worker};

/// A method that a store may answer with *unsupported*, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Retire,
    /// Limits of a round; [`RunQueue::claim_round`] itself works in every store.
    RoundLimits,
    LostBlocks,
    Waiting,
    Limits,
    Unserved,
    Cancel,
    Requeue,
    Discard,
    TenantHistory,
    PruneHistory,
    Health,
}

impl<S: StoreUnderTest> Scene<S> {
    /// Whether the store offers all of these. What it does not offer, it refuses on every handle and every time.
    pub(super) async fn offers<const N: usize>(&self, methods: [Method; N]) -> bool {
        let handles = self.handles(2).await;
        for method in methods {
            let first = self.is_offered(&handles[0], method).await;
            let second = self.is_offered(&handles[1], method).await;
            assert_eq!(
                first, second,
                "{method:?} is unsupported at one time, and supported at another"
            );
            if !first {
                return false;
            }
        }
        true
    }

    /// Asks for something that changes nothing.
    async fn is_offered(&self, store: &Arc<S::Store>, method: Method) -> bool {
        let shard = self.policy.shard();
        let unknown = RunId::new(ReservationId::mint(Timestamp::UNIX_EPOCH).as_uuid());
        let probe = pool("probe");
        match method {
            Method::Retire => self.is_retiring_offered(store).await,
            Method::RoundLimits => is_supported(store.claim_round(&self.round_probe()).await),
            Method::LostBlocks => {
                is_supported(store.lost_blocks(shard, Duration::from_hours(1), 1).await)
            }
            Method::Waiting => {
                let longest = Duration::from_millis(1);
                let request = WaitRequest::new(shard.clone(), worker("probe"), longest);
                is_supported(store.wait_for_work(&request).await)
            }
            Method::Limits => {
                let subject = LimitSubject::Team(team("probe"));
                is_supported(store.set_limit(&probe, &subject, None).await)
            }
            Method::Unserved => is_supported(store.unserved().await),
            Method::Cancel => is_supported(store.cancel(unknown).await),
            Method::Requeue => is_supported(store.requeue(unknown).await),
            Method::Discard => is_supported(store.discard(unknown).await),
            Method::TenantHistory => {
                let (from, to) = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
                let request = TenantHistoryRequest::new(shard.clone(), tenant("a"), from, to, 1);
                is_supported(store.tenant_history(&request).await)
            }
            Method::PruneHistory => {
                let year = HistoryRetentionPolicy::default();
                is_supported(store.prune_history(year).await)
            }
            Method::Health => is_supported(store.health(shard).await),
        }
    }

    /// Who cannot retire has no active shard of a pool either, and calls every shard active.
    async fn is_retiring_offered(&self, store: &Arc<S::Store>) -> bool {
        let unknown = |name| SchedulerShardId::try_from(name).must("a shard id");
        let answer = store.retire(&unknown("probe-1"), &unknown("probe-2")).await;
        let is_offered = is_supported(answer);
        let active = store.active_policy(&PoolId::default()).await;
        assert_eq!(
            is_supported(active),
            is_offered,
            "retire and active_policy go together"
        );
        if !is_offered {
            let standing = store.standing(self.policy.shard()).await;
            assert_eq!(standing.must("the standing"), ShardStanding::Active);
        }
        is_offered
    }

    /// A round with a limit, over a block that nobody reserved.
    fn round_probe(&self) -> RoundRequest {
        let id = ReservationId::mint(Timestamp::UNIX_EPOCH);
        let (count, epoch) = (ReservationCount::ONE, Timestamp::UNIX_EPOCH);
        let nowhere = Reservation::new(id, i64::MAX.unsigned_abs(), count, epoch, epoch);
        RoundRequest::new(&self.policy, &nowhere, worker("probe"), lease(30), 1)
            .within(RoundLimits::default().with_team_window(1))
    }
}

/// Other errors are the answer of a store that does offer the method, to a question that is none.
fn is_supported<T>(answer: Result<T, StoreError>) -> bool {
    !matches!(answer, Err(error) if error.kind() == StoreErrorKind::Unsupported)
}
