//! What is wrong about one key: what the provider has and the registry has not, and the reverse. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::acquire::senior;
use crate::registry::{Phase, Record};
use crate::{Attempt, Key, Owner, SandboxId, SandboxInfo};

/// Something that provider and registry do not agree about, or that nobody has finished.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Finding {
    /// A sandbox that carries no tags and that no record names: made elsewhere. Nothing is ever done about it.
    Untagged(Box<SandboxInfo>),
    /// A sandbox that its key's record does not name, and the one that the next acquire of the key would attach to where
    /// the record's own is not there.
    Unrecorded(Box<SandboxInfo>),
    /// One more sandbox of a key that has a better one.
    Duplicate {
        /// The one that is too many.
        info: Box<SandboxInfo>,
        /// The one that the key keeps.
        keeps: SandboxId,
    },
    /// A sandbox of an attempt that was given up: it was never handed out.
    Abandoned(Box<SandboxInfo>),
    /// A create whose end is not recorded. The next acquire of the key settles it.
    OpenCreate {
        /// The intent.
        record: Box<Record>,
        /// The sandbox of its attempt, where it is listed.
        made: Option<SandboxId>,
    },
    /// A destroy that was written down and is not finished.
    OpenDestroy(Box<Record>),
    /// A record whose sandbox does not exist, as the provider itself said.
    Missing(Box<Record>),
    /// A record of another provider, or of other credentials: nothing can be said about its sandbox from here.
    Elsewhere(Box<Record>),
    /// A record whose id is there and is tagged as another sandbox.
    Mismatched {
        /// What the registry has.
        record: Box<Record>,
        /// What the provider has.
        info: Box<SandboxInfo>,
    },
    /// A record without a sandbox that only remembered attempts which are old enough to be forgotten.
    Spent(Box<Record>),
}

impl Finding {
    /// Returns the stable snake_case code.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Untagged(_) => "untagged",
            Self::Unrecorded(_) => "unrecorded",
            Self::Duplicate { .. } => "duplicate",
            Self::Abandoned(_) => "abandoned",
            Self::OpenCreate { .. } => "open_create",
            Self::OpenDestroy(_) => "open_destroy",
            Self::Missing(_) => "missing",
            Self::Elsewhere(_) => "elsewhere",
            Self::Mismatched { .. } => "mismatched",
            Self::Spent(_) => "spent",
        }
    }

    /// Returns the sandbox that it is about, where the provider has one.
    #[must_use]
    pub fn info(&self) -> Option<&SandboxInfo> {
        match self {
            Self::Untagged(info) | Self::Unrecorded(info) | Self::Abandoned(info) => Some(info),
            Self::Duplicate { info, .. } | Self::Mismatched { info, .. } => Some(info),
            _ => None,
        }
    }

    /// Returns the record that it is about, where the registry's side is what is wrong.
    #[must_use]
    pub fn record(&self) -> Option<&Record> {
        match self {
            Self::OpenDestroy(record) | Self::Missing(record) | Self::Elsewhere(record) => Some(record),
            Self::Spent(record) => Some(record),
            Self::OpenCreate { record, .. } | Self::Mismatched { record, .. } => Some(record),
            _ => None,
        }
    }

    /// Returns the owner and key that it is about; `None` for a sandbox without tags.
    #[must_use]
    pub fn name(&self) -> Option<(&Owner, &Key)> {
        let tagged = self.info().and_then(|info| info.tags.as_ref()).map(|tags| (&tags.owner, &tags.key));
        self.record().map(|record| (&record.owner, &record.key)).or(tagged)
    }

    /// Tells whether two findings say the same about the same sandbox or record, whatever its state is meanwhile.
    pub(super) fn is_still(&self, other: &Self) -> bool {
        let version =
            |finding: &Self| finding.record().map(|record| (record.version, record.generation.clone()));
        let identity = |finding: &Self| finding.info().map(|info| (info.id.clone(), info.tags.clone()));
        self.as_str() == other.as_str()
            && self.name() == other.name()
            && version(self) == version(other)
            && identity(self) == identity(other)
    }
}

/// Where the look is taken from.
pub(super) struct Here<'a> {
    pub(super) provider: &'a str,
    pub(super) fingerprint: &'a str,
}

/// The sandboxes that were listed, by what they say they are.
#[derive(Default)]
pub(super) struct Listed {
    tagged: BTreeMap<(Owner, Key), Vec<SandboxInfo>>,
    untagged: BTreeMap<SandboxId, SandboxInfo>,
}

impl Listed {
    pub(super) fn add(&mut self, info: SandboxInfo) {
        match &info.tags {
            Some(tags) => self.tagged.entry((tags.owner.clone(), tags.key.clone())).or_default().push(info),
            None => {
                self.untagged.insert(info.id.clone(), info);
            }
        }
    }

    /// Judges the key of a record, whose sandboxes are done with then.
    pub(super) fn judge(&mut self, record: &Record, here: &Here<'_>) -> Vec<Finding> {
        let infos = self.tagged.remove(&(record.owner.clone(), record.key.clone())).unwrap_or_default();
        // One that was made elsewhere and is named by a record is no stranger.
        let untagged = record.id.as_ref().and_then(|id| self.untagged.remove(id)).is_some();
        judge(infos, untagged, record, here)
    }

    /// Judges what no record was found for.
    pub(super) fn rest(self) -> impl Iterator<Item = Finding> {
        let untagged = self.untagged.into_values().map(|info| Finding::Untagged(Box::new(info)));
        self.tagged.into_values().flat_map(|infos| strays(infos, None)).chain(untagged)
    }
}

/// Sandboxes that no record names: beside `kept` all are too many, else the senior one is what its key has.
fn strays(mut infos: Vec<SandboxInfo>, mut kept: Option<SandboxId>) -> Vec<Finding> {
    infos.sort_by(senior);
    let judge = |info: SandboxInfo| match kept.clone() {
        Some(keeps) => Finding::Duplicate { info: Box::new(info), keeps },
        None => {
            kept = Some(info.id.clone());
            Finding::Unrecorded(Box::new(info))
        }
    };
    infos.into_iter().map(judge).collect()
}

fn judge(mut infos: Vec<SandboxInfo>, untagged: bool, record: &Record, here: &Here<'_>) -> Vec<Finding> {
    let attempt_of = |info: &SandboxInfo| info.tags.as_ref().map(|tags| tags.attempt.clone());
    let mut findings = Vec::new();
    infos.retain(|info| {
        let abandoned = attempt_of(info).is_some_and(|attempt: Attempt| record.has_abandoned(&attempt));
        if abandoned {
            findings.push(Finding::Abandoned(Box::new(info.clone())));
        }
        !abandoned
    });
    if record.is_tombstone() {
        if record.clone().into_tombstone().is_none() {
            findings.push(Finding::Spent(Box::new(record.clone())));
        }
        findings.extend(strays(infos, None));
        return findings;
    }
    if record.phase == Phase::Creating {
        let made = infos.iter().position(|info| attempt_of(info).as_ref() == Some(&record.attempt));
        let made = made.map(|index| infos.remove(index).id);
        findings.push(Finding::OpenCreate { record: Box::new(record.clone()), made: made.clone() });
        findings.extend(strays(infos, made));
        return findings;
    }
    let named = infos.iter().position(|info| record.id.as_ref() == Some(&info.id));
    let named = named.map(|index| infos.remove(index));
    let own = named.filter(|info| {
        let is_own = info.tags.as_ref().is_none_or(|tags| tags.generation == record.generation);
        if !is_own {
            findings
                .push(Finding::Mismatched { record: Box::new(record.clone()), info: Box::new(info.clone()) });
        }
        is_own
    });
    let mismatched = findings.iter().any(|finding| matches!(finding, Finding::Mismatched { .. }));
    let is_here = own.is_some() || untagged;
    if record.phase == Phase::Destroying {
        findings.push(Finding::OpenDestroy(Box::new(record.clone())));
        findings.extend(strays(infos, None));
        return findings;
    }
    if !is_here && !mismatched {
        let elsewhere = record.provider != here.provider || record.fingerprint != here.fingerprint;
        let record = Box::new(record.clone());
        findings.push(if elsewhere { Finding::Elsewhere(record) } else { Finding::Missing(record) });
    }
    let kept = if is_here { record.id.clone() } else { None };
    findings.extend(strays(infos, kept));
    findings
}
