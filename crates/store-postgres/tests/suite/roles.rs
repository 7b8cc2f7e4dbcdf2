//! Who may do what.

use evenhand_store_postgres::migrate;
use evenhand_testkit::postgres::TestDatabase;
use sqlx::{AssertSqlSafe, Executor as _};

use crate::scene::{Scene, execute};

#[tokio::test(flavor = "multi_thread")]
async fn public_has_nothing() {
    let scene = Scene::start().await;
    let open = scene
        .number(
            "SELECT (SELECT count(*) FROM pg_proc p WHERE p.pronamespace = 'evenhand'::regnamespace
                     AND has_function_privilege('public', p.oid, 'EXECUTE'))
                  + (SELECT count(*) FROM pg_class c WHERE c.relnamespace = 'evenhand'::regnamespace AND c.relkind = 'r'
                     AND has_table_privilege('public', c.oid, 'SELECT, INSERT, UPDATE, DELETE, TRUNCATE'))
                  + has_schema_privilege('public', 'evenhand', 'USAGE, CREATE')::int",
        )
        .await;
    assert_eq!(open, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_function_that_acts_for_its_owner_fixes_its_search_path() {
    let scene = Scene::start().await;
    let open = scene
        .number(
            "SELECT count(*) FROM pg_proc p WHERE p.pronamespace = 'evenhand'::regnamespace AND p.prosecdef
             AND NOT 'search_path=pg_catalog, pg_temp' = ANY (coalesce(p.proconfig, '{}'))",
        )
        .await;
    assert_eq!(open, 0);
    assert!(scene.number("SELECT count(*) FROM pg_proc p WHERE p.pronamespace = 'evenhand'::regnamespace AND p.prosecdef").await > 15);
}

/// Whether a role may run a statement, apart from what the statement then finds.
async fn may(scene: &Scene, role: &str, sql: &str) -> bool {
    let mut connection = scene.database.connect().await;
    execute(&mut connection, &format!("BEGIN; SET LOCAL ROLE {role}")).await;
    match connection.execute(AssertSqlSafe(sql.to_owned())).await {
        Ok(_) => true,
        Err(sqlx::Error::Database(refusal)) => refusal.code().as_deref() != Some("42501"),
        Err(other) => panic!("{sql}: {other}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_role_may_do_its_part_and_no_more() {
    let scene = Scene::start().await;
    let reserve = "SELECT evenhand.reserve('primary-v1', evenhand.new_id(now(), 0), '\\x', 4, 1)";
    let claim = "SELECT evenhand.claim('primary-v1', 0, 'a', 'w', 1000)";
    let round = "SELECT evenhand.claim_round('primary-v1', '', 0, 1, 'w', 1000, 1, NULL, NULL)";
    let lost = "SELECT evenhand.lost_blocks('primary-v1', 0, 1)";
    let limit = "SELECT evenhand.set_limit('default', 'tenant', 'a', 1)";
    let limits = "SELECT evenhand.limits('default')";
    let prune = "SELECT evenhand.prune_reservations(3600000, 1)";
    let look = "SELECT * FROM evenhand.counts()";
    let read = "SELECT * FROM evenhand.reservations";
    let delete = "DELETE FROM evenhand.reservations";
    // `new_id` is not for callers: the id comes from the client.
    let reserve_as_client = reserve.replace("evenhand.new_id(now(), 0)", "gen_random_uuid()");
    for (role, allowed, refused) in [
        (
            "evenhand_app",
            vec![
                &*reserve_as_client,
                claim,
                look,
                round,
                lost,
                limit,
                limits,
                prune,
            ],
            vec![reserve, read, delete],
        ),
        (
            "evenhand_retention",
            vec![prune],
            vec![&*reserve_as_client, claim, look, read, delete],
        ),
        (
            "evenhand_observer",
            vec![look, read, limits],
            vec![
                &*reserve_as_client,
                claim,
                prune,
                delete,
                round,
                lost,
                limit,
            ],
        ),
    ] {
        for sql in allowed {
            assert!(may(&scene, role, sql).await, "{role} may not: {sql}");
        }
        for sql in refused {
            assert!(!may(&scene, role, sql).await, "{role} may: {sql}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn services_retire_and_observers_look_on() {
    let scene = Scene::start().await;
    let retire = "SELECT evenhand.retire('primary-v1', 'primary-v2')";
    let ask = "SELECT evenhand.standing('primary-v1'), evenhand.active_policy('default'), evenhand.unserved()";
    let read = "SELECT * FROM evenhand.retirements";
    let write = "UPDATE evenhand.marks SET standing = 'retired'";
    for (role, [may_retire, may_ask, may_read]) in [
        ("evenhand_app", [true, true, false]),
        ("evenhand_retention", [false, false, false]),
        ("evenhand_observer", [false, true, true]),
    ] {
        assert_eq!(may(&scene, role, retire).await, may_retire, "{role}");
        assert_eq!(may(&scene, role, ask).await, may_ask, "{role}");
        assert_eq!(may(&scene, role, read).await, may_read, "{role}");
        assert!(!may(&scene, role, write).await, "{role}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn services_control_and_sleep_and_observers_watch() {
    let scene = Scene::start().await;
    let control = "SELECT evenhand.cancel(id), evenhand.requeue(id), evenhand.discard(id)
        FROM gen_random_uuid() AS id";
    let sleep = "SELECT evenhand.fall_asleep('primary-v1', 'w', 1)";
    let enqueue = "SELECT evenhand.enqueue_run('a', 'k')";
    let forget = "SELECT evenhand.prune_history(3600000, 3600000, 3600000, 1)";
    let watch =
        "SELECT evenhand.health('primary-v1'), evenhand.tenant_history('primary-v1', 'a', 0, 1, 1)";
    for (role, [controls, forgets, watches]) in [
        ("evenhand_app", [true, true, true]),
        ("evenhand_retention", [false, true, false]),
        ("evenhand_observer", [false, false, true]),
    ] {
        for sql in [control, sleep, enqueue] {
            assert_eq!(may(&scene, role, sql).await, controls, "{role}: {sql}");
        }
        assert_eq!(may(&scene, role, forget).await, forgets, "{role}");
        assert_eq!(may(&scene, role, watch).await, watches, "{role}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn somebody_with_createrole_and_no_more_can_migrate() {
    let database = TestDatabase::empty().await;
    // The roles of the server may exist already, made by somebody else; then membership has to be granted.
    let role = format!("{}_dba", database.name());
    database
        .admin(&format!(
            "CREATE ROLE {role} LOGIN CREATEROLE; GRANT CREATE ON DATABASE {} TO {role};
             DO $$ BEGIN
                 IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'evenhand_owner') THEN
                     GRANT evenhand_owner TO {role};
                 END IF;
             END $$",
            database.name()
        ))
        .await
        .unwrap();
    let url = database
        .url()
        .replace("postgres://postgres@", &format!("postgres://{role}@"));
    let options = evenhand_store_postgres::ConnectOptions::parse(&url).unwrap();
    migrate(&options).await.unwrap();
    let mut connection = database.connect().await;
    let foreign = crate::scene::number(
        &mut connection,
        "SELECT count(*) FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner
         WHERE c.relnamespace = 'evenhand'::regnamespace AND r.rolname <> 'evenhand_owner'",
    )
    .await;
    assert_eq!(foreign, 0);
    execute(
        &mut connection,
        &format!("DROP OWNED BY {role}; DROP ROLE {role}"),
    )
    .await;
}
