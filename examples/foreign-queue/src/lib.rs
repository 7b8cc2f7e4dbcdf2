//! Fair turns over a table that is not ours.
//!
//! You have a queue already: here a mail service keeps its mails in a table `mail_outbox`, and senders take them in the
//! order of their ids. One customer imports a list of 100,000 recipients, and everybody else's password mails wait for an
//! hour. You want fair turns between customers, but not another queue.
//!
//! Then use half of Evenhand. [`DurableFairScheduler`] gives out turns: it reserves the next *sequence* of one durable
//! order in PostgreSQL, and the cycle names the one tenant whose turn that is. What the tenant does with its turn is up
//! to a [`TenantScheduler`], a trait with a single method. [`Outbox`] implements it over `mail_outbox`. The table stays
//! what it was, and whoever writes to it need not know.
//!
//! # What the table needs
//!
//! Two columns that say in which turn a mail was taken, and a constraint on them (`sql/adopt.sql`):
//!
//! ```sql
//! ALTER TABLE mail_outbox ADD reserved_by_shard text, ADD reserved_by_sequence bigint,
//!     ADD UNIQUE (reserved_by_shard, reserved_by_sequence);
//! ```
//!
//! The scheduler may ask for the *same* turn twice: the reply to the first call was lost, or the process died and
//! another one [settles][settle] what it left. The constraint is what makes a turn good for one mail,
//! whoever asks and how often. So taking a mail is one statement, `sql/take.sql`:
//!
//! * `FOR UPDATE SKIP LOCKED` takes the customer's next mail that nobody else is taking at this moment;
//! * if the turn was used before, the statement fails with a unique violation and changes nothing. Then [`Outbox`] looks
//!   up what became of that mail, and answers with it.
//!
//! # What it answers
//!
//! | the customer | answer |
//! | --- | --- |
//! | had a mail, and it was sent, now or when this turn was asked for before | ran, completed |
//! | had a mail, and the mail server refused it: it waits for a minute | ran, requeued |
//! | had a mail, but somebody else has taken it over, because sending took too long | ran, lease lost |
//! | has mails waiting, but others are taking them; or this turn's mail is just being sent | contended |
//! | has none | idle |
//!
//! In each case the turn is used up. It is never given to another customer: that is what makes waits computable.
//!
//! # What remains yours
//!
//! *Looking before ticking.* Each tick costs a row of Evenhand's order, also when the customer is idle. So [`run`] asks
//! first whether anybody has mail, and then ticks until a whole cycle has found nothing.
//!
//! *Leases.* A sender that dies leaves its mail in the state `sending`. [`Outbox::give_back`] puts it back once it has been
//! there for longer than any sender needs. So a mail may be sent twice, but only for this reason; a sender that comes too
//! late cannot mark it as sent any more, because the turn in its row is another one.
//!
//! # Try it
//!
//! ```text
//! cargo xtask pg start                                            # prints the URL of a server
//! cargo run -p foreign-queue -- setup URL                         # tables, and mails of acme and bolt
//! cargo run -p foreign-queue -- work URL acme=3 bolt=1            # in as many terminals as you like; Ctrl-C ends it
//! ```
//!
//! [`DurableFairScheduler`]: evenhand_scheduler::DurableFairScheduler
//! [settle]: evenhand_scheduler::DurableFairScheduler::settle
//! [`TenantScheduler`]: evenhand_scheduler::TenantScheduler

mod outbox;
mod turns;

pub use outbox::{Mail, Mailer, Outbox};
pub use turns::run;
