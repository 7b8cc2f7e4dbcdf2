//! Writers that die: in the middle of a line, or anywhere.

use core::time::Duration;

use std::fs::{self, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};

use evenhand_policy::SchedulerShardId;
use evenhand_scheduler::{BoxError, Job, JobOutcome, RunContext, Worker};
use evenhand_store::{ReservationStore as _, RunCounts, RunQueue as _, StoreErrorKind};
use evenhand_testkit::history::{Evidence, History, check};
use file_store::FileStore;

use crate::scene::{Scene, policy, request, run};

#[tokio::test]
async fn a_line_without_its_end_is_passed_over_and_then_cut_off() {
    let (scene, policy) = (Scene::start(), policy());
    let store = scene.registered(&policy).await;
    let before = fs::read(scene.path()).unwrap().len();
    let lost = [run("large"), run("small")];
    store.enqueue_many(&lost).await.unwrap();
    let whole = fs::read(scene.path()).unwrap();
    // What is on the disk when the writer dies anywhere within its line.
    for length in before..whole.len() {
        fs::write(scene.path(), &whole[..length]).unwrap();
        let survivor = scene.open();
        assert_eq!(survivor.counts().await.unwrap(), [], "cut at {length}");
        // The next line is shorter, so that anything left of the one before it would show.
        let next = survivor.reserve(&request(&policy, 2)).await.unwrap();
        assert_eq!(next.first_sequence, 0, "cut at {length}");
        let written = fs::read(scene.path()).unwrap();
        assert!(written.len() < whole.len(), "the next line is shorter");
        assert!(written.ends_with(b"\n"), "cut at {length}");
        // The call that was cut short is made again, and is a new one to everybody.
        survivor.enqueue_many(&lost).await.unwrap();
        let other = scene.open();
        assert_eq!(other.counts().await.unwrap().len(), 2, "cut at {length}");
        let cursor = other.cursor(policy.shard()).await.unwrap();
        assert_eq!(cursor.next_sequence, Some(2), "cut at {length}");
    }
}

#[tokio::test]
async fn a_broken_line_is_refused_and_not_skipped() {
    let (scene, policy) = (Scene::start(), policy());
    let store = scene.registered(&policy).await;
    let mut file = OpenOptions::new().append(true).open(scene.path()).unwrap();
    for broken in [
        "nonsense\n",
        "{\"at\":\"2026-05-01T12:00:00Z\",\"do\":\"fly\",\"with\":{}}\n",
        "{\"at\":\"2026-05-01T12:00:00Z\",\"do\":\"recover\",\"with\":{}}\n",
    ] {
        let length = file.metadata().unwrap().len();
        file.write_all(broken.as_bytes()).unwrap();
        for _ in 0..2 {
            let error = store.reserve(&request(&policy, 1)).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Corrupt, "{broken}");
        }
        assert!(FileStore::open(scene.path()).is_err(), "{broken}");
        file.set_len(length).unwrap();
        store.reserve(&request(&policy, 1)).await.unwrap();
    }
    // Lines that were there are gone, as after somebody has put an older copy in place.
    file.set_len(0).unwrap();
    let error = store.cursor(policy.shard()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
}

/// How many runs each of the two tenants has.
const RUNS: u64 = 150;

#[tokio::test(flavor = "multi_thread")]
async fn processes_share_the_work_and_one_that_is_killed_loses_nothing() {
    let (scene, policy) = (Scene::start(), policy());
    assert!(
        program(&scene, &["enqueue", &RUNS.to_string()])
            .wait()
            .unwrap()
            .success()
    );
    let mut workers: Vec<Child> = (0..3).map(|_| program(&scene, &["work"])).collect();
    let mut victim = workers.pop().unwrap();
    // By its third line it has completed a run at least, and it has claimed others.
    let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        lines.next().unwrap().unwrap();
    }
    victim.kill().unwrap();
    victim.wait().unwrap();
    let store = scene.open();
    let left: u64 = store.counts().await.unwrap().iter().map(unfinished).sum();
    assert!(left > 0, "it was killed in the middle of the work");
    for mut worker in workers {
        assert!(worker.wait().unwrap().success());
    }

    // An hour later the leases of the dead process have expired.
    scene.set_clock(|clock| clock + Duration::from_hours(1));
    let worker = Worker::builder(scene.open(), policy.clone()).on::<Print>(print);
    worker.build().run_until_idle().await.unwrap();
    for tenant in store.counts().await.unwrap() {
        assert_eq!((unfinished(&tenant), tenant.done), (0, RUNS), "{tenant:?}");
    }
    assert_evidence(&store, policy.shard()).await;
}

/// No gap, no overlap, nothing claimed twice at one sequence, no fence used twice.
async fn assert_evidence(store: &FileStore, shard: &SchedulerShardId) {
    let evidence = Evidence::read(store, shard).await.unwrap();
    assert!(evidence.sequences.len() > 100);
    assert_eq!(check(&History::new(), &evidence), Ok(()));
}

fn unfinished(counts: &RunCounts) -> u64 {
    counts.queued + counts.running + counts.dead
}

fn program(scene: &Scene, arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_file-store"))
        .arg(scene.path())
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts")
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Print {
    text: String,
}

impl Job for Print {
    const KIND: &'static str = "print";
}

async fn print(_: Print, _: RunContext) -> Result<JobOutcome, BoxError> {
    Ok(JobOutcome::Done)
}
