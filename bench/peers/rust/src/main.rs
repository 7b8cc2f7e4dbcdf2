//! One command line for every peer: see `../README.md`.

mod apalis;
mod arguments;
mod enqueue;
mod gate;
mod graphile;
mod latency;
mod peer;
mod record;
mod work;

use clap::Parser as _;
use serde_json::{Value, json};
use sqlx::postgres::{PgPool, PgPoolOptions};

use crate::apalis::Apalis;
use crate::arguments::{Arguments, Command, PeerName};
use crate::graphile::GraphileWorker;
use crate::peer::{Outcome, Peer};

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments = Arguments::parse();
    let answer = match arguments.peer {
        PeerName::ApalisPostgres => Box::pin(run::<Apalis>(arguments.command)).await?,
        PeerName::GraphileWorker => Box::pin(run::<GraphileWorker>(arguments.command)).await?,
    };
    if answer != Value::Null {
        println!("{answer}");
    }
    Ok(())
}

async fn run<P: Peer>(command: Command) -> Outcome<Value> {
    match command {
        Command::Describe => Ok(json!({
            "peer": P::NAME,
            "version": P::VERSION,
            "runtime": "Rust",
            "modes": {"fastest": P::FASTEST},
        })),
        Command::Setup { database } => {
            let pool = pool(&database.url, 2).await?;
            P::setup(&pool).await?;
            gate::create(&pool).await?;
            Ok(Value::Null)
        }
        Command::Remaining { database } => {
            let pool = pool(&database.url, 1).await?;
            Ok(json!({"remaining": P::remaining(&pool).await?}))
        }
        Command::Enqueue(options) => enqueue::enqueue::<P>(options).await,
        Command::EnqueueLoad(options) => enqueue::load::<P>(options).await,
        Command::Work(options) => work::work::<P>(options).await,
        Command::Latency(options) => latency::latency::<P>(options).await,
    }
}

/// As many connections as will be used, so that none is opened while something is measured.
async fn pool(url: &str, connections: u32) -> Outcome<PgPool> {
    let pool = PgPoolOptions::new()
        .min_connections(connections)
        .max_connections(connections)
        .test_before_acquire(false)
        .connect(url)
        .await?;
    Ok(pool)
}
