//! Ids: one grammar, parsed once, exact ever after.
//!
//! An id is 1 to 128 bytes of `[A-Za-z0-9._:-]`, and neither `.` nor `..`. It is never normalised:
//! two ids are equal if their bytes are. The grammar needs no escape in JSON, in a URL's path or in
//! a file name, so an id can be written anywhere as it is.

use core::fmt;

/// The longest id, in bytes.
pub const ID_LENGTH_MAX: usize = 128;

/// Which kind of id was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IdKind {
    /// A [`TenantId`].
    Tenant,
    /// A [`SchedulerShardId`].
    SchedulerShard,
    /// A [`PoolId`].
    Pool,
    /// A [`TeamId`].
    Team,
    /// A [`TaskId`](crate::admission::TaskId).
    Task,
}

impl fmt::Display for IdKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tenant => "tenant id",
            Self::SchedulerShard => "scheduler shard id",
            Self::Pool => "pool id",
            Self::Team => "team id",
            Self::Task => "task id",
        })
    }
}

/// Why a text is not an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum IdDefect {
    /// It has no bytes.
    #[error("is empty")]
    Empty,
    /// It has more than [`ID_LENGTH_MAX`] bytes.
    #[error("is {length} bytes long, the most is {ID_LENGTH_MAX}")]
    TooLong {
        /// Its length in bytes.
        length: usize,
    },
    /// It has a byte outside of `[A-Za-z0-9._:-]`.
    #[error("has byte {byte:#04x} at index {index}, only A-Z a-z 0-9 . _ : - may be used")]
    BadByte {
        /// Where the first such byte is, counted from 0.
        index: usize,
        /// The byte.
        byte: u8,
    },
    /// It is `.` or `..`, which file systems and URLs read as folders.
    #[error("is a dot name, neither . nor .. may be used")]
    DotName,
}

/// A text was refused as an id.
///
/// The message never repeats the text, which may be long or hostile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{kind} {defect}")]
pub struct IdError {
    kind: IdKind,
    defect: IdDefect,
}

impl IdError {
    pub(crate) fn new(kind: IdKind, defect: IdDefect) -> Self {
        Self { kind, defect }
    }

    /// Which kind of id the text was refused as.
    pub fn kind(&self) -> IdKind {
        self.kind
    }

    /// Why the text was refused.
    pub fn defect(&self) -> IdDefect {
        self.defect
    }
}

/// Checks the one grammar of all ids.
pub(crate) fn check(text: &str) -> Result<(), IdDefect> {
    if text.is_empty() {
        return Err(IdDefect::Empty);
    }
    if text.len() > ID_LENGTH_MAX {
        return Err(IdDefect::TooLong { length: text.len() });
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    if let Some((index, byte)) = text.bytes().enumerate().find(|(_, byte)| !allowed(*byte)) {
        return Err(IdDefect::BadByte { index, byte });
    }
    if text == "." || text == ".." {
        return Err(IdDefect::DotName);
    }
    Ok(())
}

/// Defines one kind of id. The kinds share a grammar but no type, so that one cannot be passed for
/// another.
macro_rules! define_id {
    ($(#[$doc:meta])* $name:ident, $kind:ident) => {
        $(#[$doc])*
        ///
        /// One to 128 bytes of `[A-Za-z0-9._:-]`, neither `.` nor `..`; ordered bytewise; cheap to
        /// clone.
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(alloc::sync::Arc<str>);

        impl $name {
            /// The exact text of the id.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<&str> for $name {
            type Error = $crate::IdError;

            fn try_from(text: &str) -> Result<Self, Self::Error> {
                match $crate::id::check(text) {
                    Ok(()) => Ok(Self(text.into())),
                    Err(defect) => Err($crate::IdError::new($crate::IdKind::$kind, defect)),
                }
            }
        }

        impl TryFrom<alloc::string::String> for $name {
            type Error = $crate::IdError;

            fn try_from(text: alloc::string::String) -> Result<Self, Self::Error> {
                Self::try_from(text.as_str())
            }
        }

        impl core::str::FromStr for $name {
            type Err = $crate::IdError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::try_from(text)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                self.as_str()
            }
        }

        // Equality, order and hash are those of the text, as `Borrow` demands.
        impl core::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                self.as_str()
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.as_str()).finish()
            }
        }

        #[cfg(feature = "serde")]
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        #[cfg(feature = "serde")]
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <alloc::string::String as serde::Deserialize>::deserialize(deserializer)?;
                Self::try_from(text).map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use define_id;

define_id! {
    /// Whoever shares the workers.
    TenantId, Tenant
}

define_id! {
    /// The name of one independent durable order, bound for ever to one policy.
    SchedulerShardId, SchedulerShard
}

define_id! {
    /// The name of the runs that one active shard serves; `default` unless said otherwise.
    PoolId, Pool
}

define_id! {
    /// A group of tasks or runs, across tenants, that shares a window.
    TeamId, Team
}

/// The team of work that names none: one that is called like its tenant. Both follow one grammar.
impl From<TenantId> for TeamId {
    fn from(tenant: TenantId) -> Self {
        Self(tenant.0)
    }
}

impl Default for PoolId {
    fn default() -> Self {
        Self("default".into())
    }
}
