//! `cargo xtask bench`: what reserving costs, beside a limit that is measured in the same run.

mod reserve;
mod snapshot;

use std::fs;

use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
use evenhand_store::{
    PolicyRegistration, ReservationCount, ReservationId, ReservationStore, ReserveRequest,
};
use evenhand_store_postgres::{ConnectOptions, PostgresStore, migrate};
use evenhand_testkit::postgres::{Installation, Major, Server, ServerOptions, find_all};
use serde::Serialize;
use sqlx::{Connection as _, PgConnection};

use crate::progress::Progress;
use crate::{Outcome, Verdict, pg, table};

/// Measure what reserving costs, on a private server with flushes on.
///
/// Each row compares two things that were measured in turns on the same server, so the ratio means something on a noisy
/// machine; the rates alone do not. Rates are medians. Run it in release mode for figures worth keeping:
/// `cargo run --release -p xtask -- bench`. The report goes to target/bench/report.md and report.json.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Measure this row only; may be given more than once.
    #[arg(long, value_name = "ROW")]
    only: Vec<RowName>,
    /// Shorter runs, and so rougher figures.
    #[arg(long)]
    quick: bool,
    /// The major to measure on; the newest that is found by default.
    #[arg(long, value_name = "N")]
    major: Option<Major>,
    /// Use only what is installed or was downloaded before; ask npm for nothing.
    #[arg(long)]
    no_download: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum RowName {
    /// One reservation beside one UPDATE of one hot row.
    Reserve,
    /// Reservations while somebody holds a snapshot, beside as many without.
    Snapshot,
}

/// A line of the report: what was measured, beside what.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    name: String,
    per_second: f64,
    beside: String,
    beside_per_second: f64,
    ratio: f64,
    target: String,
}

impl Row {
    fn new(
        name: &str,
        per_second: f64,
        beside: &str,
        beside_per_second: f64,
        target: &str,
    ) -> Self {
        Self {
            name: name.to_owned(),
            per_second,
            beside: beside.to_owned(),
            beside_per_second,
            ratio: per_second / beside_per_second,
            target: target.to_owned(),
        }
    }
}

pub(crate) async fn run(args: Args) -> Outcome {
    let progress = Progress::start();
    let installation = installation(&args, progress).await?;
    progress.step(&format!(
        "measuring on PostgreSQL {}",
        installation.version()
    ));
    let wanted = |name| args.only.is_empty() || args.only.contains(&name);
    let mut rows = Vec::new();
    for regime in [Regime::Native, Regime::OneMillisecond] {
        if wanted(RowName::Reserve) {
            progress.step(&format!("reserve, {}", regime.name()));
            rows.push(
                reserve::measure(&regime.start(&installation).await?, regime, args.quick).await?,
            );
        }
    }
    if wanted(RowName::Snapshot) {
        progress.step("snapshot");
        let server = Regime::Native.start(&installation).await?;
        rows.extend(snapshot::measure(&server, args.quick, progress).await?);
    }
    report(&rows, &installation)?;
    Ok(Verdict::Passed)
}

async fn installation(
    args: &Args,
    progress: Progress,
) -> Result<Installation, Box<dyn core::error::Error>> {
    let options = pg::find_options(progress).allow_download(!args.no_download);
    let found = find_all(&options).await;
    let mut found = found
        .into_iter()
        .filter(|(major, _)| args.major.is_none_or(|wanted| wanted == *major));
    // Majors come in order, so the last that is there is the newest.
    let newest = found.by_ref().filter_map(|(_, result)| result.ok()).last();
    newest.ok_or_else(|| "no such PostgreSQL; `cargo xtask pg` says what to install".into())
}

/// How long a flush takes.
#[derive(Clone, Copy, Debug)]
enum Regime {
    /// As long as this machine's disk needs.
    Native,
    /// A millisecond longer, as on a cloud disk.
    OneMillisecond,
}

impl Regime {
    fn name(self) -> &'static str {
        match self {
            Self::Native => "native flush",
            Self::OneMillisecond => "1 ms flush",
        }
    }

    async fn start(
        self,
        installation: &Installation,
    ) -> Result<Server, Box<dyn core::error::Error>> {
        let options = match self {
            Self::Native => ServerOptions::new(),
            Self::OneMillisecond => ServerOptions::new()
                .setting("commit_delay", "1000")
                .setting("commit_siblings", "0"),
        };
        let server = Server::start(installation, options).await?;
        migrate(&ConnectOptions::parse(&server.url("postgres"))?).await?;
        Ok(server)
    }
}

/// A store on the server, and a policy that is registered there for a pool of its own.
async fn shard(
    server: &Server,
    name: &str,
) -> Result<(PostgresStore, WeightedFairnessPolicy), Box<dyn core::error::Error>> {
    let store = PostgresStore::connect(ConnectOptions::parse(&server.url("postgres"))?).await?;
    let weights = [("a", 3), ("b", 1)].map(|(tenant, weight)| {
        Ok::<_, Box<dyn core::error::Error>>(TenantFairnessWeight::new(
            TenantId::try_from(tenant)?,
            weight,
        )?)
    });
    let weights = weights.into_iter().collect::<Result<Vec<_>, _>>()?;
    let policy = WeightedFairnessPolicy::new(SchedulerShardId::try_from(name)?, weights)?;
    store
        .register_policy(&PolicyRegistration::new(policy.clone()).in_pool(name.parse()?))
        .await?;
    Ok((store, policy))
}

/// One reservation of one sequence, through the public API.
async fn reserve_one(
    store: &PostgresStore,
    policy: &WeightedFairnessPolicy,
) -> Result<(), Box<dyn core::error::Error>> {
    let id = ReservationId::mint(jiff::Timestamp::now());
    store
        .reserve(&ReserveRequest::new(policy, id, ReservationCount::ONE))
        .await?;
    Ok(())
}

/// The limit of every mutable cursor: one UPDATE of one row.
struct HotRow(PgConnection);

impl HotRow {
    async fn connect(server: &Server) -> Result<Self, sqlx::Error> {
        let mut connection = PgConnection::connect(&server.url("postgres")).await?;
        for sql in [
            "CREATE TABLE IF NOT EXISTS public.hot (id int PRIMARY KEY, next bigint NOT NULL)",
            "INSERT INTO public.hot VALUES (1, 0) ON CONFLICT DO NOTHING",
        ] {
            sqlx::query(sql).execute(&mut connection).await?;
        }
        Ok(Self(connection))
    }

    async fn update(&mut self) -> Result<(), sqlx::Error> {
        sqlx::query("UPDATE public.hot SET next = next + 1 WHERE id = 1")
            .execute(&mut self.0)
            .await?;
        Ok(())
    }
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(f64::NAN)
}

fn report(rows: &[Row], installation: &Installation) -> Result<(), Box<dyn core::error::Error>> {
    let head = [
        "row",
        "per second",
        "beside",
        "per second",
        "ratio",
        "target",
    ]
    .map(str::to_owned)
    .to_vec();
    let cells = |row: &Row| {
        vec![
            row.name.clone(),
            format!("{:.0}", row.per_second),
            row.beside.clone(),
            format!("{:.0}", row.beside_per_second),
            format!("{:.2}", row.ratio),
            row.target.clone(),
        ]
    };
    let lines: Vec<Vec<String>> = rows.iter().map(cells).collect();
    print!(
        "{}",
        table::aligned(&[vec![head.clone()], lines.clone()].concat())
    );
    if cfg!(debug_assertions) {
        println!("This was a debug build: the client's share of each figure is too large.");
    }
    let markdown = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut page = format!(
        "PostgreSQL {}\n\n{}| --- | --- | --- | --- | --- | --- |\n",
        installation.version(),
        markdown(&head)
    );
    page.extend(lines.iter().map(|line| markdown(line)));
    let folder = pg::target_folder().join("bench");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("report.md"), page)?;
    let json = serde_json::json!({"server": installation.version(), "rows": rows});
    fs::write(folder.join("report.json"), format!("{json:#}\n"))?;
    Ok(())
}
