//! Lock, verify, apply.

use std::collections::BTreeMap;

use sqlx::migrate::Migrator;
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

use crate::ConnectOptions;

/// The migrations of this build. sqlx applies them; the lock and the checks are ours, because sqlx would apply what is
/// new before it notices that something old was changed, and would keep its lock after an error.
fn migrator() -> Migrator {
    let mut migrator = sqlx::migrate!("../../migrations");
    migrator.set_locking(false);
    migrator.dangerous_set_table_name("evenhand.migrations");
    migrator
}

/// Why a database was not migrated. Nothing was changed unless the kind is [`Apply`](Self::Apply).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// No connection, or none that may do what is needed.
    #[error("cannot prepare the database for migrations")]
    Prepare(#[source] sqlx::Error),
    /// A migration that was applied is not the one that this build has under its number.
    #[error("migration {version} was edited after it had been applied; restore its file as it was")]
    Edited {
        /// Its number.
        version: i64,
    },
    /// The database has a migration that this build does not know.
    #[error(
        "the database has migration {version}, which this build does not know; use a newer build"
    )]
    Newer {
        /// Its number.
        version: i64,
    },
    /// The database lacks a migration although it has a later one.
    #[error(
        "migration {version} was never applied, but a later one was; migrations were removed or reordered"
    )]
    Missing {
        /// Its number.
        version: i64,
    },
    /// A migration was begun and did not end.
    #[error("migration {version} was begun and not finished")]
    Unfinished {
        /// Its number.
        version: i64,
    },
    /// A migration failed and was undone; those before it stand.
    #[error("cannot apply the migrations")]
    Apply(#[source] sqlx::migrate::MigrateError),
}

/// Brings a database to this build's schema. Only the operator calls it; a store never does.
///
/// It takes one direct connection and an advisory lock, so that concurrent calls wait for each other; then it verifies
/// every migration on record, and only when all are in order it changes anything. The user needs CREATE on the database
/// and, the first time, CREATEROLE for the roles `evenhand_owner`, `evenhand_migrator`, `evenhand_app`,
/// `evenhand_retention` and `evenhand_observer`.
///
/// # Errors
///
/// When the database cannot be reached, when a migration on record was edited, removed, reordered or is newer than this
/// build, or when one fails.
///
/// # Cancel safety
///
/// Dropping the future closes the connection. The migration that was running is undone, those before it stand.
pub async fn migrate(options: &ConnectOptions) -> Result<(), MigrateError> {
    let mut connection = PgConnection::connect_with(&options.migrator())
        .await
        .map_err(MigrateError::Prepare)?;
    let migrated = migrate_on(&mut connection, &migrator()).await;
    // Closing it gives the advisory lock and the owner's role back, whatever happened.
    let closed = connection.close().await.map_err(MigrateError::Prepare);
    migrated.and(closed)
}

async fn migrate_on(
    connection: &mut PgConnection,
    migrator: &Migrator,
) -> Result<(), MigrateError> {
    connection
        .execute(include_str!("../sql/migration_lock.sql"))
        .await
        .map_err(MigrateError::Prepare)?;
    verify(&applied(connection).await?, migrator)?;
    for step in [
        include_str!("../sql/bootstrap.sql"),
        include_str!("../sql/take_owner.sql"),
    ] {
        connection
            .execute(step)
            .await
            .map_err(MigrateError::Prepare)?;
    }
    migrator
        .run_direct(None, connection, false)
        .await
        .map_err(MigrateError::Apply)
}

/// A migration on record.
struct Applied {
    checksum: Vec<u8>,
    success: bool,
}

async fn applied(connection: &mut PgConnection) -> Result<BTreeMap<i64, Applied>, MigrateError> {
    let has_table: bool = sqlx::query_scalar(include_str!("../sql/has_migrations.sql"))
        .fetch_one(&mut *connection)
        .await
        .map_err(MigrateError::Prepare)?;
    if !has_table {
        return Ok(BTreeMap::new());
    }
    let rows = sqlx::query(include_str!("../sql/applied_migrations.sql"))
        .fetch_all(connection)
        .await
        .map_err(MigrateError::Prepare)?;
    rows.iter()
        .map(|row| {
            let applied = Applied {
                checksum: row.try_get("checksum")?,
                success: row.try_get("success")?,
            };
            Ok((row.try_get("version")?, applied))
        })
        .collect::<Result<_, sqlx::Error>>()
        .map_err(MigrateError::Prepare)
}

fn verify(applied: &BTreeMap<i64, Applied>, migrator: &Migrator) -> Result<(), MigrateError> {
    for (&version, on_record) in applied {
        let known = migrator
            .iter()
            .find(|known| known.version == version)
            .ok_or(MigrateError::Newer { version })?;
        if !on_record.success {
            return Err(MigrateError::Unfinished { version });
        }
        if on_record.checksum != *known.checksum {
            return Err(MigrateError::Edited { version });
        }
    }
    let newest = applied.keys().next_back().copied().unwrap_or(i64::MIN);
    match migrator
        .iter()
        .find(|known| known.version < newest && !applied.contains_key(&known.version))
    {
        Some(known) => Err(MigrateError::Missing {
            version: known.version,
        }),
        None => Ok(()),
    }
}
