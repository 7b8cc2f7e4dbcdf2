//! The conformance suite over `MemoryStore`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use core::time::Duration;

use async_trait::async_trait;
use evenhand_policy::SchedulerShardId;
use evenhand_store::Timestamp;
use evenhand_store::memory::MemoryStore;
use evenhand_testkit::conformance::StoreUnderTest;

struct Memory(MemoryStore);

#[async_trait]
impl StoreUnderTest for Memory {
    type Store = MemoryStore;

    async fn start() -> Self {
        Self(MemoryStore::new(
            Timestamp::from_second(1_777_636_800).unwrap(),
        ))
    }

    async fn open(&self) -> MemoryStore {
        self.0.clone()
    }

    async fn advance_clock(&self, by: Duration) {
        self.0.advance(by);
    }

    async fn set_clock_back(&self, by: Duration) {
        self.0.set_clock(self.0.clock() - by);
    }

    async fn skip_to(&self, shard: &SchedulerShardId, next_sequence: u64) {
        self.0.skip_to(shard, next_sequence).unwrap();
    }
}

evenhand_testkit::conformance_suite!(Memory);
