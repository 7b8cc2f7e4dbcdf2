//! Short names that are checked once: kinds of runs, workers, idempotency keys.

use core::fmt;
use core::str::FromStr;

use std::sync::Arc;

/// Why a text is not a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The text is empty.
    #[error("{what} is empty")]
    Empty {
        /// Which name it should have been.
        what: &'static str,
    },
    /// The text is longer than the limit.
    #[error("{what} has {length} bytes, the limit is {limit}")]
    TooLong {
        /// Which name it should have been.
        what: &'static str,
        /// How long it is, in bytes.
        length: usize,
        /// How long it may be, in bytes.
        limit: usize,
    },
    /// The text holds a character that is not printable ASCII.
    #[error("{what} has {character:?} at byte {index}, only printable ASCII is allowed")]
    NotPrintable {
        /// Which name it should have been.
        what: &'static str,
        /// The character that was found.
        character: char,
        /// Where it stands.
        index: usize,
    },
}

fn check(what: &'static str, limit: usize, text: &str) -> Result<Arc<str>, NameError> {
    if text.is_empty() {
        return Err(NameError::Empty { what });
    }
    if text.len() > limit {
        return Err(NameError::TooLong {
            what,
            length: text.len(),
            limit,
        });
    }
    match text.char_indices().find(|(_, c)| !matches!(c, ' '..='~')) {
        Some((index, character)) => Err(NameError::NotPrintable {
            what,
            character,
            index,
        }),
        None => Ok(Arc::from(text)),
    }
}

macro_rules! name {
    ($(#[$docs:meta])* $name:ident, $what:literal, $limit:literal) => {
        $(#[$docs])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            #[doc = concat!("The longest ", $what, ", in bytes.")]
            pub const LENGTH_MAX: usize = $limit;

            /// The exact text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<&str> for $name {
            type Error = NameError;

            fn try_from(text: &str) -> Result<Self, NameError> {
                check($what, $limit, text).map(Self)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;

            fn try_from(text: String) -> Result<Self, NameError> {
                Self::try_from(text.as_str())
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::try_from(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// Which handler a run is for, such as `invoice.send`: 1 to 128 bytes of printable ASCII.
    RunKind, "run kind", 128
}
name! {
    /// Who works on a run, for people who look: 1 to 128 bytes of printable ASCII. Nothing is decided by it.
    WorkerName, "worker name", 128
}
name! {
    /// The caller's own name for one run: 1 to 255 bytes of printable ASCII, unique within its pool while that run's
    /// row is kept.
    IdempotencyKey, "idempotency key", 255
}
