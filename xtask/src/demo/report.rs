//! The end of a demo: a table and the verdicts, for people or as JSON.

use core::time::Duration;

use serde_json::{Map, Value, json};

use super::measure::TenantMeasures;
use super::verdict::{Judgement, Verdict};

/// How many faults of one verdict are shown to people.
const FAULTS_SHOWN: usize = 3;

/// What was demonstrated, and where.
#[derive(Debug)]
pub(super) struct Report<'a> {
    pub(super) postgres: &'a str,
    pub(super) shard: &'a str,
    pub(super) cycle_length: u32,
    pub(super) workers: u32,
    pub(super) concurrency: u32,
    /// From the first worker's start to the last one's end.
    pub(super) drained_in: Duration,
    pub(super) judgement: &'a Judgement,
}

impl Report<'_> {
    /// For people.
    pub(super) fn text(&self) -> String {
        let verdicts: Vec<String> = self.judgement.verdicts.iter().map(verdict_line).collect();
        format!(
            "{}\n{}\n{}",
            self.headline(),
            table(&self.judgement.tenants),
            verdicts.concat()
        )
    }

    /// For machines: the same numbers, durations in milliseconds, shares in thousandths.
    pub(super) fn json(&self) -> Value {
        let tenants = &self.judgement.tenants;
        json!({
            "passed": self.judgement.passed(),
            "postgres": self.postgres,
            "shard": self.shard,
            "cycle_length": self.cycle_length,
            "workers": self.workers,
            "concurrency": self.concurrency,
            "drained_in_ms": millis(self.drained_in),
            "tenants": tenants.iter().map(|row| tenant_json(row, tenants)).collect::<Vec<_>>(),
            "verdicts": self.judgement.verdicts.iter().map(verdict_json).collect::<Vec<_>>(),
        })
    }

    fn headline(&self) -> String {
        let Self {
            postgres,
            shard,
            cycle_length,
            workers,
            concurrency,
            ..
        } = self;
        let runs: u64 = self.judgement.tenants.iter().map(|row| row.runs).sum();
        let time = seconds(self.drained_in);
        format!(
            "PostgreSQL {postgres}, shard {shard}, cycles of {cycle_length} slots; {workers} workers of {concurrency} \
             runs at a time did {runs} runs in {time} s.\n"
        )
    }
}

fn table(tenants: &[TenantMeasures]) -> String {
    let header = [
        "tenant",
        "weight",
        "slots",
        "ran",
        "idle",
        "contended",
        "failed",
        "lost",
        "runs",
        "share/weight",
        "gap/bound",
        "lag s",
        "p50 s",
        "p99 s",
    ];
    let mut rows = vec![header.map(str::to_owned)];
    rows.extend(tenants.iter().map(|row| {
        let slots = row.slots;
        let (share, of_weight) = shares(row, tenants);
        [
            row.tenant.to_string(),
            row.weight.to_string(),
            slots.reserved.to_string(),
            slots.ran.to_string(),
            slots.idle.to_string(),
            slots.contended.to_string(),
            slots.failed.to_string(),
            slots.lost.to_string(),
            row.runs.to_string(),
            format!("{}/{} %", percent(share), percent(of_weight)),
            format!("{}/{}", row.gap_largest, row.bound),
            seconds(row.service_lag),
            seconds(row.wait_p50),
            seconds(row.wait_p99),
        ]
    }));
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; 14] = core::array::from_fn(width);
    let line = |row: &[String; 14]| {
        let cells = row.iter().zip(widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| {
            if column == 0 {
                format!("{cell:width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  "))
    };
    let lines: Vec<String> = rows.iter().map(line).collect();
    format!(
        "{}\nshare: of the runs in cycles in which all tenants had work; lag: longest time with ready runs and no claim;\n\
         p50, p99: from ready to claimed, for runs that were enqueued all at once.\n",
        lines.concat()
    )
}

/// The tenant's share of the contested runs, and its share of the weights, in thousandths.
fn shares(row: &TenantMeasures, tenants: &[TenantMeasures]) -> (Option<u64>, Option<u64>) {
    let runs = tenants.iter().map(|row| row.contested_runs).sum();
    let weights = tenants.iter().map(|row| row.weight).sum();
    (
        thousandths(row.contested_runs, runs),
        thousandths(row.weight, weights),
    )
}

fn thousandths(part: u64, whole: u64) -> Option<u64> {
    (part * 1_000 + whole / 2).checked_div(whole)
}

fn percent(thousandths: Option<u64>) -> String {
    thousandths.map_or("-".to_owned(), |share| {
        format!("{}.{}", share / 10, share % 10)
    })
}

fn seconds(duration: Duration) -> String {
    format!(
        "{}.{:02}",
        duration.as_secs(),
        duration.subsec_millis() / 10
    )
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn verdict_line(verdict: &Verdict) -> String {
    let Verdict {
        promise,
        finding,
        faults,
        ..
    } = verdict;
    if faults.is_empty() {
        return format!("PASS  {promise:<10}  {finding}\n");
    }
    let shown: Vec<String> = faults
        .iter()
        .take(FAULTS_SHOWN)
        .map(|fault| format!("      {fault}\n"))
        .collect();
    let more = faults.len().saturating_sub(FAULTS_SHOWN);
    let more = if more == 0 {
        String::new()
    } else {
        format!("      and {more} more\n")
    };
    let numbers: Vec<String> = verdict
        .numbers
        .iter()
        .map(|(name, number)| format!("{name} {number}"))
        .collect();
    format!(
        "FAIL  {promise:<10}  {}\n{}{more}",
        numbers.join(", "),
        shown.concat()
    )
}

fn verdict_json(verdict: &Verdict) -> Value {
    let numbers: Map<String, Value> = (verdict.numbers.iter())
        .map(|(name, number)| ((*name).to_owned(), Value::from(*number)))
        .collect();
    json!({
        "promise": verdict.promise,
        "passed": verdict.passed(),
        "numbers": numbers,
        "faults": verdict.faults,
    })
}

fn tenant_json(row: &TenantMeasures, tenants: &[TenantMeasures]) -> Value {
    let (share, of_weight) = shares(row, tenants);
    json!({
        "tenant": row.tenant.as_str(),
        "weight": row.weight,
        "slots": {
            "reserved": row.slots.reserved,
            "ran": row.slots.ran,
            "idle": row.slots.idle,
            "contended": row.slots.contended,
            "failed": row.slots.failed,
            "lost": row.slots.lost,
        },
        "runs": row.runs,
        "contested_runs": row.contested_runs,
        "share_thousandths": share,
        "weight_thousandths": of_weight,
        "gap_largest": row.gap_largest,
        "bound": row.bound,
        "service_lag_ms": millis(row.service_lag),
        "wait_p50_ms": millis(row.wait_p50),
        "wait_p99_ms": millis(row.wait_p99),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(faults: &[&str]) -> Verdict {
        Verdict {
            promise: "order",
            finding: "all is well".to_owned(),
            numbers: vec![("sequences", 5)],
            faults: faults.iter().copied().map(str::to_owned).collect(),
        }
    }

    #[test]
    fn a_failed_verdict_never_reads_like_a_passed_one() {
        assert_eq!(
            verdict_line(&verdict(&[])),
            "PASS  order       all is well\n"
        );
        let failed = verdict_line(&verdict(&["a", "b", "c", "d", "e"]));
        assert_eq!(
            failed,
            "FAIL  order       sequences 5\n      a\n      b\n      c\n      and 2 more\n"
        );
        assert_eq!(verdict_json(&verdict(&["a"]))["passed"], false);
    }

    #[test]
    fn shares_are_rounded_and_nothing_has_no_share() {
        assert_eq!(percent(thousandths(1, 3)), "33.3");
        assert_eq!(percent(thousandths(2, 3)), "66.7");
        assert_eq!(percent(thousandths(3, 3)), "100.0");
        assert_eq!(percent(thousandths(0, 0)), "-");
    }
}
