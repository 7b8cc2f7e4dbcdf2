//! Many clients at once, each of which insists on an answer.

use core::time::Duration;

use std::sync::{Arc, Mutex, PoisonError};

use evenhand_policy::WeightedFairnessPolicy;
use evenhand_store::{
    Claim, ClaimRequest, Failure, Lease, LeaseDuration, Reservation, ReservationCount,
    ReservationId, ReservationIdMint, ReservationStore, ReserveRequest, Retry, RoundRequest,
    RunQueue, StoreError, WorkerName,
};
use tokio::time::Instant;

use super::History;

/// How hard a storm blows.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StormOptions {
    /// How many clients act at once; they share the handles in turn. 8 by default.
    pub clients: u32,
    /// How many reservations each client makes. 25 by default.
    pub reservations_per_client: u32,
    /// The longest block that a client reserves. 4 by default.
    pub count_max: u32,
    /// Whether clients also claim against what they reserved, and end what they claimed. True by default.
    pub claims: bool,
    /// Whether they claim against whole blocks in rounds, mostly. False by default.
    pub rounds: bool,
    /// How long a client asks again while the outcome of a call is unknown or the store is unavailable. 30 seconds by
    /// default; after that it leaves the call unsettled.
    pub patience: Duration,
    /// Decides everything that is left to chance, but not how clients interleave. 0 by default.
    pub seed: u64,
}

impl Default for StormOptions {
    fn default() -> Self {
        Self {
            clients: 8,
            reservations_per_client: 25,
            count_max: 4,
            claims: true,
            rounds: false,
            patience: Duration::from_secs(30),
            seed: 0,
        }
    }
}

/// Lets many clients reserve, claim and end at once over these handles, and notes all that they saw.
///
/// A client repeats a call whose error is retryable, unchanged, until its patience ends. Now and then it also repeats one
/// that was answered, its own or another client's. The policy must be registered; runs to claim are enqueued by the
/// caller before.
///
/// # Panics
///
/// When there is no handle, or when a client panics.
pub async fn storm<S>(
    handles: &[Arc<S>],
    policy: &WeightedFairnessPolicy,
    options: &StormOptions,
) -> History
where
    S: ReservationStore + RunQueue + 'static,
{
    let history = Arc::new(History::new());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let clients = (0..options.clients)
        .zip(handles.iter().cycle())
        .map(|(number, store)| {
            let client = Client {
                name: format!("storm-{number}"),
                store: Arc::clone(store),
                policy: policy.clone(),
                options: options.clone(),
                history: Arc::clone(&history),
                asked: Arc::clone(&asked),
                random: fastrand::Rng::with_seed(
                    options.seed.wrapping_mul(1_000) + u64::from(number),
                ),
            };
            tokio::spawn(client.act())
        });
    for client in clients.collect::<Vec<_>>() {
        if let Err(error) = client.await {
            std::panic::resume_unwind(error.into_panic());
        }
    }
    Arc::into_inner(history).unwrap_or_default()
}

struct Client<S> {
    name: String,
    store: Arc<S>,
    policy: WeightedFairnessPolicy,
    options: StormOptions,
    history: Arc<History>,
    /// What any client has asked for.
    asked: Arc<Mutex<Vec<ReserveRequest>>>,
    random: fastrand::Rng,
}

impl<S: ReservationStore + RunQueue> Client<S> {
    async fn act(mut self) {
        let origin = Instant::now();
        let cursor = persist(self.options.patience, || {
            self.store.cursor(self.policy.shard())
        })
        .await;
        let Ok(cursor) = cursor else { return };
        let mut mint = ReservationIdMint::new(cursor.store_time, origin.elapsed());
        for _ in 0..self.options.reservations_per_client {
            let request = self.next_request(mint.mint(origin.elapsed()));
            let (history, store) = (&self.history, &*self.store);
            let answer = persist(self.options.patience, || history.reserve(store, &request)).await;
            let Ok(reservation) = answer else { continue };
            mint.observe(reservation.store_time, origin.elapsed());
            if self.options.claims && self.options.rounds && self.random.u32(..8) > 0 {
                self.claim_round(&reservation).await;
            } else if self.options.claims {
                for sequence in reservation.sequences() {
                    self.claim(sequence).await;
                }
            }
        }
    }

    /// Mostly a new request; at times one that some client made before, as if its answer had been lost.
    fn next_request(&mut self, id: ReservationId) -> ReserveRequest {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if self.random.u32(..8) == 0
            && let Some(known) = self.random.choice(asked.iter())
        {
            return known.clone();
        }
        let count = ReservationCount::new(self.random.u32(1..=self.options.count_max.max(1)));
        let count = count.unwrap_or(ReservationCount::MAX);
        let request = ReserveRequest::new(&self.policy, id, count);
        asked.push(request.clone());
        request
    }

    async fn claim(&mut self, sequence: u64) {
        let Ok(worker) = WorkerName::try_from(self.name.as_str()) else {
            return;
        };
        let request = ClaimRequest::new(&self.policy, sequence, worker, LeaseDuration::default());
        for _ in 0..self.repeats() {
            let (history, store) = (&self.history, &*self.store);
            let answer = persist(self.options.patience, || history.claim(store, &request)).await;
            if let Ok(Claim::Ran(claimed)) = answer {
                self.end(&claimed.lease).await;
            }
        }
    }

    async fn claim_round(&mut self, block: &Reservation) {
        let Ok(worker) = WorkerName::try_from(self.name.as_str()) else {
            return;
        };
        let runs_max = self.random.u32(0..=block.count.get());
        let lease = LeaseDuration::default();
        let request = RoundRequest::new(&self.policy, block, worker, lease, runs_max);
        for _ in 0..self.repeats() {
            let (history, store) = (&self.history, &*self.store);
            let ask = || history.claim_round(store, &request);
            let answer = persist(self.options.patience, ask).await;
            for claimed in answer.map(|round| round.claimed).unwrap_or_default() {
                self.end(&claimed.lease).await;
            }
        }
    }

    /// Now and then an answered call is made once more.
    fn repeats(&mut self) -> u32 {
        if self.random.u32(..8) == 0 { 2 } else { 1 }
    }

    async fn end(&mut self, lease: &Lease) {
        let (history, store, patience) = (&self.history, &*self.store, self.options.patience);
        let failure = Failure::new("the storm took it", Retry::After(Duration::ZERO));
        // Somebody else may have claimed the same sequence and ended it first, so every answer is fine here.
        match self.random.u32(..8) {
            0 => drop(persist(patience, || history.fail(store, lease, &failure)).await),
            1 => drop(persist(patience, || history.release(store, lease, Duration::ZERO)).await),
            _ => drop(persist(patience, || history.complete(store, lease)).await),
        }
        drop(persist(patience, || history.complete(store, lease)).await);
    }
}

/// Asks until the answer is final, or patience ends.
async fn persist<T, F>(patience: Duration, mut call: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    const PAUSE: Duration = Duration::from_millis(5);
    let started = Instant::now();
    loop {
        match call().await {
            Err(error) if error.is_retryable() && started.elapsed() < patience => {
                tokio::time::sleep(PAUSE).await;
            }
            answer => return answer,
        }
    }
}
