//! One client, its server connection, and what passes between them.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::cut::{self, Place};
use super::frame::{Message, MessageReader};
use super::{Direction, Shared};

// The client's first messages, by their code.
const CANCEL_REQUEST: u32 = 80_877_102;
const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;

// The client's messages.
const PARSE: u8 = b'P';
const BIND: u8 = b'B';
const EXECUTE: u8 = b'E';
const DESCRIBE: u8 = b'D';
const CLOSE: u8 = b'C';
const SYNC: u8 = b'S';
const FLUSH: u8 = b'H';
const QUERY: u8 = b'Q';

// The server's messages. The last three come at any time, unasked.
const READY_FOR_QUERY: u8 = b'Z';
const NOTICE: u8 = b'N';
const NOTIFICATION: u8 = b'A';
const PARAMETER_STATUS: u8 = b'S';

/// Why a connection ended, other than by an error of the network.
enum End {
    /// One side has closed its connection.
    Closed,
    /// A cut was made.
    Cut,
}

/// Passes everything on until one side closes, or a cut is due.
pub(super) async fn run(client: TcpStream, server: TcpStream, shared: &Shared) -> io::Result<()> {
    let (client_reader, mut to_client) = client.into_split();
    let (server_reader, mut to_server) = server.into_split();
    let mut client_reader = MessageReader::new(client_reader);
    let mut server_reader = MessageReader::new(server_reader);
    loop {
        let (code, bytes) = client_reader.startup().await?;
        to_server.write_all(&bytes).await?;
        match code {
            SSL_REQUEST | GSS_REQUEST => {
                let answer = server_reader.byte().await?;
                if answer != b'N' {
                    return Err(io::Error::other("encrypted messages cannot be told apart"));
                }
                to_client.write_all(&[answer]).await?;
            }
            CANCEL_REQUEST => return Ok(()),
            _ => break,
        }
    }
    let wire = Wire {
        shared,
        traffic: Mutex::default(),
    };
    let end = tokio::select! {
        end = wire.pass_requests(client_reader, to_server) => end?,
        end = wire.pass_replies(server_reader, to_client) => end?,
    };
    match end {
        End::Cut => shared.state().cuts_made += 1,
        End::Closed => {}
    }
    Ok(())
}

/// What both ways of one connection know.
struct Wire<'a> {
    shared: &'a Shared,
    traffic: Mutex<Traffic>,
}

#[derive(Default)]
struct Traffic {
    /// Authentication is over.
    is_set_up: bool,
    /// Requests that the server has not answered, oldest first; whether the reply to each is to be cut.
    unanswered: VecDeque<bool>,
    /// A flush was sent, and nothing has come back since.
    awaits_flush: bool,
}

impl Wire<'_> {
    fn traffic(&self) -> MutexGuard<'_, Traffic> {
        self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From client to server. A request is held until it is whole, so that it can be cut before any of it has arrived.
    async fn pass_requests(
        &self,
        mut reader: MessageReader<OwnedReadHalf>,
        mut writer: OwnedWriteHalf,
    ) -> io::Result<End> {
        let mut statements = Statements::default();
        let mut held = Vec::new();
        while let Some(message) = reader.next().await? {
            self.count(message.kind());
            statements.note(&message);
            held.extend_from_slice(message.bytes());
            match message.kind() {
                PARSE | BIND | EXECUTE | DESCRIBE | CLOSE => continue,
                SYNC | QUERY => {
                    let place = cut::decide(&mut self.shared.state().cuts, &statements.running);
                    statements.running.clear();
                    if place == Some(Place::BeforeRequest) {
                        return Ok(End::Cut);
                    }
                    self.send(place == Some(Place::AfterReply));
                }
                FLUSH => self.flush(),
                _ => {}
            }
            self.delay(Direction::ToServer).await;
            writer.write_all(&held).await?;
            held.clear();
        }
        Ok(End::Closed)
    }

    /// From server to client. The reply to a doomed request is read to its end and kept back.
    async fn pass_replies(
        &self,
        mut reader: MessageReader<OwnedReadHalf>,
        mut writer: OwnedWriteHalf,
    ) -> io::Result<End> {
        let mut collected = Vec::new();
        while let Some(message) = reader.next().await? {
            let doomed = self.receive(message.kind());
            if !doomed {
                collected.extend_from_slice(message.bytes());
            }
            if (doomed || reader.is_drained()) && !collected.is_empty() {
                self.delay(Direction::ToClient).await;
                writer.write_all(&collected).await?;
                collected.clear();
            }
            if doomed && message.kind() == READY_FOR_QUERY {
                return Ok(End::Cut);
            }
        }
        Ok(End::Closed)
    }

    fn count(&self, kind: u8) {
        if !self.traffic().is_set_up {
            return;
        }
        let counts = &mut self.shared.state().counts;
        let count = match kind {
            PARSE => &mut counts.parse,
            BIND => &mut counts.bind,
            EXECUTE => &mut counts.execute,
            DESCRIBE => &mut counts.describe,
            SYNC => &mut counts.sync,
            QUERY => &mut counts.query,
            _ => &mut counts.other,
        };
        *count += 1;
    }

    /// A whole request goes out.
    fn send(&self, doomed: bool) {
        self.begin_round_trip();
        self.traffic().unanswered.push_back(doomed);
    }

    /// A part of a request goes out, and the client waits for the answer to this part.
    fn flush(&self) {
        self.begin_round_trip();
        self.traffic().awaits_flush = true;
    }

    /// What is sent while an answer is outstanding shares that one's round trip.
    fn begin_round_trip(&self) {
        let traffic = self.traffic();
        if traffic.unanswered.is_empty() && !traffic.awaits_flush {
            self.shared.state().counts.round_trips += 1;
        }
    }

    /// Notes a message of the server, and says whether it belongs to a reply that is cut.
    fn receive(&self, kind: u8) -> bool {
        let mut traffic = self.traffic();
        if !matches!(kind, NOTICE | NOTIFICATION | PARAMETER_STATUS) {
            traffic.awaits_flush = false;
        }
        if !traffic.is_set_up {
            traffic.is_set_up = kind == READY_FOR_QUERY;
            return false;
        }
        let doomed = traffic.unanswered.front().is_some_and(|doomed| *doomed);
        if kind == READY_FOR_QUERY {
            traffic.unanswered.pop_front();
        }
        doomed
    }

    async fn delay(&self, direction: Direction) {
        let delay = self.shared.delay(direction);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }
}

/// Which SQL the client's requests run, also when it was prepared long before.
#[derive(Default)]
struct Statements {
    prepared: HashMap<Vec<u8>, Arc<str>>,
    portals: HashMap<Vec<u8>, Arc<str>>,
    /// The statements that the request so far runs.
    running: Vec<Arc<str>>,
}

impl Statements {
    fn note(&mut self, message: &Message) {
        let mut strings = message.strings();
        let (first, second) = (strings.next(), strings.next());
        match (message.kind(), first, second) {
            (PARSE, Some(name), Some(sql)) => {
                let sql = Arc::from(String::from_utf8_lossy(sql));
                self.prepared.insert(name.to_vec(), sql);
            }
            (BIND, Some(portal), Some(name)) => {
                if let Some(sql) = self.prepared.get(name) {
                    self.portals.insert(portal.to_vec(), Arc::clone(sql));
                }
            }
            (EXECUTE, Some(portal), _) => {
                // A portal made by SQL's DECLARE is not known here, but is run all the same.
                let sql = self.portals.get(portal).cloned().unwrap_or_default();
                self.running.push(sql);
            }
            (QUERY, Some(sql), _) => self.running.push(Arc::from(String::from_utf8_lossy(sql))),
            _ => {}
        }
    }
}
