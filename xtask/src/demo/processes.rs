//! The worker processes: started, paused, killed and drained, each by its own process id.

use core::error::Error;
use core::time::Duration;
use std::env;
use std::io;
use std::process::Stdio;
use std::thread;
use std::time::Instant;

use evenhand_policy::SchedulerShardId;
use evenhand_store::WorkerName;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use super::worker::URL_VARIABLE;

/// Longer than a worker's grace period and its last calls together.
const DRAIN_DEADLINE: Duration = Duration::from_secs(20);

/// How long the kernel may take to end a killed process.
const KILL_DEADLINE: Duration = Duration::from_secs(5);

type Result<T> = core::result::Result<T, Box<dyn Error>>;

/// The workers of one shard; dropping them kills them.
#[derive(Debug)]
pub(super) struct Workers {
    url: String,
    shard: SchedulerShardId,
    concurrency: u32,
    started: u32,
    running: Vec<WorkerProcess>,
}

/// One worker, killed and waited for when it is dropped.
#[derive(Debug)]
pub(super) struct WorkerProcess {
    name: WorkerName,
    child: Child,
}

impl Workers {
    /// No workers yet, for the database that `url` names.
    pub(super) fn new(url: &str, shard: SchedulerShardId, concurrency: u32) -> Self {
        Self {
            url: url.to_owned(),
            shard,
            concurrency,
            started: 0,
            running: Vec::new(),
        }
    }

    /// Starts one more, and answers its name.
    pub(super) fn start(&mut self) -> Result<WorkerName> {
        self.started += 1;
        let name = WorkerName::try_from(format!("worker-{}", self.started))?;
        let mut command = Command::new(env::current_exe()?);
        command
            .args(["demo-worker", "--name", name.as_str()])
            .args(["--shard", self.shard.as_str()])
            .args(["--concurrency", &self.concurrency.to_string()])
            .env(URL_VARIABLE, &self.url)
            // It works until this pipe is closed, however we end.
            .stdin(Stdio::piped())
            // Our own answer goes to the standard output.
            .stdout(Stdio::null())
            // Ctrl-C on a terminal must reach us alone, so that we end the workers before their database.
            .process_group(0)
            .kill_on_drop(true);
        let child = command.spawn()?;
        self.running.push(WorkerProcess {
            name: name.clone(),
            child,
        });
        Ok(name)
    }

    /// # Errors
    ///
    /// When a worker has ended although nobody asked it to.
    pub(super) fn check(&mut self) -> Result<()> {
        for worker in &mut self.running {
            if let Some(status) = worker.child.try_wait()? {
                return Err(format!("{} ended by itself: {status}", worker.name).into());
            }
        }
        Ok(())
    }

    /// The oldest worker, taken out, to be killed.
    pub(super) fn take_oldest(&mut self) -> Result<WorkerProcess> {
        if self.running.is_empty() {
            return Err("no worker is running".into());
        }
        Ok(self.running.remove(0))
    }

    /// Lets all workers finish what they hold and end.
    ///
    /// # Errors
    ///
    /// When one does not end in time, or ends with an error.
    pub(super) async fn drain(mut self) -> Result<()> {
        for worker in &mut self.running {
            drop(worker.child.stdin.take());
        }
        for worker in &mut self.running {
            let ended = tokio::time::timeout(DRAIN_DEADLINE, worker.child.wait()).await;
            let status = ended.map_err(|_| format!("{} does not end", worker.name))??;
            if !status.success() {
                return Err(format!("{} failed: {status}", worker.name).into());
            }
        }
        Ok(())
    }
}

impl WorkerProcess {
    pub(super) fn name(&self) -> &WorkerName {
        &self.name
    }

    /// Stops the process where it stands.
    pub(super) fn pause(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets a paused process go on.
    pub(super) fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Kills the process with SIGKILL and waits until it is gone.
    pub(super) async fn kill(mut self) -> io::Result<()> {
        self.child.kill().await
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        // There is an id only until the process was waited for; after that it may be somebody else's.
        let id = self.child.id().map(u32::cast_signed);
        let pid = id.and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
        Ok(kill_process(pid, signal)?)
    }
}

impl Drop for WorkerProcess {
    /// Waits, so that no worker is left when its database is dropped.
    fn drop(&mut self) {
        let deadline = Instant::now() + KILL_DEADLINE;
        // A process that has ended cannot be killed, and need not be.
        drop(self.child.start_kill());
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
    }
}
