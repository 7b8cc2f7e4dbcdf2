//! The database that the demo runs in: on a private server, or a new one on the user's server.

use core::error::Error;
use core::str::FromStr as _;
use core::time::Duration;
use std::thread;

use evenhand_store_postgres::{ConnectOptions, MigrateError, migrate};
use evenhand_testkit::postgres::{
    FindError, Installation, Major, Server, ServerOptions, StopMode, find,
};
use sqlx::error::DatabaseError;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, PgConnection};

use crate::progress::Progress;
use crate::{pg, with_causes};

/// A server that does not answer must not keep us for ever when all is over.
const DROP_DEADLINE: Duration = Duration::from_secs(20);

const INSUFFICIENT_PRIVILEGE: &str = "42501";

type Result<T> = core::result::Result<T, Box<dyn Error>>;

/// Where the database is to be.
#[derive(Debug)]
pub(super) enum Place<'a> {
    /// On a private server of this major, or of the newest that is found.
    Private {
        major: Option<Major>,
        allow_download: bool,
    },
    /// On the server that the URL names, in a database of our own.
    Server { url: &'a str, keep: bool },
}

/// A migrated database, and whatever has to go when the demo is over. Dropping it cleans up.
#[derive(Debug)]
pub(super) struct Database {
    url: String,
    version: String,
    home: Home,
}

#[derive(Debug)]
enum Home {
    Private(Box<Server>),
    Server(Box<OwnDatabase>),
}

impl Database {
    /// Makes the database, with Evenhand's schema and the demo's own table in it.
    ///
    /// # Errors
    ///
    /// When no server is found or starts, or when the user's server may not be used for this; says what is missing.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future removes what was made.
    pub(super) async fn open(place: &Place<'_>, progress: Progress) -> Result<Self> {
        let (url, home) = match place {
            Place::Private {
                major,
                allow_download,
            } => {
                let installation = installation(*major, *allow_download, progress).await?;
                progress.step(&format!(
                    "starting a private PostgreSQL {} ({})",
                    installation.version(),
                    installation.source()
                ));
                let server = Server::start(&installation, ServerOptions::new()).await?;
                (server.url("postgres"), Home::Private(Box::new(server)))
            }
            Place::Server { url, keep } => {
                let own = OwnDatabase::create(url, *keep).await?;
                progress.step(&format!("made the database {}", own.name));
                (own.url.clone(), Home::Server(Box::new(own)))
            }
        };
        let user = PgConnectOptions::from_str(&url)?.get_username().to_owned();
        migrate(&ConnectOptions::parse(&url)?)
            .await
            .map_err(|error| explain_migration(&error, &user))?;
        let mut connection = connect(&url).await?;
        connection
            .execute(include_str!("sql/create_results.sql"))
            .await?;
        let version: String = sqlx::query_scalar("SHOW server_version")
            .fetch_one(&mut connection)
            .await?;
        connection.close().await?;
        Ok(Self { url, version, home })
    }

    /// Its URL, which may hold a password.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The server's version, such as `17.10`.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// The database's name if it stays.
    pub(super) fn kept(&self) -> Option<&str> {
        match &self.home {
            Home::Server(own) if own.keep => Some(&own.name),
            Home::Server(_) | Home::Private(_) => None,
        }
    }

    /// Removes everything in good order; dropping does the same in a hurry.
    pub(super) async fn close(self) -> Result<()> {
        match self.home {
            Home::Private(mut server) => server.stop(StopMode::Fast).await.map_err(Into::into),
            Home::Server(own) => {
                drop(own);
                Ok(())
            }
        }
    }
}

/// A connection for the demo's own statements, which expect what PostgreSQL's default is.
pub(super) async fn connect(url: &str) -> core::result::Result<PgConnection, sqlx::Error> {
    PgConnectOptions::from_str(url)?
        .application_name("evenhand-demo")
        .options([("default_transaction_isolation", "read committed")])
        .connect()
        .await
}

/// The wanted major, or the newest that is there; only if none is, the newest of all is fetched.
async fn installation(
    major: Option<Major>,
    allow_download: bool,
    progress: Progress,
) -> Result<Installation> {
    if let Some(major) = major {
        let options = pg::find_options(progress).allow_download(allow_download);
        return Ok(find(major, &options).await?);
    }
    let installed = pg::find_options(progress).allow_download(false);
    for major in Major::ALL.into_iter().rev() {
        match find(major, &installed).await {
            Ok(installation) => return Ok(installation),
            // Somebody pointed at binaries that cannot be used, and should hear of it.
            Err(error @ FindError::Variable { .. }) => return Err(error.into()),
            Err(_) => {}
        }
    }
    let [.., newest] = Major::ALL;
    let options = pg::find_options(progress).allow_download(allow_download);
    Ok(find(newest, &options).await?)
}

/// A database on a server that is not ours; dropping it drops the database, unless it is to stay.
#[derive(Debug)]
struct OwnDatabase {
    server: PgConnectOptions,
    name: String,
    url: String,
    keep: bool,
}

impl OwnDatabase {
    async fn create(url: &str, keep: bool) -> Result<Self> {
        // The store's own rules first: a user, and verified TLS unless the server is on loopback.
        ConnectOptions::parse(url)
            .map_err(|error| format!("--database-url: {}", with_causes(&error)))?;
        let server = PgConnectOptions::from_str(url)?;
        let mut connection = server
            .connect()
            .await
            .map_err(|error| format!("--database-url: cannot connect: {}", said(&error)))?;
        let name = format!("evenhand_demo_{:016x}", fastrand::u64(..));
        // From here on it is dropped, also when the answer never comes.
        let own = Self {
            url: with_database(url, &name),
            server,
            name,
            keep,
        };
        let created = run(&mut connection, &format!("CREATE DATABASE {}", own.name)).await;
        created.map_err(|error| explain_creation(&error, own.server.get_username()))?;
        connection.close().await?;
        Ok(own)
    }
}

impl Drop for OwnDatabase {
    /// Waits until the database is gone: a process that ended first would leave it for ever.
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        let server = self.server.clone();
        let statement = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        // Our own runtime is busy running this very function, so the work needs another.
        let dropping = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(async {
                let work = async {
                    let mut connection = server.connect().await?;
                    run(&mut connection, &statement).await?;
                    connection.close().await
                };
                tokio::time::timeout(DROP_DEADLINE, work).await??;
                Ok::<_, Box<dyn Error + Send + Sync>>(())
            })
        });
        match dropping.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => eprintln!("cannot drop the database {}: {error}", self.name),
            Err(_) => eprintln!(
                "cannot drop the database {}: the thread panicked",
                self.name
            ),
        }
    }
}

/// Runs a statement about databases, which take no parameters. The names in it are ours.
async fn run(
    connection: &mut PgConnection,
    statement: &str,
) -> core::result::Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(statement))
        .execute(connection)
        .await?;
    Ok(())
}

/// The same URL for another database of the server.
fn with_database(url: &str, database: &str) -> String {
    let (address, parameters) = url.split_at(url.find('?').unwrap_or(url.len()));
    let authority = address.find("://").map_or(0, |at| at + "://".len());
    let path = address[authority..]
        .find('/')
        .map_or(address.len(), |at| authority + at);
    format!("{}/{database}{parameters}", &address[..path])
}

fn is_forbidden(error: &sqlx::Error) -> bool {
    let refusal = error.as_database_error();
    refusal.and_then(DatabaseError::code).as_deref() == Some(INSUFFICIENT_PRIVILEGE)
}

/// What the server said, or else the driver, whose text repeats its causes.
fn said(error: &sqlx::Error) -> String {
    let refusal = error.as_database_error().map(DatabaseError::message);
    refusal.map_or_else(|| error.to_string(), str::to_owned)
}

fn explain_creation(error: &sqlx::Error, user: &str) -> String {
    let hint = if is_forbidden(error) {
        format!("; as an administrator run: ALTER ROLE \"{user}\" CREATEDB")
    } else {
        String::new()
    };
    format!(
        "cannot make a database of the demo's own: {}{hint}",
        said(error)
    )
}

fn explain_migration(error: &MigrateError, user: &str) -> String {
    if let MigrateError::Prepare(cause) = error
        && is_forbidden(cause)
    {
        return format!(
            "{error}: {}; the user must be allowed to make Evenhand's roles (CREATEROLE) or, where they are there \
             already, be a member of their owner: GRANT evenhand_owner TO \"{user}\"",
            said(cause)
        );
    }
    with_causes(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_database_of_a_url_is_replaced() {
        for (url, expected) in [
            ("postgres://a@h:1/b", "postgres://a@h:1/x"),
            ("postgres://a:p%2Fq@h", "postgres://a:p%2Fq@h/x"),
            (
                "postgres://a@h/b?sslmode=disable&u=/v",
                "postgres://a@h/x?sslmode=disable&u=/v",
            ),
        ] {
            assert_eq!(with_database(url, "x"), expected);
        }
    }
}
