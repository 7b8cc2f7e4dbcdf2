//! The work: exports of a customer's documents.

use evenhand_scheduler::{BoxError, Job};
use evenhand_store::NewRun;
use serde::{Deserialize, Serialize};

use crate::Customer;

/// Exports one document of a customer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Export {
    /// Whose document: the handler has to know, and the tenant says only which bucket.
    pub customer: String,
    /// Which of them.
    pub document: u32,
}

impl Job for Export {
    const KIND: &'static str = "document.export";
}

impl Export {
    /// A run that exports one document of `customer`, served by the customer's bucket.
    ///
    /// The customer is the run's team, so that limits and windows can be set for it alone.
    ///
    /// # Errors
    ///
    /// Never for a payload as small as this.
    pub fn run(customer: &Customer, document: u32) -> Result<NewRun, BoxError> {
        let export = Self {
            customer: customer.name().to_string(),
            document,
        };
        let mut run = export.new_run(customer.tenant()?)?;
        run.team = customer.name().clone();
        Ok(run)
    }
}
