//! What a payload may hold is read back equal from its bytes; what it may not hold could not be.

use evenhand_store::{Payload, PayloadError};
use proptest::prelude::*;
use serde_json::{Value, json};

/// JSON of every kind, also such that no payload may hold.
fn json_values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        // The decade around the largest number.
        (-17.9..17.9_f64).prop_map(|number| json!(number * 1e307)),
        any::<String>().prop_map(Value::from),
    ];
    let tree = leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((any::<String>(), inner), 0..4)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    });
    let wrapped = (tree, 120..130_usize, any::<bool>()).prop_map(|(tree, levels, arrays)| {
        (0..levels).fold(tree, |inner, _| {
            if arrays {
                json!([inner])
            } else {
                json!({"": inner})
            }
        })
    });
    let shallow = (any::<f64>(), "[^\0]{0,9}").prop_map(|(number, text)| json!([number, text]));
    prop_oneof![shallow, wrapped]
}

/// Whether any number is farther from zero than a payload's may be.
fn holds_large_number(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.as_f64().is_none_or(|number| number.abs() > 1e308),
        Value::Array(values) => values.iter().any(holds_large_number),
        Value::Object(entries) => entries.values().any(holds_large_number),
        Value::Null | Value::Bool(_) | Value::String(_) => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn what_is_accepted_is_read_back_equal_and_what_is_refused_could_not_be_kept(value in json_values()) {
        let bytes = serde_json::to_vec(&value).unwrap();
        let read = serde_json::from_slice::<Value>(&bytes);
        match Payload::new(value.clone()) {
            Ok(payload) => {
                prop_assert_eq!(payload.as_value(), &value);
                let again = Payload::new(read.unwrap());
                prop_assert_eq!(again, Ok(payload));
            }
            Err(PayloadError::TooDeep) => prop_assert!(read.is_err()),
            Err(PayloadError::Nul) => {
                let text = String::from_utf8(bytes).unwrap();
                prop_assert!(text.contains("\\u0000"));
            }
            Err(PayloadError::NumberTooLarge) => prop_assert!(holds_large_number(&value)),
            Err(other) => prop_assert!(false, "{}", other),
        }
    }
}
