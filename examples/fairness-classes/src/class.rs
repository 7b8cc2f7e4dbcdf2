//! From a customer to its bucket: the pure part.

use evenhand_policy::{
    IdError, PolicyError, SchedulerShardId, TeamId, TenantFairnessWeight, TenantId,
    WeightedFairnessPolicy,
};

/// How many buckets each class has.
pub const BUCKETS: u8 = 16;

/// What a customer pays for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FairnessClass {
    /// One slot a bucket and cycle.
    Free,
    /// Three slots.
    Team,
    /// Six slots.
    Enterprise,
}

impl FairnessClass {
    /// All classes, the lightest first.
    pub const ALL: [Self; 3] = [Self::Free, Self::Team, Self::Enterprise];

    /// The class as it stands in the names of its tenants.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Team => "team",
            Self::Enterprise => "enterprise",
        }
    }

    /// How many slots each of its buckets has in a cycle.
    pub fn weight(self) -> u32 {
        match self {
            Self::Free => 1,
            Self::Team => 3,
            Self::Enterprise => 6,
        }
    }

    /// The tenant that stands for one bucket of this class, such as `free-07`.
    ///
    /// # Errors
    ///
    /// Never for the classes and buckets here: their names are short and plain.
    pub fn tenant(self, bucket: u8) -> Result<TenantId, IdError> {
        TenantId::try_from(format!("{}-{bucket:02}", self.as_str()))
    }
}

/// Somebody who signed up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Customer {
    name: TeamId,
    class: FairnessClass,
}

impl Customer {
    /// A customer of a class; names follow the rules of team ids.
    pub fn new(name: TeamId, class: FairnessClass) -> Self {
        Self { name, class }
    }

    /// Its name.
    pub fn name(&self) -> &TeamId {
        &self.name
    }

    /// What it pays for.
    pub fn class(&self) -> FairnessClass {
        self.class
    }

    /// Which bucket of its class it is in. Depends on the name alone, so that a change of class keeps it.
    pub fn bucket(&self) -> u8 {
        let hash = mixed(fnv1a(self.name.as_str().as_bytes()));
        u8::try_from(hash % u64::from(BUCKETS)).unwrap_or_default()
    }

    /// The tenant that it is served as.
    ///
    /// # Errors
    ///
    /// Never; see [`FairnessClass::tenant`].
    ///
    /// # Examples
    ///
    /// ```
    /// use fairness_classes::{Customer, FairnessClass};
    ///
    /// let acme = Customer::new("acme".parse()?, FairnessClass::Free);
    /// assert_eq!(acme.tenant()?.as_str(), "free-06");
    /// let upgraded = Customer::new("acme".parse()?, FairnessClass::Enterprise);
    /// assert_eq!(upgraded.tenant()?.as_str(), "enterprise-06");
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    pub fn tenant(&self) -> Result<TenantId, IdError> {
        self.class.tenant(self.bucket())
    }
}

/// The policy that serves all buckets of all classes; it does not know a single customer.
///
/// # Errors
///
/// Never for the classes and buckets here: they fit a cycle.
pub fn policy(shard: SchedulerShardId) -> Result<WeightedFairnessPolicy, PolicyError> {
    let weights = FairnessClass::ALL.into_iter().flat_map(|class| {
        (0..BUCKETS).filter_map(move |bucket| {
            let tenant = class.tenant(bucket).ok()?;
            TenantFairnessWeight::new(tenant, class.weight()).ok()
        })
    });
    WeightedFairnessPolicy::new(shard, weights)
}

/// The 64-bit FNV-1a hash (Fowler, Noll, Vo). Written out here, because the buckets of customers must stay the same for
/// as long as the shard lives, and the hasher of the standard library may change with any release.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The end of MurmurHash3 (Appleby): every bit of the hash reaches every bit of the answer. Without it names that differ
/// in their last character, such as numbered ones, fill some buckets twice and others not at all.
fn mixed(mut hash: u64) -> u64 {
    hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ hash >> 33
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_one() {
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a(b"foobar"), 0x8594_4171_f739_67e8);
    }
}
