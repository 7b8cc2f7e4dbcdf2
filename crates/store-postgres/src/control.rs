//! What operators do with single runs.

use evenhand_store::{Cancellation, Controlled, RunId, RunState, StoreError};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use crate::PostgresStore;
use crate::rows::{run_state, undecodable};

impl PostgresStore {
    pub(crate) async fn cancel_run(&self, id: RunId) -> Result<Cancellation, StoreError> {
        let cancel = include_str!("../sql/cancel.sql");
        self.control(cancel, id, |outcome, state| match (outcome, state) {
            ("cancelled", None) => Some(Cancellation::Cancelled),
            ("requested", None) => Some(Cancellation::Requested),
            ("ended", Some(state)) => Some(Cancellation::Ended(state)),
            ("not_found", None) => Some(Cancellation::NotFound),
            _ => None,
        })
        .await
    }

    pub(crate) async fn requeue_run(&self, id: RunId) -> Result<Controlled, StoreError> {
        self.control(include_str!("../sql/requeue.sql"), id, controlled)
            .await
    }

    pub(crate) async fn discard_run(&self, id: RunId) -> Result<Controlled, StoreError> {
        self.control(include_str!("../sql/discard.sql"), id, controlled)
            .await
    }

    async fn control<T: Send + Unpin>(
        &self,
        statement: &'static str,
        id: RunId,
        meaning: fn(&str, Option<RunState>) -> Option<T>,
    ) -> Result<T, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(statement)
            .bind(id.as_uuid())
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| {
                let outcome: &str = row.try_get("outcome")?;
                let state = row.try_get::<Option<&str>, _>("state")?;
                let state = state.map(run_state).transpose()?;
                meaning(outcome, state).ok_or_else(|| {
                    undecodable(format!("{outcome:?} is no outcome of such a request"))
                })
            })
            .fetch_one(session.connection()?)
            .await;
        session.end(answer).await
    }
}

fn controlled(outcome: &str, state: Option<RunState>) -> Option<Controlled> {
    match (outcome, state) {
        ("done", None) => Some(Controlled::Done),
        ("refused", Some(state)) => Some(Controlled::Refused(state)),
        ("not_found", None) => Some(Controlled::NotFound),
        _ => None,
    }
}
