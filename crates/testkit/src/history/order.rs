//! The order of one shard: rows, selections, and the answers that clients got.

use std::collections::{BTreeMap, HashMap, HashSet};

use evenhand_policy::{StarvationBound, TenantId};
use evenhand_store::{Reservation, ReservationId, ReserveRequest, StoreErrorKind};

use super::{Call, Evidence, Violation};

/// Rows are contiguous from 0 and disjoint, and no id has two.
pub(super) fn check_rows(evidence: &Evidence, violations: &mut Vec<Violation>) {
    let mut ids = HashSet::new();
    let mut expected = 0;
    for row in &evidence.reservations {
        if !ids.insert(row.id) {
            violations.push(Violation::RepeatedId { id: row.id });
        }
        if row.first_sequence > expected {
            let (id, from, to) = (row.id, expected, row.first_sequence);
            violations.push(Violation::Gap { id, from, to });
        }
        if row.first_sequence < expected {
            let first_sequence = row.first_sequence;
            violations.push(Violation::Overlap {
                id: row.id,
                first_sequence,
                expected,
            });
        }
        expected = expected.max(row.sequences().end() + 1);
    }
}

/// Over what is on record, no tenant waits longer than its bound, and every whole cycle gives each tenant its weight.
pub(super) fn check_selections(evidence: &Evidence, violations: &mut Vec<Violation>) {
    let policy = &evidence.policy;
    let cycle_length = u64::from(policy.cycle_length());
    let mut last_selected: HashMap<&TenantId, u64> = HashMap::new();
    let mut slots: BTreeMap<(u64, &TenantId), u64> = BTreeMap::new();
    let mut cycles_whole = 0;
    for sequence in evidence
        .reservations
        .iter()
        .flat_map(Reservation::sequences)
    {
        let tenant = policy.tenant_for_sequence(sequence);
        *slots.entry((sequence / cycle_length, tenant)).or_default() += 1;
        cycles_whole = cycles_whole.max((sequence + 1) / cycle_length);
        let Some(from) = last_selected.insert(tenant, sequence) else {
            continue;
        };
        let bound = policy
            .starvation_bound(tenant)
            .map_or(0, StarvationBound::maximum_reservations_until_selection);
        if sequence.saturating_sub(from) > u64::from(bound) {
            let tenant = tenant.clone();
            violations.push(Violation::SelectionGap {
                tenant,
                from,
                to: sequence,
                bound,
            });
        }
    }
    for cycle in 0..cycles_whole {
        for weight in policy.tenants() {
            let slots = slots.get(&(cycle, weight.tenant())).copied().unwrap_or(0);
            if slots != u64::from(weight.weight()) {
                let (tenant, weight) = (weight.tenant().clone(), weight.weight());
                violations.push(Violation::CycleCount {
                    tenant,
                    cycle,
                    slots,
                    weight,
                });
            }
        }
    }
}

/// Answers agree with the rows, refusals took nothing, and the order is the order of real time.
pub(super) fn check_answers(
    calls: &[Call<ReserveRequest, Reservation>],
    evidence: &Evidence,
    violations: &mut Vec<Violation>,
) {
    let rows: HashMap<ReservationId, &Reservation> = evidence
        .reservations
        .iter()
        .map(|row| (row.id, row))
        .collect();
    let mut views: HashMap<ReservationId, View> = HashMap::new();
    for call in calls {
        let view = views
            .entry(call.request.id)
            .or_insert_with(|| View::first_asked(call.invoked));
        view.invoked = view.invoked.min(call.invoked);
        match &call.answered {
            None => view.is_unsettled = true,
            Some((_, Err(kind))) => view.refused = Some(*kind),
            Some((at, Ok(answer))) => {
                if view.acknowledged.is_none_or(|(earlier, _)| *at < earlier) {
                    view.acknowledged = Some((*at, answer.first_sequence));
                }
                compare(answer, rows.get(&call.request.id).copied(), violations);
            }
        }
    }
    for (id, view) in &views {
        if let (Some(kind), None, false) = (view.refused, view.acknowledged, view.is_unsettled)
            && rows.contains_key(id)
        {
            violations.push(Violation::RefusedButReserved { id: *id, kind });
        }
    }
    check_real_time(&views, violations);
}

/// What all calls with one id amount to.
struct View {
    /// When it was first asked for.
    invoked: u64,
    /// When it was first acknowledged, and where.
    acknowledged: Option<(u64, u64)>,
    refused: Option<StoreErrorKind>,
    is_unsettled: bool,
}

impl View {
    fn first_asked(invoked: u64) -> Self {
        Self {
            invoked,
            acknowledged: None,
            refused: None,
            is_unsettled: false,
        }
    }
}

fn compare(answer: &Reservation, row: Option<&Reservation>, violations: &mut Vec<Violation>) {
    let (id, first_sequence) = (answer.id, answer.first_sequence);
    match row {
        None => violations.push(Violation::ReservationLost { id, first_sequence }),
        Some(row) if (row.first_sequence, row.count) != (first_sequence, answer.count) => {
            violations.push(Violation::AnswersDiffer {
                id,
                answered: first_sequence,
                answered_count: answer.count.get(),
                recorded: row.first_sequence,
                recorded_count: row.count.get(),
            });
        }
        Some(_) => {}
    }
}

/// One sweep over the logical clock that keeps the greatest sequence acknowledged so far.
fn check_real_time(views: &HashMap<ReservationId, View>, violations: &mut Vec<Violation>) {
    let mut moments = BTreeMap::new();
    for (id, view) in views {
        if let Some((acknowledged, first_sequence)) = view.acknowledged {
            moments.insert(view.invoked, (*id, first_sequence, false));
            moments.insert(acknowledged, (*id, first_sequence, true));
        }
    }
    let mut newest: Option<(u64, ReservationId)> = None;
    for (id, first_sequence, is_acknowledgement) in moments.into_values() {
        match newest {
            Some((greatest, earlier)) if !is_acknowledgement && greatest > first_sequence => {
                violations.push(Violation::OutOfOrder { earlier, later: id });
            }
            _ if is_acknowledgement => newest = newest.max(Some((first_sequence, id))),
            _ => {}
        }
    }
}
