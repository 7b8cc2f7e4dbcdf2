//! One report over all majors: as text, as Markdown and as JSON.

use core::cmp::Reverse;
use core::time::Duration;

use std::collections::HashMap;

use evenhand_testkit::postgres::{Installation, Major};
use serde_json::{Value, json};

use super::programs::TestCase;
use super::requirements::{Proof, REQUIREMENTS, Requirement};
use super::runner::{Ending, TestRun};
use crate::table;

/// What was found on one major.
#[derive(Debug)]
pub(super) struct MajorReport {
    major: Major,
    server: Result<Tested, String>,
}

/// A server, and the tests that ran on it.
#[derive(Debug)]
struct Tested {
    version: String,
    source: String,
    runs: Vec<TestRun>,
    took: Duration,
}

impl MajorReport {
    /// The tests ran, which took so long in all; they may have failed.
    pub(super) fn tested(installation: &Installation, runs: Vec<TestRun>, took: Duration) -> Self {
        Self {
            major: installation.major(),
            server: Ok(Tested {
                version: installation.version().to_owned(),
                source: installation.source().to_string(),
                runs,
                took,
            }),
        }
    }

    /// There is no such server, or it does not start.
    pub(super) fn missing(major: Major, reason: String) -> Self {
        Self {
            major,
            server: Err(reason),
        }
    }

    /// Sorts tests by how long they took here; those that did not run come last.
    pub(super) fn sort_slowest_first(&self, tests: &mut [TestCase]) {
        let took: HashMap<&str, Duration> = self
            .runs()
            .iter()
            .map(|run| (run.name.as_str(), run.took))
            .collect();
        tests.sort_by_key(|test| Reverse(took.get(test.full_name().as_str()).copied()));
    }

    fn runs(&self) -> &[TestRun] {
        self.server.as_ref().map_or(&[], |tested| &tested.runs)
    }

    fn version(&self) -> String {
        match &self.server {
            Ok(tested) => tested.version.clone(),
            Err(_) => self.major.to_string(),
        }
    }

    fn passed(&self) -> usize {
        self.runs()
            .iter()
            .filter(|run| run.ending == Ending::Passed)
            .count()
    }

    /// What went wrong, a line each: tests that failed, requirements without a proof, the server itself if missing.
    fn failures(&self) -> Vec<String> {
        let tested = match &self.server {
            Ok(tested) => tested,
            Err(reason) => return vec![format!("missing: {reason}")],
        };
        let failed = tested
            .runs
            .iter()
            .filter(|run| run.ending != Ending::Passed)
            .map(|run| run.name.clone());
        let absent =
            REQUIREMENTS
                .iter()
                .filter_map(|requirement| match requirement.judge(&tested.runs) {
                    Proof::Absent(pattern) => {
                        Some(format!("no test {pattern} proves: {}", requirement.title))
                    }
                    Proof::Proven(_) | Proof::Refuted(_) => None,
                });
        failed.chain(absent).collect()
    }

    /// What the table says of a requirement in this major's column.
    fn cell(&self, requirement: &Requirement) -> String {
        match (&self.server, requirement.judge(self.runs())) {
            (Err(_), _) => "missing".to_owned(),
            (Ok(_), Proof::Proven(count)) => format!("ok ({count})"),
            (Ok(_), Proof::Refuted(_)) => "FAILED".to_owned(),
            (Ok(_), Proof::Absent(_)) => "NO TEST".to_owned(),
        }
    }

    /// The same for programs.
    fn result_of(&self, requirement: &Requirement) -> Value {
        let major = self.major.number();
        match (&self.server, requirement.judge(self.runs())) {
            (Err(_), _) => json!({"major": major, "result": "missing"}),
            (Ok(_), Proof::Proven(count)) => {
                json!({"major": major, "result": "passed", "tests": count})
            }
            (Ok(_), Proof::Refuted(tests)) => {
                json!({"major": major, "result": "failed", "failed": tests})
            }
            (Ok(_), Proof::Absent(pattern)) => {
                json!({"major": major, "result": "no test", "wanted": pattern})
            }
        }
    }
}

/// The whole.
#[derive(Debug)]
pub(super) struct Report {
    majors: Vec<MajorReport>,
    partial: bool,
}

impl Report {
    /// `partial` says that somebody wanted some majors only.
    pub(super) fn new(majors: Vec<MajorReport>, partial: bool) -> Self {
        Self { majors, partial }
    }

    /// Whether nothing failed and nothing was missing.
    pub(super) fn passed(&self) -> bool {
        !self.majors.is_empty() && self.failed() == 0
    }

    /// A table with a row for each requirement, what failed, and a last line that counts.
    pub(super) fn to_text(&self) -> String {
        let mut lines = vec![table::aligned(&self.rows())];
        let failures = self.failures();
        lines.extend(failures.map(|(version, failure)| format!("PostgreSQL {version}: {failure}")));
        lines.extend(self.partial_note());
        lines.push(self.count_line());
        lines.join("\n") + "\n"
    }

    /// The same, with the servers, every test, and the output of those that failed.
    pub(super) fn to_markdown(&self) -> String {
        let mut lines = vec![
            "# PostgreSQL qualification".to_owned(),
            String::new(),
            self.count_line(),
            String::new(),
        ];
        if let Some(note) = self.partial_note() {
            lines.extend([note, String::new()]);
        }
        for (index, row) in self.rows().iter().enumerate() {
            lines.push(format!("| {} |", row.join(" | ")));
            if index == 0 {
                lines.push(format!("|{}", " --- |".repeat(row.len())));
            }
        }
        lines.extend(self.majors.iter().flat_map(markdown_of));
        lines.join("\n") + "\n"
    }

    /// The same for programs.
    pub(super) fn to_json(&self) -> serde_json::Result<String> {
        let requirements = REQUIREMENTS.iter().map(|requirement| {
            let majors = self.majors.iter();
            let results: Vec<Value> = majors.map(|major| major.result_of(requirement)).collect();
            json!({"title": requirement.title, "majors": results})
        });
        serde_json::to_string_pretty(&json!({
            "passed": self.passed(),
            "partial": self.partial,
            "tests_passed": self.tests_passed(),
            "failed": self.failed(),
            "requirements": requirements.collect::<Vec<_>>(),
            "majors": self.majors.iter().map(json_of).collect::<Vec<_>>(),
        }))
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let row = |title: &str, cell: &dyn Fn(&MajorReport) -> String| {
            let cells = self.majors.iter().map(cell);
            core::iter::once(title.to_owned()).chain(cells).collect()
        };
        let mut rows = vec![row("PostgreSQL", &MajorReport::version)];
        rows.extend(
            REQUIREMENTS
                .iter()
                .map(|requirement| row(requirement.title, &|major| major.cell(requirement))),
        );
        rows.push(row("all tests", &|major| {
            format!("{}/{}", major.passed(), major.runs().len())
        }));
        rows.push(row("time", &|major| match &major.server {
            Ok(tested) => format!("{:.1} s", tested.took.as_secs_f64()),
            Err(_) => "-".to_owned(),
        }));
        rows
    }

    fn failures(&self) -> impl Iterator<Item = (String, String)> {
        self.majors.iter().flat_map(|major| {
            let failures = major.failures().into_iter();
            failures.map(|failure| (major.version(), failure))
        })
    }

    fn tests_passed(&self) -> usize {
        self.majors.iter().map(MajorReport::passed).sum()
    }

    fn failed(&self) -> usize {
        self.failures().count()
    }

    fn count_line(&self) -> String {
        format!("{} passed, {} failed", self.tests_passed(), self.failed())
    }

    fn partial_note(&self) -> Option<String> {
        let majors: Vec<String> = self
            .majors
            .iter()
            .map(|major| major.major.to_string())
            .collect();
        self.partial.then(|| {
            format!(
                "partial: only PostgreSQL {} was asked for",
                majors.join(", ")
            )
        })
    }
}

fn markdown_of(major: &MajorReport) -> Vec<String> {
    let tested = match &major.server {
        Ok(tested) => tested,
        Err(reason) => {
            return vec![format!(
                "\n## PostgreSQL {}\n\nMissing: {reason}",
                major.major
            )];
        }
    };
    let mut lines = vec![
        format!("\n## PostgreSQL {} ({})\n", tested.version, tested.source),
        "| test | result | seconds |".to_owned(),
        "| --- | --- | --- |".to_owned(),
    ];
    lines.extend(tested.runs.iter().map(|run| {
        let result = match run.ending {
            Ending::Passed => "passed",
            Ending::Failed { .. } => "FAILED",
        };
        let seconds = run.took.as_secs_f64();
        format!("| {} | {result} | {seconds:.2} |", run.name)
    }));
    for run in &tested.runs {
        if let Ending::Failed { output } = &run.ending {
            lines.push(format!(
                "\n### {} failed\n\n````text\n{output}\n````",
                run.name
            ));
        }
    }
    lines
}

fn json_of(major: &MajorReport) -> Value {
    let tested = match &major.server {
        Ok(tested) => tested,
        Err(reason) => return json!({"major": major.major.number(), "missing": reason}),
    };
    let tests: Vec<Value> = tested
        .runs
        .iter()
        .map(|run| {
            let mut test = json!({"name": run.name, "seconds": run.took.as_secs_f64()});
            match &run.ending {
                Ending::Passed => test["result"] = json!("passed"),
                Ending::Failed { output } => {
                    test["result"] = json!("failed");
                    test["output"] = json!(output);
                }
            }
            test
        })
        .collect();
    json!({
        "major": major.major.number(),
        "version": tested.version,
        "source": tested.source,
        "seconds": tested.took.as_secs_f64(),
        "tests": tests,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tested(major: u16, runs: Vec<TestRun>) -> MajorReport {
        MajorReport {
            major: Major::try_from(major).unwrap(),
            server: Ok(Tested {
                version: format!("{major}.1"),
                source: "system".to_owned(),
                runs,
                took: Duration::from_secs(2),
            }),
        }
    }

    fn run(name: &str, ending: Ending) -> TestRun {
        TestRun {
            name: name.to_owned(),
            ending,
            took: Duration::from_millis(10),
        }
    }

    /// One passing test for everything that is required.
    fn all_proven() -> Vec<TestRun> {
        REQUIREMENTS
            .iter()
            .flat_map(|requirement| requirement.proofs)
            .map(|pattern| run(&pattern.replace('*', "x"), Ending::Passed))
            .collect()
    }

    #[test]
    fn a_report_passes_when_every_requirement_is_proven_on_every_major() {
        let report = Report::new(
            vec![tested(15, all_proven()), tested(18, all_proven())],
            true,
        );
        assert!(report.passed());
        let text = report.to_text();
        let last = format!("{} passed, 0 failed", 2 * all_proven().len());
        assert_eq!(text.lines().last(), Some(last.as_str()));
        assert!(text.contains("partial: only PostgreSQL 15, 18"), "{text}");
        assert!(!Report::new(Vec::new(), true).passed());
    }

    #[test]
    fn a_missing_major_fails_the_report() {
        let missing = MajorReport::missing(Major::try_from(16).unwrap(), "not here".to_owned());
        let report = Report::new(vec![tested(15, all_proven()), missing], false);
        assert!(!report.passed());
        for text in [report.to_text(), report.to_markdown()] {
            assert!(
                text.contains("not here") && text.contains(", 1 failed"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_failed_test_fails_the_report_with_its_output() {
        let mut runs = all_proven();
        let output = "left: 1, right: 2".to_owned();
        runs.push(run("suite::extra", Ending::Failed { output }));
        let report = Report::new(vec![tested(17, runs)], false);
        assert!(!report.passed());
        assert!(report.to_text().contains("PostgreSQL 17.1: suite::extra"));
        assert!(report.to_markdown().contains("left: 1, right: 2"));
        assert!(report.to_json().unwrap().contains("left: 1, right: 2"));
    }

    #[test]
    fn a_requirement_without_a_test_fails_the_report() {
        let mut runs = all_proven();
        runs.retain(|run| !run.name.starts_with("suite::plans::"));
        let report = Report::new(vec![tested(17, runs)], false);
        assert!(!report.passed());
        let text = report.to_text();
        assert!(text.contains("no test suite::plans::* proves"), "{text}");
        assert!(
            text.contains("NO TEST") && text.contains(", 1 failed"),
            "{text}"
        );
    }
}
