//! What a look at the queue allows: how many sequences are worth taking before the next look.

use std::collections::BTreeSet;

use evenhand_policy::TenantId;

/// The tenants that a look found ready, and what has been learnt of them since.
///
/// A look is good until each of them has answered once that nothing was left for it, or until a whole cycle's worth of
/// sequences in a row has found nothing, as happens when other workers get those tenants' slots. So one look serves a
/// backlog of any length, and what the last ones of a backlog cost is at most a cycle.
#[derive(Debug)]
pub(crate) struct Look {
    waiting: BTreeSet<TenantId>,
    anybody: bool,
    fruitless: u32,
    fruitful: bool,
    cycle_length: u32,
}

impl Look {
    /// A look that found these tenants of a policy with this cycle length.
    pub(crate) fn new(ready: impl IntoIterator<Item = TenantId>, cycle_length: u32) -> Self {
        let waiting: BTreeSet<TenantId> = ready.into_iter().collect();
        Self {
            anybody: !waiting.is_empty(),
            waiting,
            fruitless: 0,
            fruitful: false,
            cycle_length,
        }
    }

    /// Whether taking another sequence is worth it.
    pub(crate) fn is_open(&self) -> bool {
        !self.waiting.is_empty() && self.fruitless < self.cycle_length
    }

    /// Whether it found anybody ready.
    pub(crate) fn found_anybody(&self) -> bool {
        self.anybody
    }

    /// Whether anything was run thanks to it. After a look that was not, the next one waits.
    pub(crate) fn was_fruitful(&self) -> bool {
        self.fruitful
    }

    /// A run was claimed.
    pub(crate) fn claimed(&mut self) {
        self.fruitful = true;
        self.fruitless = 0;
    }

    /// A sequence was consumed, and its tenant got nothing.
    pub(crate) fn missed(&mut self, tenant: &TenantId) {
        self.waiting.remove(tenant);
        self.fruitless = self.fruitless.saturating_add(1);
    }

    /// Nothing more is to be expected of it: the store refuses.
    pub(crate) fn close(&mut self) {
        self.waiting.clear();
        self.fruitful = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantId {
        TenantId::try_from(name).unwrap()
    }

    #[test]
    fn look_that_found_nobody_is_closed() {
        let look = Look::new([], 4);
        assert!(!look.is_open() && !look.found_anybody() && !look.was_fruitful());
    }

    #[test]
    fn look_closes_when_every_tenant_it_found_has_nothing_left() {
        let mut look = Look::new([tenant("a"), tenant("b")], 100);
        look.claimed();
        look.missed(&tenant("a"));
        look.missed(&tenant("c"));
        assert!(look.is_open());
        look.missed(&tenant("b"));
        assert!(!look.is_open());
        assert!(look.found_anybody() && look.was_fruitful());
    }

    #[test]
    fn look_closes_after_a_cycle_that_found_nothing() {
        let mut look = Look::new([tenant("a")], 3);
        look.missed(&tenant("b"));
        look.missed(&tenant("b"));
        look.claimed();
        for _ in 0..2 {
            look.missed(&tenant("b"));
            assert!(look.is_open());
        }
        look.missed(&tenant("b"));
        assert!(!look.is_open());
    }
}
