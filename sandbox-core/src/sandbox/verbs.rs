//! Pause, resume, stop, destroy and detach: one guarded surface, for values that have a sandbox and those that have not.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{REASON_UNSTARTED, Sandbox, Shared, is_replaced};
use crate::acquire::{self, Home};
use crate::events::EventKind;
use crate::fate::{End, Fate};
use crate::hooks::bounded;
use crate::lifecycle::{self, StopOutcome};
use crate::tenure::{Held, Tenure};
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
            Some(fate) => self.pause_fate(&fate).await,
            None => Err(self.without_sandbox("pause")),
        }
    }

    async fn pause_fate(&self, fate: &Fate) -> Result<PauseOutcome> {
        acquire::refuse_inside_save(&fate.home, &self.shared.key, "pause")?;
        let _no_saves = fate.saves.rest().await;
        let paused = Box::pin(self.pause_in_turn(fate)).await;
        if let Err(error) = &paused {
            self.tell(lifecycle::pause_failed(error));
        }
        self.seen(fate, paused).await
    }

    /// Refuses a verb on a sandbox whose place another one has taken, before any hook of it runs.
    async fn refuse_stale(&self, fate: &Fate) -> Result<()> {
        let own = lifecycle::own_record(&fate.home, &self.shared.key, fate).await;
        self.seen(fate, own).await.map(drop)
    }

    /// The persist hook, record `pausing`, pause, record `paused`; calls wait until it is over.
    async fn pause_in_turn(&self, fate: &Fate) -> Result<PauseOutcome> {
        let (home, key) = (&fate.home, &self.shared.key);
        if !home.provider.capabilities().pause {
            return Err(Error::unsupported(home.provider.name(), "pause"));
        }
        let entered = self.in_time(fate, "pause", async {
            let turn = self.turn(fate, "pause").await?;
            Ok((turn, Held::take(home, key, &self.lent, "pause").await?))
        });
        let (_turn, held) = entered.await?;
        let mut resumes = fate.close().await;
        let record = lifecycle::living_record(home, key, fate).await?;
        if let Some(persist) = &home.persist {
            let within = self.within_transition(held.tenure(), Weak::new());
            let hook = bounded("before_pause", home.hook_deadline, persist.before_pause(&within));
            held.keep(home, key, acquire::inside_closed(home, key, hook))
                .await
                .map_err(|error| error.with_outcome(Outcome::NotStarted))?;
        }
        let lease = held.lease(home, key).await?;
        let paused = lifecycle::pause(home, key, record, &fate.id, &lease).await?;
        resumes.hook_due = None;
        held.rests(true);
        // Before a call that waits can resume it.
        self.tell(EventKind::Paused);
        Ok(paused)
    }

    /// Resumes it; no effect on a running one. Callers at the same time cause one connect. A value that has no sandbox
    /// yet acquires it.
    ///
    /// # Errors
    /// What the provider answered at the last of its attempts (0, 250 and 750 ms after the first); the sandbox is kept, and
    /// the next call tries again, unless [`crate::OnResumeFailure::Destroy`] was asked for. What the resume hook answered,
    /// with outcome `done`: it runs, and the next call runs the hook again.
    pub async fn resume(&self) -> Result<()> {
        self.refuse_within_transition("resume")?;
        let fate = self.live().await?;
        let epoch = self.epoch(&fate).await?;
        self.resume_after(&fate, epoch).await
    }

    /// The value for the hook of a pause or resume that lasts as long as this. The lease of a flight is lent to it only where
    /// nobody waits for the hook with the lease in hand.
    pub(super) fn within_transition(&self, transition: Weak<Tenure>, lent: Weak<Tenure>) -> Self {
        Self { transition, lent, ..self.clone() }
    }

    pub(super) fn is_within_transition(&self) -> bool {
        self.transition.strong_count() > 0
    }

    /// A pause or resume by the hook of one would wait for itself.
    pub(super) fn refuse_within_transition(&self, operation: &'static str) -> Result<()> {
        if !self.is_within_transition() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Conflict,
            "a hook of a pause or resume asked for another change of its sandbox",
        )
        .with_reason("reentrant")
        .at(self.shared.home.provider.name(), operation)
        .with_context("key", &self.shared.key))
    }

    /// The sandbox to act on, without acquiring one: a start of this value that is in flight is waited for. `None` is for
    /// values that have had none.
    ///
    /// # Errors
    /// As of its calls where the sandbox has ended, also of a value that follows its key: the one that the key has by now
    /// is not the one that was meant.
    pub(super) async fn in_hand(&self, operation: &'static str) -> Result<Option<Arc<Fate>>> {
        if let Some(fate) = self.usable()? {
            return Ok(Some(fate));
        }
        let Shared { home, key, starting, .. } = &*self.shared;
        acquire::refuse_inside(home, key, operation)?;
        let _starting = tokio::time::timeout(home.wait_limit, starting.lock())
            .await
            .map_err(|_| home.busy(key, operation))?;
        match (self.usable()?, self.fate()) {
            (None, Some(lost)) => Err(self.refused(lost.end().unwrap_or(End::Gone))),
            (usable, _) => Ok(usable),
        }
    }

    pub(super) fn without_sandbox(&self, operation: &'static str) -> Error {
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
        let Some(fate) = self.in_hand("stop").await? else {
            return Home::stop(home, key, self.wanted_id(), hooks.as_ref()).await;
        };
        if fate.home.provider.capabilities().pause {
            acquire::refuse_inside_save(&fate.home, key, "stop")?;
        }
        self.refuse_stale(&fate).await?;
        let hook = match hooks {
            Some(hooks) => bounded("on_stop", home.hook_deadline, hooks.on_stop(self)).await,
            None => Ok(()),
        };
        let stopped = if fate.home.provider.capabilities().pause {
            self.pause_fate(&fate).await.map(StopOutcome::from)
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
    /// A paused one is not woken for it, unless a hook works in it: [`crate::Sandboxes::destroy`] runs none.
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
        if self.lent.strong_count() == 0 {
            self.refuse_within_transition("destroy")?;
        }
        let fate = match self.in_hand("destroy").await {
            Ok(Some(fate)) => fate,
            Ok(None) => {
                let destroyed = Home::destroy(home, key, self.wanted_id(), hooks.as_ref()).await?;
                self.finish(End::Destroyed);
                return Ok(destroyed);
            }
            Err(error) if error.kind() == ErrorKind::Gone => return self.destroy_gone().await,
            Err(error) => return Err(error),
        };
        acquire::refuse_inside_save(&fate.home, key, "destroy")?;
        self.refuse_stale(&fate).await?;
        if let Some(persist) = &home.persist {
            drop(fate.saves.rest().await);
            let hook = bounded("before_destroy", home.hook_deadline, persist.before_destroy(self)).await;
            match hook {
                // There is nothing to save.
                Err(_) if fate.end() == Some(End::Gone) => return self.destroy_gone().await,
                saved => saved.map_err(|error| error.with_outcome(Outcome::NotStarted))?,
            }
        }
        let hook = match hooks {
            Some(hooks) => bounded("on_destroy", home.hook_deadline, hooks.on_destroy(self)).await,
            None => Ok(()),
        };
        let destroyed = self.destroy_fate(&fate).await;
        after_hook(self.seen(&fate, destroyed).await, "on_destroy", hook)
    }

    async fn destroy_fate(&self, fate: &Fate) -> Result<DestroyOutcome> {
        let held = Held::take(&fate.home, &self.shared.key, &self.lent, "destroy").await?;
        let outcome = lifecycle::destroy_one(&fate.home, &self.shared.key, fate, &held).await?;
        // Whoever follows the key does so no more: it was to end.
        self.finish(End::Destroyed);
        let is_news = fate.finish(End::Destroyed);
        match outcome {
            DestroyOutcome::Destroyed => self.tell(EventKind::Destroyed),
            DestroyOutcome::AlreadyGone if is_news => self.tell(EventKind::Gone),
            DestroyOutcome::AlreadyGone => {}
        }
        Ok(outcome)
    }

    /// Forgets the sandbox that is gone: the key is free for another one.
    async fn destroy_gone(&self) -> Result<DestroyOutcome> {
        if let Some(fate) = self.fate().filter(|fate| fate.end() == Some(End::Gone)) {
            match self.destroy_fate(&fate).await {
                // Of another generation: that one is left alone.
                Err(error) if is_replaced(&error) => {}
                destroyed => return destroyed,
            }
            self.finish(End::Destroyed);
        }
        Ok(DestroyOutcome::AlreadyGone)
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
        let Some(fate) = self.in_hand("set_lease").await? else {
            return Err(self.without_sandbox("set_lease"));
        };
        let set = async {
            lifecycle::living_record(&fate.home, &self.shared.key, &fate).await?;
            fate.home.provider.set_lease(&fate.id, lease).await
        };
        self.seen(&fate, set.await).await
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
