//! Claims: of one sequence or of all sequences of a block, in one call; and the blocks that nobody settled.

use core::time::Duration;

use evenhand_policy::SchedulerShardId;
use evenhand_store::{
    Claim, ClaimRequest, ClaimedRun, Fence, Lease, ReadyTenants, Reservation, Round, RoundRequest,
    RunId, StoreError,
};
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use crate::PostgresStore;
use crate::reservations::reservation;
use crate::rows::{self, bigint, int, millis, time, undecodable, unsigned};

/// What one row of the answer says.
enum Answer {
    Claimed(Box<ClaimedRun>),
    Contended(Vec<u64>),
    MovedOn(Vec<u64>),
    Ready(ReadyTenants),
}

impl PostgresStore {
    pub(crate) async fn claim_one(&self, request: &ClaimRequest) -> Result<Claim, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/claim.sql"))
            .bind(request.shard.as_str())
            .bind(bigint(request.sequence))
            .bind(request.tenant.as_str())
            .bind(request.worker.as_str())
            .bind(millis(request.lease.get()))
            .bind(request.takes_over)
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| answer_of(&request.shard, &row))
            .fetch_optional(session.connection()?)
            .await;
        Ok(match session.end(answer).await? {
            Some(Answer::Claimed(claimed)) => Claim::Ran(claimed),
            Some(_) => Claim::Contended,
            None => Claim::Idle,
        })
    }

    pub(crate) async fn claim_round_in_one_call(
        &self,
        request: &RoundRequest,
    ) -> Result<Round, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/claim_round.sql"))
            .bind(request.shard().as_str())
            .bind(request.policy.digest().as_bytes().as_slice())
            .bind(bigint(request.first_sequence))
            .bind(int(request.count.get()))
            .bind(request.worker.as_str())
            .bind(millis(request.lease.get()))
            .bind(int(request.runs_max))
            .bind(request.limits.team_window.map(int))
            .bind(request.limits.capacity_micros.map(bigint))
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| answer_of(request.shard(), &row))
            .fetch_all(session.connection()?)
            .await;
        session.end(answer).await.map(round)
    }

    pub(crate) async fn find_lost_blocks(
        &self,
        shard: &SchedulerShardId,
        older_than: Duration,
        limit: u32,
    ) -> Result<Vec<Reservation>, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/lost_blocks.sql"))
            .bind(shard.as_str())
            .bind(millis(older_than))
            .bind(int(limit))
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| reservation(&row))
            .fetch_all(session.connection()?)
            .await;
        session.end(answer).await
    }
}

fn answer_of(shard: &SchedulerShardId, row: &PgRow) -> Result<Answer, sqlx::Error> {
    Ok(match row.try_get("outcome")? {
        "ran" => Answer::Claimed(Box::new(claimed(shard, row)?)),
        "contended" => Answer::Contended(sequences(row)?),
        "moved_on" => Answer::MovedOn(sequences(row)?),
        "ready" => Answer::Ready(rows::ready_tenants(row, "ready_tenants")?),
        other => return Err(undecodable(format!("{other:?} is no outcome of a round"))),
    })
}

fn sequences(row: &PgRow) -> Result<Vec<u64>, sqlx::Error> {
    let sequences = row.try_get::<Vec<i64>, _>("sequences")?;
    sequences.into_iter().map(unsigned).collect()
}

fn claimed(shard: &SchedulerShardId, row: &PgRow) -> Result<ClaimedRun, sqlx::Error> {
    let [sequence] = sequences(row)?[..] else {
        return Err(undecodable("a run was claimed for other than one sequence"));
    };
    let lease = Lease::new(
        RunId::new(row.try_get::<Uuid, _>("id")?),
        Fence::new(unsigned(row.try_get::<i64, _>("fence")?)?),
        shard.clone(),
        sequence,
        time(row.try_get("expires_at_us")?)?,
    );
    Ok(ClaimedRun::new(rows::run(row)?, lease))
}

/// The answers together, each list in the order of the sequences.
fn round(answers: Vec<Answer>) -> Round {
    let mut round = Round::default();
    for answer in answers {
        match answer {
            Answer::Claimed(claimed) => round.claimed.push(*claimed),
            Answer::Contended(sequences) => round.contended.extend(sequences),
            Answer::MovedOn(sequences) => round.moved_on.extend(sequences),
            Answer::Ready(ready) => round.ready = Some(ready),
        }
    }
    round
        .claimed
        .sort_unstable_by_key(|claimed| claimed.lease.sequence);
    round.contended.sort_unstable();
    round.moved_on.sort_unstable();
    round
}
