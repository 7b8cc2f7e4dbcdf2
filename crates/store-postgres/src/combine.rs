//! Reservations that arrive while one of their shard is under way are made together, in one transaction.
//!
//! A shard's order takes one transaction per flush, however many callers there are. So whoever comes while a call is
//! under way waits for its end, and then all who have come meanwhile share the next one: the flush is the window, and
//! there is no timer. A caller who comes alone makes its call itself and loses nothing.

use core::error::Error as _;
use core::fmt;

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use evenhand_policy::{PolicyDigest, SchedulerShardId};
use evenhand_store::{Reservation, ReserveRequest, StoreError, StoreErrorKind};
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::rows::{int, time, unsigned};
use crate::{PostgresStore, error};

/// The most reservations of one transaction: the shard is locked as long as it lasts.
const TOGETHER_MAX: usize = 256;

/// How often the other tasks of the runtime are let by without anybody joining before a call is made: a few
/// microseconds each.
const GATHERING_TURNS: u32 = 4;

/// What calls must have in common to be made together.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Lane {
    shard: SchedulerShardId,
    digest: PolicyDigest,
    cycle_length: u32,
}

impl Lane {
    fn of(request: &ReserveRequest) -> Self {
        Self {
            shard: request.shard.clone(),
            digest: request.digest,
            cycle_length: request.cycle_length,
        }
    }
}

type Answer = Result<Reservation, StoreError>;

struct Waiting {
    request: ReserveRequest,
    answer: oneshot::Sender<Answer>,
}

/// The lanes in which a call is under way, and who waits for its end.
#[derive(Default)]
pub(crate) struct Combiner {
    lanes: Mutex<HashMap<Lane, Vec<Waiting>>>,
}

impl Combiner {
    fn lock(&self) -> MutexGuard<'_, HashMap<Lane, Vec<Waiting>>> {
        // Nothing panics between two changes that belong together.
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer to wait for, or `None` when no call is under way in the lane: then one is from now on.
    fn join(&self, lane: &Lane, request: &ReserveRequest) -> Option<oneshot::Receiver<Answer>> {
        let mut lanes = self.lock();
        let Some(waiting) = lanes.get_mut(lane) else {
            lanes.insert(lane.clone(), Vec::new());
            return None;
        };
        let (answer, receiver) = oneshot::channel();
        waiting.push(Waiting {
            request: request.clone(),
            answer,
        });
        Some(receiver)
    }

    /// How many wait in a lane.
    fn waiting(&self, lane: &Lane) -> usize {
        self.lock().get(lane).map_or(0, Vec::len)
    }

    /// Those who have waited longest and still do.
    fn next(&self, lane: &Lane) -> Vec<Waiting> {
        let mut lanes = self.lock();
        let Some(waiting) = lanes.get_mut(lane) else {
            return Vec::new();
        };
        waiting.retain(|caller| !caller.answer.is_closed());
        let together = waiting.len().min(TOGETHER_MAX);
        waiting.drain(..together).collect()
    }
}

impl fmt::Debug for Combiner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Combiner")
            .field("lanes", &self.lock().len())
            .finish()
    }
}

/// The one call of a lane that is under way. However it ends, also by being dropped, those who wait are served next.
struct Turn {
    store: PostgresStore,
    lane: Lane,
    begun: bool,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut lanes = self.store.combiner.lock();
        let waited_for = lanes
            .get(&self.lane)
            .is_some_and(|waiting| !waiting.is_empty());
        match Handle::try_current() {
            // A turn that never began belongs to a runtime that is shutting down, and so would the next.
            Ok(runtime) if waited_for && self.begun => {
                drop(lanes);
                let next = Self {
                    store: self.store.clone(),
                    lane: self.lane.clone(),
                    begun: false,
                };
                runtime.spawn(next.serve());
            }
            Ok(_) | Err(_) => drop(lanes.remove(&self.lane)),
        }
    }
}

impl Turn {
    /// Makes calls of all who wait, and gives each its answer, for as long as they come back together.
    async fn serve(mut self) {
        self.begun = true;
        let mut expected = usize::MAX;
        loop {
            self.gather(expected).await;
            let waiting = self.store.combiner.next(&self.lane);
            expected = waiting.len();
            self.serve_together(waiting).await;
            // Whoever is alone is best served by a call of its own.
            if expected < 2 {
                return;
            }
        }
    }

    /// Lets those who were answered a moment ago come along. The lane is taken meanwhile: otherwise the first of them
    /// would make a call alone, and all others would wait for its end.
    async fn gather(&self, expected: usize) {
        let mut waiting = self.store.combiner.waiting(&self.lane);
        let mut idle = 0;
        while waiting < expected && idle < GATHERING_TURNS {
            tokio::task::yield_now().await;
            let before = core::mem::replace(&mut waiting, self.store.combiner.waiting(&self.lane));
            idle = if waiting > before { 0 } else { idle + 1 };
        }
    }

    async fn serve_together(&self, waiting: Vec<Waiting>) {
        let (requests, callers): (Vec<ReserveRequest>, Vec<oneshot::Sender<Answer>>) = waiting
            .into_iter()
            .map(|caller| (caller.request, caller.answer))
            .unzip();
        let answers = match requests.as_slice() {
            [] => return,
            [alone] => vec![self.store.reserve_alone(alone).await],
            together => match self.store.reserve_together(&self.lane, together).await {
                Ok(answers) => answers,
                Err(error) => together.iter().map(|_| Err(same(&error))).collect(),
            },
        };
        for (caller, answer) in callers.into_iter().zip(answers) {
            // A caller who has gone asks again with the same id.
            drop(caller.send(answer));
        }
    }
}

/// The same failure for another caller.
fn same(error: &StoreError) -> StoreError {
    StoreError::new(error.kind(), error.to_string())
}

impl PostgresStore {
    /// Reserves, together with whoever else in this process wants to while a call is under way.
    pub(crate) async fn reserve_combined(&self, request: &ReserveRequest) -> Answer {
        let lane = Lane::of(request);
        let Some(answer) = self.combiner.join(&lane, request) else {
            let _turn = Turn {
                store: self.clone(),
                lane,
                begun: true,
            };
            return self.reserve_alone(request).await;
        };
        answer.await.unwrap_or_else(|_| {
            Err(StoreError::new(
                StoreErrorKind::OutcomeUnknown,
                "the runtime that made the call has ended",
            ))
        })
    }

    async fn reserve_alone(&self, request: &ReserveRequest) -> Answer {
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/reserve.sql"))
            .bind(request.shard.as_str())
            .bind(request.id.as_uuid())
            .bind(request.digest.as_bytes().as_slice())
            .bind(int(request.cycle_length))
            .bind(int(request.count.get()))
            .persistent(session.is_persistent())
            .try_map(|row: PgRow| reserved(request, &row))
            .fetch_one(session.connection()?)
            .await;
        session.end(answer).await
    }

    async fn reserve_together(
        &self,
        lane: &Lane,
        requests: &[ReserveRequest],
    ) -> Result<Vec<Answer>, StoreError> {
        let answers = self.try_together(lane, requests).await;
        match &answers {
            // One of the ids came in another shard at the same moment and is on record there by now, so that it is refused
            // alone.
            Err(error) if is_unique_violation(error) => self.try_together(lane, requests).await,
            Ok(_) | Err(_) => answers,
        }
    }

    async fn try_together(
        &self,
        lane: &Lane,
        requests: &[ReserveRequest],
    ) -> Result<Vec<Answer>, StoreError> {
        let ids: Vec<_> = requests
            .iter()
            .map(|request| request.id.as_uuid())
            .collect();
        let counts: Vec<i32> = requests
            .iter()
            .map(|request| int(request.count.get()))
            .collect();
        let mut session = self.session().await?;
        let answer = sqlx::query(include_str!("../sql/reserve_many.sql"))
            .bind(lane.shard.as_str())
            .bind(ids)
            .bind(lane.digest.as_bytes().as_slice())
            .bind(int(lane.cycle_length))
            .bind(counts)
            .persistent(session.is_persistent())
            .fetch_all(session.connection()?)
            .await
            .and_then(|rows| {
                let answered = requests.iter().zip(&rows);
                answered
                    .map(|(request, row)| reserved_or_refused(request, row))
                    .collect::<Result<Vec<_>, _>>()
            });
        session.end(answer).await
    }
}

/// Whether the server refused and undid a call because somebody else inserted the same at the same moment.
fn is_unique_violation(error: &StoreError) -> bool {
    let source = error.source();
    let source = source.and_then(|source| source.downcast_ref::<sqlx::Error>());
    let refusal = source.and_then(sqlx::Error::as_database_error);
    refusal.is_some_and(sqlx::error::DatabaseError::is_unique_violation)
}

fn reserved(request: &ReserveRequest, row: &PgRow) -> Result<Reservation, sqlx::Error> {
    Ok(Reservation::new(
        request.id,
        unsigned(row.try_get::<i64, _>("first_sequence")?)?,
        request.count,
        time(row.try_get("reserved_at_us")?)?,
        time(row.try_get("store_time_us")?)?,
    ))
}

fn reserved_or_refused(request: &ReserveRequest, row: &PgRow) -> Result<Answer, sqlx::Error> {
    let Some(code) = row.try_get::<Option<&str>, _>("refusal")? else {
        return reserved(request, row).map(Ok);
    };
    let message: String = row.try_get("message")?;
    Ok(Err(StoreError::new(error::kind_of_sqlstate(code), message)))
}
