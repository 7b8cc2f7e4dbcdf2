//! Runs are enqueued from SQL, psql and Node as they are from Rust, and refused alike.

use std::path::{Path, PathBuf};

use evenhand_policy::TenantId;
use evenhand_policy::admission::{BasePriority, ValueClass};
use evenhand_store::{
    AttemptsMax, CostMicros, Enqueued, IdempotencyKey, NewRun, PageSize, Payload,
    PolicyRegistration, ReservationStore, RunFilter, RunKind, RunQueue, RunState, RunTimeout,
    StoreErrorKind,
};
use evenhand_store_postgres::{ConnectOptions, PostgresStore, migrate};
use evenhand_testkit::postgres::{ServerOptions, private_server};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};
use tokio::process::Command;
use uuid::Uuid;

use crate::scene::{Scene, execute, kind, number, policy, tenant_id};

/// What `enqueue_run` answers to these arguments.
async fn enqueue(scene: &Scene, arguments: &str) -> Result<(Uuid, bool), sqlx::Error> {
    let statement = format!("SELECT run_id, created FROM evenhand.enqueue_run({arguments})");
    sqlx::query_as(AssertSqlSafe(statement))
        .fetch_one(&mut scene.database.connect().await)
        .await
}

async fn code(scene: &Scene, arguments: &str) -> Option<String> {
    let refused = enqueue(scene, arguments).await.err()?;
    let refusal = refused.into_database_error().expect("the server refuses");
    refusal.code().map(std::borrow::Cow::into_owned)
}

#[tokio::test(flavor = "multi_thread")]
async fn defaults_and_arguments_are_those_of_the_rust_api() {
    let scene = Scene::start().await;
    let (plain, created) = enqueue(&scene, "tenant => 'a', kind => 'order.ship'")
        .await
        .unwrap();
    assert!(created);
    let plain = scene.store.run(plain_id(plain)).await.unwrap().unwrap();
    let mut expected = NewRun::new(
        tenant_id("a"),
        "order.ship".parse().unwrap(),
        Payload::new(json!({})).unwrap(),
    );
    expected.ready_at = plain.spec.ready_at;
    assert_eq!((plain.spec, plain.state), (expected, RunState::Queued));

    // The same key and content is the same run, whoever enqueues it.
    let mut spec = NewRun::new(
        tenant_id("a"),
        "order.ship".parse().unwrap(),
        Payload::new(json!({"order": 7})).unwrap(),
    );
    spec.team = "shipping".parse().unwrap();
    spec.value_class = ValueClass::Critical;
    spec.base_priority = BasePriority::new(9).unwrap();
    spec.cost_micros = CostMicros::new(1_500_000).unwrap();
    spec.attempts_max = AttemptsMax::new(3).unwrap();
    spec.idempotency_key = Some("order-7".parse().unwrap());
    let first = scene.store.enqueue(&spec).await.unwrap();
    let same =
        "tenant => 'a', kind => 'order.ship', payload => '{\"order\": 7}', team => 'shipping',
        value_class => 'critical', base_priority => 9, cost_micros => 1500000, attempts_max => 3,
        delay => '1 hour', timeout => '300 s', idempotency_key => 'order-7'";
    let again = enqueue(&scene, same).await.unwrap();
    assert_eq!(
        Enqueued::new(plain_id(again.0), again.1),
        Enqueued::new(first.run, false)
    );
    let other = same.replace("order\": 7", "order\": 8");
    assert_eq!(code(&scene, &other).await.as_deref(), Some("EV011"));
    spec.payload = Payload::new(json!({"order": 8})).unwrap();
    assert_eq!(
        kind(scene.store.enqueue(&spec).await),
        StoreErrorKind::RunConflict
    );
}

fn plain_id(id: Uuid) -> evenhand_store::RunId {
    evenhand_store::RunId::new(id)
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_refuses_what_the_values_of_rust_refuse() {
    let scene = Scene::start().await;
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let long = |length: usize| "x".repeat(length);
    for id in [
        "a",
        "a.b:c_d-E9",
        &long(128),
        "",
        ".",
        "..",
        "a b",
        "é",
        "a\n",
        &long(129),
    ] {
        let accepted = TenantId::try_from(id).is_ok();
        let arguments = format!("tenant => {}, kind => 'k'", quoted(id));
        assert_eq!(code(&scene, &arguments).await.is_none(), accepted, "{id:?}");
    }
    for name in [
        "k",
        "a kind ~",
        &long(128),
        "",
        "é",
        "a\tb",
        "k\n",
        &long(129),
    ] {
        let accepted = RunKind::try_from(name).is_ok();
        let arguments = format!("tenant => 'a', kind => {}", quoted(name));
        assert_eq!(
            code(&scene, &arguments).await.is_none(),
            accepted,
            "{name:?}"
        );
    }
    for key in ["key 1", &long(255), "", "é", &long(256)] {
        let accepted = IdempotencyKey::try_from(key).is_ok();
        let arguments = format!(
            "tenant => 'a', kind => 'k', idempotency_key => {}",
            quoted(key)
        );
        assert_eq!(
            code(&scene, &arguments).await.is_none(),
            accepted,
            "{key:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_refuses_the_numbers_that_rust_refuses() {
    let scene = Scene::start().await;
    for (argument, values) in [
        ("base_priority", [(0, true), (100, true), (101, false)]),
        (
            "cost_micros",
            [
                (0, true),
                (1_000_000_000_000_000_u64, true),
                (1_000_000_000_000_001, false),
            ],
        ),
        ("attempts_max", [(1, true), (1_000, true), (0, false)]),
    ] {
        for (value, accepted) in values {
            let narrow = u32::try_from(value);
            let in_rust = match argument {
                "base_priority" => narrow.is_ok_and(|value| BasePriority::new(value).is_ok()),
                "attempts_max" => narrow.is_ok_and(|value| AttemptsMax::new(value).is_ok()),
                _ => CostMicros::new(value).is_ok(),
            };
            assert_eq!(in_rust, accepted, "{argument} {value}");
            let arguments = format!("tenant => 'a', kind => 'k', {argument} => {value}");
            assert_eq!(
                code(&scene, &arguments).await.is_none(),
                accepted,
                "{argument} {value}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_refuses_times_payloads_and_combinations_alike() {
    let scene = Scene::start().await;
    let long = |length: usize| "x".repeat(length);
    for (timeout, millis) in [
        ("1 ms", 1),
        ("0.9 ms", 0),
        ("7 days", 604_800_000),
        ("604800.001 s", 604_800_001),
    ] {
        let accepted = RunTimeout::new(core::time::Duration::from_millis(millis)).is_ok();
        let arguments = format!("tenant => 'a', kind => 'k', timeout => '{timeout}'");
        assert_eq!(
            code(&scene, &arguments).await.is_none(),
            accepted,
            "{timeout}"
        );
    }
    for length in [262_144 - 2, 262_144 - 1] {
        let accepted = Payload::new(Value::String(long(length))).is_ok();
        let arguments =
            format!("tenant => 'a', kind => 'k', payload => to_jsonb(repeat('x', {length}))");
        assert_eq!(
            code(&scene, &arguments).await.is_none(),
            accepted,
            "{length}"
        );
    }
    for arguments in [
        "tenant => NULL, kind => 'k'",
        "tenant => 'a', kind => 'k', payload => NULL",
        "tenant => 'a', kind => 'k', value_class => 'urgent'",
        "tenant => 'a', kind => 'k', pool => 'a b'",
        "tenant => 'a', kind => 'k', team => '..'",
        "tenant => 'a', kind => 'k', timeout => NULL",
        "tenant => 'a', kind => 'k', timeout => '604800.0005 s'",
        // Seven days as PostgreSQL compares intervals, and more as it counts their seconds.
        "tenant => 'a', kind => 'k', timeout => '1 year -355 days'",
        "tenant => 'a', kind => 'k', delay => '-1 s'",
        "tenant => 'a', kind => 'k', delay => '2000 years'",
        "tenant => 'a', kind => 'k', delay => '1 s', ready_at => now()",
        "tenant => 'a', kind => 'k', ready_at => 'infinity'",
        "tenant => 'a', kind => 'k', ready_at => '9999-01-01 00:00:00+00'",
    ] {
        assert_eq!(
            code(&scene, arguments).await.as_deref(),
            Some("EV012"),
            "{arguments}"
        );
    }
}

/// A payload that no worker can read would stop every claim that comes across it.
#[tokio::test(flavor = "multi_thread")]
async fn sql_refuses_payloads_that_workers_cannot_read() {
    let scene = Scene::start().await;
    let arrays = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    let objects = |levels: usize| format!("{}0{}", "{\"a\":".repeat(levels), "}".repeat(levels));
    for text in [
        "null",
        "1e308",
        "-1e308",
        "1e309",
        r#"{"a": [-1e400]}"#,
        "1e-400",
        "123456789012345678901234567890",
        r#""1e400""#,
        &arrays(127),
        &arrays(128),
        &objects(127),
        &objects(128),
    ] {
        let readable = serde_json::from_str::<Value>(text).is_ok();
        let arguments = format!("tenant => 'a', kind => 'k', payload => '{text}'");
        let code = code(&scene, &arguments).await;
        assert_eq!(code.as_deref(), (!readable).then_some("EV012"), "{text}");
    }
    let (all, size) = (RunFilter::default(), PageSize::default());
    let page = scene.store.runs(&all, None, size).await;
    assert_eq!(page.unwrap().runs.len(), 8, "all that was accepted is read");
}

#[tokio::test(flavor = "multi_thread")]
async fn levels_and_numbers_of_payloads_end_where_those_of_rust_end() {
    let scene = Scene::start().await;
    let arrays = |levels: usize| (0..levels).fold(json!(0), |inner, _| json!([inner]));
    let objects = |levels: usize| (0..levels).fold(json!(0), |inner, _| json!({"a": inner}));
    for (value, accepted) in [
        (arrays(127), true),
        (arrays(128), false),
        (objects(127), true),
        (objects(128), false),
        (json!({"a": arrays(126)}), true),
        (json!({"a": arrays(127)}), false),
        (json!(1e308), true),
        (json!([-1e308]), true),
        (json!(1e308_f64.next_up()), false),
        (json!([{"a": 1.1e308}]), false),
        (json!(-1.1e308), false),
        (json!(f64::MAX), false),
        (json!(f64::MIN), false),
        (json!([5e-324, 0.1, 1e-300, u64::MAX, i64::MIN]), true),
    ] {
        let payload = Payload::new(value.clone());
        assert_eq!(payload.is_ok(), accepted, "{value}");
        let arguments = format!("tenant => 'a', kind => 'k', payload => '{value}'");
        let code = code(&scene, &arguments).await;
        assert_eq!(code.is_none(), accepted, "{value}: {code:?}");
        if let Ok(payload) = payload {
            let spec = NewRun::new(tenant_id("a"), "k".parse().unwrap(), payload.clone());
            let run = scene.store.enqueue(&spec).await.unwrap().run;
            let run = scene.store.run(run).await.unwrap().unwrap();
            assert_eq!(run.spec.payload, payload);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_in_the_past_means_now_and_columns_may_have_any_collation() {
    let scene = Scene::start().await;
    let arguments = "tenant => 'a' COLLATE \"POSIX\", kind => 'k' COLLATE \"POSIX\",
        ready_at => '1960-01-01', idempotency_key => 'old' COLLATE \"POSIX\"";
    let (first, created) = enqueue(&scene, arguments).await.unwrap();
    assert!(created);
    assert_eq!(enqueue(&scene, arguments).await.unwrap(), (first, false));
    let run = scene.store.run(plain_id(first)).await.unwrap().unwrap();
    assert_eq!(run.ready_at, run.enqueued_at);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_is_longer_in_rust_than_in_sql_is_read_all_the_same() {
    let scene = Scene::start().await;
    // A number beyond 64 bits is a double here, whose text is longer.
    let numbers = vec!["18446744073709551617"; 11_915].join(", ");
    let text = format!("{}{numbers}{}", "[".repeat(8), "]".repeat(8));
    assert_eq!(text.len(), Payload::LENGTH_MAX);
    let arguments = format!("tenant => 'a', kind => 'k', payload => '{text}'");
    let (run, _) = enqueue(&scene, &arguments).await.unwrap();
    let read = scene.store.run(plain_id(run)).await.unwrap().unwrap();
    let length = read.spec.payload.as_value().to_string().len();
    assert!(length > Payload::LENGTH_MAX, "{length}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_wakes_somebody_cannot_be_prepared() {
    // On a server of its own, because others have no room for prepared transactions.
    let options = ServerOptions::throwaway().setting("max_prepared_transactions", "2");
    let server = private_server(options).await;
    let url = server.url("postgres");
    let options = ConnectOptions::parse(&url).unwrap();
    migrate(&options).await.unwrap();
    let store = PostgresStore::connect(options).await.unwrap();
    let registration = PolicyRegistration::new(policy("primary-v1", &[("a", 1)]));
    store.register_policy(&registration).await.unwrap();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let enqueue = "BEGIN; SELECT evenhand.enqueue_run('a', 'k')";
    let prepare = "PREPARE TRANSACTION 'kept'";

    execute(&mut connection, enqueue).await;
    execute(&mut connection, prepare).await;
    execute(&mut connection, "COMMIT PREPARED 'kept'").await;
    let sleep = "SELECT evenhand.fall_asleep('primary-v1', 'w', 60000)";
    execute(&mut connection, sleep).await;
    execute(&mut connection, enqueue).await;
    let refused = connection.execute(prepare).await.unwrap_err();
    let refusal = refused.into_database_error().expect("the server refuses");
    assert_eq!(refusal.code().as_deref(), Some("0A000"), "{refusal}");
    let runs = "SELECT count(*) FROM evenhand.runs";
    assert_eq!(number(&mut connection, runs).await, 1);
}

/// psql, where one is installed; the packages of PostgreSQL that tests use bring none.
fn psql() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join("psql"))
        .find(|psql| psql.is_file())
}

#[tokio::test(flavor = "multi_thread")]
async fn psql_enqueues_in_its_own_transaction() {
    let Some(psql) = psql() else {
        eprintln!("psql is not installed, so only the client in Node is tried");
        return;
    };
    let scene = Scene::start().await;
    let script = "BEGIN; SELECT created FROM evenhand.enqueue_run('a', 'mail.send', '{\"to\": 1}'); COMMIT;
                  BEGIN; SELECT created FROM evenhand.enqueue_run('a', 'mail.send', '{\"to\": 2}'); ROLLBACK;";
    let output = Command::new(psql)
        .args([
            "-X",
            "-q",
            "-t",
            "-A",
            "-v",
            "ON_ERROR_STOP=1",
            "-c",
            script,
        ])
        .arg(scene.database.url())
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let kept =
        "SELECT count(*) FROM evenhand.runs WHERE kind = 'mail.send' AND payload = '{\"to\": 1}'";
    assert_eq!(scene.number(kept).await, 1);
    assert_eq!(scene.number("SELECT count(*) FROM evenhand.runs").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_in_node_enqueues_in_its_own_transaction() {
    let scene = Scene::start().await;
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/node");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(scene.database.name());
    std::fs::create_dir_all(&folder).unwrap();
    for file in ["package.json", "package-lock.json", "enqueue.js"] {
        std::fs::copy(sources.join(file), folder.join(file)).unwrap();
    }
    let install = Command::new("npm")
        .args(["ci", "--no-audit", "--no-fund", "--prefer-offline"])
        .current_dir(&folder)
        .output()
        .await
        .expect("npm runs: it is needed to fetch the client");
    assert!(install.status.success(), "{install:?}");
    let output = Command::new("node")
        .arg("enqueue.js")
        .current_dir(&folder)
        .env("DATABASE_URL", scene.database.url())
        .output()
        .await
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let answers: Value = serde_json::from_slice(&output.stdout).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();

    assert_eq!(answers["first"]["created"], json!(true));
    assert_eq!(answers["again"]["created"], json!(false));
    assert_eq!(answers["again"]["run_id"], answers["first"]["run_id"]);
    assert_eq!(answers["rolledBack"], json!("rolled back"));
    assert_eq!(answers["refused"]["code"], json!("EV012"));
    assert!(
        answers["refused"]["hint"]
            .as_str()
            .unwrap()
            .contains("An id is")
    );
    let id: Uuid = answers["first"]["run_id"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let run = scene.store.run(plain_id(id)).await.unwrap().unwrap();
    assert_eq!(run.spec.payload.as_value(), &json!({"order": 1}));
    assert_eq!(run.spec.value_class, ValueClass::Critical);
    assert_eq!(scene.number("SELECT count(*) FROM evenhand.runs").await, 1);
}
