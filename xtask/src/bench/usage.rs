//! What a process has used, as the kernel tells it.

use core::time::Duration;

use super::Result;

/// How many ticks the kernel counts in a second of a process's time, on every Linux.
const TICKS_PER_SECOND: u64 = 100;

/// The most memory that a process held at once, and the time that it was computing, with all its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) memory_peak_kib: u32,
    pub(crate) cpu: Duration,
}

impl Usage {
    /// # Errors
    ///
    /// When there is no such process, or this is no Linux.
    pub(crate) fn of_process(id: u32) -> Result<Self> {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{id}/{name}"));
        let (status, stat) = (read("status")?, read("stat")?);
        let memory_peak_kib = memory_peak(&status).ok_or("no peak of memory is told")?;
        let ticks = ticks(&stat).ok_or("no time of the processor is told")?;
        Ok(Self {
            memory_peak_kib,
            cpu: Duration::from_millis(ticks * 1_000 / TICKS_PER_SECOND),
        })
    }
}

fn memory_peak(status: &str) -> Option<u32> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// The ticks in user and in system mode.
fn ticks(stat: &str) -> Option<u64> {
    // The second field is the program's name, in which anything may stand; the state behind it is the third.
    let (_, behind_name) = stat.rsplit_once(')')?;
    let mut fields = behind_name.split_whitespace().skip(14 - 3);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_blanks_and_brackets_does_not_shift_the_fields() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 120 34 0 0 20 0 3 0 99";
        assert_eq!(ticks(stat), Some(154));
        assert_eq!(ticks("7 (a) S 1"), None);
    }

    #[test]
    fn the_peak_is_read_from_its_own_line() {
        let status = "Name:\tx\nVmPeak:\t  9000 kB\nVmHWM:\t    1234 kB\nVmRSS:\t  99 kB\n";
        assert_eq!(memory_peak(status), Some(1_234));
        assert_eq!(memory_peak("Name:\tx\n"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_has_used_memory() {
        let usage = Usage::of_process(std::process::id()).unwrap();
        assert!(usage.memory_peak_kib > 100, "{usage:?}");
    }
}
