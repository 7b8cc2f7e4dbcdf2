//! Every customer gets its turns, and every turn is good for one mail.
#![expect(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails"
)]

use core::time::Duration;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
use evenhand_scheduler::{
    BoxError, DurableFairScheduler, RunEnd, SchedulerOptions, Tick, TickOutcome,
};
use evenhand_store_postgres::PostgresStore;
use evenhand_testkit::postgres::TestDatabase;
use foreign_queue::{Mail, Mailer, Outbox, run};
use futures::future::join_all;
use sqlx::{AssertSqlSafe, PgPool};
use tokio_util::sync::CancellationToken;

/// What a mail server does with the n-th mail that it gets.
type Server = Arc<dyn Fn(usize) -> Result<(), BoxError> + Send + Sync>;

/// Notes which mails were handed over.
#[derive(Clone)]
struct Recorder {
    mails: Arc<Mutex<Vec<i64>>>,
    server: Server,
}

impl Recorder {
    fn new(server: impl Fn(usize) -> Result<(), BoxError> + Send + Sync + 'static) -> Self {
        Self {
            mails: Arc::default(),
            server: Arc::new(server),
        }
    }

    fn mails(&self) -> Vec<i64> {
        self.mails.lock().unwrap().clone()
    }
}

impl Mailer for Recorder {
    async fn send(&self, mail: &Mail) -> Result<(), BoxError> {
        let number = {
            let mut mails = self.mails.lock().unwrap();
            mails.push(mail.id);
            mails.len()
        };
        // Lets others act while this mail is on its way.
        tokio::task::yield_now().await;
        (self.server)(number)
    }
}

/// A database with an outbox, and a policy of three turns for `acme` and one for `bolt`.
struct Scene {
    database: TestDatabase,
    policy: WeightedFairnessPolicy,
}

impl Scene {
    async fn start(mails: &[(&str, u32)]) -> Self {
        let database = TestDatabase::migrated().await;
        for sql in [
            include_str!("../sql/outbox.sql"),
            include_str!("../sql/adopt.sql"),
        ] {
            database.admin(sql).await.expect("the table is made");
        }
        for (customer, number) in mails {
            let sql = format!(
                "INSERT INTO mail_outbox (customer, recipient, subject)
                 SELECT '{customer}', 'somebody', 'News' FROM generate_series(1, {number})"
            );
            database.admin(&sql).await.expect("the mails are written");
        }
        let weights = [("acme", 3), ("bolt", 1)].map(|(tenant, weight)| {
            TenantFairnessWeight::new(TenantId::try_from(tenant).unwrap(), weight).unwrap()
        });
        let shard = SchedulerShardId::try_from("mail-v1").unwrap();
        Self {
            database,
            policy: WeightedFairnessPolicy::new(shard, weights).unwrap(),
        }
    }

    /// An outbox on connections of its own.
    async fn outbox(&self, mailer: &Recorder) -> Outbox<Recorder> {
        let pool = PgPool::connect(&self.database.url()).await.unwrap();
        Outbox::new(pool, mailer.clone())
    }

    /// A scheduler on connections of its own.
    async fn scheduler<'a>(
        &self,
        outbox: &'a Outbox<Recorder>,
    ) -> DurableFairScheduler<PostgresStore, &'a Outbox<Recorder>> {
        let (store, policy) = (self.database.store().await, self.policy.clone());
        DurableFairScheduler::register(store, policy, outbox, SchedulerOptions::default())
            .await
            .unwrap()
    }

    async fn number(&self, sql: &str) -> i64 {
        let mut connection = self.database.connect().await;
        let number = sqlx::query_scalar(AssertSqlSafe(sql.to_owned()));
        number.fetch_one(&mut connection).await.unwrap()
    }
}

fn end(tick: &Tick) -> RunEnd {
    let TickOutcome::Ran(report) = &tick.outcome else {
        panic!("no mail was taken: {tick:?}")
    };
    report.end
}

#[tokio::test(flavor = "multi_thread")]
async fn two_senders_give_every_customer_its_turns_and_send_each_mail_once() {
    let scene = Scene::start(&[("acme", 70), ("bolt", 25)]).await;
    let mailer = Recorder::new(|_| Ok(()));
    let cancel = CancellationToken::new();
    let (first, second) = (scene.outbox(&mailer).await, scene.outbox(&mailer).await);
    let (one, two) = (
        scene.scheduler(&first).await,
        scene.scheduler(&second).await,
    );
    let stop_when_sent = async {
        let deadline = tokio::time::Instant::now() + Duration::from_mins(1);
        while scene
            .number("SELECT count(*) FROM mail_outbox WHERE state <> 'sent'")
            .await
            > 0
        {
            assert!(tokio::time::Instant::now() < deadline, "mails are left");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        cancel.cancel();
    };
    let (by_one, by_two, ()) = tokio::join!(
        run(&one, &first, &cancel),
        run(&two, &second, &cancel),
        stop_when_sent
    );
    assert_eq!(by_one + by_two, 95);
    assert!(by_one > 0 && by_two > 0, "both sent some");
    let mut mails = mailer.mails();
    mails.sort_unstable();
    assert_eq!(mails, (1..=95).collect::<Vec<i64>>(), "each mail once");

    // While both had mails, every cycle of four turns sent three of acme and one of bolt.
    let mut connection = scene.database.connect().await;
    let turns: Vec<(String, i64)> = sqlx::query_as(
        "SELECT customer, reserved_by_sequence FROM mail_outbox WHERE reserved_by_sequence < 80",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    let mut cycles: BTreeMap<(i64, String), u32> = BTreeMap::new();
    for (customer, sequence) in turns {
        *cycles.entry((sequence / 4, customer)).or_default() += 1;
    }
    for cycle in 0..20 {
        for (customer, mails) in [("acme", 3), ("bolt", 1)] {
            let sent = cycles.get(&(cycle, customer.to_owned())).copied();
            assert_eq!(sent, Some(mails), "{customer} in cycle {cycle}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_is_asked_for_again_is_good_for_one_mail() {
    let scene = Scene::start(&[("acme", 10), ("bolt", 10)]).await;
    let mailer = Recorder::new(|_| Ok(()));
    let cancel = CancellationToken::new();
    let (first, second) = (scene.outbox(&mailer).await, scene.outbox(&mailer).await);
    let (one, two) = (
        scene.scheduler(&first).await,
        scene.scheduler(&second).await,
    );
    for turn in 1..=5 {
        let request = one.mint_request();
        // As if every reply had been lost, and several processes now settled the same request.
        let settled = (0..8).map(|n| {
            let scheduler = if n % 2 == 0 { &one } else { &two };
            scheduler.settle(request.clone(), &cancel)
        });
        for tick in join_all(settled).await {
            let tick = tick.unwrap().unwrap();
            // Others are told that the turn is in use, as long as its mail is on its way.
            if !matches!(tick.outcome, TickOutcome::Contended) {
                assert_eq!(end(&tick), RunEnd::Completed);
            }
        }
        // Later, when the mail is sent, everybody is told so.
        let again = two.settle(request, &cancel).await.unwrap().unwrap();
        assert_eq!(end(&again), RunEnd::Completed);
        assert_eq!(mailer.mails().len(), turn);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mail_that_is_refused_waits_and_does_not_block_the_next() {
    let scene = Scene::start(&[("acme", 2)]).await;
    let refuse_first = |number| {
        if number == 1 {
            Err("mailbox full".into())
        } else {
            Ok(())
        }
    };
    let mailer = Recorder::new(refuse_first);
    let cancel = CancellationToken::new();
    let outbox = scene.outbox(&mailer).await;
    let scheduler = scene.scheduler(&outbox).await;
    let request = scheduler.mint_request();
    let refused = scheduler.settle(request.clone(), &cancel).await.unwrap();
    assert!(matches!(end(&refused.unwrap()), RunEnd::Requeued(_)));
    // Its turn is used up all the same.
    let again = scheduler.settle(request, &cancel).await.unwrap().unwrap();
    assert!(matches!(again.outcome, TickOutcome::Contended), "{again:?}");
    let next = scheduler.tick(&cancel).await.unwrap().unwrap();
    assert_eq!(end(&next), RunEnd::Completed);
    assert_eq!(mailer.mails(), [1, 2]);
    // Nothing is left that could be sent now; bolt never had anything.
    for _ in 0..4 {
        let tick = scheduler.tick(&cancel).await.unwrap().unwrap();
        assert!(matches!(tick.outcome, TickOutcome::Idle), "{tick:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sender_that_takes_too_long_cannot_mark_a_mail_that_others_took_over() {
    let scene = Scene::start(&[("acme", 1)]).await;
    let (mailer, cancel) = (Recorder::new(|_| Ok(())), CancellationToken::new());
    let sweeper = scene.outbox(&mailer).await;
    let slow = Slow {
        sweeper: sweeper.clone(),
        mailer: mailer.clone(),
    };
    let pool = PgPool::connect(&scene.database.url()).await.unwrap();
    let outbox = Outbox::new(pool, slow);
    let options = SchedulerOptions::default();
    let (store, policy) = (scene.database.store().await, scene.policy.clone());
    let late = DurableFairScheduler::register(store, policy, &outbox, options)
        .await
        .unwrap();
    let tick = late.tick(&cancel).await.unwrap().unwrap();
    assert_eq!(end(&tick), RunEnd::LeaseLost);
    assert_eq!(
        scene
            .number("SELECT count(*) FROM mail_outbox WHERE state = 'waiting'")
            .await,
        1
    );

    let scheduler = scene.scheduler(&sweeper).await;
    let tick = scheduler.tick(&cancel).await.unwrap().unwrap();
    assert_eq!(end(&tick), RunEnd::Completed);
    assert_eq!(mailer.mails(), [1, 1]);
}

/// So slow that its mail is given back before it is done.
struct Slow {
    sweeper: Outbox<Recorder>,
    mailer: Recorder,
}

impl Mailer for Slow {
    async fn send(&self, mail: &Mail) -> Result<(), BoxError> {
        self.mailer.send(mail).await?;
        assert_eq!(self.sweeper.give_back(Duration::ZERO).await?, 1);
        Ok(())
    }
}
