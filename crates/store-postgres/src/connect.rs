//! Options, the pool, and the store that they make.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;

use std::sync::Arc;

use deadpool::managed::{Manager, Metrics, Pool, QueueMode, RecycleError, RecycleResult};
use evenhand_store::StoreError;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection};

use crate::combine::Combiner;
use crate::error;
use crate::wake::Waking;

/// How the store reaches its server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// Connections belong to the store alone: settings hold for a connection, and a call is one round trip.
    #[default]
    Direct,
    /// A pooler in transaction mode stands between: each call is a transaction of its own that brings its settings.
    TransactionPooler,
}

/// Where the server is and how it is used. Its `Debug` output shows no password.
#[derive(Clone)]
pub struct ConnectOptions {
    server: PgConnectOptions,
    transport: Transport,
    connections_max: usize,
    acquire_timeout: Duration,
    statement_timeout: Duration,
    listen_on: Option<PgConnectOptions>,
}

/// Why options were refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectOptionsError {
    /// The text is no URL of a PostgreSQL server. The text is not repeated, since it may hold a password.
    #[error("not a URL of a PostgreSQL server, such as postgres://user@host:5432/database")]
    Url(#[source] sqlx::Error),
    /// The URL names no user, and the driver would invent one.
    #[error("the URL names no user")]
    NoUser,
    /// The server is not on loopback and the connection would not be encrypted and verified.
    #[error(
        "the server {0} is not on loopback: add sslmode=verify-full to the URL, or allow an unverified connection"
    )]
    Unverified(String),
}

impl ConnectOptions {
    /// Reads a URL such as `postgres://user:password@host:5432/database?sslmode=verify-full`.
    ///
    /// # Errors
    ///
    /// When the text is no such URL or names no user, or when the server is not on loopback (or a Unix socket) and
    /// `sslmode` is neither `verify-full` nor `verify-ca`.
    pub fn parse(url: &str) -> Result<Self, ConnectOptionsError> {
        let options = Self::parse_unverified(url)?;
        let verified = matches!(
            options.server.get_ssl_mode(),
            PgSslMode::VerifyFull | PgSslMode::VerifyCa
        );
        if verified || options.is_local() {
            Ok(options)
        } else {
            Err(ConnectOptionsError::Unverified(
                options.server.get_host().to_owned(),
            ))
        }
    }

    /// Reads a URL, and takes whatever encryption it asks for, also none.
    ///
    /// # Errors
    ///
    /// When the text is no URL of a PostgreSQL server or names no user.
    pub fn parse_unverified(url: &str) -> Result<Self, ConnectOptionsError> {
        let server = PgConnectOptions::from_str(url).map_err(ConnectOptionsError::Url)?;
        if !names_user(url) {
            return Err(ConnectOptionsError::NoUser);
        }
        Ok(Self {
            server: server.disable_statement_logging(),
            transport: Transport::Direct,
            connections_max: 16,
            acquire_timeout: Duration::from_secs(10),
            statement_timeout: Duration::from_secs(30),
            listen_on: None,
        })
    }

    /// How the server is reached; directly by default.
    #[must_use]
    pub fn transport(mut self, transport: Transport) -> Self {
        self.transport = transport;
        self
    }

    /// How many connections the store opens at most: at least 1, 16 by default.
    #[must_use]
    pub fn connections_max(mut self, connections: usize) -> Self {
        self.connections_max = connections.max(1);
        self
    }

    /// How long a call waits for a connection, 10 seconds by default.
    #[must_use]
    pub fn acquire_timeout(mut self, timeout: Duration) -> Self {
        self.acquire_timeout = timeout;
        self
    }

    /// How long the server works on one statement, 30 seconds by default. It also ends what a dropped call left behind.
    #[must_use]
    pub fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.statement_timeout = timeout;
        self
    }

    /// Where workers listen to be woken, when the URL is that of a pooler: the server's own address. Without it they look
    /// now and then.
    ///
    /// # Errors
    ///
    /// As for [`parse`](Self::parse).
    pub fn listen_on(mut self, url: &str) -> Result<Self, ConnectOptionsError> {
        self.listen_on = Some(Self::parse(url)?.server);
        Ok(self)
    }

    /// The options for the connection that listens, where there can be one.
    pub(crate) fn listener(&self) -> Option<PgConnectOptions> {
        let own = || (self.transport == Transport::Direct).then(|| self.server.clone());
        self.listen_on.clone().or_else(own)
    }

    fn is_local(&self) -> bool {
        let host = self.server.get_host().trim_matches(['[', ']']);
        self.server.get_socket().is_some()
            || host.starts_with('/')
            || host == "localhost"
            || host
                .parse::<core::net::IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    }

    /// The options for one connection, with the settings that the contract needs.
    pub(crate) fn server(&self) -> PgConnectOptions {
        match self.transport {
            Transport::Direct => self.server.clone().application_name("evenhand").options([
                ("default_transaction_isolation", "read committed".to_owned()),
                (
                    "statement_timeout",
                    format!("{}ms", self.statement_timeout.as_millis()),
                ),
                ("lock_timeout", "10s".to_owned()),
                ("idle_in_transaction_session_timeout", "60s".to_owned()),
            ]),
            // Poolers refuse startup options, and hand prepared statements of one client to another.
            Transport::TransactionPooler => self
                .server
                .clone()
                .statement_cache_capacity(0)
                .extra_float_digits(None),
        }
    }

    /// The options for the one connection that migrates: no statement may time out half way.
    pub(crate) fn migrator(&self) -> PgConnectOptions {
        self.server
            .clone()
            .application_name("evenhand-migrate")
            .options([
                ("default_transaction_isolation", "read committed"),
                ("statement_timeout", "0"),
            ])
    }
}

impl fmt::Debug for ConnectOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectOptions")
            .field("host", &self.server.get_host())
            .field("port", &self.server.get_port())
            .field("user", &self.server.get_username())
            .field("database", &self.server.get_database())
            .field("transport", &self.transport)
            .field("connections_max", &self.connections_max)
            .finish_non_exhaustive()
    }
}

/// Whether a URL, or the environment that the driver reads too, names a user.
fn names_user(url: &str) -> bool {
    let authority = url.split("://").nth(1).unwrap_or_default();
    let authority = authority.split(['/', '?']).next().unwrap_or_default();
    let in_authority = authority
        .rsplit_once('@')
        .is_some_and(|(user, _)| !user.is_empty() && !user.starts_with(':'));
    in_authority
        || url.contains("?user=")
        || url.contains("&user=")
        || std::env::var_os("PGUSER").is_some()
}

/// Opens connections and hands idle ones on.
#[derive(Debug)]
pub(crate) struct Connector {
    options: ConnectOptions,
}

impl Manager for Connector {
    type Type = PgConnection;
    type Error = sqlx::Error;

    async fn create(&self) -> Result<PgConnection, sqlx::Error> {
        PgConnection::connect_with(&self.options.server()).await
    }

    async fn recycle(&self, _: &mut PgConnection, _: &Metrics) -> RecycleResult<sqlx::Error> {
        // Only a connection whose last call was answered in full comes back, so a ping would only cost a round trip.
        Ok::<(), RecycleError<sqlx::Error>>(())
    }
}

/// The store contract on a PostgreSQL database that [`migrate`](crate::migrate()) has set up.
///
/// Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct PostgresStore {
    pub(crate) pool: Pool<Connector>,
    pub(crate) transport: Transport,
    pub(crate) combiner: Arc<Combiner>,
    pub(crate) waking: Arc<Waking>,
}

impl PostgresStore {
    /// A store with a pool of its own, after a first connection was made. Never changes the schema.
    ///
    /// # Errors
    ///
    /// *Unavailable* when no connection can be made.
    pub async fn connect(options: ConnectOptions) -> Result<Self, StoreError> {
        let transport = options.transport;
        let pool = Pool::builder(Connector {
            options: options.clone(),
        })
        .max_size(options.connections_max)
        // The one that was used last has its plans and pages at hand; each other one that is used has to make them too.
        .queue_mode(QueueMode::Lifo)
        .wait_timeout(Some(options.acquire_timeout))
        .create_timeout(Some(options.acquire_timeout))
        .runtime(deadpool::Runtime::Tokio1)
        .build()
        .map_err(error::of_connect)?;
        let store = Self {
            pool,
            transport,
            combiner: Arc::default(),
            waking: Arc::new(Waking::new(options.listener())),
        };
        drop(store.pool.get().await.map_err(error::of_connect)?);
        Ok(store)
    }

    /// Closes every idle connection, and the others as soon as their calls have ended. Later calls are *unavailable*.
    pub fn close(&self) {
        self.waking.close();
        self.pool.close();
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("options", &self.pool.manager().options)
            .field("status", &self.pool.status())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_server_needs_verified_tls_unless_the_caller_says_otherwise() {
        let remote = "postgres://app:secret@db.example.com/app";
        assert!(
            matches!(ConnectOptions::parse(remote), Err(ConnectOptionsError::Unverified(host)) if host == "db.example.com")
        );
        assert!(ConnectOptions::parse(&format!("{remote}?sslmode=require")).is_err());
        assert!(ConnectOptions::parse(&format!("{remote}?sslmode=verify-full")).is_ok());
        assert!(ConnectOptions::parse_unverified(remote).is_ok());
        for local in [
            "postgres://a@localhost/b",
            "postgres://a@127.0.0.1:5433/b",
            "postgres://a@[::1]/b",
        ] {
            assert!(ConnectOptions::parse(local).is_ok(), "{local}");
        }
    }

    #[test]
    fn no_password_is_shown() {
        let options =
            ConnectOptions::parse_unverified("postgres://app:secret@db.example.com/app").unwrap();
        assert!(!format!("{options:?}").contains("secret"));
        let refusal =
            ConnectOptions::parse("postgres://app:secret@db.example.com/app").unwrap_err();
        assert!(!format!("{refusal:?} {refusal}").contains("secret"));
        let refusal =
            ConnectOptions::parse("postgres://app:secret@db.example.com:port/app").unwrap_err();
        assert!(!format!("{refusal:?} {refusal}").contains("secret"));
    }
}
