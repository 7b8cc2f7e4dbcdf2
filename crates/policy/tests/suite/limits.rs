//! Every limit, on both sides.

use std::collections::{HashMap, HashSet};

use evenhand_policy::{
    CYCLE_LENGTH_MAX, DigestError, ID_LENGTH_MAX, IdDefect, IdKind, PolicyDigest, PolicyError,
    PoolId, SchedulerShardId, TENANTS_MAX, TeamId, TenantFairnessWeight, TenantId, WEIGHT_MAX,
    WeightedFairnessPolicy,
};

use crate::support::{compile, numbered, shard, tenant};

#[test]
fn a_policy_has_1_to_1024_tenants() {
    assert_eq!(TENANTS_MAX, 1024);
    assert_eq!(compile(&[]), Err(PolicyError::NoTenants));
    assert_eq!(
        compile(&numbered([1])).expect("one tenant").cycle_length(),
        1
    );
    let largest = compile(&numbered([1; 1024])).expect("1024 tenants");
    assert_eq!(
        (largest.tenants().len(), largest.cycle_length()),
        (1024, 1024)
    );
    assert_eq!(
        compile(&numbered([1; 1025])),
        Err(PolicyError::TooManyTenants)
    );
}

#[test]
fn an_endless_list_of_tenants_is_refused() {
    let weight = TenantFairnessWeight::new(tenant("again"), 1).expect("1 is a weight");
    let refused = WeightedFairnessPolicy::new(shard(), core::iter::repeat(weight));
    assert_eq!(refused, Err(PolicyError::TooManyTenants));
}

#[test]
fn a_weight_is_1_to_1024() {
    assert_eq!(WEIGHT_MAX, 1024);
    for weight in [1, 1024] {
        let accepted = TenantFairnessWeight::new(tenant("a"), weight).expect("in range");
        assert_eq!(
            (accepted.tenant(), accepted.weight()),
            (&tenant("a"), weight)
        );
    }
    for weight in [0, 1025, 65_536, 65_537, u32::MAX] {
        let refused = TenantFairnessWeight::new(tenant("a"), weight).expect_err("out of range");
        assert_eq!((refused.tenant(), refused.weight()), (&tenant("a"), weight));
    }
}

#[test]
fn a_cycle_has_at_most_4096_slots() {
    assert_eq!(CYCLE_LENGTH_MAX, 4096);
    let longest = compile(&numbered([1024, 1024, 1024, 1023, 1])).expect("4096 slots");
    assert_eq!(longest.cycle_length(), 4096);
    assert_eq!(longest.cycle().iter().len(), 4096);
    let too_long = compile(&numbered([1024, 1024, 1024, 1024, 1]));
    assert_eq!(too_long, Err(PolicyError::CycleTooLong { length: 4097 }));
    let far_too_long = compile(&numbered([1024; 1024]));
    assert_eq!(
        far_too_long,
        Err(PolicyError::CycleTooLong { length: 1 << 20 })
    );
}

#[test]
fn a_duplicate_tenant_is_refused_by_name_whatever_its_weights() {
    let twice = [("b", 1), ("a", 1), ("b", 2)].map(|(id, weight)| (tenant(id), weight));
    assert_eq!(
        compile(&twice),
        Err(PolicyError::DuplicateTenant {
            tenant: tenant("b")
        })
    );
}

#[test]
fn ids_are_exact_and_bytewise_ordered() {
    let mut ids = ["b", "a", "B", "a.b", "-", "a-b", "~"].map(TenantId::try_from);
    assert!(ids[6].is_err(), "~ is not in the grammar");
    ids[6] = Ok(tenant("0"));
    let mut ids = ids.map(|id| id.expect("well-formed"));
    ids.sort();
    assert_eq!(
        ids.each_ref().map(TenantId::as_str),
        ["-", "0", "B", "a", "a-b", "a.b", "b"]
    );
    assert_ne!(tenant("a"), tenant("A"));
}

#[test]
fn ids_have_1_to_128_bytes() {
    assert_eq!(ID_LENGTH_MAX, 128);
    let defect = |text: &str| TenantId::try_from(text).map_err(|error| error.defect());
    assert_eq!(defect(""), Err(IdDefect::Empty));
    assert!(defect("x").is_ok());
    assert!(defect(&"x".repeat(128)).is_ok());
    assert_eq!(
        defect(&"x".repeat(129)),
        Err(IdDefect::TooLong { length: 129 })
    );
}

#[test]
fn ids_are_made_of_their_alphabet_alone() {
    for byte in 0..=u8::MAX {
        let allowed = byte.is_ascii_alphanumeric() || [b'.', b'_', b':', b'-'].contains(&byte);
        let text = format!("x{}", char::from(byte));
        match TenantId::try_from(text) {
            Ok(id) => assert!(allowed, "{id} was accepted"),
            Err(error) => {
                assert!(!allowed, "{error}");
                assert!(
                    matches!(error.defect(), IdDefect::BadByte { index: 1, .. }),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn dot_names_are_no_ids_but_other_dots_are() {
    for name in [".", ".."] {
        let error = TenantId::try_from(name).expect_err("a dot name");
        assert_eq!(error.defect(), IdDefect::DotName);
    }
    for name in ["...", ".a", "a.", "-", ":"] {
        assert_eq!(tenant(name).to_string(), name);
    }
}

#[test]
fn every_kind_of_id_says_which_it_is() {
    let kinds = [
        TenantId::try_from("").expect_err("empty").kind(),
        SchedulerShardId::try_from("").expect_err("empty").kind(),
        PoolId::try_from("").expect_err("empty").kind(),
        TeamId::try_from("").expect_err("empty").kind(),
    ];
    assert_eq!(
        kinds,
        [
            IdKind::Tenant,
            IdKind::SchedulerShard,
            IdKind::Pool,
            IdKind::Team
        ]
    );
    let error = "a b".parse::<PoolId>().expect_err("a space");
    assert_eq!(
        error.to_string(),
        "pool id has byte 0x20 at index 1, only A-Z a-z 0-9 . _ : - may be used"
    );
}

#[test]
fn ids_can_be_looked_up_by_their_text() {
    let names: HashSet<TenantId> = [tenant("a"), tenant("b")].into();
    assert!(names.contains("a") && !names.contains("c"));
    let weights: HashMap<TenantId, u32> = [(tenant("a"), 3)].into();
    assert_eq!(weights.get("a"), Some(&3));
    assert_eq!(format!("{:?}", tenant("a")), r#"TenantId("a")"#);
    assert_eq!(PoolId::default().as_str(), "default");
}

#[test]
fn a_tenant_outside_of_the_policy_has_nothing_in_it() {
    let policy = compile(&numbered([2, 1])).expect("two tenants");
    let stranger = tenant("stranger");
    assert!(!policy.contains(&stranger));
    assert_eq!(policy.weight_of(&stranger), None);
    assert!(policy.slots_of(&stranger).is_none());
    assert_eq!(policy.next_slot_of(&stranger, 0), None);
    assert_eq!(policy.starvation_bound(&stranger), None);
    assert_eq!(policy.tenant_for_slot(3), None);
    assert_eq!(policy.tenant_for_slot(u32::MAX), None);
}

#[test]
fn the_last_sequence_of_all_selects_a_tenant() {
    let policy = compile(&numbered([2, 1])).expect("two tenants");
    assert_eq!(u64::MAX % 3, 0);
    assert_eq!(policy.slot_for_sequence(u64::MAX), 0);
    assert_eq!(policy.tenant_for_sequence(u64::MAX), &tenant("tenant-0000"));
}

#[test]
fn a_digest_is_read_from_exactly_its_own_text_and_bytes() {
    let digest = compile(&numbered([2, 1])).expect("two tenants").digest();
    let text = digest.to_string();
    assert_eq!(text.parse(), Ok(digest));
    assert_eq!(
        PolicyDigest::try_from(digest.as_bytes().as_slice()),
        Ok(digest)
    );
    let read = |text: &str| text.parse::<PolicyDigest>();
    assert_eq!(
        read(&text[1..]),
        Err(DigestError::Length {
            expected: 64,
            length: 63
        })
    );
    assert_eq!(
        read(&format!("{text}0")),
        Err(DigestError::Length {
            expected: 64,
            length: 65
        })
    );
    for bad in ["g", "A", "-", " "] {
        let replaced = format!("{}{bad}{}", &text[..5], &text[6..]);
        assert_eq!(read(&replaced), Err(DigestError::Digit { index: 5 }));
    }
    let short = PolicyDigest::try_from([0; 31].as_slice());
    assert_eq!(
        short,
        Err(DigestError::Length {
            expected: 32,
            length: 31
        })
    );
}
