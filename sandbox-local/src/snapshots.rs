//! The provider's verbs about snapshots, templates and forks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sandhold_core::{
    DEFAULT_CALL_DEADLINE, DestroyOutcome, Error, ErrorKind, ForkOptions, Outcome, Result, SandboxId,
    SnapshotFilter, SnapshotId, SnapshotInfo, SnapshotOptions,
};
use sandhold_envd::EnvdHandle;
use tokio::time::Instant;

use crate::provider::{CHANGE_WAIT, Inner, Look, blocking, gone};
use crate::record::{IdMap, Origin, Record, Under};
use crate::registration::{self, Registration};
use crate::state_dir::{Beginning, ChangeLock};
use crate::store::{self, Content, Pin, Stored};
use crate::{FailureKind, idmap};

/// A sandbox that nobody else changes, and what it stands on.
struct Source {
    registration: Registration,
    record: Record,
    _lock: ChangeLock,
    _root: Option<Pin>,
}

/// Ids as they are stored: those of a full map start at 0.
fn stored(ids: &IdMap) -> IdMap {
    match ids {
        IdMap::Full { .. } => IdMap::Full { start: 0 },
        other => other.clone(),
    }
}

impl Inner {
    pub(crate) async fn snapshot(
        self: &Arc<Self>,
        id: &SandboxId,
        options: SnapshotOptions,
    ) -> Result<SnapshotInfo> {
        let names: Vec<_> = options.name.into_iter().collect();
        self.check_names(&names).await?;
        let source = self.source(id).await?;
        let stored = Stored {
            id: store::new_id()?,
            names,
            created_at: SystemTime::now(),
            sandbox: Some(id.clone()),
            content: Content::Layer,
            root: source.record.spec.origin.root.clone(),
            ids: stored(&source.record.spec.ids),
        };
        let directory = self.directory(id)?;
        let taken = self.stored(stored, async |layer| self.helper.snapshot(&directory, layer).await).await?;
        self.note(id, &format!("snapshot {} taken", taken.id));
        Ok(taken)
    }

    pub(crate) async fn import(self: &Arc<Self>, from: &Path, names: Vec<String>) -> Result<SnapshotInfo> {
        let from = std::path::absolute(from).map_err(|error| {
            Error::invalid_argument(format!("{} is no directory", from.display())).with_source(error)
        })?;
        if !from.is_dir() {
            let message = format!("there is no directory {} to make a template from", from.display());
            return Err(Error::new(ErrorKind::NotFound, message));
        }
        self.check_names(&names).await?;
        let stored = Stored {
            id: store::new_id()?,
            names,
            created_at: SystemTime::now(),
            sandbox: None,
            content: Content::Root,
            root: None,
            ids: blocking(|| idmap::tier().map_err(Error::from)).await?,
        };
        self.stored(stored, async |layer| self.helper.import(&from, layer).await).await
    }

    /// Has a layer made where nobody sees it, and gives it its place once it is whole and on disk.
    async fn stored(
        self: &Arc<Self>,
        stored: Stored,
        make: impl AsyncFnOnce(&Path) -> Result<()>,
    ) -> Result<SnapshotInfo> {
        let inner = Arc::clone(self);
        let id = stored.id.clone();
        let (creating, staged) =
            blocking(move || Ok((inner.home.creating()?, inner.home.stage(&id)?))).await?;
        let made = make(&staged.join("layer")).await;
        let (inner, place, new) = (Arc::clone(self), staged.clone(), stored.clone());
        let published = match made {
            Ok(()) => {
                blocking(move || {
                    inner.store.describe(&place, &new)?;
                    inner.store.publish(&place, &new)
                })
                .await
            }
            Err(error) => Err(error),
        };
        drop(creating);
        self.swept(staged).await;
        published.map(|()| stored.info())
    }

    /// Removes what was staged and did not become anything, and what others left that died.
    async fn swept(self: &Arc<Self>, staged: PathBuf) {
        if staged.exists() {
            let _ = self.helper.discard(&staged).await;
        }
        let inner = Arc::clone(self);
        let left = blocking(move || Ok(inner.home.sweep())).await.unwrap_or_default();
        self.discard(left).await;
    }

    async fn check_names(self: &Arc<Self>, names: &[String]) -> Result<()> {
        let (inner, names) = (Arc::clone(self), names.to_vec());
        // Again when it gets its place: this only spares a copy.
        blocking(move || inner.store.check_names(&names)).await
    }

    /// Waits until a sandbox is neither starting nor ending, and keeps it so.
    async fn source(self: &Arc<Self>, id: &SandboxId) -> Result<Source> {
        let deadline = Instant::now() + CHANGE_WAIT;
        let Some(lock) = self.home.lock(id, deadline).await? else { return Err(gone(id)) };
        let Some((record, registration)) = self.record(id).await? else { return Err(gone(id)) };
        loop {
            match self.look(id, &registration.spec.user).await? {
                Look::Gone => return Err(gone(id)),
                Look::Running(_) | Look::Stopped => break,
                Look::Between if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                Look::Between => {
                    return Err(Error::new(ErrorKind::Unavailable, "the sandbox's daemon does not answer")
                        .with_context("id", id)
                        .retryable(None));
                }
            }
        }
        let (inner, root) = (Arc::clone(self), record.spec.origin.root.clone());
        // The lease of the sandbox may end at any time, and then nothing else would keep what it stands on.
        let pin = blocking(move || match root {
            Some(root) => inner.store.pin(&root)?.map(|(_, pin)| Some(pin)).ok_or_else(|| {
                Error::new(ErrorKind::Unexpected, "the template that the sandbox stands on is not there")
                    .with_context("template", root)
            }),
            None => Ok(None),
        })
        .await?;
        Ok(Source { registration, record, _lock: lock, _root: pin })
    }

    pub(crate) async fn list_snapshots(
        self: &Arc<Self>,
        filter: SnapshotFilter,
    ) -> Result<Vec<SnapshotInfo>> {
        let inner = Arc::clone(self);
        blocking(move || inner.store.matching(&filter)).await
    }

    pub(crate) async fn delete_snapshot(self: &Arc<Self>, id: &SnapshotId) -> Result<DestroyOutcome> {
        // Sandboxes whose end was decided do not need it, once they are really gone.
        self.registrations().await?;
        let (inner, id) = (Arc::clone(self), id.clone());
        let (withdrawn, staged) = blocking(move || {
            let _creating = inner.home.creating()?;
            let staged = inner.home.staged(&id);
            let withdrawn = inner.store.withdraw(&id, &staged, || inner.standing_on(&id))?;
            Ok((withdrawn, staged))
        })
        .await?;
        if !withdrawn {
            return Ok(DestroyOutcome::AlreadyGone);
        }
        // It is gone for everybody; should its files outlive this, they are swept by a later create.
        self.swept(staged).await;
        Ok(DestroyOutcome::Destroyed)
    }

    /// Finds a sandbox that was made from a snapshot, whatever state it is in.
    fn standing_on(&self, snapshot: &SnapshotId) -> Result<Option<SandboxId>> {
        for id in self.home.ids()? {
            let Some(directory) = self.home.directory(&id) else { continue };
            match Record::load(&directory) {
                Ok(record) if record.spec.origin.stands_on(snapshot.as_str()) => return Ok(Some(id)),
                Ok(_) => {}
                Err(error) if error.kind == FailureKind::NotFound => {}
                // What cannot be read may stand on it.
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    pub(crate) async fn fork(self: &Arc<Self>, id: &SandboxId, options: ForkOptions) -> Result<EnvdHandle> {
        let unmade = |error: Error| error.with_outcome(Outcome::NotStarted);
        self.check_requirements().await.map_err(unmade)?;
        let new_id = registration::id_of(&options.tags.attempt).map_err(unmade)?;
        let source = self.source(id).await.map_err(unmade)?;
        let mut spec = source.registration.spec.clone();
        spec.lease = options.lease.or(spec.lease);
        let registration = Registration::forked(spec, options.tags);
        let origin = Origin { under: Some(Under::Own), root: source.record.spec.origin.root.clone() };
        let ids = Some(stored(&source.record.spec.ids));
        let directory = self.directory(&new_id).map_err(unmade)?;
        if directory.exists() {
            // The same attempt made it before: it is the same sandbox, and nothing is to be copied.
            let beginning = Beginning { ids, layer: None };
            return self.make(registration, beginning, origin, DEFAULT_CALL_DEADLINE).await;
        }
        let inner = Arc::clone(self);
        let (creating, staged) = blocking(move || Ok((inner.home.creating()?, inner.home.stage(&new_id)?)))
            .await
            .map_err(unmade)?;
        let layer = staged.join("layer");
        let made = match self.helper.snapshot(&self.directory(id)?, &layer).await {
            Ok(()) => {
                // From here on the source may go on with its own life.
                let beginning = Beginning { ids, layer: Some(layer) };
                self.make(registration, beginning, origin, DEFAULT_CALL_DEADLINE).await
            }
            Err(error) => Err(unmade(error)),
        };
        drop((source, creating));
        self.swept(staged).await;
        made
    }
}
