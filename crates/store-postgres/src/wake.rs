//! Idle workers sleep until somebody enqueues: a row says that they do, and a notification wakes them.
//!
//! Whoever enqueues notifies only while such a row is there, since a notification takes a lock of the whole server. A
//! sleeper commits its row, listens, and then looks once more: what was enqueued before that has notified nobody.

use core::time::Duration;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenhand_store::{RunQueue as _, StoreError, StoreErrorKind, WaitRequest};
use sqlx::Row as _;
use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions, PgRow};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::PostgresStore;
use crate::rows::millis;

/// An enqueue looks for sleepers right before its commit, so one that is in the middle of it may have seen none. It is
/// done after this long, save in rare cases, which the longest wait covers.
const SECOND_LOOK_AFTER: Duration = Duration::from_millis(20);

/// How much longer a sleeper's row is good than the sleep is meant to last.
const ROW_SPARE: Duration = Duration::from_secs(1);

/// A sleeper gets up after this long at the latest. Whoever asked for more looks, and sleeps again.
const LONGEST: Duration = Duration::from_mins(10);

/// How long a first sleeper waits for the listening connection. Without one it sleeps its longest.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);

/// How long a broken listener waits before it connects again.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);

/// What is heard on a pool's channel.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    listening: bool,
    notifications: u64,
}

/// One connection that listens on one channel, for all sleepers of the store.
#[derive(Debug)]
struct Listener {
    heard: watch::Receiver<Heard>,
    task: JoinHandle<()>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The listeners of a store, by channel; made when somebody first sleeps.
#[derive(Debug)]
pub(crate) struct Waking {
    /// Where to listen; `None` when only a pooler is known that cannot keep a listener.
    server: Option<PgConnectOptions>,
    listeners: Mutex<HashMap<String, Listener>>,
}

impl Waking {
    pub(crate) fn new(server: Option<PgConnectOptions>) -> Self {
        Self {
            server,
            listeners: Mutex::default(),
        }
    }

    /// Ends all listeners.
    pub(crate) fn close(&self) {
        self.lock().clear();
    }

    /// What is heard on `channel` from now on.
    fn listen(&self, channel: &str, server: &PgConnectOptions) -> watch::Receiver<Heard> {
        let mut listeners = self.lock();
        // A task that has ended belonged to a runtime that is gone.
        listeners.retain(|_, listener| !listener.task.is_finished());
        let listener = listeners.entry(channel.to_owned()).or_insert_with(|| {
            let (sender, heard) = watch::channel(Heard::default());
            let task = tokio::spawn(listen(server.clone(), channel.to_owned(), sender));
            Listener { heard, task }
        });
        listener.heard.clone()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Listener>> {
        // Nothing panics between two changes that belong together.
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Listens for as long as anybody may want to hear, and connects again whenever the connection is lost.
async fn listen(server: PgConnectOptions, channel: String, heard: watch::Sender<Heard>) {
    // It is quiet for hours: networks must not forget it, and the server must not end it.
    let server = server
        .application_name("evenhand-listen")
        .options([("tcp_keepalives_idle", "60"), ("idle_session_timeout", "0")]);
    loop {
        if let Err(error) = listen_once(&server, &channel, &heard).await {
            tracing::warn!(error = %error, "nobody is woken for the moment; workers look now and then");
        }
        // What was missed meanwhile is seen by looking.
        heard.send_modify(|heard| {
            heard.listening = false;
            heard.notifications += 1;
        });
        sleep(RECONNECT_AFTER).await;
    }
}

async fn listen_once(
    server: &PgConnectOptions,
    channel: &str,
    heard: &watch::Sender<Heard>,
) -> Result<(), sqlx::Error> {
    // The driver listens on a connection of a pool. One that was lost may occupy its place in it for a while.
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_lazy_with(server.clone());
    let mut listener = PgListener::connect_with(&pool).await?;
    // Or else a reconnection would hide that notifications were missed.
    listener.eager_reconnect(false);
    listener.listen(channel).await?;
    // Who has run out of patience meanwhile sleeps already, and gets up to look for what was missed.
    heard.send_modify(|heard| {
        heard.listening = true;
        heard.notifications += 1;
    });
    while listener.try_recv().await?.is_some() {
        heard.send_modify(|heard| heard.notifications += 1);
    }
    Ok(())
}

/// A row that says that somebody sleeps.
struct Sleeper {
    pool_key: i32,
    until_us: i64,
    number: i64,
    channel: String,
}

impl PostgresStore {
    pub(crate) async fn sleep_until_work(&self, request: &WaitRequest) -> Result<(), StoreError> {
        let Some(server) = &self.waking.server else {
            let message =
                "behind a transaction pooler nobody is woken, unless it is said where to listen";
            return Err(StoreError::new(StoreErrorKind::Unsupported, message));
        };
        let longest = request.longest.min(LONGEST);
        let end = Instant::now() + longest;
        let sleeper = self.fall_asleep(request, longest).await?;
        let mut heard = self.waking.listen(&sleeper.channel, server);
        // Dropped here, the row stays and ends with its time.
        let slept = self.sleep(request, end, &mut heard).await;
        let awake = self.wake_up(&sleeper).await;
        slept.and(awake)
    }

    async fn sleep(
        &self,
        request: &WaitRequest,
        end: Instant,
        heard: &mut watch::Receiver<Heard>,
    ) -> Result<(), StoreError> {
        let patience = end.min(Instant::now() + CONNECT_PATIENCE);
        let listening = timeout_at(patience, heard.wait_for(|heard| heard.listening)).await;
        drop(listening);
        let before = heard.borrow_and_update().notifications;
        for pause in [Some(SECOND_LOOK_AFTER), None] {
            let ready = self.ready_tenants(&request.shard).await?;
            if !ready.tenants.is_empty() {
                return Ok(());
            }
            let next_ready = ready.next_ready_at.map(|at| {
                let left = Duration::try_from(at.duration_since(ready.store_time));
                Instant::now() + left.unwrap_or(Duration::ZERO)
            });
            let until = next_ready.map_or(end, |ready| ready.min(end));
            let until = pause.map_or(until, |pause| until.min(Instant::now() + pause));
            let woken = tokio::select! {
                biased;
                heard = heard.wait_for(|heard| heard.notifications != before) => heard.is_ok(),
                () = sleep_until(until) => false,
            };
            if woken || Instant::now() >= end {
                return Ok(());
            }
        }
        Ok(())
    }

    async fn fall_asleep(
        &self,
        request: &WaitRequest,
        longest: Duration,
    ) -> Result<Sleeper, StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/fall_asleep.sql"))
            .bind(request.shard.as_str())
            .bind(request.worker.as_str())
            .bind(millis(longest + ROW_SPARE))
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| {
                Ok(Sleeper {
                    pool_key: row.try_get("pool_key")?,
                    until_us: row.try_get("until_us")?,
                    number: row.try_get("sleeper")?,
                    channel: row.try_get("channel")?,
                })
            })
            .fetch_one(session.connection()?)
            .await;
        session.end(answer).await
    }

    async fn wake_up(&self, sleeper: &Sleeper) -> Result<(), StoreError> {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/wake_up.sql"))
            .bind(sleeper.pool_key)
            .bind(sleeper.until_us)
            .bind(sleeper.number)
            .persistent(session.is_persistent())
            .execute(session.connection()?)
            .await;
        session.end(answer).await.map(drop)
    }
}
