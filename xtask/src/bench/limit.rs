//! The limit of every mutable cursor: one UPDATE of one hot row.

use core::time::Duration;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use sqlx::PgConnection;
use tokio::process::Command;
use tokio::task::JoinSet;

use super::Result;
use super::server::{Bench, Database};
use crate::{cargo, process};

const UPDATE: &str = include_str!("sql/update_hot_row.sql");

/// One row that everybody updates; by pgbench where that is installed, else by loops on our own driver.
pub(crate) struct HotRow {
    database: Database,
    pgbench: Option<PathBuf>,
}

impl HotRow {
    pub(crate) async fn create(bench: &Bench, database: &Database) -> Result<Self> {
        database.run(include_str!("sql/create_hot_row.sql")).await?;
        Ok(Self {
            database: database.clone(),
            pgbench: pgbench(bench.server().installation().bin()),
        })
    }

    /// What it is called in the table.
    pub(crate) fn name(&self, clients: u32) -> String {
        let clients = match clients {
            1 => "1 client".to_owned(),
            many => format!("{many} clients"),
        };
        let by = match self.pgbench {
            Some(_) => "pgbench",
            None => "a loop",
        };
        format!("UPDATE of one hot row, {clients} ({by})")
    }

    /// How many updates in a second these clients make together. pgbench counts in whole seconds.
    pub(crate) async fn rate(&self, clients: u32, length: Duration) -> Result<f64> {
        match &self.pgbench {
            Some(pgbench) => self.rate_by_pgbench(pgbench, clients, length).await,
            None => self.rate_by_loops(clients, length).await,
        }
    }

    /// One client on our own driver, for a plain loop.
    pub(crate) async fn client(&self) -> Result<HotClient> {
        Ok(HotClient(self.database.connect().await?))
    }

    async fn rate_by_pgbench(&self, pgbench: &Path, clients: u32, length: Duration) -> Result<f64> {
        let mut command = Command::new(pgbench);
        command
            .args(["--no-vacuum", "--protocol=prepared"])
            .arg(format!("--client={clients}"))
            .arg(format!("--jobs={}", clients.min(2)))
            .arg(format!("--time={}", length.as_secs().max(1)))
            .arg("--file")
            .arg(cargo::workspace().join("xtask/src/bench/sql/update_hot_row.sql"))
            .arg(self.database.url())
            .stderr(Stdio::piped());
        let output = process::output(command).await?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(format!("pgbench failed: {}", said.trim()).into());
        }
        updates_per_second(&printed).ok_or_else(|| "pgbench printed no rate".into())
    }

    async fn rate_by_loops(&self, clients: u32, length: Duration) -> Result<f64> {
        let mut tasks = JoinSet::new();
        for _ in 0..clients {
            let mut client = self.client().await?;
            tasks.spawn(async move {
                let start = Instant::now();
                let mut updates = 0_u32;
                while start.elapsed() < length {
                    client.update().await?;
                    updates += 1;
                }
                Result::Ok(f64::from(updates) / start.elapsed().as_secs_f64())
            });
        }
        let mut rate = 0.0;
        while let Some(ended) = tasks.join_next().await {
            rate += ended??;
        }
        Ok(rate)
    }
}

/// One connection that updates the hot row.
pub(crate) struct HotClient(PgConnection);

impl HotClient {
    pub(crate) async fn update(&mut self) -> Result<()> {
        sqlx::query(UPDATE).execute(&mut self.0).await?;
        Ok(())
    }
}

/// The server's own pgbench, or one on the path.
fn pgbench(bin: &Path) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = core::iter::once(bin.to_owned()).chain(std::env::split_paths(&path));
    folders
        .map(|folder| folder.join("pgbench"))
        .find(|program| program.is_file())
}

/// The rate in what pgbench prints, without the time it took to connect.
fn updates_per_second(printed: &str) -> Option<f64> {
    let line = printed
        .lines()
        .find_map(|line| line.strip_prefix("tps = "))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_from_what_pgbench_prints() {
        let printed = "number of failed transactions: 0 (0.000%)\nlatency average = 0.121 ms\n\
                       initial connection time = 2.041 ms\ntps = 8250.125 (without initial connection time)\n";
        let rate = updates_per_second(printed).map(|rate| rate.to_string());
        assert_eq!(rate.as_deref(), Some("8250.125"));
        assert_eq!(updates_per_second("pgbench: error"), None);
    }
}
