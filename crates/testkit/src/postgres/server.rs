mod error;
mod options;

use core::net::Ipv4Addr;
use core::time::Duration;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::Signal;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{ConnectOptions as _, Connection as _};

pub use self::error::ServerError;
use self::error::io_error;
pub use self::options::{ServerOptions, StopMode};
use super::binaries::Installation;
use super::folder::ServerFolder;
use super::postmaster::Postmaster;
use super::user::ServerUser;

const SUPERUSER: &str = "postgres";

/// How often a start is tried again with another port after somebody else took the one that the OS had offered.
const PORT_ATTEMPTS: u32 = 5;
const START_DEADLINE: Duration = Duration::from_mins(1);
const STOP_DEADLINE: Duration = Duration::from_mins(1);
const CONNECT_DEADLINE: Duration = Duration::from_secs(5);
const POLL_PAUSE: Duration = Duration::from_millis(10);
const LOG_TAIL_LINES: usize = 30;

/// What a server prints when another process listens on its port.
const PORT_TAKEN: &str = "could not bind IPv4 address";
/// What it prints while the processes of its killed predecessor are still going away.
const PREDECESSOR_LEAVING: &str = "is still in use";

/// A private PostgreSQL server on loopback, with data of its own.
///
/// It listens on 127.0.0.1 at a port that the OS chose, and on a socket in [`Server::socket_folder`]. Everybody on
/// this machine may connect as the superuser `postgres`, without a password. When the process is root the server runs
/// as `postgres` or `nobody`.
///
/// Dropping it stops the server at once and removes its data; when the owner is killed instead, a watchdog does both.
#[derive(Debug)]
pub struct Server {
    // The order matters: the process must be gone before its folder is removed.
    postmaster: Option<Postmaster>,
    folder: ServerFolder,
    user: ServerUser,
    installation: Installation,
    options: ServerOptions,
    port: u16,
}

impl Server {
    /// Makes a new data directory and starts a server on it; returns once it accepts connections.
    ///
    /// # Errors
    ///
    /// [`ServerError`], with the end of the server's log where there is one.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends what was started and removes what was made.
    pub async fn start(
        installation: &Installation,
        options: ServerOptions,
    ) -> Result<Self, ServerError> {
        let user = ServerUser::detect()?;
        let folder = ServerFolder::create(&user).map_err(io_error("make the server's folder"))?;
        let mut server = Self {
            postmaster: None,
            folder,
            user,
            installation: installation.clone(),
            options,
            port: 0,
        };
        server.init_data().await?;
        let mut attempt = 1;
        loop {
            server.port = free_port().map_err(io_error("find a free port"))?;
            match server.launch(Instant::now() + START_DEADLINE).await {
                Err(ServerError::Ended { log, .. })
                    if log.contains(PORT_TAKEN) && attempt < PORT_ATTEMPTS =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(error),
                Ok(()) => return Ok(server),
            }
        }
    }

    /// The URL of `database` on this server, for its superuser.
    pub fn url(&self, database: &str) -> String {
        format!(
            "postgres://{SUPERUSER}@{}:{}/{database}",
            Ipv4Addr::LOCALHOST,
            self.port
        )
    }

    /// The port on 127.0.0.1; it stays the same over [`Server::restart`].
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The folder of the server's Unix socket, closed to everybody but the server's user and root.
    pub fn socket_folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }

    /// The process id of the server while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.postmaster.as_ref().map(Postmaster::pid)
    }

    /// The installation that this server runs from.
    pub fn installation(&self) -> &Installation {
        &self.installation
    }

    /// The last lines of what the server printed.
    pub fn log_tail(&self) -> String {
        tail(&fs::read(self.folder.log()).unwrap_or_default())
    }

    /// Stops the server and waits until it is gone; the data stays for [`Server::restart`]. A stopped one stays so.
    ///
    /// # Errors
    ///
    /// [`ServerError::NotStopped`] if it does not end in time, as [`StopMode::Smart`] does while a client stays.
    ///
    /// # Cancel safety
    ///
    /// The request to stop stays sent; call again to wait on.
    pub async fn stop(&mut self, mode: StopMode) -> Result<(), ServerError> {
        let signal = match mode {
            StopMode::Smart => Signal::TERM,
            StopMode::Fast => Signal::INT,
            StopMode::Immediate => Signal::QUIT,
        };
        let deadline = Instant::now() + STOP_DEADLINE;
        let Some(postmaster) = &mut self.postmaster else {
            return Ok(());
        };
        if !ended(postmaster)? {
            postmaster
                .signal(signal)
                .map_err(io_error("signal PostgreSQL"))?;
        }
        while !ended(postmaster)? {
            if Instant::now() >= deadline {
                return Err(ServerError::NotStopped {
                    log: self.log_tail(),
                });
            }
            tokio::time::sleep(POLL_PAUSE).await;
        }
        self.postmaster = None;
        Ok(())
    }

    /// Kills the server's main process with SIGKILL, the hardest crash short of the machine's. The data stays.
    ///
    /// # Errors
    ///
    /// [`ServerError::Io`] if the process cannot be killed.
    pub fn kill_hard(&mut self) -> Result<(), ServerError> {
        if let Some(mut postmaster) = self.postmaster.take() {
            postmaster.kill().map_err(io_error("kill PostgreSQL"))?;
        }
        Ok(())
    }

    /// Starts the server again on the same data and port, after a fast stop if it still runs.
    ///
    /// # Errors
    ///
    /// [`ServerError`]; also when the port stays taken by somebody else until the deadline.
    ///
    /// # Cancel safety
    ///
    /// The server is then stopped; call again.
    pub async fn restart(&mut self) -> Result<(), ServerError> {
        self.stop(StopMode::Fast).await?;
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            match self.launch(deadline).await {
                Err(ServerError::Ended { log, .. })
                    if Instant::now() < deadline
                        && (log.contains(PREDECESSOR_LEAVING) || log.contains(PORT_TAKEN)) =>
                {
                    tokio::time::sleep(POLL_PAUSE).await;
                }
                result => return result,
            }
        }
    }

    async fn init_data(&self) -> Result<(), ServerError> {
        let mut command = self.command("initdb");
        command
            .args(["--auth", "trust", "--encoding", "UTF8", "--locale", "C"])
            .args([
                "--username",
                SUPERUSER,
                "--no-sync",
                "--no-instructions",
                "--pgdata",
            ])
            .arg(self.folder.data());
        let output = tokio::process::Command::from(command)
            .kill_on_drop(true)
            .output()
            .await
            .map_err(io_error("run initdb"))?;
        if output.status.success() {
            return Ok(());
        }
        let printed = [output.stdout, output.stderr].concat();
        Err(ServerError::InitDb {
            status: output.status,
            output: String::from_utf8_lossy(&printed).into_owned(),
        })
    }

    /// One attempt to start the process and to see it accept connections.
    async fn launch(&mut self, deadline: Instant) -> Result<(), ServerError> {
        let log = File::create(self.folder.log()).map_err(io_error("create the server's log"))?;
        let log_of_errors = log
            .try_clone()
            .map_err(io_error("create the server's log"))?;
        let mut command = self.command("postgres");
        command
            .arg("-D")
            .arg(self.folder.data())
            .stdout(log)
            .stderr(log_of_errors);
        for (name, value) in self.parameters() {
            let mut assignment = OsString::from(name);
            assignment.push("=");
            assignment.push(value);
            command.arg("-c").arg(assignment);
        }
        let mut postmaster = Postmaster::spawn(command, self.folder.path(), &self.user)
            .map_err(io_error("start PostgreSQL"))?;
        // Until it is ready it belongs to this call: dropped, it is stopped.
        loop {
            let status = postmaster
                .exit_status()
                .map_err(io_error("wait for PostgreSQL"))?;
            if let Some(status) = status {
                return Err(ServerError::Ended {
                    status,
                    log: self.log_tail(),
                });
            }
            if self.accepts_connections().await {
                self.postmaster = Some(postmaster);
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(ServerError::NotReady {
                    log: self.log_tail(),
                });
            }
            tokio::time::sleep(POLL_PAUSE).await;
        }
    }

    fn parameters(&self) -> impl Iterator<Item = (String, OsString)> {
        let ours: [(&str, OsString); 3] = [
            ("listen_addresses", Ipv4Addr::LOCALHOST.to_string().into()),
            ("port", self.port.to_string().into()),
            ("unix_socket_directories", self.folder.path().into()),
        ];
        let chosen = self.options.settings();
        chosen
            .map(|(name, value)| (name.to_owned(), OsString::from(value)))
            .chain(ours.map(|(name, value)| (name.to_owned(), value)))
    }

    /// Whether our own server answers. Another one that won the race for the port has another data directory.
    async fn accepts_connections(&self) -> bool {
        let options = PgConnectOptions::new_without_pgpass()
            .host(&Ipv4Addr::LOCALHOST.to_string())
            .port(self.port)
            .username(SUPERUSER)
            .database("postgres")
            .ssl_mode(PgSslMode::Disable);
        let probe = async {
            let mut connection = options.connect().await?;
            let data: String = sqlx::query_scalar("SHOW data_directory")
                .fetch_one(&mut connection)
                .await?;
            connection.close().await?;
            Ok::<_, sqlx::Error>(self.folder.data().as_os_str() == data.as_str())
        };
        matches!(
            tokio::time::timeout(CONNECT_DEADLINE, probe).await,
            Ok(Ok(true))
        )
    }

    fn command(&self, program: &str) -> Command {
        let mut command = self.user.command(self.installation.bin().join(program));
        command
            .current_dir(self.folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }
}

fn ended(postmaster: &mut Postmaster) -> Result<bool, ServerError> {
    let status = postmaster
        .exit_status()
        .map_err(io_error("wait for PostgreSQL"))?;
    Ok(status.is_some())
}

/// A port that was free a moment ago. Somebody may take it before the server does, so starting is retried.
fn free_port() -> io::Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}

fn tail(log: &[u8]) -> String {
    let text = String::from_utf8_lossy(log);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_TAIL_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_last_lines() {
        let log: String = (1..=40)
            .map(|line| format!("line {line}"))
            .collect::<Vec<_>>()
            .join("\n");
        let tail = tail(log.as_bytes());
        assert_eq!(tail.lines().count(), LOG_TAIL_LINES);
        assert!(tail.starts_with("line 11\n") && tail.ends_with("line 40"));
        assert_eq!(super::tail(b""), "");
    }
}
