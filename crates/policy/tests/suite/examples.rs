//! The examples that planners run answer with fixed answers, and refuse bad input in one line.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use serde::Deserialize;
use serde_json::Value;

#[expect(dead_code, reason = "of the program, the test needs only the answer")]
#[path = "../../examples/cycle.rs"]
mod cycle;
#[expect(dead_code, reason = "of the program, the test needs only the answer")]
#[path = "../../examples/round.rs"]
mod round;

/// An input and the answer to it, computed by another implementation, in another language.
#[derive(Deserialize)]
struct Golden {
    input: Value,
    output: Value,
}

fn assert_golden(golden: &str, answer: fn(&str) -> Result<String, String>) {
    let golden: Vec<Golden> = serde_json::from_str(golden).expect("golden files are JSON");
    assert!(!golden.is_empty());
    for Golden { input, output } in golden {
        let answer = answer(&input.to_string()).expect("the input is good");
        assert_eq!(
            serde_json::from_str::<Value>(&answer).expect("JSON"),
            output,
            "for {input}"
        );
    }
}

fn assert_refused(answer: fn(&str) -> Result<String, String>, input: &str, reason: &str) {
    let refusal = answer(input).expect_err(input);
    assert!(
        refusal.contains(reason),
        "{refusal:?} does not say {reason:?}"
    );
    assert_eq!(refusal.lines().count(), 1, "{refusal:?}");
}

#[test]
fn cycles_and_their_bounds_digests_and_canonical_bytes_are_fixed() {
    assert_golden(include_str!("golden/policies.json"), cycle::answer);
}

#[test]
fn rounds_are_fixed() {
    assert_golden(include_str!("golden/rounds.json"), round::answer);
}

#[test]
fn a_bad_policy_is_refused_in_one_line() {
    let tenants = |tenants: &str| format!(r#"{{"shard": "s", "tenants": [{tenants}]}}"#);
    let weight = |weight: &str| tenants(&format!(r#"{{"tenant_id": "a", "weight": {weight}}}"#));
    let refused = |input: &str, reason: &str| assert_refused(cycle::answer, input, reason);
    refused("", "EOF");
    refused("{\n\n!", "line 3");
    refused(&tenants(""), "at least one tenant");
    refused(&weight("0"), "weight 0");
    refused(&weight("1025"), "weight 1025");
    refused(&weight("-1"), "-1");
    refused(&weight("1.5"), "1.5");
    refused(&weight("4294967296"), "4294967296");
    refused(
        &tenants(r#"{"tenant_id": "a", "weight": 1}, {"tenant_id": "a", "weight": 2}"#),
        "tenant a is given more",
    );
    refused(
        &tenants(r#"{"tenant_id": "a\nb", "weight": 1}"#),
        "byte 0x0a at index 1",
    );
    refused(
        &tenants(r#"{"tenant_id": "a", "weight": 1, "new\nline": 1}"#),
        "unknown field `new line`",
    );
    refused(&weight("1").replace(r#""s""#, r#""..""#), "dot name");
    refused(&(weight("1") + "{}"), "trailing");
}

#[test]
fn a_bad_round_is_refused_in_one_line() {
    let task = r#"{"task_id": "t", "tenant_id": "a", "team_id": "x", "value": "batch",
        "base_priority": 5, "wait_ticks": 3, "cost_micros": 400}"#;
    let input = |policy: &str, tasks: &str| {
        format!(r#"{{"capacity_micros": 900, "policy": {{{policy}}}, "tasks": [{tasks}]}}"#)
    };
    let good = input("", task);
    assert!(round::answer(&good).is_ok());
    let refused = |input: &str, reason: &str| assert_refused(round::answer, input, reason);
    refused(
        &input("", &format!("{task},{task}")),
        "task t is given more than once",
    );
    refused(
        &good.replace("\"batch\"", "\"urgent\""),
        "unknown variant `urgent`",
    );
    refused(
        &good.replace("\"base_priority\": 5", "\"base_priority\": 101"),
        "base priority 101",
    );
    refused(
        &good.replace("\"wait_ticks\": 3", "\"wait_ticks\": -3"),
        "-3",
    );
    refused(&good.replace("400", "18446744073709551616"), "invalid type");
    refused(
        &good.replace("\"team_id\": \"x\",", ""),
        "missing field `team_id`",
    );
    refused(&good.replace("900", "0.5"), "0.5");
    refused(&input(r#""windows": 1"#, task), "unknown field `windows`");
    refused(
        &input(r#""value_weight": {"standard": 200}"#, task),
        "standard does not weigh more than 100 above batch",
    );
    refused(
        &input(r#""value_weight": {"critical": 20000}"#, task),
        "unforced score can reach 20500",
    );
    refused(
        &good.replace("\"policy\": {}, ", "\"policy\": null, "),
        "null",
    );
}

/// Runs the example that `cargo test` has built beside this test.
fn run(example: &str, input: &str) -> Output {
    let test = std::env::current_exe().expect("the test knows its own path");
    let profile = test
        .ancestors()
        .nth(2)
        .expect("the test lies in a target folder");
    let program = profile
        .join("examples")
        .join(example)
        .with_extension(std::env::consts::EXE_EXTENSION);
    let mut child = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{}: {error}; build it with --examples", program.display()));
    let mut stdin = child.stdin.take().expect("stdin is piped");
    stdin
        .write_all(input.as_bytes())
        .expect("the example reads its input");
    drop(stdin);
    child.wait_with_output().expect("the example ends")
}

#[test]
fn good_input_ends_with_status_0_and_bad_input_with_status_2_and_nothing_on_stdout() {
    let good = [
        (
            "cycle",
            r#"{"shard": "s", "tenants": [{"tenant_id": "a", "weight": 1}]}"#,
        ),
        ("round", r#"{"capacity_micros": 1, "tasks": []}"#),
    ];
    for (example, input) in good {
        let output = run(example, input);
        assert!(
            output.status.success() && output.stderr.is_empty(),
            "{output:?}"
        );
        assert!(serde_json::from_slice::<Value>(&output.stdout).is_ok());
    }
    for example in ["cycle", "round"] {
        let output = run(example, "{}");
        assert_eq!(output.status.code(), Some(2));
        assert!(output.stdout.is_empty());
        let stderr = String::from_utf8(output.stderr).expect("stderr is UTF-8");
        assert!(
            stderr.starts_with(&format!("{example}: bad input: missing field")),
            "{stderr}"
        );
        assert_eq!(stderr.lines().count(), 1);
    }
}
