//! Claims: which runs the sequences of a block get, decided at one moment.

use core::error::Error;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use evenhand_policy::TenantId;
use evenhand_policy::admission::{
    AdmissionOptions, AdmissionPolicy, Task, TaskId, Windows, admit_within,
};
use jiff::Timestamp;

use super::backlog::Candidate;
use super::queue::{Queue, Settled};
use super::ready::wait_ticks;
use super::shard::Shard;
use crate::{
    Claim, ClaimRequest, ClaimedRun, LeaseDuration, LimitSubject, PoolScoring, Round, RoundLimits,
    RoundRequest, RunId, SequenceOutcome, StoreError, StoreErrorKind, WorkerName,
};

/// How many ready runs beyond its window are looked at for a tenant.
const CANDIDATES_BEYOND_WINDOW: usize = 64;

/// Who claims, when, and by which rules.
pub(super) struct Claimant<'a> {
    pub(super) clock: Timestamp,
    pub(super) shard: &'a Shard,
    pub(super) scoring: &'a PoolScoring,
    pub(super) worker: &'a WorkerName,
    pub(super) lease: LeaseDuration,
}

/// A tenant that has ready runs, in a round.
struct Contender {
    /// Its ready runs that were not admitted, the best first.
    ready: Vec<Candidate>,
    /// How many runs its limit still allows.
    permits: usize,
    /// How many sequences may get a run of it.
    window: usize,
    /// The runs that it got, in the order in which its sequences take them.
    admitted: VecDeque<RunId>,
}

impl Queue {
    /// Claims against a reserved sequence whose tenant was checked: a round over this sequence alone.
    pub(super) fn claim(
        &mut self,
        clock: Timestamp,
        shard: &Shard,
        scoring: &PoolScoring,
        request: &ClaimRequest,
    ) -> Result<Claim, StoreError> {
        if let Some(settled) = self.settled.get(&(request.shard.clone(), request.sequence)) {
            return self.claim_again(settled, request);
        }
        shard.require_active()?;
        let claimant = Claimant {
            clock,
            shard,
            scoring,
            worker: &request.worker,
            lease: request.lease,
        };
        let mut round = Round::default();
        let (alone, limits) = ([request.sequence], RoundLimits::default());
        self.settle_open(&claimant, &alone, 1, limits, &mut round)?;
        Ok(match round.claimed.pop() {
            Some(claimed) => Claim::Ran(Box::new(claimed)),
            None if round.contended.is_empty() => Claim::Idle,
            None => Claim::Contended,
        })
    }

    /// Claims against all sequences of a block that was checked.
    pub(super) fn claim_round(
        &mut self,
        clock: Timestamp,
        shard: &Shard,
        scoring: &PoolScoring,
        request: &RoundRequest,
    ) -> Result<Round, StoreError> {
        let mut round = Round::default();
        let mut open = Vec::new();
        for sequence in request.sequences() {
            match self.settled.get(&(request.shard().clone(), sequence)) {
                Some(settled) => self.answer_again(settled, &request.worker, &mut round),
                None => open.push(sequence),
            }
        }
        if !open.is_empty() {
            shard.require_active()?;
            let claimant = Claimant {
                clock,
                shard,
                scoring,
                worker: &request.worker,
                lease: request.lease,
            };
            self.settle_open(
                &claimant,
                &open,
                request.runs_max,
                request.limits,
                &mut round,
            )?;
        }
        round.claimed.sort_by_key(|claimed| claimed.lease.sequence);
        round.contended.sort_unstable();
        Ok(round)
    }

    /// The answer for a sequence that ended before: the same as long as that is true, and to whom it was given unless it
    /// is taken over.
    fn claim_again(&self, settled: &Settled, request: &ClaimRequest) -> Result<Claim, StoreError> {
        match &settled.record.outcome {
            SequenceOutcome::Ran(attempt) => self
                .still_claimed(settled)
                .filter(|_| request.takes_over || attempt.worker == request.worker)
                .map(|claimed| Claim::Ran(Box::new(claimed)))
                .ok_or_else(super::attempts::lease_lost),
            SequenceOutcome::Idle => Ok(Claim::Idle),
            SequenceOutcome::Contended => Ok(Claim::Contended),
            SequenceOutcome::Failed => Err(StoreError::new(
                StoreErrorKind::Invalid,
                "looking at the sequence's tenant failed, so nothing is claimed against it",
            )),
        }
    }

    /// Adds to a round what is on record of one of its sequences.
    fn answer_again(&self, settled: &Settled, worker: &WorkerName, round: &mut Round) {
        let sequence = settled.record.sequence;
        match &settled.record.outcome {
            SequenceOutcome::Ran(attempt) => match self.still_claimed(settled) {
                Some(claimed) if attempt.worker == *worker => round.claimed.push(claimed),
                _ => round.moved_on.push(sequence),
            },
            SequenceOutcome::Contended | SequenceOutcome::Failed => round.contended.push(sequence),
            SequenceOutcome::Idle => {}
        }
    }

    /// The run that was claimed against the sequence, while its lease lives.
    fn still_claimed(&self, settled: &Settled) -> Option<ClaimedRun> {
        let SequenceOutcome::Ran(attempt) = &settled.record.outcome else {
            return None;
        };
        let row = self.rows.get(&attempt.run)?;
        let lease = row.lease.as_ref().filter(|_| row.is_held_by(attempt.fence));
        lease.map(|lease| ClaimedRun::new(row.run.clone(), lease.clone()))
    }

    /// Decides about the sequences whose end is not on record, and records it.
    fn settle_open(
        &mut self,
        claimant: &Claimant<'_>,
        open: &[u64],
        runs_max: u32,
        limits: RoundLimits,
        round: &mut Round,
    ) -> Result<(), StoreError> {
        let policy = claimant.shard.policy();
        let mut contenders = self.contenders(claimant, open, runs_max);
        self.admit(claimant, &mut contenders, limits)
            .map_err(|error| {
                StoreError::new(StoreErrorKind::Corrupt, "the round is none").with_source(error)
            })?;
        for sequence in open.iter().copied() {
            let contender = contenders.get_mut(policy.tenant_for_sequence(sequence));
            let Some(contender) = contender else {
                self.settle(
                    claimant.clock,
                    policy.shard(),
                    sequence,
                    SequenceOutcome::Idle,
                );
                continue;
            };
            let admitted = contender.admitted.pop_front();
            if let Some(claimed) = admitted.and_then(|run| self.start(claimant, sequence, run)) {
                round.claimed.push(claimed);
            } else if contender.ready.is_empty() {
                self.settle(
                    claimant.clock,
                    policy.shard(),
                    sequence,
                    SequenceOutcome::Idle,
                );
            } else {
                self.settle(
                    claimant.clock,
                    policy.shard(),
                    sequence,
                    SequenceOutcome::Contended,
                );
                round.contended.push(sequence);
            }
        }
        Ok(())
    }

    /// The tenants of these sequences that have ready runs, each with as many sequences of the round as runs, permits
    /// and `runs_max` suffice for, in the order of the sequences.
    fn contenders(
        &self,
        claimant: &Claimant<'_>,
        open: &[u64],
        runs_max: u32,
    ) -> BTreeMap<TenantId, Contender> {
        let (policy, pool) = (claimant.shard.policy(), claimant.shard.pool());
        let tenant_of = |sequence: &u64| policy.tenant_for_sequence(*sequence);
        let tenants: BTreeSet<&TenantId> = open.iter().map(tenant_of).collect();
        let ready = self.ready_runs(claimant.clock, pool, claimant.scoring, &tenants);
        let mut contenders: BTreeMap<TenantId, Contender> = ready
            .into_iter()
            .map(|(tenant, ready)| {
                let permits = self.permits(pool, LimitSubject::Tenant(tenant.clone()));
                let contender = Contender {
                    ready,
                    permits: permits.map_or(usize::MAX, as_usize),
                    window: 0,
                    admitted: VecDeque::new(),
                };
                (tenant, contender)
            })
            .collect();
        let mut runs_left = runs_max;
        for sequence in open {
            let contender = contenders.get_mut(tenant_of(sequence));
            if let Some(contender) = contender.filter(|one| runs_left > 0 && one.may_widen()) {
                contender.window += 1;
                runs_left -= 1;
            }
        }
        contenders
    }

    /// Lets the pure function of the policy crate choose among the best runs of all contenders.
    fn admit(
        &self,
        claimant: &Claimant<'_>,
        contenders: &mut BTreeMap<TenantId, Contender>,
        limits: RoundLimits,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        let candidates: BTreeSet<(i128, RunId)> = contenders
            .values()
            .flat_map(Contender::candidates)
            .map(|candidate| (candidate.ready_tick, candidate.run))
            .collect();
        let (mut tasks, mut runs) = (Vec::new(), BTreeMap::new());
        let mut windows = Windows::default();
        for (number, (_, run)) in candidates.into_iter().enumerate() {
            // Ties go to the smaller task id, and so to the earlier ready tick and the smaller run id.
            let task_id = TaskId::try_from(format!("{number:010}"))?;
            let Some(row) = self.rows.get(&run) else {
                continue;
            };
            let spec = &row.run.spec;
            let wait_tick = claimant.scoring.wait_tick();
            tasks.push(Task {
                task_id: task_id.clone(),
                tenant_id: spec.tenant.clone(),
                team_id: spec.team.clone(),
                value: spec.value_class,
                base_priority: spec.base_priority,
                wait_ticks: wait_ticks(claimant.clock, row.run.ready_at, wait_tick).unwrap_or(0),
                // Without a capacity costs do not matter, not even those whose sum is beyond any number.
                cost_micros: limits.capacity_micros.map_or(0, |_| spec.cost_micros.get()),
            });
            runs.insert(task_id, (spec.tenant.clone(), run));
            let team = LimitSubject::Team(spec.team.clone());
            if let Some(permits) = self.permits(claimant.shard.pool(), team) {
                let window = limits.team_window.unwrap_or(u32::MAX).min(permits);
                windows = windows.with_team(spec.team.clone(), window);
            }
        }
        for (tenant, contender) in &*contenders {
            let window = u32::try_from(contender.window)?;
            windows = windows.with_tenant(tenant.clone(), window, window);
        }
        let policy = AdmissionPolicy::new(AdmissionOptions {
            scoring: claimant.scoring.scoring().options(),
            per_team_window: limits.team_window.unwrap_or(u32::MAX),
            ..AdmissionOptions::default()
        })?;
        let capacity = limits.capacity_micros.unwrap_or(u64::MAX);
        let decided = admit_within(&policy, &windows, &tasks, capacity)?;
        for task_id in decided.admitted() {
            if let Some((tenant, run)) = runs.get(task_id)
                && let Some(contender) = contenders.get_mut(tenant)
            {
                contender.admit(*run);
            }
        }
        Ok(())
    }
}

impl Contender {
    fn may_widen(&self) -> bool {
        self.window < self.ready.len().min(self.permits)
    }

    /// The runs that may be admitted; none while no sequence is left for one.
    fn candidates(&self) -> impl Iterator<Item = &Candidate> {
        let number = match self.window {
            0 => 0,
            window => window + CANDIDATES_BEYOND_WINDOW,
        };
        self.ready.iter().take(number)
    }

    fn admit(&mut self, run: RunId) {
        self.ready.retain(|candidate| candidate.run != run);
        self.admitted.push_back(run);
    }
}

fn as_usize(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
