use std::time::{Duration, SystemTime};

use super::{Phase, Record};
use crate::Owner;

/// Which records to list; the default is all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordFilter {
    /// Only those of this owner.
    pub owner: Option<Owner>,
    /// Only those of the provider with this name.
    pub provider: Option<String>,
    /// Only those in one of these phases; empty for every phase.
    pub phases: Vec<Phase>,
    /// Only those whose phase was entered at least so long ago, by the clocks of writer and reader.
    pub min_age: Option<Duration>,
}

impl RecordFilter {
    /// Lists only those of this owner.
    #[must_use]
    pub fn with_owner(mut self, owner: Owner) -> Self {
        self.owner = Some(owner);
        self
    }

    /// Lists only those of the provider with this name.
    #[must_use]
    pub fn with_provider(mut self, name: impl Into<String>) -> Self {
        self.provider = Some(name.into());
        self
    }

    /// Lists those in this phase, beside phases named before.
    #[must_use]
    pub fn with_phase(mut self, phase: Phase) -> Self {
        self.phases.push(phase);
        self
    }

    /// Lists only those that have been in their phase for this long.
    #[must_use]
    pub fn with_min_age(mut self, age: Duration) -> Self {
        self.min_age = Some(age);
        self
    }

    /// Tells whether a record passes the filter: the one definition that every registry keeps to.
    #[must_use]
    pub fn matches(&self, record: &Record) -> bool {
        let since = record.phase_since;
        self.owner.as_ref().is_none_or(|owner| record.owner == *owner)
            && self.provider.as_ref().is_none_or(|provider| record.provider == *provider)
            && (self.phases.is_empty() || self.phases.contains(&record.phase))
            && self
                .min_age
                .is_none_or(|age| SystemTime::now().duration_since(since).is_ok_and(|is| is >= age))
    }
}
