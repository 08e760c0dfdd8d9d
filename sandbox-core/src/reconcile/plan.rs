//! What may be done about a report, and doing it under the lease of each key.

use std::fmt;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::{Finding, OrphanReport, Reconciler};
use crate::acquire::DEFAULT_RECORD_LEASE as LEASE_TTL;
use crate::lifecycle::forget;
use crate::registry::{Lease, Phase, Record, RegistryScope};
use crate::{Error, ErrorKind, Outcome, Result, SandboxId, SandboxSpec, Tags};

/// A provider call ends so long before the lease that covers it.
const LEASE_MARGIN: Duration = Duration::from_secs(15);

/// What to do about one kind of finding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Disposal {
    /// Leave it. The default.
    #[default]
    Keep,
    /// Remove it.
    Remove,
}

/// What a plan may touch beyond what is provably finished.
///
/// Always planned: sandboxes of attempts that were given up, destroys that were written down, and records that remember
/// nothing any more. Never planned: what carries no tags, what is of other credentials, and open creates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReconcilePolicy {
    /// Sandboxes that no record names; default kept, as the next acquire of their key attaches to them. Removing them is
    /// right only when no host without this registry uses the same owner.
    pub unrecorded: Disposal,
    /// Sandboxes beside the one that their key keeps; default kept.
    pub duplicates: Disposal,
    /// Records whose sandbox is gone; default kept, as the next acquire of the key replaces it and says so.
    pub missing: Disposal,
}

impl ReconcilePolicy {
    /// Says what to do about sandboxes that no record names.
    #[must_use]
    pub fn with_unrecorded(mut self, disposal: Disposal) -> Self {
        self.unrecorded = disposal;
        self
    }

    /// Says what to do about sandboxes beside the one that their key keeps.
    #[must_use]
    pub fn with_duplicates(mut self, disposal: Disposal) -> Self {
        self.duplicates = disposal;
        self
    }

    /// Says what to do about records whose sandbox is gone.
    #[must_use]
    pub fn with_missing(mut self, disposal: Disposal) -> Self {
        self.missing = disposal;
        self
    }
}

/// Why something is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kept {
    /// The policy says so.
    Policy,
    /// It is not provably ours: without tags, or of other credentials.
    NotOurs,
    /// It is too young: its create may not be over, or a listing may lag behind.
    TooYoung,
    /// An acquire of its key settles it.
    Acquire,
}

/// One thing to do. Only a plan makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    finding: Finding,
}

impl Step {
    /// Returns what it is about.
    #[must_use]
    pub fn finding(&self) -> &Finding {
        &self.finding
    }

    /// Returns the sandbox that is destroyed; `None` when only a record is forgotten.
    #[must_use]
    pub fn destroys(&self) -> Option<&SandboxId> {
        match &self.finding {
            Finding::OpenDestroy(record) => record.id.as_ref(),
            finding => finding.info().map(|info| &info.id),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.destroys() {
            Some(id) => write!(f, "destroy {id}")?,
            None => f.write_str("forget the record")?,
        }
        if let Some((owner, key)) = self.finding.name() {
            write!(f, " of {owner}/{key}")?;
        }
        write!(f, " ({})", self.finding.as_str())
    }
}

/// What is to be done about a report, and what is left alone and why. Nothing has been done yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReconcilePlan {
    steps: Vec<Step>,
    kept: Vec<(Finding, Kept)>,
}

impl ReconcilePlan {
    /// Returns what is to be done, in order.
    #[must_use]
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns what is left alone, and why.
    #[must_use]
    pub fn kept(&self) -> &[(Finding, Kept)] {
        &self.kept
    }

    /// Leaves out the steps for which `keep` is false.
    #[must_use]
    pub fn retain(mut self, keep: impl FnMut(&Step) -> bool) -> Self {
        self.steps.retain(keep);
        self
    }
}

/// What became of a step.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StepOutcome {
    /// It is done.
    Done,
    /// Somebody is at work on its key: nothing was done.
    Held,
    /// It is not true any more: nothing was done.
    Changed,
    /// It failed; the error says what is known about the effect.
    Failed(Error),
}

impl Reconciler {
    /// Plans what this policy allows. Changes nothing, and asks nobody.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] with reason `exclusion` when sandboxes of hosts that this registry does not know would be
    /// removed: it must span more than one process.
    pub fn plan(&self, report: &OrphanReport, policy: &ReconcilePolicy) -> Result<ReconcilePlan> {
        let removes = [policy.unrecorded, policy.duplicates].contains(&Disposal::Remove);
        if removes && self.registry.scope() == RegistryScope::Process {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "a registry of one process does not know what other hosts have made; reconcile with the one that they share",
            )
            .with_reason("exclusion"));
        }
        let mut plan = ReconcilePlan::default();
        for finding in &report.findings {
            match self.keeps(finding, policy) {
                None => plan.steps.push(Step { finding: finding.clone() }),
                Some(why) => plan.kept.push((finding.clone(), why)),
            }
        }
        Ok(plan)
    }

    /// Says why a finding is left alone, if it is.
    fn keeps(&self, finding: &Finding, policy: &ReconcilePolicy) -> Option<Kept> {
        let disposal = match finding {
            Finding::Untagged(_) | Finding::Elsewhere(_) | Finding::Mismatched { .. } => {
                return Some(Kept::NotOurs);
            }
            Finding::OpenCreate { .. } => return Some(Kept::Acquire),
            Finding::Abandoned(_) | Finding::OpenDestroy(_) | Finding::Spent(_) => Disposal::Remove,
            Finding::Unrecorded(_) => policy.unrecorded,
            Finding::Duplicate { .. } => policy.duplicates,
            Finding::Missing(_) => policy.missing,
        };
        if disposal == Disposal::Keep {
            return Some(Kept::Policy);
        }
        if let Finding::OpenDestroy(record) = finding
            && (record.provider != self.provider.name() || record.fingerprint != self.provider.fingerprint())
        {
            return Some(Kept::NotOurs);
        }
        let since = match (finding.info(), finding.record()) {
            (Some(info), _) => info.created_at.max(info.started_at),
            (None, Some(record)) => record.phase_since,
            (None, None) => return Some(Kept::NotOurs),
        };
        let capabilities = self.provider.capabilities();
        let settled = capabilities.create_settle.max(capabilities.list_visibility).unwrap_or_default();
        let age = SystemTime::now().duration_since(since).unwrap_or_default();
        (age < self.min_age.max(settled)).then_some(Kept::TooYoung)
    }

    /// Does what was planned and is still true, each step under the lease of its key. What is destroyed is written down
    /// first, so that a host that takes the key over meanwhile hands it to nobody.
    ///
    /// # Cancellation
    /// The step under way may be done; the later ones are not.
    pub async fn apply(&self, plan: ReconcilePlan) -> Vec<(Step, StepOutcome)> {
        let mut outcomes = Vec::with_capacity(plan.steps.len());
        for step in plan.steps {
            let outcome = match self.apply_step(&step).await {
                Ok(outcome) => outcome,
                Err(error) => StepOutcome::Failed(error),
            };
            tracing::info!(%step, outcome = ?outcome, "reconciled");
            outcomes.push((step, outcome));
        }
        outcomes
    }

    async fn apply_step(&self, step: &Step) -> Result<StepOutcome> {
        let Some((owner, key)) = step.finding.name() else { return Ok(StepOutcome::Changed) };
        let Some(mut lease) = self.registry.try_lease(owner, key, LEASE_TTL).await? else {
            return Ok(StepOutcome::Held);
        };
        // Nobody else changes the key now: what is found stays true until the lease is given back.
        let found = self.judge_again(owner, key).await?;
        let Some(finding) = found.into_iter().find(|finding| finding.is_still(&step.finding)) else {
            return Ok(StepOutcome::Changed);
        };
        if let Some(id) = step.destroys() {
            // The looks may have been long: only who still has the lease writes, and has all of it for the destroy.
            self.registry.renew(owner, key, &mut lease, LEASE_TTL).await?;
            let made = match finding.info().and_then(|info| info.tags.as_ref()) {
                Some(tags) => self.give_up(tags, &lease).await?,
                None => None,
            };
            self.destroy(id, &lease).await?;
            if let Some(made) = made {
                self.registry.remove(&made, &lease).await?;
            }
        }
        match finding {
            Finding::OpenDestroy(record) | Finding::Missing(record) => {
                forget(&*self.registry, *record, &lease).await?;
            }
            Finding::Spent(record) => self.registry.remove(&record, &lease).await?,
            _ => {}
        }
        drop(lease);
        Ok(StepOutcome::Done)
    }

    /// Writes down that the sandbox of these tags is given up: whoever comes next finishes its destroy, and hands it to
    /// nobody. Returns the record where there was none before.
    async fn give_up(&self, tags: &Tags, lease: &Lease) -> Result<Option<Record>> {
        let known = self.registry.load(&tags.owner, &tags.key).await?;
        if known.as_ref().is_some_and(|record| record.has_abandoned(&tags.attempt)) {
            return Ok(None);
        }
        let is_new = known.is_none();
        let mut record = match known {
            Some(record) => record,
            None => {
                let (owner, key, fingerprint) =
                    (tags.owner.clone(), tags.key.clone(), self.provider.fingerprint());
                let spec = SandboxSpec::default();
                let mut tombstone = Record::intent(owner, key, self.provider.name(), fingerprint, spec)?;
                tombstone.enter(Phase::Destroying);
                tombstone
            }
        };
        record.give_up(&tags.attempt);
        let stored = self.registry.store(record, lease).await?;
        Ok(is_new.then_some(stored))
    }

    /// Destroys within the lease.
    async fn destroy(&self, id: &SandboxId, lease: &Lease) -> Result<()> {
        // Looked at last: this process may have been stopped since the lease was renewed.
        let left = lease.valid_until.map(|until| until.saturating_duration_since(Instant::now()));
        let limit = left.unwrap_or(LEASE_TTL).saturating_sub(LEASE_MARGIN);
        if limit.is_zero() {
            return Err(Error::new(
                ErrorKind::Stale,
                "the lease of this key ended before its sandbox was destroyed",
            )
            .with_reason("lease_lost")
            .at(self.provider.name(), "destroy")
            .with_context("id", id));
        }
        match tokio::time::timeout(limit, self.provider.destroy(id)).await {
            Ok(destroyed) => destroyed.map(drop),
            Err(_) => {
                Err(Error::new(ErrorKind::Timeout, format!("the destroy did not answer within {limit:?}"))
                    .at(self.provider.name(), "destroy")
                    .with_context("id", id)
                    .with_outcome(Outcome::Unknown))
            }
        }
    }
}
