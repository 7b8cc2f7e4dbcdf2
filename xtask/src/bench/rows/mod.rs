//! The rows of the table, one module each. Whatever is compared was measured in turns.

mod bytes;
mod claim;
mod compile;
mod drain;
mod enqueue;
mod heartbeats;
mod latency;
mod prune;
mod reserve;
mod round_trips;
mod shards;
mod snapshot;
mod sparse;
mod worker;

use clap::ValueEnum;

use super::Result;
use super::line::Line;
use super::plot::Plot;
use super::server::Bench;

/// How often each side of a comparison is measured.
const TURNS: usize = 5;

/// How often a peer is measured: to start its processes takes longer than to measure it.
fn peer_turns(bench: &Bench) -> usize {
    bench.pick(1, TURNS)
}

/// A row, by the name that `--only` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Row {
    /// Compiling a policy, beside the plain algorithm.
    Compile,
    /// One reservation of one caller, beside an UPDATE of one hot row.
    Reserve,
    /// 32 callers in one process and in four, beside 32 clients that update one row.
    Callers,
    /// Reservations while a snapshot is held, beside as many without, also after pruning.
    Snapshot,
    /// Reservations over 1, 2, 4 and 8 shards.
    Shards,
    /// Claims of the best run among 1,000 to 1,000,000 queued ones.
    Claim,
    /// No-op runs of eight tenants, drained by two processes, and their shares, beside peers.
    Drain,
    /// How long small tenants wait for one that has queued many runs before them, beside peers.
    Noisy,
    /// One busy tenant among 1,023 idle ones, beside a shard of its own.
    Sparse,
    /// Bytes of a reservation, and of a slot in a block of 64.
    Bytes,
    /// Pruning a long history in batches, with and without a held snapshot.
    Prune,
    /// From enqueue to handler start on an idle system, with NOTIFY and by polling, beside peers.
    Latency,
    /// Enqueueing by 16 clients while workers are busy, beside the same without notification and beside peers.
    Enqueue,
    /// Renewing 500 leases 200 times, with and without a held snapshot.
    Heartbeats,
    /// Round trips of a reservation and of an executed run.
    RoundTrips,
    /// Memory of a worker with 1,024 tenants and 256 permits, and its time for a run, beside peers.
    Worker,
}

/// What a row found.
#[derive(Debug, Default)]
pub(super) struct Measured {
    pub(super) lines: Vec<Line>,
    pub(super) plots: Vec<Plot>,
}

impl Row {
    /// Its name on the command line.
    pub(super) fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Whether other job queues are measured beside ours.
    pub(super) fn has_peers(self) -> bool {
        matches!(
            self,
            Self::Drain | Self::Noisy | Self::Latency | Self::Enqueue | Self::Worker
        )
    }

    pub(super) async fn measure(self, bench: &Bench) -> Result<Measured> {
        match self {
            Self::Compile => compile::measure(bench).await,
            Self::Reserve => reserve::measure_one(bench).await,
            Self::Callers => reserve::measure_many(bench).await,
            Self::Snapshot => snapshot::measure(bench).await,
            Self::Shards => shards::measure(bench).await,
            Self::Claim => claim::measure(bench).await,
            Self::Drain => drain::measure(bench).await,
            Self::Noisy => drain::measure_noisy(bench).await,
            Self::Sparse => sparse::measure(bench).await,
            Self::Bytes => bytes::measure(bench).await,
            Self::Prune => prune::measure(bench).await,
            Self::Latency => latency::measure(bench).await,
            Self::Enqueue => enqueue::measure(bench).await,
            Self::Heartbeats => heartbeats::measure(bench).await,
            Self::RoundTrips => round_trips::measure(bench).await,
            Self::Worker => worker::measure(bench).await,
        }
    }
}
