//! The work of the demo's runs: checksums over files of this repository.

use std::fs;
use std::io;
use std::path::{Component, Path};

use evenhand_scheduler::Job;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Hashes one file, again and again, so that a run takes as long as we like.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) struct Checksum {
    pub(super) path: RepositoryPath,
    pub(super) rounds: u32,
}

impl Job for Checksum {
    const KIND: &'static str = "demo.checksum";
}

impl Checksum {
    /// SHA-256 over the file and, from the second round on, the digest of the round before; as lowercase hex.
    pub(super) fn compute(&self, root: &Path) -> io::Result<String> {
        let bytes = fs::read(root.join(&self.path.0))?;
        let mut digest: [u8; 32] = Sha256::digest(&bytes).into();
        for _ in 1..self.rounds {
            let round = Sha256::new().chain_update(digest).chain_update(&bytes);
            digest = round.finalize().into();
        }
        Ok(hex(&digest))
    }
}

fn hex(digest: &[u8; 32]) -> String {
    let pairs: Vec<String> = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    pairs.concat()
}

/// A path relative to the root of the repository that cannot leave it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) struct RepositoryPath(String);

impl TryFrom<String> for RepositoryPath {
    type Error = String;

    fn try_from(path: String) -> Result<Self, String> {
        let mut components = Path::new(&path).components().peekable();
        let stays = components.peek().is_some()
            && components.all(|component| matches!(component, Component::Normal(_)));
        if stays {
            Ok(Self(path))
        } else {
            Err(format!("{path:?} is no path inside the repository"))
        }
    }
}

impl From<RepositoryPath> for String {
    fn from(path: RepositoryPath) -> Self {
        path.0
    }
}

impl core::fmt::Display for RepositoryPath {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checksum(rounds: u32) -> Checksum {
        let path = RepositoryPath::try_from("abc".to_owned()).unwrap();
        Checksum { path, rounds }
    }

    #[test]
    fn one_round_is_the_plain_digest_and_more_rounds_differ() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("abc"), "abc").unwrap();
        // The first example of FIPS 180-2.
        let plain = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(checksum(1).compute(root.path()).unwrap(), plain);
        assert_ne!(checksum(2).compute(root.path()).unwrap(), plain);
    }

    #[test]
    fn paths_stay_inside_the_repository() {
        for (path, stays) in [
            ("Cargo.toml", true),
            ("crates/policy/Cargo.toml", true),
            ("", false),
            ("/etc/hostname", false),
            ("../Cargo.toml", false),
            ("crates/../../x", false),
        ] {
            assert_eq!(
                RepositoryPath::try_from(path.to_owned()).is_ok(),
                stays,
                "{path:?}"
            );
        }
    }
}
