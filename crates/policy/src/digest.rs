//! SHA-256 digests, and their one form as text.

use alloc::string::String;
use core::fmt;
use core::str::FromStr;

use sha2::{Digest as _, Sha256};

/// Separates these digests from every other use of SHA-256 over the same bytes.
const DOMAIN_TAG: &[u8] = b"evenhand/policy/v1";

/// Names a policy by its canonical bytes: SHA-256 over `evenhand/policy/v1`, a NUL, and those
/// bytes.
///
/// Its text, in both directions, is 64 lowercase hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyDigest([u8; 32]);

impl PolicyDigest {
    pub(crate) fn of_canonical_bytes(bytes: &[u8]) -> Self {
        let hash = Sha256::new()
            .chain_update(DOMAIN_TAG)
            .chain_update([0])
            .chain_update(bytes);
        Self(hash.finalize().into())
    }

    /// The 32 bytes of the digest.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Text or bytes were refused as a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DigestError {
    /// It has another length than 32 bytes, or as text 64 digits.
    #[error("a digest has {expected} bytes, not {length}")]
    Length {
        /// The length that the form has: 32, or 64 as text.
        expected: usize,
        /// The length that was given.
        length: usize,
    },
    /// It has a byte that is no lowercase hexadecimal digit.
    #[error("a digest is written in the digits 0-9 a-f, but byte {index} is none")]
    Digit {
        /// Where the first such byte is, counted from 0.
        index: usize,
    },
}

impl From<[u8; 32]> for PolicyDigest {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl TryFrom<&[u8]> for PolicyDigest {
    type Error = DigestError;

    fn try_from(bytes: &[u8]) -> Result<Self, Self::Error> {
        match <[u8; 32]>::try_from(bytes) {
            Ok(bytes) => Ok(Self(bytes)),
            Err(_) => Err(DigestError::Length {
                expected: 32,
                length: bytes.len(),
            }),
        }
    }
}

impl FromStr for PolicyDigest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        from_hex(text).map(Self)
    }
}

impl fmt::Display for PolicyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&to_hex(&self.0))
    }
}

impl fmt::Debug for PolicyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PolicyDigest({self})")
    }
}

/// Lowercase hexadecimal digits, two a byte.
pub(crate) fn to_hex(bytes: &[u8; 32]) -> String {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or_default();
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 0x0f)])
        .collect()
}

/// The bytes of 64 lowercase hexadecimal digits.
pub(crate) fn from_hex(text: &str) -> Result<[u8; 32], DigestError> {
    let (pairs, odd) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != 32 || !odd.is_empty() {
        return Err(DigestError::Length {
            expected: 64,
            length: text.len(),
        });
    }
    let value = |digit: u8| {
        if digit.is_ascii_uppercase() {
            None
        } else {
            char::from(digit).to_digit(16)
        }
    };
    if let Some(index) = text.bytes().position(|digit| value(digit).is_none()) {
        return Err(DigestError::Digit { index });
    }
    let mut bytes = [0; 32];
    for (byte, digits) in bytes.iter_mut().zip(pairs) {
        let nibbles = digits.map(|digit| value(digit).unwrap_or_default());
        let [high, low] = nibbles.map(|nibble| u8::try_from(nibble).unwrap_or_default());
        *byte = high << 4 | low;
    }
    Ok(bytes)
}
