//! What people see on stderr while the runs are drained.

use core::time::Duration;
use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Instant;

use evenhand_policy::TenantId;
use evenhand_store::RunCounts;

use crate::progress::Progress;

/// How often a line is written where lines cannot be redrawn.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

const BAR_WIDTH: u64 = 30;

/// A few lines that are redrawn on a terminal, and a line every second elsewhere.
#[derive(Debug)]
pub(super) struct Live {
    progress: Progress,
    /// How many runs each tenant will have had in the end.
    totals: BTreeMap<TenantId, u64>,
    is_terminal: bool,
    lines_drawn: usize,
    line_written: Option<Instant>,
}

/// One tenant's runs at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct TenantProgress {
    done: u64,
    running: u64,
    /// All that it will have had.
    total: u64,
}

impl Live {
    pub(super) fn new(progress: Progress, totals: BTreeMap<TenantId, u64>) -> Self {
        Self {
            progress,
            totals,
            is_terminal: io::stderr().is_terminal(),
            lines_drawn: 0,
            line_written: None,
        }
    }

    /// Says that something happens, above the lines that are redrawn.
    pub(super) fn step(&mut self, step: &str) {
        self.erase();
        self.progress.step(step);
    }

    /// Shows how far all tenants are.
    pub(super) fn show(&mut self, counts: &[RunCounts]) {
        let tenants = self.tenants(counts);
        if self.is_terminal {
            self.erase();
            let lines: Vec<String> = tenants
                .iter()
                .map(|(tenant, now)| bar(tenant, *now))
                .collect();
            self.lines_drawn = lines.len();
            eprint!("{}", lines.concat());
        } else if self
            .line_written
            .is_none_or(|at| at.elapsed() >= LINE_INTERVAL)
        {
            self.line_written = Some(Instant::now());
            self.progress.step(&line(&tenants));
        }
    }

    fn tenants(&self, counts: &[RunCounts]) -> Vec<(TenantId, TenantProgress)> {
        let now = |(tenant, total): (&TenantId, &u64)| {
            let counts = counts.iter().find(|counts| counts.tenant == *tenant);
            let now = TenantProgress {
                done: counts.map_or(0, |counts| counts.done),
                running: counts.map_or(0, |counts| counts.running),
                total: *total,
            };
            (tenant.clone(), now)
        };
        self.totals.iter().map(now).collect()
    }

    fn erase(&mut self) {
        if self.lines_drawn > 0 {
            // Up by as many lines, and clear to the end of the screen.
            eprint!("\x1b[{}A\x1b[J", self.lines_drawn);
            self.lines_drawn = 0;
        }
        // Nothing depends on what people see.
        drop(io::stderr().flush());
    }
}

fn bar(tenant: &TenantId, now: TenantProgress) -> String {
    let total = now.total.max(1);
    let done = (now.done * BAR_WIDTH / total).min(BAR_WIDTH);
    let begun = ((now.done + now.running) * BAR_WIDTH)
        .div_ceil(total)
        .min(BAR_WIDTH);
    let running = if now.running > 0 { begun - done } else { 0 };
    let part = |mark: &str, columns: u64| mark.repeat(usize::try_from(columns).unwrap_or(0));
    format!(
        "  {tenant:<12} [{}{}{}] {:>4} of {:<4} done, {} running\n",
        part("#", done),
        part("+", running),
        part(".", BAR_WIDTH - done - running),
        now.done,
        now.total,
        now.running,
    )
}

fn line(tenants: &[(TenantId, TenantProgress)]) -> String {
    let parts: Vec<String> = tenants
        .iter()
        .map(|(tenant, now)| format!("{tenant} {}/{}", now.done, now.total))
        .collect();
    format!("done: {}", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now(done: u64, running: u64, total: u64) -> TenantProgress {
        TenantProgress {
            done,
            running,
            total,
        }
    }

    #[test]
    fn a_bar_is_full_only_when_all_is_done() {
        let tenant = TenantId::try_from("a").unwrap();
        let bar = |now| bar(&tenant, now);
        assert!(bar(now(0, 0, 100)).contains(&format!("[{}]", ".".repeat(30))));
        assert!(bar(now(50, 4, 100)).contains(&format!(
            "[{}++{}]",
            "#".repeat(15),
            ".".repeat(13)
        )));
        assert!(bar(now(99, 0, 100)).contains(&format!("[{}.]", "#".repeat(29))));
        assert!(bar(now(100, 0, 100)).contains(&format!("[{}]", "#".repeat(30))));
        assert!(bar(now(0, 0, 0)).contains("0 of 0"));
    }
}
