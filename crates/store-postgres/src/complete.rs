//! Completions of many runs in one call.

use evenhand_store::{Lease, StoreError, StoreErrorKind};

use crate::queue::lease_lost;
use crate::rows::{bigint, undecodable};
use crate::{PostgresStore, error};

impl PostgresStore {
    pub(crate) async fn complete_in_one_call(
        &self,
        leases: &[Lease],
    ) -> Result<Vec<Result<(), StoreError>>, StoreError> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let mut session = self.session().await?;
        let answer = sqlx::query_scalar(include_str!("../sql/complete_many.sql"))
            .bind(column(leases, |lease| lease.run.as_uuid()))
            .bind(column(leases, |lease| bigint(lease.fence.get())))
            .bind(column(leases, |lease| lease.shard.as_str()))
            .bind(column(leases, |lease| bigint(lease.sequence)))
            .persistent(session.is_persistent())
            .fetch_one(session.connection()?)
            .await;
        let completed: Vec<Option<bool>> = session.end(answer).await?;
        if completed.len() != leases.len() {
            let counted = format!("{} answers to {} leases", completed.len(), leases.len());
            return Err(error::of_statement(undecodable(counted)));
        }
        let answers = leases.iter().zip(completed);
        Ok(answers
            .map(|(lease, completed)| answer_of(lease, completed))
            .collect())
    }
}

fn column<'a, T>(leases: &'a [Lease], of: impl Fn(&'a Lease) -> T) -> Vec<T> {
    leases.iter().map(of).collect()
}

fn answer_of(lease: &Lease, completed: Option<bool>) -> Result<(), StoreError> {
    match completed {
        Some(true) => Ok(()),
        Some(false) => Err(lease_lost(lease)),
        None => Err(StoreError::new(
            StoreErrorKind::Unavailable,
            format!("somebody else holds run {} at this moment", lease.run),
        )),
    }
}
