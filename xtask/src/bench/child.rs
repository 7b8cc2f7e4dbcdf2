//! Processes of their own: callers that reserve, and a worker, each told by a line what to do.

use core::time::Duration;
use std::env;
use std::io::{self, Write as _};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::ValueEnum;
use evenhand_policy::SchedulerShardId;
use evenhand_store::ReservationStore as _;
use evenhand_store_postgres::{ConnectOptions, PostgresStore};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

use super::Result;
use super::noop;
use super::scene::{self, Shard};
use super::server::Database;
use super::usage::Usage;
use crate::{Outcome, Verdict};

/// Passes the database's URL where other users of the machine cannot read it.
const URL_VARIABLE: &str = "EVENHAND_BENCH_DATABASE_URL";

/// Measure in a process of its own. `cargo xtask bench` starts it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    role: Role,
    #[arg(long)]
    shard: SchedulerShardId,
    /// How many callers, or how many runs at a time.
    #[arg(long)]
    concurrency: usize,
    #[arg(long, env = URL_VARIABLE, hide_env_values = true)]
    database_url: String,
}

/// What a process does.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Role {
    /// Reserves for as many milliseconds as each line says, and answers with the calls in a second.
    Callers,
    /// Works from its first line until its input ends, and then answers when it started each run.
    Worker,
}

pub(crate) async fn run(args: Args) -> Outcome {
    serve(args)
        .await
        .map_err(|error| -> Box<dyn core::error::Error> { error })?;
    Ok(Verdict::Passed)
}

async fn serve(args: Args) -> Result<()> {
    let connections = args.concurrency.min(32) + 2;
    let options = ConnectOptions::parse(&args.database_url)?.connections_max(connections);
    let store = PostgresStore::connect(options).await?;
    let policy = store.load_policy(&args.shard).await?;
    let weights = policy.tenants().to_vec();
    let shard = Shard::register(&store, args.shard.as_str(), weights).await?;
    let mut asked = lines_of_input()?;
    answer("ready")?;
    match args.role {
        Role::Callers => {
            while let Some(length) = asked.recv().await {
                let length = Duration::from_millis(length.parse()?);
                let shards = core::slice::from_ref(&shard);
                let calls = scene::reserve_by(shards, args.concurrency, length).await?;
                answer(&calls.per_second.to_string())?;
            }
        }
        Role::Worker => {
            asked.recv().await;
            let starts = Arc::new(Mutex::new(Vec::new()));
            let noted = Arc::clone(&starts);
            let worker = noop::worker(&shard, move |context| {
                let start = Start::now(context.tenant().as_str());
                noted
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .push(start);
            })?
            .concurrency(args.concurrency)
            .build();
            worker.run_until(asked.recv()).await?;
            let starts = starts.lock().unwrap_or_else(PoisonError::into_inner);
            answer(&serde_json::to_string(&*starts)?)?;
        }
    }
    Ok(())
}

/// When a run was started, by the clock that all processes of the machine share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Start {
    pub(super) micros: u64,
    pub(super) tenant: String,
}

impl Start {
    fn now(tenant: &str) -> Self {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let micros = since_epoch.unwrap_or_default().as_micros();
        Self {
            micros: u64::try_from(micros).unwrap_or(u64::MAX),
            tenant: tenant.to_owned(),
        }
    }
}

/// What the command asks, line by line.
///
/// A thread of its own reads: the runtime would wait for a reader of its own before it ends.
fn lines_of_input() -> Result<mpsc::UnboundedReceiver<String>> {
    let (asks, asked) = mpsc::unbounded_channel();
    thread::Builder::new()
        .name("input".to_owned())
        .spawn(move || {
            // An input that cannot be read has ended too.
            for line in io::stdin().lines().map_while(io::Result::ok) {
                if asks.send(line).is_err() {
                    return;
                }
            }
        })?;
    Ok(asked)
}

fn answer(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

/// One such process, seen from the command; dropping it kills it.
pub(super) struct Child {
    process: tokio::process::Child,
    asks: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Child {
    /// Starts a process for a registered shard, and waits until it is connected.
    pub(super) async fn start(
        role: Role,
        database: &Database,
        shard: &Shard,
        concurrency: usize,
    ) -> Result<Self> {
        let name = match role {
            Role::Callers => "callers",
            Role::Worker => "worker",
        };
        let mut process = Command::new(env::current_exe()?)
            .args(["bench-child", name])
            .args(["--shard", shard.policy.shard().as_str()])
            .args(["--concurrency", &concurrency.to_string()])
            .env(URL_VARIABLE, database.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C on a terminal must reach us alone, so that we end the process before its database.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let (asks, answers) = pipes.ok_or("a child process has no pipes")?;
        let mut child = Self {
            process,
            asks,
            answers: BufReader::new(answers).lines(),
        };
        let said = child.answer().await?;
        if said != "ready" {
            return Err(format!("a child process said {said:?}").into());
        }
        Ok(child)
    }

    /// Lets callers reserve for `length`; answers with the calls in a second.
    pub(super) async fn reserve_for(&mut self, length: Duration) -> Result<f64> {
        let ask = format!("{}\n", length.as_millis());
        self.asks.write_all(ask.as_bytes()).await?;
        Ok(self.answer().await?.parse()?)
    }

    pub(super) fn usage(&self) -> Result<Usage> {
        let id = self.process.id().ok_or("the process has ended")?;
        Usage::of_process(id)
    }

    /// Lets a worker begin.
    pub(super) async fn begin(&mut self) -> Result<()> {
        self.asks.write_all(b"begin\n").await?;
        Ok(())
    }

    /// Lets a worker end; answers with the runs that it started, in that order.
    pub(super) async fn starts(mut self) -> Result<Vec<Start>> {
        self.asks.shutdown().await?;
        drop(self.asks);
        let line = self.answers.next_line().await?;
        let line = line.ok_or("a worker ended without an answer")?;
        let starts = serde_json::from_str(&line)?;
        wait(self.process).await?;
        Ok(starts)
    }

    /// Lets callers end by themselves.
    pub(super) async fn end(self) -> Result<()> {
        drop(self.asks);
        wait(self.process).await
    }
    async fn answer(&mut self) -> Result<String> {
        let line = self.answers.next_line().await?;
        line.ok_or_else(|| "a child process ended without an answer".into())
    }
}

async fn wait(mut process: tokio::process::Child) -> Result<()> {
    let status = process.wait().await?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("a child process failed: {status}").into())
    }
}
