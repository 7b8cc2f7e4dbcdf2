//! One call's hold on a connection, and what becomes of it when the call ends or is dropped.

use deadpool::managed::Object;
use evenhand_store::StoreError;
use sqlx::postgres::{PgDatabaseError, PgSeverity};
use sqlx::{Executor as _, PgConnection};

use crate::connect::{Connector, PostgresStore, Transport};
use crate::error;

/// A connection for one call.
///
/// It goes back to the pool only after the server has answered the whole call; a session that is dropped before takes
/// its connection with it. So nobody inherits a running statement or an open transaction.
pub(crate) struct Session {
    connection: Option<Object<Connector>>,
    transport: Transport,
}

impl PostgresStore {
    /// A connection on which one call may be made.
    pub(crate) async fn session(&self) -> Result<Session, StoreError> {
        let connection = self.pool.get().await.map_err(error::of_connect)?;
        let mut session = Session {
            connection: Some(connection),
            transport: self.transport,
        };
        if self.transport == Transport::TransactionPooler {
            let begun = session
                .connection()?
                .execute(include_str!("../sql/begin_read_committed.sql"))
                .await;
            if let Err(failure) = begun {
                // Nothing but BEGIN was sent.
                session.discard();
                return Err(error::of_connect(failure));
            }
        }
        Ok(session)
    }
}

impl Session {
    /// The connection itself.
    pub(crate) fn connection(&mut self) -> Result<&mut PgConnection, StoreError> {
        match self.connection.as_mut() {
            Some(connection) => Ok(connection),
            None => Err(error::of_connect("the session has ended")),
        }
    }

    /// Whether statements may be kept prepared on this connection.
    pub(crate) fn is_persistent(&self) -> bool {
        self.transport == Transport::Direct
    }

    /// Ends the call with what the server said, and gives the connection back if it can serve others.
    pub(crate) async fn end<T>(mut self, answer: Result<T, sqlx::Error>) -> Result<T, StoreError> {
        let answered = match &answer {
            Ok(_) => true,
            Err(error) => leaves_connection_open(error),
        };
        let ended = match self.transport {
            Transport::TransactionPooler if answered => {
                let statement = if answer.is_ok() { "COMMIT" } else { "ROLLBACK" };
                self.connection()?.execute(statement).await.map(drop)
            }
            Transport::Direct | Transport::TransactionPooler => Ok(()),
        };
        if answered && ended.is_ok() {
            // Back to the pool.
            drop(self.connection.take());
        } else {
            self.discard();
        }
        let value = answer.map_err(error::of_statement)?;
        ended.map_err(error::of_statement)?;
        Ok(value)
    }

    /// Closes the connection, and with it every other idle one: what broke one has often broken them all.
    fn discard(&mut self) {
        if let Some(connection) = self.connection.take() {
            if let Some(pool) = Object::pool(&connection) {
                pool.retain(|_, _| false);
            }
            drop(Object::take(connection));
        }
    }
}

/// Whether the server refused a statement and no more: behind a fatal refusal it hangs up.
fn leaves_connection_open(error: &sqlx::Error) -> bool {
    let refusal = error.as_database_error();
    let refusal = refusal.and_then(|refusal| refusal.try_downcast_ref::<PgDatabaseError>());
    refusal
        .is_some_and(|refusal| !matches!(refusal.severity(), PgSeverity::Fatal | PgSeverity::Panic))
}

impl Drop for Session {
    fn drop(&mut self) {
        // A call that was dropped half way: only its own connection is suspect.
        if let Some(connection) = self.connection.take() {
            drop(Object::take(connection));
        }
    }
}
