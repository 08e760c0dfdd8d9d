//! Replacing the sandbox of a key that was made from another spec.

use super::steps::{Acquisition, Look};
use super::{Acquired, ReplacedBecause};
use crate::events::EventKind;
use crate::hooks::bounded;
use crate::lifecycle::finish_destroy;
use crate::registry::{Lease, Phase, Record};
use crate::sandbox::Sandbox;
use crate::tenure::Tenure;
use crate::{DestroyOutcome, ErrorKind, Outcome, Result};

impl Acquisition {
    /// Destroys the sandbox of another spec, after its work was saved, and creates one of the wanted spec.
    pub(super) async fn replace(&self, record: Record, lease: Lease) -> Result<Acquired> {
        self.stage.enter("replace");
        let old = record.id.clone();
        let (mut left, lease) = self.take_leave(record, lease).await?;
        if let Some(mut record) = left.take_if(|record| !record.is_tombstone()) {
            if record.phase == Phase::Creating && record.id.is_none() {
                // Its create is open: a sandbox of it that comes late must be known.
                record.abandon();
            }
            record.enter(Phase::Destroying);
            let record = self.home.registry.store(record, &lease).await?;
            let (destroyed, rest) = finish_destroy(&self.home, record, &lease).await?;
            if destroyed == DestroyOutcome::Destroyed {
                self.tell(old.as_ref(), EventKind::Destroyed);
            }
            left = rest;
        }
        self.create(left, old.map(|old| (old, ReplacedBecause::OtherSpec)), lease).await
    }

    /// Runs what is to run before a destroy, in a sandbox that is there; returns its record as the hooks have left it.
    ///
    /// A persist hook that fails keeps the sandbox. A destroy hook that fails keeps nothing from ending.
    async fn take_leave(&self, mut record: Record, mut lease: Lease) -> Result<(Option<Record>, Lease)> {
        let has_hooks = self.home.persist.is_some() || self.hooks.is_some();
        let Some(id) = record.id.clone().filter(|_| has_hooks) else { return Ok((Some(record), lease)) };
        let Look::Here(info) = self.look(&id, Some(&record)).await? else { return Ok((Some(record), lease)) };
        self.check_owner(&info, Some(&record))?;
        let Some(connection) = self.reach(&mut record, &info, &mut lease).await? else {
            return Ok((Some(record), lease));
        };
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
