//! Prints which share of the first cycles each class and a noisy customer got.

use core::time::Duration;

use evenhand_policy::SchedulerShardId;
use evenhand_scheduler::BoxError;
use evenhand_store::memory::MemoryStore;
use fairness_classes::{Customer, Demand, FairnessClass, Turn, policy, serve};

const CYCLES: u64 = 3;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let noisy = Customer::new("noisy".parse()?, FairnessClass::Free);
    let mut demands = vec![Demand::new(noisy.clone(), 1_000)];
    for class in FairnessClass::ALL {
        for number in 0..100 {
            let name = format!("{}-customer-{number:03}", class.as_str()).parse()?;
            demands.push(Demand::new(Customer::new(name, class), 10));
        }
    }
    let policy = policy(SchedulerShardId::try_from("classes-v1")?)?;
    let sequences = CYCLES * u64::from(policy.cycle_length());
    println!(
        "301 customers; {noisy} brings 1,000 runs first, everybody else 10",
        noisy = noisy.name()
    );
    println!("{} tenants, {sequences} sequences:", policy.tenants().len());

    let store = MemoryStore::new("2026-05-01T12:00:00Z".parse()?);
    let turns = serve(&store, &demands, Duration::ZERO, 480).await?;
    let early: Vec<&Turn> = turns
        .iter()
        .filter(|turn| turn.sequence < sequences)
        .collect();
    for class in FairnessClass::ALL {
        let prefix = class.as_str();
        let served = early
            .iter()
            .filter(|turn| turn.tenant.as_str().starts_with(prefix));
        println!("  {prefix:12}{:5} runs", served.count());
    }
    let of_noisy = early
        .iter()
        .filter(|turn| turn.customer == *noisy.name())
        .count();
    println!(
        "  of these {of_noisy} of {}, all of them in {}",
        noisy.name(),
        noisy.tenant()?
    );
    Ok(())
}
