//! How weights and policies are read and written: `{shard, tenants: [{tenant_id, weight}]}`.
//!
//! Reading goes through the constructors, so that a value that exists is valid.

use alloc::vec::Vec;

use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{SchedulerShardId, TenantFairnessWeight, TenantId, WeightedFairnessPolicy};

#[derive(Deserialize)]
#[serde(rename = "TenantFairnessWeight", deny_unknown_fields)]
struct WeightFields {
    tenant_id: TenantId,
    weight: u32,
}

#[derive(Deserialize)]
#[serde(rename = "WeightedFairnessPolicy", deny_unknown_fields)]
struct PolicyFields {
    shard: SchedulerShardId,
    tenants: Vec<TenantFairnessWeight>,
}

impl<'de> Deserialize<'de> for TenantFairnessWeight {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let WeightFields { tenant_id, weight } = WeightFields::deserialize(deserializer)?;
        Self::new(tenant_id, weight).map_err(de::Error::custom)
    }
}

impl Serialize for TenantFairnessWeight {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("TenantFairnessWeight", 2)?;
        fields.serialize_field("tenant_id", self.tenant())?;
        fields.serialize_field("weight", &self.weight())?;
        fields.end()
    }
}

impl<'de> Deserialize<'de> for WeightedFairnessPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let PolicyFields { shard, tenants } = PolicyFields::deserialize(deserializer)?;
        Self::new(shard, tenants).map_err(de::Error::custom)
    }
}

impl Serialize for WeightedFairnessPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("WeightedFairnessPolicy", 2)?;
        fields.serialize_field("shard", self.shard())?;
        fields.serialize_field("tenants", self.tenants())?;
        fields.end()
    }
}
