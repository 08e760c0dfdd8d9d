//! Replacing the sandbox of a key that was made from another spec.

use super::setup::read_mark;
use super::steps::{Acquisition, Look};
use super::{Acquired, ReplacedBecause};
use crate::events::EventKind;
use crate::hooks::bounded;
use crate::lifecycle::finish_destroy;
use crate::registry::{Lease, Phase, Record};
use crate::sandbox::Sandbox;
use crate::tenure::{Tenure, kept};
use crate::{DestroyOutcome, ErrorKind, Outcome, Result, SandboxInfo};

impl Acquisition {
    /// Destroys the sandbox of another spec, after its work was saved, and creates one of the wanted spec.
    pub(super) async fn replace(&self, record: Record, mut lease: Lease) -> Result<Acquired> {
        self.stage.enter("replace");
        self.check_create()?;
        let old = record.id.clone();
        // Looked at first: what another host's credentials made is not to be ended by those that do not show it.
        let info = match &old {
            Some(id) => {
                let look = kept(&self.home, &self.key, lease, self.look(id, Some(&record)));
                let look_at;
                (look_at, lease) = look.await?;
                match look_at {
                    Look::Here(info) => Some(info),
                    Look::Gone => None,
                }
            }
            None => None,
        };
        let because = if info.is_some() { ReplacedBecause::OtherSpec } else { ReplacedBecause::Gone };
        if let Some(id) = old.as_ref().filter(|_| info.is_none()) {
            self.check_may_replace(id)?;
        }
        let mut left = Some(record);
        if let Some(info) = info {
            self.check_owner(&info, left.as_ref())?;
            (left, lease) = self.take_leave(left, &info, lease).await?;
        }
        if let Some(mut record) = left.take_if(|record| !record.is_tombstone()) {
            record.enter(Phase::Destroying);
            // Whoever comes after a crash from here on is told what the next one takes the place of.
            (record.replaces, record.replaced_because) = (old.clone(), old.as_ref().map(|_| because));
            let record = self.home.registry.store(record, &lease).await?;
            let (destroyed, rest) = finish_destroy(&self.home, record, &lease).await?;
            if destroyed == DestroyOutcome::Destroyed {
                self.tell(old.as_ref(), EventKind::Destroyed);
            }
            left = rest;
        }
        self.create(left, old.map(|old| (old, because)), lease).await
    }

    /// Runs what is to run before a destroy, in a sandbox that is there; returns its record as the hooks have left it.
    ///
    /// A persist hook that fails keeps the sandbox. A destroy hook that fails keeps nothing from ending. One that nobody
    /// was handed has no work to save.
    async fn take_leave(
        &self,
        record: Option<Record>,
        info: &SandboxInfo,
        mut lease: Lease,
    ) -> Result<(Option<Record>, Lease)> {
        let has_hooks = self.home.persist.is_some() || self.hooks.is_some();
        let Some(mut record) = record else { return Ok((None, lease)) };
        let Some(id) = record.id.clone().filter(|_| has_hooks) else { return Ok((Some(record), lease)) };
        let Some(connection) = self.reach(&mut record, info, &mut lease).await? else {
            return Ok((Some(record), lease));
        };
        if record.setup_done.is_none() && read_mark(&*connection.handle, &record.generation).await?.is_none()
        {
            return Ok((Some(record), lease));
        }
        let (sandbox, _) =
            Sandbox::acquired(&self.home, &record, connection.handle, &self.options, self.hooks.clone());
        let tenure = Tenure::new(lease);
        let hooks_own = sandbox.within_flight(&tenure);
        let leave = async {
            if let Some(memory) = connection.resumed {
                hooks_own.after_resume(memory).await?;
            }
            if let Some(persist) = &self.home.persist {
                let saved = persist.before_destroy(&hooks_own);
                bounded("before_destroy", self.home.hook_deadline, saved).await?;
            }
            if let Some(hooks) = &self.hooks {
                let ran = bounded("on_destroy", self.home.hook_deadline, hooks.on_destroy(&hooks_own)).await;
                if let Err(error) = ran {
                    tracing::warn!(key = %self.key, %id, %error, "the destroy hook failed; the sandbox is replaced");
                }
            }
            Ok(())
        };
        let ran = self.run_hooks(&hooks_own, &tenure, leave).await;
        let Some(lease) = tenure.end().await else {
            return Err(self.error(ErrorKind::Unexpected, "the lease of the acquire was lost"));
        };
        ran.map_err(|error| error.with_outcome(Outcome::NotStarted))?;
        let record = if tenure.was_used() { self.home.load(&self.key).await? } else { Some(record) };
        Ok((record, lease))
    }
}
