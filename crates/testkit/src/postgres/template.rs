//! Databases made from a template: made once a server, copied for every test.

use core::fmt::Display;

use sha2::{Digest as _, Sha256};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use super::url::with_database;

/// Guards the making of templates on a server; the number only has to differ from other advisory locks on its
/// database `postgres`, where nobody else takes any.
const LOCK: i64 = 0x6576_656e_6861_6e64;

/// A template could not be made or used.
#[derive(Debug, thiserror::Error)]
pub(super) enum TemplateError {
    #[error("the server refused")]
    Server(#[from] sqlx::Error),
    #[error("the migration of the template failed: {0}")]
    Migrate(String),
}

/// A finished template, which nobody can connect to any more.
#[derive(Debug)]
pub(super) struct Template {
    name: String,
}

/// The template `key` on the server, made by `migrate` unless it is there.
pub(super) async fn ensure<E: Display>(
    server_url: &str,
    key: &str,
    migrate: impl AsyncFnOnce(&str) -> Result<(), E>,
) -> Result<Template, TemplateError> {
    let name = template_name(key);
    let mut connection = PgConnection::connect(server_url).await?;
    if !is_finished(&mut connection, &name).await? {
        // Held until this connection ends, however it ends.
        sqlx::query("SELECT pg_advisory_lock($1)")
            .bind(LOCK)
            .execute(&mut connection)
            .await?;
        if !is_finished(&mut connection, &name).await? {
            make(&mut connection, server_url, &name, migrate).await?;
        }
    }
    connection.close().await?;
    Ok(Template { name })
}

async fn make<E: Display>(
    connection: &mut PgConnection,
    server_url: &str,
    name: &str,
    migrate: impl AsyncFnOnce(&str) -> Result<(), E>,
) -> Result<(), TemplateError> {
    // A maker that was killed leaves an unfinished one.
    run(
        connection,
        &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"),
    )
    .await?;
    run(connection, &format!("CREATE DATABASE {name}")).await?;
    migrate(&with_database(server_url, name))
        .await
        .map_err(|error| TemplateError::Migrate(error.to_string()))?;
    run(
        connection,
        &format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"),
    )
    .await?;
    // A database that somebody is connected to cannot be copied.
    sqlx::query("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = $1")
        .bind(name)
        .execute(&mut *connection)
        .await?;
    // This is the mark of a finished one, so it comes last.
    run(
        connection,
        &format!("ALTER DATABASE {name} IS_TEMPLATE true"),
    )
    .await?;
    Ok(())
}

impl Template {
    /// Makes the database `name` as a copy of this template.
    pub(super) async fn clone_to(&self, server_url: &str, name: &str) -> Result<(), sqlx::Error> {
        run_on(
            server_url,
            &format!("CREATE DATABASE {name} TEMPLATE {}", self.name),
        )
        .await
    }
}

/// Makes an empty database.
pub(super) async fn create_empty(server_url: &str, name: &str) -> Result<(), sqlx::Error> {
    // `template0` has no connections, so that concurrent callers never wait for one another's.
    run_on(
        server_url,
        &format!("CREATE DATABASE {name} TEMPLATE template0"),
    )
    .await
}

/// Drops the database `name` and disconnects everybody from it.
pub(super) async fn drop_database(server_url: &str, name: &str) -> Result<(), sqlx::Error> {
    run_on(
        server_url,
        &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"),
    )
    .await
}

async fn is_finished(connection: &mut PgConnection, name: &str) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1 AND datistemplate)",
    )
    .bind(name)
    .fetch_one(connection)
    .await
}

async fn run_on(server_url: &str, statement: &str) -> Result<(), sqlx::Error> {
    let mut connection = PgConnection::connect(server_url).await?;
    run(&mut connection, statement).await?;
    connection.close().await
}

/// Runs a statement about databases, which take no parameters. The names in it are ours: lowercase letters, digits and
/// underscores.
async fn run(connection: &mut PgConnection, statement: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(statement))
        .execute(connection)
        .await?;
    Ok(())
}

fn template_name(key: &str) -> String {
    let digest: [u8; 32] = Sha256::digest(key.as_bytes()).into();
    let (half, _) = digest.split_at(digest.len() / 2);
    let hex: Vec<String> = half.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("evenhand_template_{}", hex.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_of_different_keys_have_different_names() {
        assert_ne!(template_name("a"), template_name("b"));
        assert_eq!(template_name("a"), template_name("a"));
        assert!(
            template_name("a").len() < 64,
            "longer names are cut off by the server"
        );
    }
}
