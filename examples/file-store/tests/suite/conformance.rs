//! Every promise of the store contract.

use core::time::Duration;

use async_trait::async_trait;
use evenhand_policy::SchedulerShardId;
use evenhand_testkit::conformance::StoreUnderTest;
use file_store::FileStore;

use crate::scene::Scene;

/// [`FileStore`] for the conformance suite: a folder per fact, and a clock that all its handles share.
struct FileUnderTest(Scene);

#[async_trait]
impl StoreUnderTest for FileUnderTest {
    type Store = FileStore;

    async fn start() -> Self {
        Self(Scene::start())
    }

    async fn open(&self) -> FileStore {
        self.0.open()
    }

    async fn advance_clock(&self, by: Duration) {
        self.0.set_clock(|clock| clock + by);
    }

    async fn set_clock_back(&self, by: Duration) {
        self.0.set_clock(|clock| clock - by);
    }

    async fn skip_to(&self, shard: &SchedulerShardId, next_sequence: u64) {
        let skipped = self.open().await.skip_to(shard, next_sequence).await;
        skipped.expect("the shard has no reservation");
    }
}

evenhand_testkit::conformance_suite!(FileUnderTest);
