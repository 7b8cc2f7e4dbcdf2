//! Canonical bytes: the one way to write a policy down, and the strict way back.
//!
//! They are JSON in the form of RFC 8785 (keys sorted, no white space, integers and strings only):
//!
//! ```json
//! {"algorithm":"smooth-weighted-round-robin","algorithm_version":1,"cycle_sha256":"<64 hex digits>",
//!  "tenants":[{"tenant_id":"tenant-a","weight":3},{"tenant_id":"tenant-b","weight":1}]}
//! ```
//!
//! on one line. Tenants are in bytewise order. `cycle_sha256` is SHA-256 over the compiled cycle:
//! for each slot from 0 on, the index of its tenant in that order, as two bytes, big-endian. The
//! shard is not inside: the same weights under two shards are the same policy.
//!
//! Ids need no escapes (see their grammar), so writing is concatenation, and everything that is not
//! written exactly like this is refused on the way back.

use alloc::string::{String, ToString as _};
use alloc::vec::Vec;

use sha2::{Digest as _, Sha256};

use crate::digest::{from_hex, to_hex};
use crate::{IdError, PolicyError, TenantFairnessWeight, TenantId, WeightError};

const ALGORITHM: &str = "smooth-weighted-round-robin";
const ALGORITHM_VERSION: u32 = 1;

/// Bytes were refused as the canonical bytes of a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CanonicalError {
    /// They are not what this policy is written as: other JSON, another order, white space, a cut
    /// or an addition.
    #[error("the bytes are not canonical from byte {offset} on")]
    NotCanonical {
        /// The first byte that differs from the canonical form, counted from 0.
        offset: usize,
    },
    /// They name an algorithm or a version of it that this build does not have.
    #[error("this build does not know the algorithm {algorithm:?} in version {version}")]
    UnknownAlgorithm {
        /// The algorithm's name.
        algorithm: String,
        /// Its version.
        version: u32,
    },
    /// They were written by a build that compiles these weights to another cycle under the same
    /// name.
    #[error("the bytes were written for another cycle than the one that this build compiles")]
    OtherCycle,
    /// A tenant's id is malformed.
    #[error("the bytes name a malformed tenant")]
    Tenant(#[source] IdError),
    /// A tenant's weight is out of range.
    #[error("the bytes give a tenant a weight out of range")]
    Weight(#[source] WeightError),
    /// The tenants make no policy.
    #[error("the tenants of the bytes make no policy")]
    Policy(#[source] PolicyError),
}

/// SHA-256 over a cycle, in the encoding of `cycle_sha256`.
pub(crate) fn cycle_sha256(owners: &[u16]) -> [u8; 32] {
    let encoded: Vec<u8> = owners
        .iter()
        .flat_map(|owner| owner.to_be_bytes())
        .collect();
    Sha256::digest(&encoded).into()
}

/// Writes a policy; the tenants are sorted.
pub(crate) fn write(tenants: &[TenantFairnessWeight], cycle_sha256: &[u8; 32]) -> Vec<u8> {
    let id_lengths = tenants
        .iter()
        .map(|tenant| tenant.tenant().as_str().len())
        .sum::<usize>();
    // Enough for what surrounds each id, and for what precedes them all: one allocation.
    let mut bytes = Vec::with_capacity(
        id_lengths
            .saturating_add(tenants.len().saturating_mul(32))
            .saturating_add(192),
    );
    let mut push = |text: &str| bytes.extend_from_slice(text.as_bytes());
    push(r#"{"algorithm":""#);
    push(ALGORITHM);
    push(r#"","algorithm_version":"#);
    push(&ALGORITHM_VERSION.to_string());
    push(r#","cycle_sha256":""#);
    push(&to_hex(cycle_sha256));
    push(r#"","tenants":["#);
    let mut opening = r#"{"tenant_id":""#;
    for tenant in tenants {
        push(opening);
        push(tenant.tenant().as_str());
        push(r#"","weight":"#);
        push(&tenant.weight().to_string());
        push("}");
        opening = r#",{"tenant_id":""#;
    }
    push("]}");
    bytes
}

/// What canonical bytes say, in the order in which they say it; not yet known to be canonical.
pub(crate) struct Contents {
    pub(crate) cycle_sha256: [u8; 32],
    pub(crate) tenants: Vec<TenantFairnessWeight>,
}

/// Reads bytes of the canonical shape. Tenants may be unsorted and numbers padded: the caller
/// writes the policy again and compares.
pub(crate) fn read(bytes: &[u8]) -> Result<Contents, CanonicalError> {
    let mut reader = Reader { bytes, offset: 0 };
    reader.literal(r#"{"algorithm":""#)?;
    let algorithm = reader.string()?;
    reader.literal(r#","algorithm_version":"#)?;
    let version = reader.number()?;
    // Checked before the rest, because what follows belongs to the algorithm and its version.
    if algorithm != ALGORITHM || version != ALGORITHM_VERSION {
        return Err(CanonicalError::UnknownAlgorithm {
            algorithm: algorithm.to_string(),
            version,
        });
    }
    reader.literal(r#","cycle_sha256":""#)?;
    let hash_offset = reader.offset;
    let cycle_sha256 = from_hex(reader.string()?).map_err(|_| CanonicalError::NotCanonical {
        offset: hash_offset,
    })?;
    reader.literal(r#","tenants":["#)?;
    let mut tenants = Vec::new();
    loop {
        tenants.push(reader.tenant()?);
        if reader.literal(",").is_err() {
            break;
        }
    }
    reader.literal("]}")?;
    if reader.rest().is_empty() {
        Ok(Contents {
            cycle_sha256,
            tenants,
        })
    } else {
        Err(reader.not_canonical())
    }
}

/// The first offset at which the two differ; they do.
pub(crate) fn first_difference(one: &[u8], other: &[u8]) -> usize {
    let common = one
        .iter()
        .zip(other)
        .take_while(|(one, other)| one == other);
    common.count()
}

struct Reader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.offset..).unwrap_or_default()
    }

    fn not_canonical(&self) -> CanonicalError {
        CanonicalError::NotCanonical {
            offset: self.offset,
        }
    }

    /// Takes `length` bytes, which are text.
    fn take(&mut self, length: usize) -> Result<&'a str, CanonicalError> {
        let taken = self
            .rest()
            .get(..length)
            .and_then(|taken| str::from_utf8(taken).ok());
        let taken = taken.ok_or(self.not_canonical())?;
        self.offset = self.offset.saturating_add(length);
        Ok(taken)
    }

    fn literal(&mut self, text: &str) -> Result<(), CanonicalError> {
        if self.rest().starts_with(text.as_bytes()) {
            self.offset = self.offset.saturating_add(text.len());
            Ok(())
        } else {
            let offset = self
                .offset
                .saturating_add(first_difference(self.rest(), text.as_bytes()));
            Err(CanonicalError::NotCanonical { offset })
        }
    }

    /// Takes a string whose opening quote was taken, and its closing quote. Nothing canonical here
    /// has an escape.
    fn string(&mut self) -> Result<&'a str, CanonicalError> {
        let length = self
            .rest()
            .iter()
            .position(|byte| *byte == b'"')
            .ok_or(self.not_canonical())?;
        let text = self.take(length)?;
        self.literal("\"")?;
        Ok(text)
    }

    fn number(&mut self) -> Result<u32, CanonicalError> {
        let digits = self
            .rest()
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let error = self.not_canonical();
        self.take(digits)?.parse().map_err(|_| error)
    }

    fn tenant(&mut self) -> Result<TenantFairnessWeight, CanonicalError> {
        self.literal(r#"{"tenant_id":""#)?;
        let tenant = TenantId::try_from(self.string()?).map_err(CanonicalError::Tenant)?;
        self.literal(r#","weight":"#)?;
        let weight = self.number()?;
        self.literal("}")?;
        TenantFairnessWeight::new(tenant, weight).map_err(CanonicalError::Weight)
    }
}
