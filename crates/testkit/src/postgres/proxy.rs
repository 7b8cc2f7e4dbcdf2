mod cut;
mod frame;
mod session;

use alloc::sync::Arc;
use core::fmt;
use core::net::Ipv4Addr;
use core::str::FromStr as _;
use core::time::Duration;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sqlx::postgres::PgConnectOptions;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use self::cut::Armed;
pub use self::cut::Cut;
use super::url::with_address;

/// Which way something goes through a [`Proxy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Direction {
    /// From the client.
    ToServer,
    /// From the server.
    ToClient,
}

/// What clients have sent through a [`Proxy`], after their connections were set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageCounts {
    /// Statements that were prepared.
    pub parse: u64,
    /// Statements that were given their parameters.
    pub bind: u64,
    /// Bound statements that were run.
    pub execute: u64,
    /// Questions about the shape of parameters and rows.
    pub describe: u64,
    /// Ends of a request in the extended protocol.
    pub sync: u64,
    /// Requests in the simple protocol; each holds one statement or several.
    pub query: u64,
    /// Everything else.
    pub other: u64,
    /// Round trips: how often something was sent while no answer was outstanding.
    pub round_trips: u64,
}

impl MessageCounts {
    /// How many requests to run something were sent, in either protocol.
    pub fn statements(&self) -> u64 {
        self.execute + self.query
    }
}

/// A proxy on loopback between clients and a PostgreSQL server, which counts messages and cuts connections on demand.
///
/// A cut *reply* is the true lost acknowledgement: the request reaches the server, the server is heard to have
/// finished it, and only then both connections are dropped, without a byte of the answer. A cut *request* never
/// reaches the server. Only requests that run something are cut, so that connecting and preparing still work.
///
/// The server must not encrypt: a client that insists on TLS or GSSAPI is disconnected. Dropping the proxy drops
/// every connection through it.
pub struct Proxy {
    url: String,
    shared: Arc<Shared>,
    listening: AbortHandle,
}

/// What the connections of a proxy have in common.
struct Shared {
    host: String,
    port: u16,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    counts: MessageCounts,
    cuts: Vec<Armed>,
    cuts_made: u64,
    delay_to_server: Duration,
    delay_to_client: Duration,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No one panics while holding it, and counts stay right in any case.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn delay(&self, direction: Direction) -> Duration {
        let state = self.state();
        match direction {
            Direction::ToServer => state.delay_to_server,
            Direction::ToClient => state.delay_to_client,
        }
    }
}

impl Proxy {
    /// Starts a proxy in front of the server that `url` names. Each client gets a server connection of its own.
    ///
    /// # Errors
    ///
    /// If `url` is no PostgreSQL URL, or no port can be had.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Nothing is left behind.
    pub async fn start(url: &str) -> io::Result<Self> {
        let options = PgConnectOptions::from_str(url)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let shared = Arc::new(Shared {
            host: options.get_host().to_owned(),
            port: options.get_port(),
            state: Mutex::default(),
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let task = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self {
            url: with_address(url, address),
            shared,
            listening: task.abort_handle(),
        })
    }

    /// The URL by which clients connect through this proxy.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Arms a cut. Several can be armed; for each request the first that applies is taken.
    pub fn cut(&self, cut: Cut) {
        self.shared.state().cuts.push(Armed::new(cut));
    }

    /// Cuts the reply to the next request that runs something.
    pub fn cut_next_reply(&self) {
        self.cut(Cut::reply());
    }

    /// Disarms every cut that is still armed.
    pub fn stop_cutting(&self) {
        self.shared.state().cuts.clear();
    }

    /// How many connections were cut.
    pub fn cuts_made(&self) -> u64 {
        self.shared.state().cuts_made
    }

    /// What has passed since the start or the last reset.
    pub fn counts(&self) -> MessageCounts {
        self.shared.state().counts
    }

    /// Counts from zero again.
    pub fn reset_counts(&self) {
        self.shared.state().counts = MessageCounts::default();
    }

    /// Holds up everything that goes in `direction` by `delay`, as a longer wire would.
    pub fn set_delay(&self, direction: Direction, delay: Duration) {
        let mut state = self.shared.state();
        match direction {
            Direction::ToServer => state.delay_to_server = delay,
            Direction::ToClient => state.delay_to_client = delay,
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL may hold a password.
        f.debug_struct("Proxy")
            .field("server", &(&self.shared.host, self.shared.port))
            .finish_non_exhaustive()
    }
}

/// Serves clients until it is aborted; the set of their tasks goes with it.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut sessions = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        while sessions.try_join_next().is_some() {}
        sessions.spawn(serve(client, Arc::clone(&shared)));
    }
}

/// Serves one client. However that ends, both connections are dropped, and each side sees the other's as lost.
async fn serve(client: TcpStream, shared: Arc<Shared>) -> io::Result<()> {
    client.set_nodelay(true)?;
    let server = TcpStream::connect((shared.host.as_str(), shared.port)).await?;
    server.set_nodelay(true)?;
    session::run(client, server, &shared).await
}
