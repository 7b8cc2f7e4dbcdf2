//! A machine and the journal that it follows: the five steps of the front page.

use std::sync::Arc;

use evenhand_store::memory::MemoryStore;
use evenhand_store::{StoreError, StoreErrorKind, Timestamp};

use crate::entry::{self, Change};
use crate::journal::{Journal, unavailable};

/// The clock that all handles of one journal share: that of the machine, unless a test brings its own.
pub(crate) type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What one handle knows.
pub(crate) struct Replica {
    journal: Journal,
    machine: MemoryStore,
    clock: Clock,
}

impl Replica {
    pub(crate) fn new(journal: Journal, clock: Clock) -> Self {
        Self {
            journal,
            machine: empty(),
            clock,
        }
    }

    /// Makes a call that changes something.
    pub(crate) fn change<C: Change>(&mut self, change: C) -> Result<C::Answer, StoreError> {
        let _turn = self.journal.lock().map_err(unavailable)?;
        self.catch_up()?;
        let line = entry::write((self.clock)(), change)?;
        let answer = entry::apply::<C>(&self.machine, &line)?;
        if let Err(error) = self.journal.append(&line) {
            self.forget();
            let message = "the journal could not be written";
            return Err(StoreError::new(StoreErrorKind::OutcomeUnknown, message).with_source(error));
        }
        Ok(answer)
    }

    /// Makes a call that changes nothing.
    pub(crate) fn look<A>(
        &mut self,
        look: impl FnOnce(&MemoryStore) -> Result<A, StoreError>,
    ) -> Result<A, StoreError> {
        let _turn = self.journal.lock_to_read().map_err(unavailable)?;
        self.catch_up()?;
        self.machine.set_clock((self.clock)());
        look(&self.machine)
    }

    /// Starts anew from the first line, when the machine may be ahead of the journal.
    pub(crate) fn forget(&mut self) {
        self.machine = empty();
        self.journal.rewind();
    }

    fn catch_up(&mut self) -> Result<(), StoreError> {
        let machine = &self.machine;
        self.journal.read_on(|line| entry::replay(machine, line))
    }
}

fn empty() -> MemoryStore {
    MemoryStore::new(Timestamp::UNIX_EPOCH)
}
