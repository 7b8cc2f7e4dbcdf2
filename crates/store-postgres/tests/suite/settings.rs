//! Whatever the defaults of role and database are, the store sets what it needs.

use evenhand_store::{PolicyRegistration, ReservationStore, RunQueue};
use evenhand_store_postgres::{ConnectOptions, PostgresStore, Transport};
use evenhand_testkit::postgres::TestDatabase;
use futures::future::join_all;

use crate::scene::{Scene, policy, ran, request, run};

/// A store that logs in as a role with these defaults, on a migrated database.
async fn store_as(
    database: &TestDatabase,
    defaults: &[&str],
    transport: Transport,
) -> PostgresStore {
    let role = format!("{}_role", database.name());
    let settings: Vec<String> = defaults
        .iter()
        .map(|setting| format!("ALTER ROLE {role} SET {setting};"))
        .collect();
    let sql = format!(
        "CREATE ROLE {role} LOGIN IN ROLE evenhand_app; {}",
        settings.concat()
    );
    database.admin(&sql).await.unwrap();
    let url = database
        .url()
        .replace("postgres://postgres@", &format!("postgres://{role}@"));
    let options = ConnectOptions::parse(&url).unwrap().transport(transport);
    PostgresStore::connect(options).await.unwrap()
}

async fn forget(database: &TestDatabase) {
    let role = format!("{}_role", database.name());
    database
        .admin(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await
        .unwrap();
}

/// Reservations and claims from many connections, as such a role.
async fn everything_works_as(defaults: &[&str], transport: Transport) {
    let database = TestDatabase::migrated().await;
    let store = store_as(&database, defaults, transport).await;
    let policy = policy("primary-v1", &[("a", 1)]);
    store
        .register_policy(&PolicyRegistration::new(policy.clone()))
        .await
        .unwrap();
    let requests: Vec<_> = (0..64).map(|_| request(&policy, 1)).collect();
    let answers = join_all(requests.iter().map(|request| store.reserve(request))).await;
    let mut taken: Vec<u64> = answers
        .into_iter()
        .map(|answer| answer.unwrap().first_sequence)
        .collect();
    taken.sort_unstable();
    assert!(taken.into_iter().eq(0..64));
    store.enqueue(&run("a")).await.unwrap();
    let claim = evenhand_store::ClaimRequest::new(
        &policy,
        0,
        crate::scene::worker(),
        crate::scene::lease(),
    );
    assert!(matches!(
        store.claim(&claim).await.unwrap(),
        evenhand_store::Claim::Ran(_)
    ));
    store.close();
    drop(store);
    forget(&database).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn role_default_serializable() {
    everything_works_as(
        &["default_transaction_isolation = 'serializable'"],
        Transport::Direct,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn role_default_repeatable_read() {
    everything_works_as(
        &["default_transaction_isolation = 'repeatable read'"],
        Transport::Direct,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_pooler_every_call_brings_its_isolation() {
    let defaults = [
        "default_transaction_isolation = 'serializable'",
        "default_transaction_read_only = on",
    ];
    everything_works_as(&defaults, Transport::TransactionPooler).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_function_itself_refuses_every_other_isolation() {
    let scene = Scene::start().await;
    for isolation in ["REPEATABLE READ", "SERIALIZABLE"] {
        let refusal = scene
            .refusal(&format!(
                "BEGIN ISOLATION LEVEL {isolation};
                 SELECT evenhand.reserve('primary-v1', evenhand.new_id(now(), 0), '\\x00', 4, 1)"
            ))
            .await;
        assert_eq!(refusal, "EV013");
    }
}

/// Only what was flushed is acknowledged: the transaction's own setting is seen by a trigger at its end.
async fn commits_with(default: &str) -> Vec<String> {
    let database = TestDatabase::migrated().await;
    let store = store_as(
        &database,
        &[&format!("synchronous_commit = '{default}'")],
        Transport::Direct,
    )
    .await;
    let policy = policy("primary-v1", &[("a", 1)]);
    database
        .admin(
            "CREATE TABLE public.seen (setting text);
             CREATE FUNCTION public.see() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
             BEGIN
                 INSERT INTO public.seen VALUES (current_setting('synchronous_commit'));
                 RETURN NULL;
             END $$;
             CREATE CONSTRAINT TRIGGER see AFTER INSERT ON evenhand.reservations
                 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.see();
             CREATE CONSTRAINT TRIGGER see AFTER INSERT ON evenhand.outcomes
                 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.see();
             CREATE CONSTRAINT TRIGGER see AFTER UPDATE ON evenhand.runs
                 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.see()",
        )
        .await
        .unwrap();
    store
        .register_policy(&PolicyRegistration::new(policy.clone()))
        .await
        .unwrap();
    store.enqueue(&run("a")).await.unwrap();
    store.reserve(&request(&policy, 1)).await.unwrap();
    let claim = evenhand_store::ClaimRequest::new(
        &policy,
        0,
        crate::scene::worker(),
        crate::scene::lease(),
    );
    let claimed = ran(store.claim(&claim).await.unwrap());
    store.complete(&claimed.lease).await.unwrap();
    let seen = sqlx::query_scalar("SELECT setting FROM public.seen")
        .fetch_all(&mut database.connect().await)
        .await
        .unwrap();
    store.close();
    drop(store);
    forget(&database).await;
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn role_default_synchronous_commit_off_is_raised() {
    for weak in ["off", "local", "remote_write"] {
        let seen = commits_with(weak).await;
        assert_eq!(seen, ["on"; 4], "{weak}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stronger_synchronous_commit_stays() {
    assert_eq!(commits_with("remote_apply").await, ["remote_apply"; 4]);
}
