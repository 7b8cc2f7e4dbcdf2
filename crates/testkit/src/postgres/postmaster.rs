//! The process of a server, and the watchdog that ends it when its owner was killed.

use core::time::Duration;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};

use super::user::ServerUser;

/// Ends the server and removes its folder unless the owner says that it did so itself.
///
/// The owner's end of the pipe closes however the owner ends, also by SIGKILL, and then `read` sees the end of file.
/// A signal on the parent's death would do the same, but is unsafe code and known to Linux alone.
const WATCHDOG: &str = r#"
read -r word
[ "$word" = released ] && exit 0
kill -QUIT "$1" 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do
    kill -0 "$1" 2>/dev/null || break
    sleep 1
done
# Who was started with SIGQUIT ignored, as shells start what runs in the background, may still be there.
kill -KILL "$1" 2>/dev/null
rm -rf -- "$2"
"#;

/// PostgreSQL itself kills its children 5 seconds after an immediate shutdown began.
const DROP_PATIENCE: Duration = Duration::from_secs(10);

/// A running server process. Its number stays ours until it has been waited for.
#[derive(Debug)]
pub(super) struct Postmaster {
    process: Child,
    watchdog: Child,
}

impl Postmaster {
    /// Starts `command` as the server of `folder`, watched as long as it runs.
    pub(super) fn spawn(
        mut command: Command,
        folder: &Path,
        user: &ServerUser,
    ) -> io::Result<Self> {
        let mut process = command.spawn()?;
        let watchdog = user
            .command("sh")
            .args([
                "-c",
                WATCHDOG,
                "evenhand-watchdog",
                &process.id().to_string(),
            ])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        match watchdog {
            Ok(watchdog) => Ok(Self { process, watchdog }),
            Err(error) => {
                process.kill()?;
                process.wait()?;
                Err(error)
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.process), signal)?)
    }

    /// How the process ended, if it has.
    pub(super) fn exit_status(&mut self) -> io::Result<Option<ExitStatus>> {
        let status = self.process.try_wait()?;
        if status.is_some() {
            self.release_watchdog();
        }
        Ok(status)
    }

    /// Kills the process, without a chance to write anything, and waits until it is gone.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        self.release_watchdog();
        Ok(())
    }

    fn release_watchdog(&mut self) {
        if let Some(mut pipe) = self.watchdog.stdin.take() {
            // A watchdog that is gone already has nothing to be told.
            drop(pipe.write_all(b"released\n"));
        }
        drop(self.watchdog.wait());
    }
}

impl Drop for Postmaster {
    /// Stops the server at once and waits for it, so that its folder can be removed afterwards.
    fn drop(&mut self) {
        let deadline = Instant::now() + DROP_PATIENCE;
        // A failed signal means that the process has ended by itself, which the loop then finds.
        drop(self.signal(Signal::QUIT));
        while let Ok(None) = self.exit_status() {
            if Instant::now() >= deadline {
                drop(self.kill());
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that, like a server, ends when it is asked to.
    fn spawn(folder: &Path) -> Postmaster {
        let user = ServerUser::Myself;
        let mut command = user.command("sleep");
        command.arg("600");
        Postmaster::spawn(command, folder, &user).unwrap()
    }

    fn wait_for(mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !condition() {
            assert!(Instant::now() < deadline, "it did not come true in time");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn the_end_of_the_owner_ends_the_server_and_removes_its_folder() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("folder");
        std::fs::create_dir(&folder).unwrap();
        let mut postmaster = spawn(&folder);
        // All that the end of this process would do to the watchdog.
        drop(postmaster.watchdog.stdin.take());
        wait_for(|| postmaster.exit_status().unwrap().is_some());
        wait_for(|| !folder.exists());
    }

    #[test]
    fn a_server_that_its_owner_ended_leaves_the_folder_to_the_owner() {
        let folder = tempfile::tempdir().unwrap();
        drop(spawn(folder.path()));
        let mut killed = spawn(folder.path());
        killed.kill().unwrap();
        assert!(folder.path().exists());
    }
}
