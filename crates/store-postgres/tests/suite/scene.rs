//! What most tests begin with.

use core::time::Duration;

use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
use evenhand_store::{
    Claim, ClaimRequest, ClaimedRun, LeaseDuration, NewRun, Payload, PolicyRegistration,
    Reservation, ReservationCount, ReservationId, ReservationStore, ReserveRequest, RunKind,
    RunQueue, StoreErrorKind, Timestamp, WorkerName,
};
use evenhand_store_postgres::{ConnectOptions, PostgresStore};
use evenhand_testkit::postgres::{Proxy, TestDatabase};
use sqlx::{AssertSqlSafe, Executor as _, PgConnection};

/// A database with one registered shard, whose tenants are `a` with weight 3 and `b` with weight 1.
pub(crate) struct Scene {
    pub(crate) database: TestDatabase,
    pub(crate) store: PostgresStore,
    pub(crate) policy: WeightedFairnessPolicy,
}

impl Scene {
    pub(crate) async fn start() -> Self {
        Self::with(policy("primary-v1", &[("a", 3), ("b", 1)])).await
    }

    /// A database with this policy registered, in the default pool.
    pub(crate) async fn with(policy: WeightedFairnessPolicy) -> Self {
        let database = TestDatabase::migrated().await;
        let store = database.store().await;
        store
            .register_policy(&PolicyRegistration::new(policy.clone()))
            .await
            .expect("the policy can be registered");
        Self {
            database,
            store,
            policy,
        }
    }

    pub(crate) fn request(&self, count: u32) -> ReserveRequest {
        request(&self.policy, count)
    }

    pub(crate) async fn reserve(&self, count: u32) -> Reservation {
        self.store
            .reserve(&self.request(count))
            .await
            .expect("a reservation")
    }

    pub(crate) fn claim_request(&self, sequence: u64) -> ClaimRequest {
        ClaimRequest::new(&self.policy, sequence, worker(), lease())
    }

    pub(crate) async fn claim(&self, sequence: u64) -> Claim {
        self.store
            .claim(&self.claim_request(sequence))
            .await
            .expect("a claim")
    }

    /// Enqueues one run of `tenant` and claims it against a new sequence.
    pub(crate) async fn claimed(&self, tenant: &str) -> ClaimedRun {
        self.store.enqueue(&run(tenant)).await.expect("an enqueue");
        ran(self.claim(self.sequence_of(tenant).await).await)
    }

    /// A new sequence of `tenant`. Those before it are left as they are.
    pub(crate) async fn sequence_of(&self, tenant: &str) -> u64 {
        loop {
            let sequence = self.reserve(1).await.first_sequence;
            if self.policy.tenant_for_sequence(sequence).as_str() == tenant {
                return sequence;
            }
        }
    }

    pub(crate) async fn sql(&self, sql: &str) {
        self.database.admin(sql).await.expect("the statement runs");
    }

    /// What a statement that has to be refused was refused with.
    pub(crate) async fn refusal(&self, sql: &str) -> String {
        match self.database.admin(sql).await {
            Err(sqlx::Error::Database(refusal)) => refusal.code().expect("a code").into_owned(),
            other => panic!("{sql} was not refused: {other:?}"),
        }
    }

    pub(crate) async fn number(&self, sql: &str) -> i64 {
        number(&mut self.database.connect().await, sql).await
    }
}

/// The run that a claim got.
pub(crate) fn ran(claim: Claim) -> ClaimedRun {
    let Claim::Ran(claimed) = claim else {
        panic!("a ready run was not claimed: {claim:?}")
    };
    *claimed
}

/// A store whose every byte goes through a proxy, on one connection.
pub(crate) async fn through_proxy(scene: &Scene) -> (Proxy, PostgresStore) {
    let proxy = Proxy::start(&scene.database.url()).await.expect("a proxy");
    let options = ConnectOptions::parse(proxy.url())
        .expect("a URL")
        .connections_max(1);
    let store = PostgresStore::connect(options).await.expect("a connection");
    (proxy, store)
}

pub(crate) async fn number(connection: &mut PgConnection, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
        .fetch_one(connection)
        .await
        .expect("a number")
}

pub(crate) async fn execute(connection: &mut PgConnection, sql: &str) {
    connection
        .execute(AssertSqlSafe(sql.to_owned()))
        .await
        .expect("the statement runs");
}

pub(crate) fn policy(shard: &str, tenants: &[(&str, u32)]) -> WeightedFairnessPolicy {
    let weights = tenants.iter().map(|(tenant, weight)| {
        TenantFairnessWeight::new(tenant_id(tenant), *weight).expect("a weight")
    });
    WeightedFairnessPolicy::new(SchedulerShardId::try_from(shard).expect("a shard"), weights)
        .expect("a policy")
}

pub(crate) fn tenant_id(tenant: &str) -> TenantId {
    TenantId::try_from(tenant).expect("a tenant")
}

pub(crate) fn request(policy: &WeightedFairnessPolicy, count: u32) -> ReserveRequest {
    let count = ReservationCount::new(count).expect("a count");
    ReserveRequest::new(policy, ReservationId::mint(Timestamp::now()), count)
}

pub(crate) fn run(tenant: &str) -> NewRun {
    NewRun::new(
        tenant_id(tenant),
        RunKind::try_from("test").expect("a kind"),
        Payload::default(),
    )
}

pub(crate) fn worker() -> WorkerName {
    WorkerName::try_from("worker-1").expect("a name")
}

pub(crate) fn lease() -> LeaseDuration {
    LeaseDuration::new(Duration::from_secs(30)).expect("a lease")
}

/// Asks `probe` again until it holds; panics after half a minute.
pub(crate) async fn wait_until(what: &str, mut probe: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !probe().await {
        assert!(
            tokio::time::Instant::now() < deadline,
            "it never happened that {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn kind<T>(answer: Result<T, evenhand_store::StoreError>) -> StoreErrorKind {
    match answer {
        Ok(_) => panic!("the call was not refused"),
        Err(error) => error.kind(),
    }
}
