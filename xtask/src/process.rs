//! Child processes that end together with the command that started them.

use std::io;
use std::process::{ExitStatus, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::{Child, Command};

/// A child process that leads a process group of its own.
///
/// Dropping it before it has ended ends the whole group: cargo alone would leave the compilers and tests that it runs.
/// In a group of its own it also hears nothing of Ctrl-C, so that the command alone decides in which order things end.
#[derive(Debug)]
pub(crate) struct ProcessGroup {
    leader: Child,
    running: Option<Pid>,
}

impl ProcessGroup {
    pub(crate) fn spawn(mut command: Command) -> io::Result<Self> {
        let leader = command
            .stdin(Stdio::null())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let running = leader
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw);
        Ok(Self { leader, running })
    }

    /// Waits for the leader's end.
    ///
    /// # Cancel safety
    ///
    /// The group runs on until it is dropped.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.leader.wait().await?;
        self.running = None;
        Ok(status)
    }

    /// Waits for the leader's end, and adds what it prints to the buffers where the command asked for pipes.
    ///
    /// # Cancel safety
    ///
    /// The buffers hold what was printed so far.
    pub(crate) async fn wait_and_read(
        &mut self,
        stdout: &mut Vec<u8>,
        stderr: &mut Vec<u8>,
    ) -> io::Result<ExitStatus> {
        let (out, err) = (self.leader.stdout.take(), self.leader.stderr.take());
        tokio::try_join!(read(out, stdout), read(err, stderr))?;
        self.wait().await
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.running.take() {
            // A group that is already gone needs no signal, and nothing can be done about any other error.
            let _ = kill_process_group(group, Signal::TERM);
        }
    }
}

/// Runs `command` to its end, with its output on ours.
///
/// # Cancel safety
///
/// Dropping the future ends the process and all that it started.
pub(crate) async fn run(command: Command) -> io::Result<ExitStatus> {
    ProcessGroup::spawn(command)?.wait().await
}

/// Runs `command` to its end and answers with what it printed on stdout, and on stderr if the command pipes it.
///
/// # Cancel safety
///
/// As [`run`].
pub(crate) async fn output(mut command: Command) -> io::Result<Output> {
    command.stdout(Stdio::piped());
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let status = ProcessGroup::spawn(command)?
        .wait_and_read(&mut stdout, &mut stderr)
        .await?;
    Ok(Output {
        status,
        stdout,
        stderr,
    })
}

async fn read(pipe: Option<impl AsyncRead + Unpin>, buffer: &mut Vec<u8>) -> io::Result<()> {
    if let Some(mut pipe) = pipe {
        pipe.read_to_end(buffer).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[tokio::test]
    async fn dropping_a_group_ends_what_its_leader_started() {
        let mut command = shell("sleep 600 & echo started; wait");
        command.stdout(Stdio::piped());
        let mut group = ProcessGroup::spawn(command).unwrap();
        let mut stdout = group.leader.stdout.take().unwrap();
        let mut started = [0; "started".len()];
        stdout.read_exact(&mut started).await.unwrap();

        drop(group);

        // The pipe ends when nobody holds it any more, and `sleep` holds it too.
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(DEADLINE, stdout.read_to_end(&mut rest));
        ended.await.expect("sleep was ended").unwrap();
    }

    #[tokio::test]
    async fn the_output_of_a_failed_process_is_kept() {
        let mut command = shell("echo out; echo err >&2; exit 3");
        command.stderr(Stdio::piped());
        let output = output(command).await.unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(
            (&*output.stdout, &*output.stderr),
            (&b"out\n"[..], &b"err\n"[..])
        );
    }
}
