//! Resumes: one for all callers, the hook that follows it, and the files that it refreshes.

use std::sync::PoisonError;

use bytes::Bytes;

use super::{Life, REASON_PAUSED, Sandbox};
use crate::events::EventKind;
use crate::files::{FileOptions, WriteOptions};
use crate::hooks::{Hooks, bounded};
use crate::lifecycle;
use crate::process::ProcessSpec;
use crate::stream::ByteStream;
use crate::{
    ConnectOptions, Error, ErrorKind, Memory, Outcome, Result, SandboxHandle, SandboxHandleExt as _,
};

/// The resumes of one sandbox.
#[derive(Debug, Default)]
pub(super) struct Resumes {
    pub(super) done: u64,
    /// The provider has resumed it, and the hook has not ended well since: nothing is let through before it has.
    pub(super) hook_due: Option<Memory>,
}

pub(super) fn is_paused(error: &Error) -> bool {
    error.kind() == ErrorKind::InvalidState && error.reason() == Some(REASON_PAUSED)
}

impl Sandbox {
    /// Waits for a transition that is under way, makes up for a resume hook that failed, and returns how many resumes
    /// there were.
    pub(super) async fn epoch(&self, life: &Life) -> Result<u64> {
        if self.within_transition {
            return Ok(0);
        }
        let mut resumes = life.resumes.lock().await;
        match self.finish_resume(life, &mut resumes).await {
            // Somebody else has paused it again: the resume to come has a hook of its own.
            Err(error) if is_paused(&error) => resumes.hook_due = None,
            ran => ran?,
        }
        Ok(resumes.done)
    }

    /// Resumes unless another caller has done so since `epoch`.
    pub(super) async fn resume_after(&self, life: &Life, epoch: u64) -> Result<()> {
        let mut resumes = life.resumes.lock().await;
        if resumes.done != epoch {
            return Ok(());
        }
        let mut options = ConnectOptions::default();
        options.generation = life.handle().generation().cloned();
        options.lease = self.shared.options.spec.lease;
        let resumed =
            Box::pin(lifecycle::resume(&life.home, &self.shared.key, &life.fate, options, &self.lent)).await;
        let connection = self.seen(life, resumed)?;
        *life.handle.write().unwrap_or_else(PoisonError::into_inner) = connection.handle;
        match connection.resumed {
            Some(memory) => {
                self.tell(EventKind::Resumed { memory });
                resumes.hook_due = Some(memory);
            }
            None if resumes.hook_due.is_none() => resumes.done += 1,
            None => {}
        }
        self.finish_resume(life, &mut resumes).await
    }

    /// Runs the resume hook that is due, where one is.
    async fn finish_resume(&self, life: &Life, resumes: &mut Resumes) -> Result<()> {
        let Some(memory) = resumes.hook_due else { return Ok(()) };
        self.run_resume_hook(&*life.handle(), memory)
            .await
            .map_err(|error| error.with_outcome(Outcome::Done))?;
        resumes.hook_due = None;
        resumes.done += 1;
        Ok(())
    }

    /// Runs the resume hook of a sandbox that an acquire resumed.
    pub(crate) async fn after_resume(&self, memory: Memory) -> Result<()> {
        match self.handle() {
            Some(handle) => self.run_resume_hook(&*handle, memory).await,
            None => Ok(()),
        }
    }

    /// Runs the resume hook and puts the files it returns in place, all under the hook's deadline.
    async fn run_resume_hook(&self, handle: &dyn SandboxHandle, memory: Memory) -> Result<()> {
        let Some(hooks) = &self.shared.hooks else { return Ok(()) };
        let refreshed = self.refresh_files(handle, &**hooks, memory);
        bounded("on_resume", self.shared.home.hook_deadline, refreshed).await
    }

    async fn refresh_files(
        &self,
        handle: &dyn SandboxHandle,
        hooks: &dyn Hooks,
        memory: Memory,
    ) -> Result<()> {
        for file in hooks.on_resume(&self.within_transition(), memory).await? {
            let owner = file.owner.clone();
            // Staged beside the target, so that the rename is on one file system; private before it has its content.
            let staged = format!("{}.sandhold-new", file.path);
            let as_owner = |path: &str| -> ProcessSpec {
                let argv = [
                    "-c",
                    r#"umask 077 && : > "$1" && chmod "$2" "$1""#,
                    "sh",
                    path,
                    &format!("{:o}", file.mode),
                ];
                let spec = ProcessSpec::argv("/bin/sh", argv);
                match &owner {
                    Some(owner) => spec.with_user(owner.clone()),
                    None => spec,
                }
            };
            let options = FileOptions { user: owner.clone() };
            if let Some((parent, _)) = file.path.rsplit_once('/').filter(|(parent, _)| !parent.is_empty())
                && !handle.exists(parent).await?
            {
                handle.make_dir(parent, options.clone()).await?;
            }
            let made = handle.exec(as_owner(&staged)).await?;
            if !made.exit.success() {
                return Err(Error::new(
                    ErrorKind::PermissionDenied,
                    format!("the file {:?} could not be refreshed after the resume", file.path),
                )
                .with_context("exit", made.exit));
            }
            let body = ByteStream::from_bytes(Bytes::from(file.content));
            handle.write(&staged, body, WriteOptions { user: owner, ..WriteOptions::default() }).await?;
            handle.rename(&staged, &file.path, options).await?;
        }
        Ok(())
    }
}
