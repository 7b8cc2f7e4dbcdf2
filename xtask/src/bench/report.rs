//! The one table of a run: as text, as Markdown and as JSON, with the plots beside it.

use std::fs;
use std::path::Path;
use std::thread;

use evenhand_testkit::postgres::Installation;
use serde_json::{Value, json};

use super::Result;
use super::line::{Line, readable};
use super::rows::Measured;
use super::server::SETTINGS;
use crate::table;

const HEAD: [&str; 7] = [
    "row", "measured", "flush", "figure", "beside", "ratio", "target",
];

/// Everything that a run found.
pub(super) struct Report {
    server: String,
    cores: usize,
    quick: bool,
    day: String,
    /// Which peers there are and how they are set, where a row has any.
    pub(super) peers: Option<String>,
    pub(super) rows: Vec<Ended>,
}

/// A row that was measured, or why it was not.
pub(super) struct Ended {
    pub(super) row: String,
    pub(super) measured: core::result::Result<Measured, String>,
}

impl Report {
    pub(super) fn new(installation: &Installation, quick: bool) -> Self {
        let now = jiff::Timestamp::now().to_string();
        Self {
            server: installation.version().to_owned(),
            cores: thread::available_parallelism().map_or(1, usize::from),
            quick,
            day: now.split('T').next().unwrap_or_default().to_owned(),
            peers: None,
            rows: Vec::new(),
        }
    }

    /// The table for a terminal.
    pub(super) fn text(&self) -> String {
        let mut cells = vec![HEAD.map(str::to_owned).to_vec()];
        cells.extend(self.lines().map(|line| line.to_vec()));
        format!("{}\n{}\n", table::aligned(&cells), self.circumstances())
    }

    /// The table for a page.
    pub(super) fn markdown(&self) -> String {
        let line = |cells: [String; HEAD.len()]| format!("| {} |\n", cells.join(" | "));
        let rule = HEAD.map(|_| "---".to_owned());
        let head = [line(HEAD.map(str::to_owned)), line(rule)];
        let lines = self.lines().map(line);
        let table: String = head.into_iter().chain(lines).collect();
        format!("{}\n\n{table}", self.circumstances())
    }

    /// Every plot of the run: its file's name and content.
    pub(super) fn plots(&self) -> impl Iterator<Item = (String, String)> {
        self.rows
            .iter()
            .filter_map(|row| row.measured.as_ref().ok())
            .flat_map(|measured| &measured.plots)
            .map(|plot| (format!("{}.svg", plot.name), plot.svg()))
    }

    pub(super) fn write_to(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder)?;
        fs::write(folder.join("report.md"), self.markdown())?;
        fs::write(folder.join("report.json"), format!("{:#}\n", self.json()))?;
        for (name, svg) in self.plots() {
            fs::write(folder.join(name), svg)?;
        }
        Ok(())
    }

    pub(super) fn json(&self) -> Value {
        let settings: Value = SETTINGS.into_iter().collect();
        let rows = self.rows.iter().map(|row| match &row.measured {
            Ok(measured) => {
                let lines: Vec<Value> = measured.lines.iter().map(line_json).collect();
                json!({"row": row.row, "lines": lines})
            }
            Err(why) => json!({"row": row.row, "did_not_run": why}),
        });
        json!({
            "postgres": self.server,
            "settings": settings,
            "cores": self.cores,
            "build": BUILD,
            "quick": self.quick,
            "day": self.day,
            "peers": self.peers,
            "rows": rows.collect::<Vec<_>>(),
        })
    }

    fn lines(&self) -> impl Iterator<Item = [String; HEAD.len()]> {
        self.rows.iter().flat_map(|row| match &row.measured {
            Ok(measured) => measured
                .lines
                .iter()
                .map(|line| line_cells(&row.row, line))
                .collect(),
            Err(why) => {
                let mut cells = <[String; HEAD.len()]>::default();
                cells[0].clone_from(&row.row);
                cells[1] = format!("did not run: {why}");
                vec![cells]
            }
        })
    }

    fn circumstances(&self) -> String {
        let settings: Vec<String> = SETTINGS
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let measured = format!(
            "PostgreSQL {} on {} cores shared with the clients, {}; {} build, {} run, {}.",
            self.server,
            self.cores,
            settings.join(", "),
            BUILD,
            if self.quick { "quick" } else { "full" },
            self.day
        );
        match &self.peers {
            None => measured,
            Some(peers) => format!("{measured} {peers}"),
        }
    }
}

const BUILD: &str = if cfg!(debug_assertions) {
    "debug"
} else {
    "release"
};

fn line_cells(row: &str, line: &Line) -> [String; HEAD.len()] {
    if let Some(why) = &line.not_measured {
        let mut cells = <[String; HEAD.len()]>::default();
        row.clone_into(&mut cells[0]);
        cells[1] = format!("{}: not measured: {why}", line.what);
        return cells;
    }
    let beside = line.beside.as_ref();
    let target = match line.is_met() {
        None => String::new(),
        Some(_) => format!("{}: {}", line.target_text(), line.verdict()),
    };
    [
        row.to_owned(),
        line.what.clone(),
        line.regime
            .map_or("", super::server::Regime::name)
            .to_owned(),
        line.figure.to_string(),
        beside.map_or_else(String::new, |(what, figure)| format!("{what}: {figure}")),
        line.ratio()
            .map_or_else(String::new, |ratio| format!("{}x", readable(ratio))),
        target,
    ]
}

fn line_json(line: &Line) -> Value {
    let beside = line.beside.as_ref();
    json!({
        "measured": line.what,
        "flush": line.regime,
        "figure": line.figure,
        "beside": beside.map(|(what, figure)| json!({"what": what, "figure": figure})),
        "ratio": line.ratio(),
        "target": line.target_text(),
        "met": line.is_met(),
        "not_measured": line.not_measured,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::line::{Figure, Target, Unit};
    use crate::bench::server::Regime;

    fn report() -> Report {
        let runs = [900.0, 1_100.0, 1_000.0].into_iter().collect();
        let line = Line::new("one reservation", Figure::median(&runs, Unit::PerSecond))
            .regime(Regime::OneMillisecond)
            .beside("UPDATE", Figure::one(1_600.0, Unit::PerSecond))
            .target(Target::RatioAtLeast(0.85));
        Report {
            server: "17.1".to_owned(),
            cores: 2,
            quick: true,
            day: "2026-05-01".to_owned(),
            peers: Some("Peers: none.".to_owned()),
            rows: vec![
                Ended {
                    row: "reserve".to_owned(),
                    measured: Ok(Measured {
                        lines: vec![line, Line::not_measured("the same", "no npm")],
                        plots: Vec::new(),
                    }),
                },
                Ended {
                    row: "claim".to_owned(),
                    measured: Err("the server is gone".to_owned()),
                },
            ],
        }
    }

    #[test]
    fn markdown_has_a_line_for_each_figure_and_for_what_did_not_run() {
        let page = report().markdown();
        let expected = "| reserve | one reservation | 1 ms | 1,000/s | UPDATE: 1,600/s | 0.625x | at least 0.85x: not met |";
        assert!(page.contains(expected), "{page}");
        assert!(page.contains("| reserve | the same: not measured: no npm |"));
        assert!(page.contains("| claim | did not run: the server is gone |"));
        let columns = |line: &str| line.matches('|').count();
        let table: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(table.len(), 5);
        assert!(table.iter().all(|line| columns(line) == HEAD.len() + 1));
    }

    #[test]
    fn json_keeps_every_run() {
        let json = report().json();
        let line = &json["rows"][0]["lines"][0];
        assert_eq!(line["figure"]["runs"], json!([900.0, 1_100.0, 1_000.0]));
        assert_eq!(line["ratio"], json!(0.625));
        assert_eq!(
            (&line["flush"], &line["met"]),
            (&json!("1 ms"), &json!(false))
        );
        let second = &json["rows"][0]["lines"][1];
        assert_eq!(
            (&second["figure"]["value"], &second["not_measured"]),
            (&Value::Null, &json!("no npm"))
        );
        assert_eq!(json["rows"][1]["did_not_run"], json!("the server is gone"));
    }

    #[test]
    fn the_text_says_under_which_circumstances() {
        let text = report().text();
        assert!(text.contains("PostgreSQL 17.1 on 2 cores") && text.contains("quick run"));
        assert!(text.ends_with(" Peers: none.\n"));
    }
}
