//! Canonical bytes and digests: golden vectors, the round trip, and every refusal.
//!
//! The golden vectors were computed by another implementation, in another language.

use evenhand_policy::{CanonicalError, IdDefect, PolicyError, WeightedFairnessPolicy};
use proptest::prelude::*;

use crate::support::{any_weights, compile, numbered, shard, weights_within};

fn read(text: &str) -> Result<WeightedFairnessPolicy, CanonicalError> {
    WeightedFairnessPolicy::from_canonical_bytes(shard(), text.as_bytes())
}

/// The canonical text of tenant-0000 with weight 3 and tenant-0001 with weight 1.
fn text() -> String {
    let policy = compile(&numbered([3, 1])).expect("two tenants");
    String::from_utf8(policy.canonical_bytes()).expect("JSON is UTF-8")
}

#[test]
fn the_canonical_form_is_pinned() {
    let cycle_sha256 = "be58233c8b1c33d2911eccf0f47364922b872acca2e95e4423bc21820b59ddf6";
    let expected = format!(
        r#"{{"algorithm":"smooth-weighted-round-robin","algorithm_version":1,"cycle_sha256":"{cycle_sha256}","#
    ) + r#""tenants":[{"tenant_id":"tenant-0000","weight":3},{"tenant_id":"tenant-0001","weight":1}]}"#;
    assert_eq!(text(), expected);
}

#[test]
fn the_digests_of_the_largest_and_of_the_worst_policy_are_pinned() {
    let digest = |weights: Vec<u32>| {
        compile(&numbered(weights))
            .expect("within limits")
            .digest()
            .to_string()
    };
    let largest = "1d2f06948d9281264c3023086fe4733a64947d104db1d3710ee35281d9144c59";
    assert_eq!(digest(vec![4; 1024]), largest);
    let worst = "bb10cc4caaba5bd2496e415761ba1fc3ca719c5ea7db4a15a5901ad58dda87a0";
    assert_eq!(digest((1..=90).collect()), worst);
}

#[test]
fn the_shard_is_not_in_the_digest() {
    let other = "secondary-v1".parse().expect("well-formed");
    let one = compile(&numbered([3, 1])).expect("two tenants");
    let other = WeightedFairnessPolicy::new(other, one.tenants().to_vec()).expect("two tenants");
    assert_ne!(one, other);
    assert_eq!(one.digest(), other.digest());
}

#[test]
fn an_unknown_algorithm_or_version_is_refused_whatever_follows() {
    let renamed = text().replace("smooth-weighted", "rough-weighted");
    let algorithm = "rough-weighted-round-robin".to_owned();
    assert_eq!(
        read(&renamed),
        Err(CanonicalError::UnknownAlgorithm {
            algorithm,
            version: 1
        })
    );
    let later = r#"{"algorithm":"smooth-weighted-round-robin","algorithm_version":2,"new":[]}"#;
    assert!(matches!(
        read(later),
        Err(CanonicalError::UnknownAlgorithm { version: 2, .. })
    ));
}

#[test]
fn another_cycle_under_the_same_weights_is_refused() {
    let other_cycle = text().replace("be58", "be59");
    assert_eq!(read(&other_cycle), Err(CanonicalError::OtherCycle));
}

#[test]
fn contents_that_make_no_policy_are_refused() {
    let replaced = |from, to| read(&text().replace(from, to));
    assert!(matches!(
        replaced("tenant-0001", ".."),
        Err(CanonicalError::Tenant(error)) if error.defect() == IdDefect::DotName
    ));
    assert!(matches!(
        replaced(r#""weight":1}"#, r#""weight":0}"#),
        Err(CanonicalError::Weight(_))
    ));
    assert!(matches!(
        replaced("tenant-0001", "tenant-0000"),
        Err(CanonicalError::Policy(PolicyError::DuplicateTenant { .. }))
    ));
}

#[test]
fn other_writings_of_the_same_policy_are_refused_where_they_differ() {
    let offset = |text: &str| match read(text) {
        Err(CanonicalError::NotCanonical { offset }) => offset,
        other => panic!("{text} gave {other:?}"),
    };
    let canonical = text();
    let at = |part: &str| canonical.find(part).expect("is in the text");
    let (tenants, weight) = (at(r#""tenants":["#), at("3},{"));
    assert_eq!(offset(""), 0);
    assert_eq!(offset(&canonical.replacen('{', "{ ", 1)), 1);
    assert_eq!(
        offset(&canonical.replace(r#""weight":3"#, r#""weight":03"#)),
        weight
    );
    assert_eq!(
        offset(&canonical.replace(r#""weight":3"#, r#""weight":3.0"#)),
        weight + 1
    );
    assert_eq!(
        offset(&canonical.replace(r#""weight":3"#, r#""weight":"#)),
        weight
    );
    assert_eq!(
        offset(&canonical.replace(r#""weight":3"#, r#""weight":99999999999"#)),
        weight
    );
    assert_eq!(offset(&canonical.replace("be58", "BE58")), at("be58"));
    assert_eq!(
        offset(&canonical.replace(r#""tenants":["#, r#""tenants": ["#)),
        tenants + 10
    );
    assert_eq!(offset(&format!("{canonical}\n")), canonical.len());
    // The same tenants and so the same cycle, but not in bytewise order.
    let (first, second) = (at("0000"), at("0001"));
    let mut swapped = canonical.clone();
    swapped.replace_range(
        second - 7..second + 14,
        r#"tenant-0000","weight":3"#.get(..21).expect("in it"),
    );
    swapped.replace_range(
        first - 7..first + 14,
        r#"tenant-0001","weight":1"#.get(..21).expect("in it"),
    );
    let swapped = swapped.replacen(r#""weight":3"#, r#""weight":1"#, 1);
    let last = swapped.rfind(r#""weight":1"#).expect("in it");
    let swapped = format!("{}{}", &swapped[..last], swapped[last..].replace('1', "3"));
    assert_eq!(offset(&swapped), first + 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn canonical_bytes_give_the_same_policy_back(weights in any_weights()) {
        let policy = compile(&weights).expect("the weights are within the limits");
        let bytes = policy.canonical_bytes();
        let read = WeightedFairnessPolicy::from_canonical_bytes(shard(), &bytes);
        let read = read.expect("the bytes are canonical");
        prop_assert_eq!(&read, &policy);
        prop_assert!(read.cycle().iter().eq(policy.cycle().iter()));
        prop_assert_eq!(read.canonical_bytes(), bytes);
        prop_assert_eq!(read.digest(), policy.digest());
    }

    #[test]
    fn bytes_with_one_byte_changed_are_never_the_same_policy(
        weights in weights_within(1..=4, 8, 32),
        position in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let policy = compile(&weights).expect("the weights are within the limits");
        let mut bytes = policy.canonical_bytes();
        let position = position.index(bytes.len());
        prop_assume!(bytes[position] != byte);
        bytes[position] = byte;
        // Another id in the same place of the order makes another valid policy; everything else is
        // refused.
        if let Ok(other) = WeightedFairnessPolicy::from_canonical_bytes(shard(), &bytes) {
            prop_assert_ne!(other.digest(), policy.digest());
            prop_assert_eq!(other.canonical_bytes(), bytes);
        }
    }

    #[test]
    fn cut_bytes_are_refused(
        weights in weights_within(1..=4, 8, 32),
        cut in any::<prop::sample::Index>(),
    ) {
        let bytes = compile(&weights).expect("the weights are within the limits").canonical_bytes();
        let cut = &bytes[..cut.index(bytes.len())];
        prop_assert!(WeightedFairnessPolicy::from_canonical_bytes(shard(), cut).is_err());
    }
}
