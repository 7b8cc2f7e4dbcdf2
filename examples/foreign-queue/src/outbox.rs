//! The scheduler of one tenant's turn, over the table of mails.

use core::future::Future;
use core::time::Duration;

use async_trait::async_trait;
use evenhand_policy::{TenantId, WeightedFairnessPolicy};
use evenhand_scheduler::{BoxError, RunEnd, RunReport, Selection, TenantOutcome, TenantScheduler};
use evenhand_store::Timestamp;
use sqlx::{PgPool, Row as _};
use tokio_util::sync::CancellationToken;

/// A mail to send.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mail {
    /// Its id in the outbox.
    pub id: i64,
    /// To whom.
    pub recipient: String,
    /// What about.
    pub subject: String,
}

/// Hands mails to a mail server.
pub trait Mailer: Send + Sync {
    /// Sends one mail.
    ///
    /// # Errors
    ///
    /// Any; the mail is then tried again later.
    fn send(&self, mail: &Mail) -> impl Future<Output = Result<(), BoxError>> + Send;
}

/// The outbox of the mail service, as a scheduler of its customers' turns.
#[derive(Clone, Debug)]
pub struct Outbox<M> {
    pool: PgPool,
    mailer: M,
}

/// What `take.sql` came to.
enum Taken {
    Mail(Mail),
    /// There is no mail to take.
    Nothing,
    /// The turn was used before.
    TurnIsUsed,
}

impl<M: Mailer> Outbox<M> {
    /// The outbox in the database of `pool`, sent by `mailer`.
    pub fn new(pool: PgPool, mailer: M) -> Self {
        Self { pool, mailer }
    }

    /// Whether any tenant of the policy has a mail waiting. Ask before ticking, so that idle times cost no turns.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn is_anybody_waiting(
        &self,
        policy: &WeightedFairnessPolicy,
    ) -> Result<bool, sqlx::Error> {
        let tenants = policy.tenants().iter();
        let customers: Vec<&str> = tenants.map(|weight| weight.tenant().as_str()).collect();
        sqlx::query_scalar(include_str!("../sql/anybody.sql"))
            .bind(customers)
            .fetch_one(&self.pool)
            .await
    }

    /// Gives back the mails whose senders took them longer than `older_than` ago, and tells how many.
    ///
    /// # Errors
    ///
    /// Those of the database.
    pub async fn give_back(&self, older_than: Duration) -> Result<u64, sqlx::Error> {
        let micros = i64::try_from(older_than.as_micros()).unwrap_or(i64::MAX);
        let given_back = sqlx::query(include_str!("../sql/give_back.sql"))
            .bind(micros)
            .execute(&self.pool)
            .await?;
        Ok(given_back.rows_affected())
    }

    async fn take(&self, turn: &Turn<'_>) -> Result<Taken, sqlx::Error> {
        let taken = sqlx::query(include_str!("../sql/take.sql"))
            .bind(turn.customer.as_str())
            .bind(turn.shard)
            .bind(turn.sequence)
            .fetch_optional(&self.pool)
            .await;
        match taken {
            Ok(Some(row)) => Ok(Taken::Mail(Mail {
                id: row.try_get("id")?,
                recipient: row.try_get("recipient")?,
                subject: row.try_get("subject")?,
            })),
            Ok(None) => Ok(Taken::Nothing),
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
                Ok(Taken::TurnIsUsed)
            }
            Err(error) => Err(error),
        }
    }

    /// The answer for a turn that took nothing now.
    async fn look(&self, turn: &Turn<'_>) -> Result<TenantOutcome, sqlx::Error> {
        let row = sqlx::query(include_str!("../sql/look.sql"))
            .bind(turn.customer.as_str())
            .bind(turn.shard)
            .bind(turn.sequence)
            .fetch_one(&self.pool)
            .await?;
        let state: Option<String> = row.try_get("state")?;
        Ok(match state.as_deref() {
            Some("sent") => ran(RunEnd::Completed),
            // It is being sent, or it was put back and waits for another turn.
            Some(_) => TenantOutcome::Contended,
            None if row.try_get("waiting")? => TenantOutcome::Contended,
            None => TenantOutcome::Idle,
        })
    }

    async fn send(&self, turn: &Turn<'_>, mail: &Mail) -> Result<RunEnd, sqlx::Error> {
        if self.mailer.send(mail).await.is_ok() {
            let sent = sqlx::query(include_str!("../sql/sent.sql"))
                .bind(mail.id)
                .bind(turn.shard)
                .bind(turn.sequence)
                .execute(&self.pool)
                .await?;
            return Ok(match sent.rows_affected() {
                0 => RunEnd::LeaseLost,
                _ => RunEnd::Completed,
            });
        }
        let not_before: Option<i64> = sqlx::query_scalar(include_str!("../sql/put_back.sql"))
            .bind(mail.id)
            .bind(turn.shard)
            .bind(turn.sequence)
            .fetch_optional(&self.pool)
            .await?;
        let not_before = not_before.and_then(|micros| Timestamp::from_microsecond(micros).ok());
        Ok(not_before.map_or(RunEnd::LeaseLost, RunEnd::Requeued))
    }
}

#[async_trait]
impl<M: Mailer> TenantScheduler for Outbox<M> {
    /// Sends at most one mail of the customer whose turn it is.
    async fn tick(
        &self,
        selection: &Selection,
        _cancel: &CancellationToken,
    ) -> Result<TenantOutcome, BoxError> {
        let turn = Turn {
            customer: selection.tenant(),
            shard: selection.shard().as_str(),
            // Sequences end at 2^63 - 1, so each fits.
            sequence: i64::try_from(selection.sequence())?,
        };
        Ok(match self.take(&turn).await? {
            Taken::Mail(mail) => ran(self.send(&turn, &mail).await?),
            Taken::Nothing | Taken::TurnIsUsed => self.look(&turn).await?,
        })
    }
}

/// A selection in the terms of the table.
struct Turn<'a> {
    customer: &'a TenantId,
    shard: &'a str,
    sequence: i64,
}

fn ran(end: RunEnd) -> TenantOutcome {
    TenantOutcome::Ran(RunReport::new(end))
}
