//! One line of the journal: when, what, and with which arguments.

use core::fmt::Display;
use core::str::FromStr;

use evenhand_store::memory::MemoryStore;
use evenhand_store::{StoreError, StoreErrorKind, Timestamp};
use futures::FutureExt as _;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::journal::corrupt;
use crate::{attempts, order, runs};

/// A call that changes the store, as the journal keeps it.
pub(crate) trait Change: Serialize + DeserializeOwned + Send + 'static {
    /// Its name in the journal.
    const NAME: &'static str;
    /// What its caller is told.
    type Answer: Send + 'static;

    /// Makes the call on the machine.
    fn apply(&self, machine: &MemoryStore) -> Result<Self::Answer, StoreError>;
}

#[derive(Serialize, Deserialize)]
struct Line<C> {
    #[serde(with = "text")]
    at: Timestamp,
    #[serde(rename = "do")]
    name: String,
    with: C,
}

/// Writes the line of a call that is decided at this time.
pub(crate) fn write<C: Change>(at: Timestamp, change: C) -> Result<String, StoreError> {
    let line = Line {
        at,
        name: C::NAME.to_owned(),
        with: change,
    };
    let text = serde_json::to_string(&line).map_err(|error| {
        StoreError::new(
            StoreErrorKind::Invalid,
            "the call cannot be written as JSON",
        )
        .with_source(error)
    })?;
    Ok(text + "\n")
}

/// Makes the call of a line of this kind.
///
/// The caller's own call goes this way too: it is made as everybody else will read it, so that nothing that gets lost
/// between Rust and JSON can make two machines differ.
pub(crate) fn apply<C: Change>(machine: &MemoryStore, line: &str) -> Result<C::Answer, StoreError> {
    let line: Line<C> = serde_json::from_str(line).map_err(corrupt)?;
    machine.set_clock(line.at);
    line.with.apply(machine)
}

/// Makes the call of a line that was accepted before, and so must be accepted again.
pub(crate) fn replay(machine: &MemoryStore, line: &str) -> Result<(), StoreError> {
    let name = serde_json::from_str::<Line<Value>>(line)
        .map_err(corrupt)?
        .name;
    let again = match name.as_str() {
        order::Register::NAME => again::<order::Register>,
        order::Retire::NAME => again::<order::Retire>,
        order::Reserve::NAME => again::<order::Reserve>,
        order::Prune::NAME => again::<order::Prune>,
        order::SkipTo::NAME => again::<order::SkipTo>,
        runs::Enqueue::NAME => again::<runs::Enqueue>,
        attempts::Claim::NAME => again::<attempts::Claim>,
        attempts::ClaimRound::NAME => again::<attempts::ClaimRound>,
        attempts::RecordFailed::NAME => again::<attempts::RecordFailed>,
        attempts::Renew::NAME => again::<attempts::Renew>,
        attempts::Complete::NAME => again::<attempts::Complete>,
        attempts::Fail::NAME => again::<attempts::Fail>,
        attempts::Release::NAME => again::<attempts::Release>,
        attempts::Recover::NAME => again::<attempts::Recover>,
        _ => {
            let unknown = format!("the journal holds a call that this build does not know: {name}");
            return Err(StoreError::new(StoreErrorKind::Corrupt, unknown));
        }
    };
    again(machine, line).map_err(corrupt)
}

fn again<C: Change>(machine: &MemoryStore, line: &str) -> Result<(), StoreError> {
    apply::<C>(machine, line).map(drop)
}

/// What the machine answers. It never waits, so there is always an answer.
pub(crate) fn at_once<A>(
    call: impl Future<Output = Result<A, StoreError>>,
) -> Result<A, StoreError> {
    call.now_or_never().unwrap_or_else(|| {
        Err(StoreError::new(
            StoreErrorKind::Unsupported,
            "the machine waits, which nobody can do while the journal is locked",
        ))
    })
}

/// Values that are written as their text, and read through the check of their constructor.
pub(crate) mod text {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(
        value: &impl Display,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}
