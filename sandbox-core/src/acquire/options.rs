use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::hooks::{DEFAULT_HOOK_DEADLINE, Hooks, OnStart, RestoreReport, Start};
use crate::provider::DEFAULT_CALL_DEADLINE;
use crate::{Memory, Result, Sandbox, SandboxId, SandboxSpec};

/// Default deadline of a whole acquire; long enough to outlast the settling of a lost create.
pub const DEFAULT_ACQUIRE_DEADLINE: Duration = Duration::from_secs(180);

/// What may happen when the key's sandbox is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplaceWhenGone {
    /// A new one is created; the facts name the old. The default.
    #[default]
    Create,
    /// The acquire fails with *gone*.
    Fail,
}

/// What happens when the key's sandbox was made from another spec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnSpecConflict {
    /// The acquire fails with *conflict*. The default.
    #[default]
    Error,
    /// The sandbox is used as it is.
    Keep,
    /// The sandbox is destroyed and a new one created.
    Replace,
}

/// What happens to a new sandbox whose start hook failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnSetupFailure {
    /// It is kept, and the next acquire runs the hook again. The default.
    #[default]
    Keep,
    /// It is destroyed.
    Destroy,
}

/// What happens to a sandbox that the provider failed to resume, each time it was tried.
///
/// Only what fails for the sandbox itself counts, and is known to have failed: a refusal of the caller (credentials,
/// rates, quotas) and an unknown outcome destroy nothing. Neither does a resume hook that fails: the sandbox runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnResumeFailure {
    /// It is kept, recorded as paused, and the next call tries again. The default.
    #[default]
    Keep,
    /// It is destroyed by its id, and counts as gone: what happens next is for [`OnGone`] and [`ReplaceWhenGone`] to say.
    Destroy,
}

/// What a sandbox that was acquired does when it is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnGone {
    /// Every call fails with *gone*. The default.
    #[default]
    Fail,
    /// The next use acquires the key again, with the same options, once for all callers; the event `replaced` tells the
    /// old id and the new. A call that meets *gone* itself is sent again only where the lost one provably did nothing.
    Reacquire,
}

/// What happens to other sandboxes of the key that discovery finds beside the one that it chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnDuplicates {
    /// They are reported, by [`Facts::duplicates`] and an event, and left alone. The default.
    #[default]
    Report,
    /// They are reported and destroyed. What another program did in them is lost.
    Reap,
}

/// How sure "one key, one sandbox" must be where no registry spans all contenders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exclusion {
    /// Proven: a provider that states no listing bound is `unsupported` then. The default.
    #[default]
    Proven,
    /// As good as the provider's listing is.
    BestEffort,
}

/// Shapes one acquire.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireOptions {
    /// How the sandbox is to be made; default every default of [`SandboxSpec`].
    pub spec: SandboxSpec,
    /// The provider's id, stored by the caller: reattaches without any registry. Default the record's.
    pub provider_id: Option<SandboxId>,
    /// Default [`ReplaceWhenGone::Create`].
    pub replace_when_gone: ReplaceWhenGone,
    /// Default [`OnGone::Fail`].
    pub on_gone: OnGone,
    /// Default [`OnDuplicates::Report`].
    pub on_duplicates: OnDuplicates,
    /// Default [`OnSpecConflict::Error`].
    pub on_spec_conflict: OnSpecConflict,
    /// Default [`OnSetupFailure::Keep`].
    pub on_setup_failure: OnSetupFailure,
    /// Default [`OnResumeFailure::Keep`].
    pub on_resume_failure: OnResumeFailure,
    /// Default [`Exclusion::Proven`].
    pub exclusion: Exclusion,
    /// The hooks of this acquire; default those of the host.
    pub hooks: Option<Arc<dyn Hooks>>,
    /// How long the start hook may take; default 15 minutes. Other hooks: [`crate::Sandboxes::with_hook_deadline`].
    pub hook_deadline: Duration,
    /// How long one provider call may take; default [`DEFAULT_CALL_DEADLINE`]; a create at most
    /// five sixths of [`crate::Sandboxes::with_record_lease`], 75 seconds.
    pub call_deadline: Duration,
    /// How long this caller waits for the whole acquire; default [`DEFAULT_ACQUIRE_DEADLINE`].
    pub deadline: Duration,
}

impl Default for AcquireOptions {
    fn default() -> Self {
        Self {
            spec: SandboxSpec::default(),
            provider_id: None,
            replace_when_gone: ReplaceWhenGone::default(),
            on_gone: OnGone::default(),
            on_duplicates: OnDuplicates::default(),
            on_spec_conflict: OnSpecConflict::default(),
            on_setup_failure: OnSetupFailure::default(),
            on_resume_failure: OnResumeFailure::default(),
            exclusion: Exclusion::default(),
            hooks: None,
            hook_deadline: DEFAULT_HOOK_DEADLINE,
            call_deadline: DEFAULT_CALL_DEADLINE,
            deadline: DEFAULT_ACQUIRE_DEADLINE,
        }
    }
}

impl AcquireOptions {
    /// Every default, with this spec.
    #[must_use]
    pub fn new(spec: SandboxSpec) -> Self {
        Self { spec, ..Self::default() }
    }

    /// Reattaches to the sandbox with this provider id.
    #[must_use]
    pub fn with_provider_id(mut self, id: SandboxId) -> Self {
        self.provider_id = Some(id);
        self
    }

    /// Decides what may happen when the sandbox is gone.
    #[must_use]
    pub fn with_replace_when_gone(mut self, policy: ReplaceWhenGone) -> Self {
        self.replace_when_gone = policy;
        self
    }

    /// Decides what the sandbox does when it is gone later on.
    #[must_use]
    pub fn with_on_gone(mut self, policy: OnGone) -> Self {
        self.on_gone = policy;
        self
    }

    /// Decides what happens to other sandboxes of the key.
    #[must_use]
    pub fn with_on_duplicates(mut self, policy: OnDuplicates) -> Self {
        self.on_duplicates = policy;
        self
    }

    /// Decides what happens when the sandbox was made from another spec.
    #[must_use]
    pub fn with_on_spec_conflict(mut self, policy: OnSpecConflict) -> Self {
        self.on_spec_conflict = policy;
        self
    }

    /// Decides what happens to a new sandbox whose start hook failed.
    #[must_use]
    pub fn with_on_setup_failure(mut self, policy: OnSetupFailure) -> Self {
        self.on_setup_failure = policy;
        self
    }

    /// Decides what happens to a sandbox that cannot be resumed.
    #[must_use]
    pub fn with_on_resume_failure(mut self, policy: OnResumeFailure) -> Self {
        self.on_resume_failure = policy;
        self
    }

    /// Decides how sure "one key, one sandbox" must be without a shared registry.
    #[must_use]
    pub fn with_exclusion(mut self, exclusion: Exclusion) -> Self {
        self.exclusion = exclusion;
        self
    }

    /// Runs these hooks.
    #[must_use]
    pub fn with_hooks(mut self, hooks: Arc<dyn Hooks>) -> Self {
        self.hooks = Some(hooks);
        self
    }

    /// Runs this closure when setup is needed: a new sandbox, or one whose setup did not complete.
    #[must_use]
    pub fn with_on_start<F, R>(self, hook: F) -> Self
    where
        F: Fn(Start) -> R + Send + Sync + 'static,
        R: Future<Output = Result<()>> + Send + 'static,
    {
        self.with_hooks(Arc::new(OnStart::new(hook)))
    }

    /// Limits the start hook.
    #[must_use]
    pub fn with_hook_deadline(mut self, deadline: Duration) -> Self {
        self.hook_deadline = deadline;
        self
    }

    /// Limits one provider call.
    #[must_use]
    pub fn with_call_deadline(mut self, deadline: Duration) -> Self {
        self.call_deadline = deadline;
        self
    }

    /// Limits this caller's wait.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}

/// Whether an acquire made its sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AcquireOutcome {
    /// No earlier acquire returned this sandbox with its setup done.
    Created,
    /// It is the one that an earlier acquire returned.
    Connected,
}

impl AcquireOutcome {
    /// Returns the stable word: `created` or `connected`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Connected => "connected",
        }
    }
}

impl fmt::Display for AcquireOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether the setup of a sandbox is still to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SetupState {
    /// It has not completed in the wanted version.
    Needed,
    /// It has.
    Done,
}

/// Why a new sandbox takes the place of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReplacedBecause {
    /// The one before is gone: the provider says so.
    Gone,
    /// The one before was made from another spec, and [`OnSpecConflict::Replace`] was asked for.
    OtherSpec,
}

impl ReplacedBecause {
    /// Returns the stable word: `gone` or `other_spec`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gone => "gone",
            Self::OtherSpec => "other_spec",
        }
    }
}

impl fmt::Display for ReplacedBecause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How a sandbox came to this acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum How {
    /// It is new.
    Fresh,
    /// It is new and takes the place of one that is gone or was replaced.
    Replaced {
        /// The provider id of the one before.
        old: SandboxId,
    },
    /// Our own create made it, the answer was lost, and it was never handed out before.
    Adopted,
    /// An earlier acquire made it, and its setup did not complete.
    Unfinished,
    /// It was running.
    Attached,
    /// It was paused or stopped and runs again.
    Resumed {
        /// What the resume kept.
        memory: Memory,
    },
}

/// Facts beside the outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Facts {
    /// How the sandbox came.
    pub how: How,
    /// Why it takes the place of another one, where `how` is [`How::Replaced`].
    pub replaced_because: Option<ReplacedBecause>,
    /// Whether the setup was needed when it came.
    pub setup: SetupState,
    /// Another caller in this process did the work.
    pub joined: bool,
    /// The work that was put back; `None` where there was none.
    pub restored: Option<RestoreReport>,
    /// Other sandboxes of this key that were found and left alone; an operator should look at them.
    pub duplicates: Vec<SandboxId>,
}

/// The result of an acquire.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Acquired {
    /// The sandbox.
    pub sandbox: Sandbox,
    /// Whether this acquire made it.
    pub outcome: AcquireOutcome,
    /// More about how it came.
    pub facts: Facts,
}

impl Acquired {
    pub(crate) fn new(sandbox: Sandbox, outcome: AcquireOutcome, facts: Facts) -> Self {
        Self { sandbox, outcome, facts }
    }
}
