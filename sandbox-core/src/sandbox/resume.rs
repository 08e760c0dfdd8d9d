//! Resumes: one for all values of a sandbox in this host, the hook that follows it, and the files that it refreshes.

use std::sync::Weak;

use tokio::sync::MutexGuard;
use tokio::time::timeout;

use super::{REASON_PAUSED, Sandbox};
use crate::acquire::{inside_closed, refuse_inside, refuse_inside_closed};
use crate::events::EventKind;
use crate::fate::{End, Fate, Resumes};
use crate::fresh_file::put_in_place;
use crate::hooks::bounded;
use crate::lifecycle::{self, Unresumed};
use crate::registry::Phase;
use crate::tenure::Held;
use crate::{ConnectOptions, Error, ErrorKind, Memory, Outcome, Result, SandboxHandle};

pub(super) fn is_paused(error: &Error) -> bool {
    error.kind() == ErrorKind::InvalidState && error.reason() == Some(REASON_PAUSED)
}

impl Sandbox {
    /// Waits for a transition that is under way, makes up for a resume hook that failed, and returns how many resumes
    /// there were.
    pub(super) async fn epoch(&self, fate: &Fate) -> Result<u64> {
        if self.is_within_transition() {
            return Ok(0);
        }
        refuse_inside_closed(&fate.home, &self.shared.key, "call")?;
        let resumes = fate.close().await;
        if resumes.hook_due.is_none() {
            return Ok(resumes.done);
        }
        drop(resumes);
        Box::pin(self.bring_up(fate, None)).await
    }

    /// Resumes unless another caller has done so since `epoch`.
    pub(super) async fn resume_after(&self, fate: &Fate, epoch: u64) -> Result<()> {
        // On the heap: every call would carry it, and few resume.
        Box::pin(self.bring_up(fate, Some(epoch))).await.map(drop)
    }

    /// Brings a sandbox to where calls are admitted: by a connect, unless another caller has made one since this epoch,
    /// or, where none is given, by the hook alone that a resume before still owes. Returns how many resumes there were.
    async fn bring_up(&self, fate: &Fate, since: Option<u64>) -> Result<u64> {
        let is_up =
            |resumes: &Resumes| resumes.hook_due.is_none() && since.is_none_or(|epoch| resumes.done != epoch);
        let entered = self.in_time(fate, "resume", async {
            let turn = self.turn(fate, "resume").await?;
            if is_up(&*fate.close().await) {
                return Ok(None);
            }
            let held = Held::take(&fate.home, &self.shared.key, &self.lent, "resume").await?;
            Ok(Some((turn, held)))
        });
        let Some((_turn, held)) = entered.await? else { return Ok(fate.close().await.done) };
        let mut resumes = fate.close().await;
        // Whoever had the lease may have resumed it.
        if !is_up(&resumes) {
            let up = self.bring_up_under(&held, fate, &mut resumes, since.is_some()).await;
            self.seen(fate, up).await?;
        }
        Ok(resumes.done)
    }

    /// Record `resuming`, connect, the hook, record `ready`.
    async fn bring_up_under(
        &self,
        held: &Held,
        fate: &Fate,
        resumes: &mut Resumes,
        connects: bool,
    ) -> Result<()> {
        let (home, key) = (&fate.home, &self.shared.key);
        let mut record = lifecycle::living_record(home, key, fate).await?;
        if connects {
            let was_open = record.as_ref().is_some_and(|record| lifecycle::owes_a_hook(record.phase));
            let usual = lifecycle::usual_memory(home);
            let mut options = ConnectOptions::default();
            options.generation = fate.handle().generation().cloned();
            options.lease = self.shared.options.spec.lease;
            let lease = held.lease(home, key).await?;
            // Before the call: its caller may leave in the middle of it.
            let before = resumes.hook_due.replace(usual);
            let connect = || home.provider.connect_opts(&fate.id, options.clone());
            let on_failure = self.shared.options.on_resume_failure;
            let resumed = lifecycle::resume(home, key, &fate.id, record, &lease, on_failure, connect).await;
            let connection;
            (connection, record) = resumed.map_err(|Unresumed { error, destroyed }| {
                if destroyed && fate.finish(End::Gone) {
                    self.tell(EventKind::Destroyed);
                }
                if error.outcome() == Outcome::NotStarted {
                    resumes.hook_due = before;
                }
                error
            })?;
            held.rests(false);
            fate.connected(connection.handle);
            if let Some(memory) = connection.resumed {
                self.tell(EventKind::Resumed { memory });
            }
            resumes.hook_due = connection.resumed.or(before).or_else(|| was_open.then_some(usual));
        } else if record.as_ref().is_some_and(|record| record.phase == Phase::Paused) {
            // Somebody has paused it again: the resume to come has a hook of its own.
            resumes.hook_due = None;
            return Ok(());
        }
        if let Some(memory) = resumes.hook_due {
            let handle = fate.handle();
            let within = self.within_transition(held.tenure(), Weak::new());
            let hook = within.run_resume_hook(&*handle, memory);
            let hook = inside_closed(home, key, hook);
            match held.keep(home, key, hook).await {
                // As above, and the record does not know.
                Err(error) if !connects && is_paused(&error) => {
                    resumes.hook_due = None;
                    return Ok(());
                }
                ran => ran.map_err(|error| error.with_outcome(Outcome::Done))?,
            }
        }
        resumes.hook_due = None;
        resumes.done += 1;
        lifecycle::enter(home, record, Phase::Ready, &*held.lease(home, key).await?).await?;
        Ok(())
    }

    /// Waits for the calls of this host that pause or resume this sandbox: they would else all wait for the lease. A hook
    /// of a flight has that already.
    pub(super) async fn turn<'a>(
        &self,
        fate: &'a Fate,
        operation: &'static str,
    ) -> Result<Option<MutexGuard<'a, ()>>> {
        if self.lent.strong_count() > 0 {
            return Ok(None);
        }
        refuse_inside(&fate.home, &self.shared.key, operation)?;
        Ok(Some(fate.turn().await))
    }

    /// Waits for others that are at work on this key no longer than the host's limit.
    pub(super) async fn in_time<T>(
        &self,
        fate: &Fate,
        operation: &'static str,
        wait: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let waited = timeout(fate.home.wait_limit, wait).await;
        waited.unwrap_or_else(|_| Err(fate.home.busy(&self.shared.key, operation)))
    }

    /// Runs the resume hook of a sandbox that an acquire resumed; nothing is let through before it has ended well.
    pub(crate) async fn after_resume(&self, memory: Memory) -> Result<()> {
        let Some(fate) = self.fate() else { return Ok(()) };
        let mut resumes = fate.close().await;
        resumes.hook_due = Some(memory);
        let handle = fate.handle();
        let within = self.within_transition(self.lent.clone(), self.lent.clone());
        let hook = within.run_resume_hook(&*handle, memory);
        inside_closed(&fate.home, &self.shared.key, hook).await?;
        resumes.hook_due = None;
        resumes.done += 1;
        Ok(())
    }

    /// Runs the resume hook with this value and puts the files it returns in place, all under the hook's deadline.
    async fn run_resume_hook(&self, handle: &dyn SandboxHandle, memory: Memory) -> Result<()> {
        let Some(hooks) = &self.shared.hooks else { return Ok(()) };
        let refreshed = async { put_in_place(handle, hooks.on_resume(self, memory).await?).await };
        bounded("on_resume", self.shared.home.hook_deadline, refreshed).await
    }
}
