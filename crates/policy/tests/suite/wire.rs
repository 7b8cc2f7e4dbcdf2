//! Values are read and written through their checks.

use evenhand_policy::admission::{
    AdmissionOptions, BasePriority, ScoringOptions, Task, ValueClass, ValueWeights,
};
use evenhand_policy::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};
use serde_json::{Value, from_value, json, to_value};

fn policy() -> Value {
    json!({"shard": "primary-v1", "tenants": [
        {"tenant_id": "a", "weight": 3},
        {"tenant_id": "b", "weight": 1},
    ]})
}

/// The policy with one value replaced or added.
fn policy_with(
    pointer: &str,
    key: &str,
    value: Value,
) -> Result<WeightedFairnessPolicy, serde_json::Error> {
    let mut policy = policy();
    policy.pointer_mut(pointer).expect("is in the policy")[key] = value;
    from_value(policy)
}

#[test]
fn a_policy_is_written_as_it_is_read() {
    let read: WeightedFairnessPolicy = from_value(policy()).expect("a policy");
    assert_eq!(to_value(&read).expect("writes"), policy());
    let weight: TenantFairnessWeight =
        from_value(policy()["tenants"][0].clone()).expect("a weight");
    assert_eq!(weight, read.tenants()[0]);
}

#[test]
fn a_policy_is_read_through_its_checks() {
    assert!(policy_with("", "shard", json!("a b")).is_err());
    assert!(policy_with("", "tenants", json!([])).is_err());
    assert!(
        policy_with("", "pool", json!("default")).is_err(),
        "unknown fields are refused"
    );
    assert!(
        policy_with("/tenants/0", "tenant_id", json!("b")).is_err(),
        "duplicate"
    );
    assert!(
        policy_with("/tenants/0", "team", json!("x")).is_err(),
        "unknown fields are refused"
    );
    for weight in [
        json!(0),
        json!(1025),
        json!(-1),
        json!(1.0),
        json!("1"),
        json!(null),
    ] {
        assert!(policy_with("/tenants/0", "weight", weight).is_err());
    }
    assert!(policy_with("/tenants/0", "weight", json!(1024)).is_ok());
}

#[test]
fn ids_are_read_through_their_grammar_and_written_as_text() {
    assert_eq!(
        from_value::<TenantId>(json!("a:b"))
            .expect("an id")
            .as_str(),
        "a:b"
    );
    assert!(from_value::<TenantId>(json!("")).is_err());
    assert!(from_value::<SchedulerShardId>(json!("..")).is_err());
    assert_eq!(
        to_value(TenantId::try_from("a:b").expect("an id")).expect("writes"),
        json!("a:b")
    );
}

#[test]
fn value_classes_and_priorities_are_read_through_their_checks() {
    for class in ValueClass::ALL {
        assert_eq!(
            from_value::<ValueClass>(json!(class.as_str())).expect("a class"),
            class
        );
        assert_eq!(to_value(class).expect("writes"), json!(class.as_str()));
        assert_eq!(class.as_str().parse(), Ok(class));
    }
    assert!(from_value::<ValueClass>(json!("Critical")).is_err());
    assert!(from_value::<BasePriority>(json!(101)).is_err());
    assert_eq!(
        from_value::<BasePriority>(json!(100)).expect("a priority"),
        BasePriority::MAX
    );
    assert_eq!(to_value(BasePriority::MAX).expect("writes"), json!(100));
}

#[test]
fn admission_options_left_out_are_the_defaults_and_unknown_ones_are_refused() {
    assert_eq!(
        from_value::<AdmissionOptions>(json!({})).expect("options"),
        AdmissionOptions::default()
    );
    let partial = json!({"scoring": {"value_weights": {"batch": 7}, "starvation_ticks": 30}, "per_team_window": 9});
    let expected = AdmissionOptions {
        scoring: ScoringOptions {
            value_weights: ValueWeights {
                batch: 7,
                ..ValueWeights::default()
            },
            starvation_ticks: 30,
            ..ScoringOptions::default()
        },
        per_team_window: 9,
        ..AdmissionOptions::default()
    };
    assert_eq!(
        from_value::<AdmissionOptions>(partial).expect("options"),
        expected
    );
    assert!(from_value::<AdmissionOptions>(json!({"window": 2})).is_err());
    assert!(from_value::<ScoringOptions>(json!({"aging": 2})).is_err());
    assert!(from_value::<ValueWeights>(json!({"urgent": 2})).is_err());
}

#[test]
fn a_task_needs_all_of_its_fields_and_no_others() {
    let task = json!({
        "task_id": "t1", "tenant_id": "a", "team_id": "x", "value": "batch",
        "base_priority": 5, "wait_ticks": u64::MAX, "cost_micros": 0,
    });
    let read: Task = from_value(task.clone()).expect("a task");
    assert_eq!(to_value(&read).expect("writes"), task);
    for field in task.as_object().expect("an object").keys() {
        let mut partial = task.clone();
        partial.as_object_mut().expect("an object").remove(field);
        assert!(
            from_value::<Task>(partial).is_err(),
            "{field} may not be left out"
        );
    }
    let mut extended = task;
    extended["priority"] = json!(1);
    assert!(from_value::<Task>(extended).is_err());
}
