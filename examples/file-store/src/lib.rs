//! A store of one's own: the whole contract in one journal file.
//!
//! Evenhand's scheduler and worker know nothing of PostgreSQL. They call two traits, [`ReservationStore`] and
//! [`RunQueue`], and whoever implements these can keep the durable order wherever it should be: in another database, in
//! a consensus log, or, as here, in a file that several processes of one machine share. This page is a short chapter
//! for people who write such a store.
//!
//! # 1. Read what is promised, not what is convenient
//!
//! The front page of `evenhand-store` lists nine promises. Three of them decide the design:
//!
//! * *Contiguous, each sequence once, whatever fails.* So there must be one point where all writers line up. PostgreSQL
//!   has a row lock for that; here it is the lock on the file.
//! * *The same id always gets the same answer.* So ids have to be kept with what they got. A counter is not enough.
//! * *A dropped future leaves nothing half done.* So what happens under the lock must not be spread over several
//!   `.await`s.
//!
//! # 2. Decide where the truth is
//!
//! The truth of this store is the journal: one JSON line for each call that was accepted, with the time at which it was
//! decided. Nothing else is kept. What follows from the lines is computed by a state machine, and there is one already
//! that keeps every promise: [`MemoryStore`](evenhand_store::memory::MemoryStore), the model of all stores. It is
//! *deterministic*: its clock shows what it is told, and the ids that it gives to runs are numbered. So every handle
//! that applies the same lines in the same order comes to the same answers, and each process holds a machine of its own.
//!
//! A call that changes something (`replica.rs`) is one step under the lock:
//!
//! 1. lock the file,
//! 2. apply what other handles have appended since,
//! 3. read the clock, write the call as a line, and apply *that line* to the machine,
//! 4. if the machine accepts it, append the line and flush it to the disk,
//! 5. answer what the machine said.
//!
//! A refused call is not written, because it changes nothing. A call that only looks takes the lock for readers, and
//! writes nothing.
//!
//! That is the whole store: `journal.rs`, `replica.rs`, `entry.rs` and `store.rs`, some 300 lines. The other files only
//! translate: `order.rs` and `queue.rs` are the two traits, `runs.rs` and `attempts.rs` say how their requests look as
//! JSON.
//!
//! # 3. Ask of each step: and if the process dies here?
//!
//! * Before 4: nothing has happened. The operating system gives the lock back.
//! * In the middle of 4: the last line has no end. Readers pass over it, and the next writer cuts it off (`journal.rs`).
//!   Nobody was told that the call succeeded.
//! * After 4, before 5: it has happened, but the caller does not know. That is *outcome unknown*: it asks again with the
//!   same id, key or fence, and is told what it would have been told.
//!
//! And if the disk refuses in the middle of 4? Then the machine is ahead of the journal. It is thrown away, and built
//! anew from the lines; the caller is told *outcome unknown*.
//!
//! # 4. Make each call one step
//!
//! The steps 1 to 5 block, so they run in [`tokio::task::spawn_blocking`], all of them in a single task. A caller may
//! drop its future at any time; the task goes on to its end and then gives the lock back. That is all that *cancel
//! safety* needs here. A store on a network driver has to work harder; see how `evenhand-store-postgres` throws away a
//! connection whose call was not answered in full.
//!
//! # 5. Leave out what is not needed
//!
//! The traits have required methods and methods with a default body. The default of
//! [`claim_round`](evenhand_store::RunQueue::claim_round) claims sequence by sequence, others answer *unsupported*, and the worker does
//! without them. This store implements those that its machine has for nothing and that a worker uses all day: rounds,
//! lost blocks, successors of a shard. It does not cancel runs, limit tenants, wake sleeping workers or prune the history
//! of runs. The suite asks first what a store offers, and leaves out the facts about the rest.
//!
//! # 6. Prove it
//!
//! Reading one's own code again proves little. `conformance_suite!` of `evenhand-testkit` makes one test for each fact that the promises
//! imply: races, repetitions, clocks that step back, calls dropped half way. `tests/suite/conformance.rs` mounts it in
//! 50 lines: how to start an empty store, how to open another handle on it, how to move its clock. A second test lets a
//! storm of clients loose and holds what they saw against what is on record. What only *this* medium can get wrong is
//! left for tests of one's own: a line that was cut short, a process that is killed while others go on.
//!
//! # What a product would need beside this
//!
//! A journal of requests is only as good as its machine: a build whose machine decides otherwise reads another past out of
//! the same lines. And nobody ever shortens this file. A store for production writes what was *decided*, and prunes it.
//!
//! # Try it
//!
//! ```text
//! cargo run -p file-store -- orders.journal enqueue 20   # 20 runs for each of two tenants
//! cargo run -p file-store -- orders.journal work         # in as many terminals as you like; kill some of them
//! cargo run -p file-store -- orders.journal show         # who was selected when, and what became of it
//! ```
//!
//! [`ReservationStore`]: evenhand_store::ReservationStore
//! [`RunQueue`]: evenhand_store::RunQueue

mod attempts;
mod entry;
mod journal;
mod order;
mod queue;
mod replica;
mod runs;
mod store;

pub use store::FileStore;
