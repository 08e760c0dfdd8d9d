//! Pause, resume, stop, destroy and detach: one guarded surface, for values that have a sandbox and those that have not.

use std::sync::Arc;
use std::time::Duration;

use super::{Life, REASON_UNSTARTED, Sandbox, Shared};
use crate::acquire::{self, Home};
use crate::events::EventKind;
use crate::fate::End;
use crate::hooks::bounded;
use crate::lifecycle::{self, StopOutcome};
use crate::{DestroyOutcome, Error, ErrorKind, Outcome, PauseOutcome, Result};

impl Sandbox {
    /// Pauses it, after the persist hook has saved the work. Work that comes later resumes it.
    ///
    /// # Errors
    /// What the persist hook answered, or [`ErrorKind::Timeout`] when it overran its deadline, and then it runs on;
    /// [`ErrorKind::Unsupported`] where the provider cannot; [`ErrorKind::InvalidState`] with reason
    /// [`REASON_UNSTARTED`] for a value that has no sandbox.
    pub async fn pause(&self) -> Result<PauseOutcome> {
        self.refuse_within_transition("pause")?;
        match self.in_hand("pause").await? {
            Some(life) => self.pause_life(&life).await,
            None => Err(self.without_sandbox("pause")),
        }
    }

    async fn pause_life(&self, life: &Life) -> Result<PauseOutcome> {
        let mut resumes = life.resumes.lock().await;
        if let Some(persist) = &life.home.persist {
            let within = self.within_transition();
            bounded("before_pause", life.home.hook_deadline, persist.before_pause(&within))
                .await
                .map_err(|error| error.with_outcome(Outcome::NotStarted))
                .inspect_err(|error| self.tell(lifecycle::pause_failed(error)))?;
        }
        let paused = lifecycle::pause(&life.home, &self.shared.key, &life.fate, &self.lent).await;
        if paused.is_ok() {
            resumes.hook_due = None;
        }
        drop(resumes);
        self.tell(match &paused {
            Ok(_) => EventKind::Paused,
            Err(error) => lifecycle::pause_failed(error),
        });
        self.seen(life, paused)
    }

    /// Resumes it; no effect on a running one. Callers at the same time cause one connect. A value that has no sandbox
    /// yet acquires it.
    ///
    /// # Errors
    /// What the provider or the resume hook answered, the latter with outcome `done`: it runs. The sandbox is kept, and
    /// the next call tries again.
    pub async fn resume(&self) -> Result<()> {
        self.refuse_within_transition("resume")?;
        let life = self.live().await?;
        let epoch = self.epoch(&life).await?;
        self.resume_after(&life, epoch).await
    }

    pub(super) fn within_transition(&self) -> Self {
        Self { within_transition: true, ..self.clone() }
    }

    /// A pause or resume by the hook of one would wait for itself.
    fn refuse_within_transition(&self, operation: &'static str) -> Result<()> {
        if !self.within_transition {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Conflict, "a hook of a pause or resume asked for another one")
            .with_reason("reentrant")
            .at(self.shared.home.provider.name(), operation)
            .with_context("key", &self.shared.key))
    }

    /// The sandbox to act on, without acquiring one: a start of this value that is in flight is waited for.
    async fn in_hand(&self, operation: &'static str) -> Result<Option<Arc<Life>>> {
        if let Some(life) = self.usable()? {
            return Ok(Some(life));
        }
        let Shared { home, key, starting, .. } = &*self.shared;
        acquire::refuse_inside(home, key, operation)?;
        let _starting = tokio::time::timeout(home.wait_limit, starting.lock())
            .await
            .map_err(|_| home.busy(key, operation))?;
        self.usable()
    }

    fn without_sandbox(&self, operation: &'static str) -> Error {
        Error::new(
            ErrorKind::InvalidState,
            "this value has no sandbox yet; the first call on it acquires one",
        )
        .with_reason(REASON_UNSTARTED)
        .at(self.shared.home.provider.name(), operation)
        .with_context("key", &self.shared.key)
    }

    /// Lets it rest: the stop hook runs, then it is paused where the provider can and left alone otherwise.
    ///
    /// A value that has no sandbox yet stops the one of its key, as [`crate::Sandboxes::stop`] does, and makes none.
    ///
    /// # Errors
    /// A stop hook that fails or overruns its deadline does not keep it from stopping; its error is returned afterwards
    /// with outcome `done`. When the stop fails as well, its error carries the hook's as context `on_stop`.
    pub async fn stop(&self) -> Result<StopOutcome> {
        let Shared { home, key, hooks, .. } = &*self.shared;
        self.refuse_within_transition("stop")?;
        let Some(life) = self.in_hand("stop").await? else {
            return Home::stop(home, key, hooks.as_ref()).await;
        };
        let hook = match hooks {
            Some(hooks) => bounded("on_stop", home.hook_deadline, hooks.on_stop(self)).await,
            None => Ok(()),
        };
        let stopped = if life.home.provider.capabilities().pause {
            self.pause_life(&life).await.map(StopOutcome::from)
        } else {
            Ok(StopOutcome::LeftRunning)
        };
        if let Ok(outcome) = stopped {
            self.tell(EventKind::Stopped { outcome });
        }
        after_hook(stopped, "on_stop", hook)
    }

    /// Destroys it with all that belongs to it, after the persist hook has saved the work.
    ///
    /// A value that has no sandbox yet destroys the one of its key, as [`crate::Sandboxes::destroy`] does, and makes
    /// none. Afterwards the value admits no call any more.
    ///
    /// # Errors
    /// What the persist hook answered, or [`ErrorKind::Timeout`] when it overran its deadline, and then nothing is
    /// destroyed. A destroy hook that fails or overruns does not stop the destroy; its error is returned afterwards with
    /// outcome `done`. When the destroy fails as well, its error carries the hook's as context `on_destroy`.
    pub async fn destroy(&self) -> Result<DestroyOutcome> {
        let Shared { home, key, hooks, .. } = &*self.shared;
        let life = match self.in_hand("destroy").await {
            Ok(Some(life)) => life,
            Ok(None) => {
                let destroyed = Home::destroy(home, key, hooks.as_ref()).await?;
                self.finish(End::Destroyed);
                return Ok(destroyed);
            }
            Err(error) if error.kind() == ErrorKind::Gone => return Ok(DestroyOutcome::AlreadyGone),
            Err(error) => return Err(error),
        };
        if let Some(persist) = &home.persist {
            bounded("before_destroy", home.hook_deadline, persist.before_destroy(self))
                .await
                .map_err(|error| error.with_outcome(Outcome::NotStarted))?;
        }
        let hook = match hooks {
            Some(hooks) => bounded("on_destroy", home.hook_deadline, hooks.on_destroy(self)).await,
            None => Ok(()),
        };
        let destroyed = lifecycle::destroy_one(&life.home, key, &life.fate, &self.lent).await;
        if destroyed.is_ok() {
            // Whoever follows the key does so no more: it was to end.
            self.finish(End::Destroyed);
            life.fate.finish(End::Destroyed);
            self.tell(EventKind::Destroyed);
        }
        after_hook(self.seen(&life, destroyed), "on_destroy", hook)
    }

    /// Lets go of it: this value admits no call any more, and the sandbox and its record stay as they are.
    pub fn detach(&self) {
        self.finish(End::Detached);
    }

    /// Sets the lease to end so long from now, also sooner than before.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where the provider has no leases; [`ErrorKind::Stale`] when another sandbox has taken
    /// the place of this one; [`ErrorKind::InvalidState`] with reason [`REASON_UNSTARTED`] without a sandbox.
    pub async fn set_lease(&self, lease: Duration) -> Result<()> {
        let Some(life) = self.in_hand("set_lease").await? else {
            return Err(self.without_sandbox("set_lease"));
        };
        let set = async {
            lifecycle::own_record(&life.home, &self.shared.key, &life.fate).await?;
            life.home.provider.set_lease(&life.fate.id, lease).await
        };
        self.seen(&life, set.await)
    }
}

/// The result of a verb whose hook failed before it: neither failure hides the other.
fn after_hook<T>(verb: Result<T>, name: &'static str, hook: Result<()>) -> Result<T> {
    match (verb, hook) {
        (verb, Ok(())) => verb,
        (Ok(_), Err(hook)) => Err(hook.with_outcome(Outcome::Done)),
        (Err(error), Err(hook)) => Err(error.with_context(name, hook)),
    }
}
