//! A program that works on a journal, together with as many others of its kind as one likes.

use core::error::Error;

use std::process::ExitCode;

use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
use evenhand_scheduler::{BoxError, Job, JobOutcome, RunContext, Worker};
use evenhand_store::{RunQueue as _, SequenceOutcome};
use file_store::FileStore;
use serde::{Deserialize, Serialize};

const USAGE: &str = "usage: file-store JOURNAL enqueue NUMBER | work | show";

#[derive(Serialize, Deserialize)]
struct Print {
    text: String,
}

impl Job for Print {
    const KIND: &'static str = "print";
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.as_slice() {
        [journal, "enqueue", number] => enqueue(journal, number).await,
        [journal, "work"] => work(journal).await,
        [journal, "show"] => show(journal).await,
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

/// Three turns for `large`, one for `small`.
fn policy() -> Result<WeightedFairnessPolicy, Box<dyn Error>> {
    let weights = [("large", 3), ("small", 1)].map(|(tenant, weight)| {
        let tenant = TenantId::try_from(tenant)?;
        Ok::<_, Box<dyn Error>>(TenantFairnessWeight::new(tenant, weight)?)
    });
    let weights = weights.into_iter().collect::<Result<Vec<_>, _>>()?;
    let shard = SchedulerShardId::try_from("primary-v1")?;
    Ok(WeightedFairnessPolicy::new(shard, weights)?)
}

async fn enqueue(journal: &str, number: &str) -> Result<(), Box<dyn Error>> {
    let store = FileStore::open(journal)?;
    let mut runs = Vec::new();
    for tenant in policy()?.tenants() {
        let tenant = tenant.tenant();
        for page in 0..number.parse::<u32>()? {
            let text = format!("page {page} of {tenant}");
            runs.push(Print { text }.new_run(tenant.clone())?);
        }
    }
    println!("{} runs", store.enqueue_many(&runs).await?.len());
    Ok(())
}

async fn work(journal: &str) -> Result<(), Box<dyn Error>> {
    let store = FileStore::open(journal)?;
    let worker = Worker::builder(store, policy()?)
        .concurrency(2)
        .on::<Print>(print);
    let report = worker.build().run_until_idle().await?;
    println!("completed {}", report.completed);
    Ok(())
}

async fn print(job: Print, context: RunContext) -> Result<JobOutcome, BoxError> {
    println!("{} (attempt {})", job.text, context.attempt());
    Ok(JobOutcome::Done)
}

async fn show(journal: &str) -> Result<(), Box<dyn Error>> {
    let store = FileStore::open(journal)?;
    let policy = policy()?;
    let mut next = 0;
    loop {
        let page = store.sequences(policy.shard(), next, 100).await?;
        let Some(last) = page.last() else {
            return Ok(());
        };
        next = last.sequence + 1;
        for record in &page {
            let tenant = policy.tenant_for_sequence(record.sequence);
            let end = if let SequenceOutcome::Ran(attempt) = &record.outcome {
                format!("ran {}", attempt.run)
            } else {
                format!("{:?}", record.outcome).to_lowercase()
            };
            println!("{:6} {tenant:8} {end}", record.sequence);
        }
    }
}
