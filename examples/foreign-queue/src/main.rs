//! A sender of mails that gives every customer its turns.

use core::time::Duration;

use std::process::ExitCode;

use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
use evenhand_scheduler::{BoxError, DurableFairScheduler, SchedulerOptions, os_signals};
use evenhand_store_postgres::{ConnectOptions, PostgresStore, migrate};
use foreign_queue::{Mail, Mailer, Outbox, run};
use sqlx::{Executor as _, PgPool};
use tokio_util::sync::CancellationToken;

const USAGE: &str = "usage: foreign-queue setup URL | work URL CUSTOMER=WEIGHT...";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.as_slice() {
        ["setup", url] => setup(url).await,
        ["work", url, weights @ ..] => work(url, weights).await,
        _ => Err(USAGE.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn setup(url: &str) -> Result<(), BoxError> {
    migrate(&ConnectOptions::parse(url)?).await?;
    let pool = PgPool::connect(url).await?;
    pool.execute(include_str!("../sql/outbox.sql")).await?;
    pool.execute(include_str!("../sql/adopt.sql")).await?;
    pool.execute(include_str!("../sql/demo.sql")).await?;
    Ok(())
}

async fn work(url: &str, weights: &[&str]) -> Result<(), BoxError> {
    let store = PostgresStore::connect(ConnectOptions::parse(url)?).await?;
    let outbox = Outbox::new(PgPool::connect(url).await?, Printer);
    let policy = policy(weights)?;
    let options = SchedulerOptions::default();
    let scheduler = DurableFairScheduler::register(store, policy, &outbox, options).await?;
    let cancel = CancellationToken::new();
    let signals = os_signals()?;
    let stop = async {
        signals.await;
        cancel.cancel();
    };
    let (sent, ()) = tokio::join!(run(&scheduler, &outbox, &cancel), stop);
    println!("{sent} mails");
    Ok(())
}

fn policy(weights: &[&str]) -> Result<WeightedFairnessPolicy, BoxError> {
    let weights = weights.iter().map(|weight| {
        let (customer, weight) = weight.split_once('=').ok_or(USAGE)?;
        let customer = TenantId::try_from(customer)?;
        Ok::<_, BoxError>(TenantFairnessWeight::new(customer, weight.parse()?)?)
    });
    let weights = weights.collect::<Result<Vec<_>, _>>()?;
    let shard = SchedulerShardId::try_from("mail-v1")?;
    Ok(WeightedFairnessPolicy::new(shard, weights)?)
}

/// Prints mails instead of sending them, a few a second.
struct Printer;

impl Mailer for Printer {
    async fn send(&self, mail: &Mail) -> Result<(), BoxError> {
        tokio::time::sleep(Duration::from_millis(200)).await;
        println!("to {}: {}", mail.recipient, mail.subject);
        Ok(())
    }
}
