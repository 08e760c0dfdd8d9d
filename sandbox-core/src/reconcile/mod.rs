//! For operators: what a provider has and a registry has not, the reverse, and what may be done about it.

mod judge;
mod plan;

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

pub use judge::Finding;
pub use plan::{Disposal, Kept, ReconcilePlan, ReconcilePolicy, Step, StepOutcome};

use self::judge::{Here, Listed};
use crate::registry::{RecordFilter, Registry};
use crate::{FindQuery, Key, ListFilter, Owner, Result, SandboxProvider, SandboxProviderExt as _};

/// What is younger is left alone by default: 1 hour.
pub const DEFAULT_RECONCILE_AGE: Duration = Duration::from_secs(3600);

/// Compares what a provider has with what a registry knows, plans what may be done, and does it.
///
/// Looking changes nothing and takes no lease, and neither does planning. What is applied is what was planned and is
/// still true under the lease of its key.
///
/// # Examples
/// ```
/// # #[cfg(feature = "testing")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> sandhold_core::Result<()> {
/// use std::sync::Arc;
/// use sandhold_core::{MemoryRegistry, ReconcilePolicy, Reconciler, testing::FakeProvider};
///
/// let reconciler = Reconciler::new(Arc::new(FakeProvider::new()), Arc::new(MemoryRegistry::new()));
/// let report = reconciler.orphans().await?;
/// assert!(report.findings.is_empty());
/// let plan = reconciler.plan(&report, &ReconcilePolicy::default())?;
/// assert!(plan.steps().is_empty());
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "testing"))]
/// # fn main() {}
/// ```
#[derive(Clone, Debug)]
pub struct Reconciler {
    provider: Arc<dyn SandboxProvider>,
    registry: Arc<dyn Registry>,
    owner: Option<Owner>,
    min_age: Duration,
}

/// What was found, and how much was looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct OrphanReport {
    /// What provider and registry do not agree about, or that nobody has finished.
    pub findings: Vec<Finding>,
    /// How many sandboxes the provider listed.
    pub sandboxes: usize,
    /// How many records the registry listed.
    pub records: usize,
}

impl Reconciler {
    /// Compares these two, for every owner.
    #[must_use]
    pub fn new(provider: Arc<dyn SandboxProvider>, registry: Arc<dyn Registry>) -> Self {
        Self { provider, registry, owner: None, min_age: DEFAULT_RECONCILE_AGE }
    }

    /// Looks at the keys of this owner alone; what has no tags is not looked at then.
    #[must_use]
    pub fn with_owner(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Leaves alone what is younger; default [`DEFAULT_RECONCILE_AGE`]. What the provider states as its longest create
    /// counts where it is longer.
    #[must_use]
    pub fn with_min_age(mut self, age: Duration) -> Self {
        self.min_age = age;
        self
    }

    /// Reports what the provider has and the registry has not, and the reverse. Changes nothing.
    ///
    /// A provider that keeps no tags is asked for the sandbox of each record instead, so that only the reverse is seen.
    ///
    /// # Errors
    /// What the provider or the registry answered; never half a report.
    pub async fn orphans(&self) -> Result<OrphanReport> {
        let mut report = OrphanReport::default();
        let mut listed = Listed::default();
        // The provider first: what is created meanwhile was written down before, and is no orphan.
        if self.provider.capabilities().tags {
            let filter = ListFilter { owner: self.owner.clone(), ..ListFilter::default() };
            let mut sandboxes = self.provider.list(filter).await?;
            while let Some(info) = sandboxes.next().await {
                listed.add(info?);
                report.sandboxes += 1;
            }
        }
        let filter = RecordFilter { owner: self.owner.clone(), ..RecordFilter::default() };
        let mut records = self.registry.list(filter).await?;
        let fingerprint = self.provider.fingerprint();
        let here = Here { provider: self.provider.name(), fingerprint: &fingerprint };
        while let Some(record) = records.next().await {
            let record = record?;
            report.records += 1;
            for finding in listed.judge(&record, &here) {
                if self.is_confirmed(&finding).await? {
                    report.findings.push(finding);
                }
            }
        }
        report.findings.extend(listed.rest());
        let name = |finding: &Finding| finding.name().map(|(owner, key)| (owner.clone(), key.clone()));
        report.findings.sort_by_cached_key(name);
        Ok(report)
    }

    /// A listing may lag behind: that a sandbox is gone is said by its id alone.
    async fn is_confirmed(&self, finding: &Finding) -> Result<bool> {
        match finding {
            Finding::Missing(record) => match &record.id {
                Some(id) => Ok(self.provider.find_id(id).await?.is_none()),
                None => Ok(true),
            },
            _ => Ok(true),
        }
    }

    /// Judges one key again.
    async fn judge_again(&self, owner: &Owner, key: &Key) -> Result<Vec<Finding>> {
        let mut listed = Listed::default();
        let record = self.registry.load(owner, key).await?;
        if self.provider.capabilities().tags {
            let query = FindQuery::Key { owner: owner.clone(), key: key.clone(), attempt: None };
            self.provider.find(query).await?.into_iter().for_each(|info| listed.add(info));
        }
        let fingerprint = self.provider.fingerprint();
        let here = Here { provider: self.provider.name(), fingerprint: &fingerprint };
        let mut findings = Vec::new();
        for finding in record.iter().flat_map(|record| listed.judge(record, &here)).collect::<Vec<_>>() {
            if self.is_confirmed(&finding).await? {
                findings.push(finding);
            }
        }
        findings.extend(listed.rest());
        Ok(findings)
    }
}
