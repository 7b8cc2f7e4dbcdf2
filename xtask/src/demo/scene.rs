//! What happens in a demo, in order: enqueue, work, a kill, a tenant that comes back, the end.

use core::error::Error;
use core::time::Duration;
use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use evenhand_policy::TenantId;
use evenhand_store::{
    NewRun, PolicyRegistration, ReservationStore as _, RunCounts, RunId, RunQueue as _, WorkerName,
};
use evenhand_store_postgres::{ConnectOptions, PostgresStore};

use super::Evidence;
use super::database::connect;
use super::evidence::{Expected, WorkersDone, held_by};
use super::input::{Input, InputRun, Wave};
use super::processes::Workers;
use super::progress::Live;
use crate::progress::Progress;

/// How often the runs are counted.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// How often the record is asked whether a worker holds a run.
const GLANCE_INTERVAL: Duration = Duration::from_millis(20);

/// Far longer than a statement takes that a worker had sent when it was paused.
const PAUSE: Duration = Duration::from_millis(200);

/// When the second wave comes, if its tenants are idle by then: half of all runs.
const SECOND_WAVE_PERCENT: u64 = 50;

/// Without any run being done for so long, something is broken.
const PATIENCE: Duration = Duration::from_secs(30);

/// How many runs are enqueued in one call.
const ENQUEUE_BATCH: usize = 500;

type Result<T> = core::result::Result<T, Box<dyn Error>>;

/// How a demo is to be played.
#[derive(Clone, Copy, Debug)]
pub(super) struct SceneOptions {
    pub(super) workers: u32,
    pub(super) concurrency: u32,
    pub(super) kill_after_percent: u64,
}

/// A demo that was played to its end.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) evidence: Evidence,
    pub(super) drained_in: Duration,
}

impl Scene {
    /// Plays a demo in the migrated database that `url` names.
    ///
    /// # Errors
    ///
    /// When a step cannot be made, a worker ends by itself, or nothing happens any more. Broken promises are none; they
    /// are for the verdicts.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future kills the workers.
    pub(super) async fn play(
        input: &Input,
        url: &str,
        options: &SceneOptions,
        progress: Progress,
    ) -> Result<Self> {
        let store = PostgresStore::connect(ConnectOptions::parse(url)?).await?;
        store
            .register_policy(&PolicyRegistration::new(input.policy.clone()))
            .await?;
        let shard = input.policy.shard();
        let mut play = Play {
            input,
            store,
            options,
            workers: Workers::new(url, shard.clone(), options.concurrency),
            live: Live::new(progress, totals(input)),
            expected: HashMap::new(),
        };
        play.enqueue(Wave::First).await?;
        let begun = Instant::now();
        let workers = play.drain().await?;
        let drained_in = begun.elapsed();
        let Play {
            store,
            workers: processes,
            expected,
            mut live,
            ..
        } = play;
        processes.drain().await?;
        live.step("all workers have ended; reading the record");
        let mut results = connect(url).await?;
        let evidence = Evidence::read(&store, &mut results, shard, expected, workers).await?;
        Ok(Self {
            evidence,
            drained_in,
        })
    }
}

/// A demo that is being played.
struct Play<'a> {
    input: &'a Input,
    store: PostgresStore,
    options: &'a SceneOptions,
    workers: Workers,
    live: Live,
    expected: HashMap<RunId, Expected>,
}

impl Play<'_> {
    /// Works until every run is done, and answers which workers there were.
    async fn drain(&mut self) -> Result<WorkersDone> {
        let SceneOptions {
            workers,
            concurrency,
            ..
        } = *self.options;
        self.live.step(&format!(
            "starting {workers} workers, each for {concurrency} runs at a time"
        ));
        for _ in 0..workers {
            self.workers.start()?;
        }
        let total = u64::try_from(self.input.runs.len())?;
        let mut killed = None;
        let mut second_wave_is_due = true;
        let (mut done_before, mut moved) = (0, Instant::now());
        loop {
            self.workers.check()?;
            let counts = self.store.counts().await?;
            self.live.show(&counts);
            let done = counts.iter().map(|counts| counts.done + counts.dead).sum();
            if done > done_before {
                (done_before, moved) = (done, Instant::now());
            }
            if moved.elapsed() > PATIENCE {
                return Err(format!(
                    "no run has ended for {PATIENCE:?}; {done} of {total} are done"
                )
                .into());
            }
            if killed.is_none() && done * 100 >= total * self.options.kill_after_percent {
                killed = Some(self.replace_one().await?);
            }
            if second_wave_is_due
                && done * 100 >= total * SECOND_WAVE_PERCENT
                && self.is_idle(&counts)
            {
                second_wave_is_due = false;
                self.enqueue(Wave::Second).await?;
            }
            if done >= total
                && let Some((killed, replacement)) = killed
            {
                let started = workers + 1;
                return Ok(WorkersDone {
                    started,
                    concurrency,
                    killed,
                    replacement,
                });
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Kills a worker at a moment at which it surely holds a run, and starts another; answers both names.
    async fn replace_one(&mut self) -> Result<(WorkerName, WorkerName)> {
        let shard = self.input.policy.shard();
        let victim = self.workers.take_oldest()?;
        let name = victim.name().clone();
        let deadline = Instant::now() + PATIENCE;
        let held = loop {
            if Instant::now() > deadline {
                return Err(format!("{name} held no run for {PATIENCE:?}").into());
            }
            if held_by(&self.store, shard, &name).await? == 0 {
                tokio::time::sleep(GLANCE_INTERVAL).await;
                continue;
            }
            // A paused process cannot end a run between this second look and the kill.
            victim.pause()?;
            tokio::time::sleep(PAUSE).await;
            let held = held_by(&self.store, shard, &name).await?;
            if held > 0 {
                break held;
            }
            victim.resume()?;
        };
        victim.kill().await?;
        let replacement = self.workers.start()?;
        self.live.step(&format!(
            "killed {name} with SIGKILL while it held {held} runs; {replacement} takes its place"
        ));
        Ok((name, replacement))
    }

    /// Whether every tenant that comes back in the second wave has no run left.
    fn is_idle(&self, counts: &[RunCounts]) -> bool {
        let mut returning = self
            .input
            .of_wave(Wave::Second)
            .map(|run| &run.new_run.tenant);
        returning.all(|tenant| {
            let theirs = counts.iter().find(|counts| counts.tenant == *tenant);
            theirs.is_none_or(|counts| counts.queued == 0 && counts.running == 0)
        })
    }

    /// Enqueues a wave, and notes when it was known to be committed.
    async fn enqueue(&mut self, wave: Wave) -> Result<()> {
        let shard = self.input.policy.shard();
        let runs: Vec<&InputRun> = self.input.of_wave(wave).collect();
        self.live.step(&match wave {
            Wave::First => format!("enqueueing {} runs", runs.len()),
            Wave::Second => format!("enqueueing {} runs of tenants that were idle", runs.len()),
        });
        for batch in runs.chunks(ENQUEUE_BATCH) {
            let new_runs: Vec<NewRun> = batch.iter().map(|run| run.new_run.clone()).collect();
            let answers = self.store.enqueue_many(&new_runs).await?;
            let committed_by = self.store.cursor(shard).await?.store_time;
            for (run, answer) in batch.iter().zip(answers) {
                let expected = Expected {
                    line: run.line,
                    file: run.checksum.path.to_string(),
                    digest: run.digest.clone(),
                    committed_by,
                };
                self.expected.insert(answer.run, expected);
            }
        }
        Ok(())
    }
}

fn totals(input: &Input) -> BTreeMap<TenantId, u64> {
    let mut totals: BTreeMap<TenantId, u64> = BTreeMap::new();
    for run in &input.runs {
        *totals.entry(run.new_run.tenant.clone()).or_default() += 1;
    }
    totals
}
