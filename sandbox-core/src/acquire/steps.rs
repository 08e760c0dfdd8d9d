//! The decisions of one acquisition, in the order of the contract: record, preferred id, discovery, create, setup.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use tokio::time::Instant;

use super::create::settle;
use super::flight::{Stage, spec_conflict};
use super::home::{Home, Leased};
use super::{AcquireOptions, Acquired, How, OnDuplicates, OnSpecConflict, ReplaceWhenGone};
use crate::events::EventKind;
use crate::hooks::Hooks;
use crate::lifecycle::{finish_destroy, owes_a_hook, usual_memory};
use crate::registry::{Lease, Phase, Record};
use crate::{
    ConnectOptions, Connection, Error, ErrorKind, FindQuery, Key, Memory, Outcome, Result, SandboxId,
    SandboxInfo, SandboxProviderExt as _, SandboxState,
};

/// The reason of the error after which an acquisition begins again.
pub(super) const CONTENDED: &str = "contended";

/// One flight's work.
#[derive(Clone)]
pub(super) struct Acquisition {
    pub(super) home: Arc<Home>,
    pub(super) key: Key,
    pub(super) options: Arc<AcquireOptions>,
    pub(super) stage: Arc<Stage>,
    pub(super) hooks: Option<Arc<dyn Hooks>>,
    /// What the sandbox kept where it was resumed before the lease was taken.
    pub(super) resumed: Arc<OnceLock<Memory>>,
}

/// A sandbox in hand, before its setup.
pub(super) struct Found {
    pub(super) record: Record,
    pub(super) connection: Connection,
    pub(super) how: How,
    pub(super) duplicates: Vec<SandboxId>,
}

/// What a look for a sandbox by its id showed.
enum Look {
    Here(Box<SandboxInfo>),
    Gone,
}

impl Acquisition {
    pub(super) fn tell(&self, id: Option<&SandboxId>, kind: EventKind) {
        self.home.tell(self.hooks.as_ref(), &self.key, id, kind);
    }

    pub(super) fn wanted_setup(&self) -> u64 {
        self.hooks.as_ref().map_or(0, |hooks| hooks.setup_version())
    }

    pub(super) fn error(&self, kind: ErrorKind, message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
        Error::new(kind, message).at(self.home.provider.name(), "acquire").with_context("key", &self.key)
    }

    /// Acquires at the provider that the record names.
    pub(super) async fn run(self) -> Result<Acquired> {
        let home = Arc::clone(&self.home);
        home.routed(&self.key, |home| Self { home, ..self.clone() }.run_here()).await
    }

    async fn run_here(self) -> Result<Acquired> {
        loop {
            match self.run_once().await {
                // Another host without a shared registry created first: its sandbox is the one to attach to.
                Err(error) if error.reason() == Some(CONTENDED) => {}
                result => return result,
            }
        }
    }

    async fn run_once(&self) -> Result<Acquired> {
        self.stage.enter("record");
        if let Some(record) = self.home.load(&self.key).await?
            && let Some(acquired) = self.attach_without_lease(record).await?
        {
            return Ok(acquired);
        }
        self.stage.enter("lease");
        let look = || async {
            match self.home.load(&self.key).await? {
                Some(record) => self.attach_without_lease(record).await,
                None => Ok(None),
            }
        };
        let lease = match self.home.lease(&self.key, look).await? {
            Leased::Found(acquired) => return Ok(acquired),
            Leased::Lease(lease) => lease,
        };
        self.stage.enter("lease");
        self.run_leased(lease).await
    }

    /// The everyday way back: a ready sandbox with its setup done needs one read, one find and one connect.
    async fn attach_without_lease(&self, record: Record) -> Result<Option<Acquired>> {
        let setup_is_done = record.setup_done.is_some_and(|done| done >= self.wanted_setup())
            && !self.hooks.as_ref().is_some_and(|hooks| hooks.runs_on_every_start());
        let Some(id) = record.id.clone() else { return Ok(None) };
        let same_id = self.options.provider_id.as_ref().is_none_or(|wanted| *wanted == id);
        if record.phase != Phase::Ready || !setup_is_done || !same_id {
            return Ok(None);
        }
        if let Some(field) = record.spec.conflicts_with(&self.options.spec) {
            match self.options.on_spec_conflict {
                OnSpecConflict::Error => return Err(spec_conflict(&self.key, field)),
                OnSpecConflict::Keep => {}
                OnSpecConflict::Replace => return Ok(None),
            }
        }
        self.stage.enter("find");
        let Some(info) = self.home.provider.find_id(&id).await? else { return Ok(None) };
        self.check_owner(&info, Some(&record))?;
        if info.state != SandboxState::Running {
            return Ok(None);
        }
        self.stage.enter("connect");
        match self.connect(&info).await? {
            // It was paused meanwhile: the hook of that resume runs under the lease.
            Some(Connection { resumed: Some(memory), .. }) => {
                self.note_resume(&id, memory).await;
                Ok(None)
            }
            Some(connection) => {
                let how = How::Attached;
                let found = Found { record, connection, how, duplicates: Vec::new() };
                Ok(Some(self.without_setup(found)))
            }
            None => Ok(None),
        }
    }

    async fn run_leased(&self, lease: Lease) -> Result<Acquired> {
        let mut record = self.home.load(&self.key).await?;
        if let Some(open) = record.take_if(|record| record.phase == Phase::Destroying) {
            self.stage.enter("destroy");
            record = finish_destroy(&self.home, open, &lease).await?.1;
        }
        if let Some(wanted) = &self.options.provider_id
            && let Some(known) = record.as_ref().and_then(|record| record.id.as_ref())
            && known != wanted
        {
            return Err(self
                .error(
                    ErrorKind::Conflict,
                    "the record of this key names another sandbox than provider_id; destroy or detach that one first",
                )
                .with_reason("provider_id")
                .with_context("record_id", known)
                .with_context("provider_id", wanted));
        }
        if let Some(record) = record.as_ref().filter(|record| !record.is_tombstone())
            && let Some(field) = record.spec.conflicts_with(&self.options.spec)
        {
            match self.options.on_spec_conflict {
                OnSpecConflict::Error => return Err(spec_conflict(&self.key, field)),
                OnSpecConflict::Keep => {}
                OnSpecConflict::Replace => return self.replace(record.clone(), lease).await,
            }
        }
        match record {
            Some(record) if record.phase == Phase::Creating => self.settle_and_go_on(record, lease).await,
            record => self.by_id(record, lease).await,
        }
    }

    /// Destroys the sandbox of another spec and creates one of the wanted spec.
    async fn replace(&self, mut record: Record, lease: Lease) -> Result<Acquired> {
        let old = record.id.clone();
        if record.phase == Phase::Creating {
            // Its create is open: a sandbox of it that comes late must be known.
            record.abandon();
        }
        record.enter(Phase::Destroying);
        let record = self.home.registry.store(record, &lease).await?;
        let (_, left) = finish_destroy(&self.home, record, &lease).await?;
        self.create(left, old, lease).await
    }

    /// The preferred id: the caller's, else the record's.
    async fn by_id(&self, mut record: Option<Record>, mut lease: Lease) -> Result<Acquired> {
        let known = record.as_ref().and_then(|record| record.id.clone());
        let Some(id) = self.options.provider_id.clone().or(known) else {
            return self.discover(record, None, lease).await;
        };
        self.stage.enter("find");
        if let Look::Here(info) = self.look(&id, record.as_ref()).await? {
            self.check_owner(&info, record.as_ref())?;
            let mut present = match &record {
                Some(record) if record.id.is_some() => record.clone(),
                other => self.record_of(&info, other.as_ref())?,
            };
            self.stage.enter("connect");
            if let Some(connection) = self.reach(&mut present, &info, &mut lease).await? {
                return self.attached(present, connection, Vec::new(), lease).await;
            }
            record = (present.version > 0).then_some(present);
        }
        if self.options.replace_when_gone == ReplaceWhenGone::Fail {
            return Err(self
                .error(ErrorKind::Gone, "the sandbox of this key is gone")
                .with_context("id", id));
        }
        self.discover(record, Some(id), lease).await
    }

    /// Looks for a sandbox by id; *gone* must hold under the credentials that made it.
    async fn look(&self, id: &SandboxId, record: Option<&Record>) -> Result<Look> {
        if let Some(info) = self.home.provider.find_id(id).await? {
            return Ok(Look::Here(Box::new(info)));
        }
        let Some(record) = record.filter(|record| record.id.as_ref() == Some(id)) else {
            return Ok(Look::Gone);
        };
        let here = self.home.provider.fingerprint();
        if record.fingerprint != here {
            return Err(self
                .error(
                    ErrorKind::Ownership,
                    "the sandbox was made under other credentials or at another endpoint, where it may still exist",
                )
                .with_reason("fingerprint")
                .with_context("id", id)
                .with_context("made_under", &record.fingerprint)
                .with_context("asked_under", here));
        }
        // A fresh id may not be listed yet.
        let visible = self.home.provider.capabilities().list_visibility.unwrap_or_default();
        let age = record.phase_age();
        if age < visible {
            tokio::time::sleep(visible - age).await;
            if let Some(info) = self.home.provider.find_id(id).await? {
                return Ok(Look::Here(Box::new(info)));
            }
        }
        Ok(Look::Gone)
    }

    /// A sandbox that carries other tags is somebody else's; one without tags needs an explicit id.
    pub(super) fn check_owner(&self, info: &SandboxInfo, record: Option<&Record>) -> Result<()> {
        let Some(tags) = &info.tags else {
            return if self.options.provider_id.as_ref() == Some(&info.id)
                || record.is_some_and(|record| record.id.as_ref() == Some(&info.id))
            {
                Ok(())
            } else {
                Err(self
                    .error(
                        ErrorKind::Ownership,
                        "the sandbox carries no tags of ours; name it by provider_id to attach",
                    )
                    .with_context("id", &info.id))
            };
        };
        let generation =
            record.filter(|record| record.id.as_ref() == Some(&info.id)).map(|record| &record.generation);
        let problem = if tags.owner != self.home.owner {
            "it belongs to another owner"
        } else if tags.key != self.key {
            "it belongs to another key"
        } else if generation.is_some_and(|generation| *generation != tags.generation) {
            "its generation is not the recorded one"
        } else {
            return Ok(());
        };
        Err(self
            .error(ErrorKind::Ownership, format!("the sandbox is not this key's: {problem}"))
            .with_context("id", &info.id))
    }

    /// Connects; `None` when the provider says that it is gone after all.
    pub(super) async fn connect(&self, info: &SandboxInfo) -> Result<Option<Connection>> {
        let mut options = ConnectOptions::default().with_deadline(self.options.call_deadline);
        // One that was made elsewhere carries no generation to check.
        options.generation = info.tags.as_ref().map(|tags| tags.generation.clone());
        if let Some(lease) = self.options.spec.lease {
            options = options.with_lease(lease);
        }
        match self.home.provider.connect_opts(&info.id, options).await {
            Ok(connection) => Ok(Some(connection)),
            Err(error) if error.kind() == ErrorKind::Gone => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A record, still to be stored, for a sandbox that has none here: another registry's, or one made elsewhere.
    /// `over` is the one that it takes the place of.
    fn record_of(&self, info: &SandboxInfo, over: Option<&Record>) -> Result<Record> {
        let mut record = Record::intent(
            self.home.owner.clone(),
            self.key.clone(),
            self.home.provider.name(),
            self.home.provider.fingerprint(),
            self.options.spec.clone(),
        )?;
        record.id = Some(info.id.clone());
        if let Some(tags) = &info.tags {
            record.generation = tags.generation.clone();
            record.attempt = tags.attempt.clone();
        }
        if let Some(over) = over {
            record.version = over.version;
            record.abandoned.clone_from(&over.abandoned);
        }
        Ok(record)
    }

    /// Looks for sandboxes of this owner and key on every page, in every state.
    async fn discover(
        &self,
        record: Option<Record>,
        old: Option<SandboxId>,
        mut lease: Lease,
    ) -> Result<Acquired> {
        self.stage.enter("discover");
        if !self.home.provider.capabilities().tags {
            return self.create(record, old, lease).await;
        }
        let mut found = self.find_by_key().await?;
        // One that is younger than the listing's bound may have an elder sibling that is not listed yet.
        let visible = self.home.provider.capabilities().list_visibility.unwrap_or_default();
        let young = |info: &SandboxInfo| {
            SystemTime::now().duration_since(info.created_at).unwrap_or_default() < visible
        };
        if found.iter().any(young) {
            tokio::time::sleep(visible).await;
            found = self.find_by_key().await?;
        }
        let mut candidates = Vec::new();
        for info in found {
            let abandoned = record
                .as_ref()
                .zip(info.tags.as_ref())
                .is_some_and(|(record, tags)| record.has_abandoned(&tags.attempt));
            if abandoned {
                self.home.provider.destroy(&info.id).await?;
            } else {
                candidates.push(info);
            }
        }
        // The recorded generation first, wherever it is found; then the one that every contender would choose.
        let recorded = record.as_ref().map(|record| record.generation.clone());
        let is_recorded = |info: &SandboxInfo| {
            recorded.as_ref().zip(info.tags.as_ref()).is_some_and(|(known, tags)| *known == tags.generation)
        };
        candidates.sort_by(|a, b| is_recorded(b).cmp(&is_recorded(a)).then_with(|| senior(a, b)));
        let mut candidates = candidates.into_iter();
        let Some(chosen) = candidates.next() else { return self.create(record, old, lease).await };
        self.check_owner(&chosen, None)?;
        let mut fresh = self.record_of(&chosen, record.as_ref())?;
        let duplicates = self.see_to_duplicates(&mut fresh, candidates.collect(), &lease).await?;
        self.stage.enter("connect");
        match self.reach(&mut fresh, &chosen, &mut lease).await? {
            Some(connection) => self.attached(fresh, connection, duplicates, lease).await,
            None => Err(self
                .error(ErrorKind::Unavailable, "the sandbox was listed and then gone; acquire again")
                .with_context("id", chosen.id)
                .retryable(None)),
        }
    }

    /// Reports the other sandboxes of the key, and reaps them where that was asked for; returns those that are left.
    async fn see_to_duplicates(
        &self,
        chosen: &mut Record,
        others: Vec<SandboxInfo>,
        lease: &Lease,
    ) -> Result<Vec<SandboxId>> {
        if others.is_empty() {
            return Ok(Vec::new());
        }
        tracing::warn!(key = %self.key, others = others.len(), "several sandboxes of one key");
        let reap = self.options.on_duplicates == OnDuplicates::Reap;
        if reap {
            // Written down first: whoever comes after a crash here destroys them too.
            others
                .iter()
                .filter_map(|info| info.tags.as_ref())
                .for_each(|tags| chosen.give_up(&tags.attempt));
            chosen.enter(Phase::Ready);
            *chosen = self.home.registry.store(chosen.clone(), lease).await?;
        }
        let mut left = Vec::new();
        for info in others {
            if reap {
                self.home.provider.destroy(&info.id).await?;
            } else {
                left.push(info.id.clone());
            }
            self.tell(chosen.id.as_ref(), EventKind::DuplicateFound { other: info.id, reaped: reap });
        }
        Ok(left)
    }

    pub(super) async fn find_by_key(&self) -> Result<Vec<SandboxInfo>> {
        let query = FindQuery::Key { owner: self.home.owner.clone(), key: self.key.clone(), attempt: None };
        self.home.provider.find(query).await
    }

    /// An existing sandbox, connected under the lease: its record is brought up to date, then its setup is looked at.
    pub(super) async fn attached(
        &self,
        mut record: Record,
        mut connection: Connection,
        duplicates: Vec<SandboxId>,
        lease: Lease,
    ) -> Result<Acquired> {
        if record.setup_done.is_none() {
            record.setup_done = super::setup::read_mark(&*connection.handle, &record.generation).await?;
        }
        connection.resumed = connection.resumed.or(self.resumed.get().copied());
        // It runs, and nobody has said that the hook of its last resume ended well.
        let owed = owes_a_hook(record.phase).then(|| usual_memory(&self.home));
        let resumed = connection.resumed.or(owed);
        let how = match record.setup_done {
            Some(_) => how_connected(resumed),
            None => How::Unfinished,
        };
        // What was resumed is ready once its hook has ended well.
        let phase = if resumed.is_some() { Phase::Resuming } else { Phase::Ready };
        if record.phase != phase {
            record.enter(phase);
            record = self.home.registry.store(record, &lease).await?;
        }
        self.set_up(Found { record, connection, how, duplicates }, lease).await
    }

    /// Takes over an open create: its sandbox is adopted, or its absence is proven.
    async fn settle_and_go_on(&self, mut record: Record, lease: Lease) -> Result<Acquired> {
        let since = record.begun();
        // Whoever sent it may have been more patient than this caller. How old it is counts only as far as it is known.
        match settle(&self.home, &record, since, self.home.call_limit(), &self.stage).await? {
            Some(info) => self.adopt(record, info, since, lease).await,
            None if self.home.provider.capabilities().idempotent_create => {
                self.send_create(record, None, lease).await.map_err(|error| {
                    // The attempt made its sandbox, and that one has ended meanwhile: nobody had it.
                    let is_spent = error.kind() == ErrorKind::Gone && error.outcome() == Outcome::NotStarted;
                    if is_spent { error.with_reason(CONTENDED) } else { error }
                })
            }
            None => {
                record.abandon();
                self.create(Some(record), None, lease).await
            }
        }
    }

    /// Connects to a sandbox of our own attempt that was never handed out; `sent_at` is when its create was sent.
    pub(super) async fn adopt(
        &self,
        mut record: Record,
        info: SandboxInfo,
        sent_at: Instant,
        lease: Lease,
    ) -> Result<Acquired> {
        self.check_owner(&info, None)?;
        self.stage.enter("connect");
        let Some(connection) = self.connect(&info).await? else {
            return Err(self
                .error(ErrorKind::Unavailable, "the created sandbox was found and then gone; acquire again")
                .with_context("id", info.id)
                .with_outcome(Outcome::Done)
                .retryable(None));
        };
        record.id = Some(info.id);
        record.enter(Phase::Ready);
        let record = self.home.registry.store(record, &lease).await?;
        let found = Found { record, connection, how: How::Adopted, duplicates: Vec::new() };
        // While its answer was lost, another host may have made one.
        self.contend(found, sent_at, lease).await
    }
}

pub(super) fn how_connected(resumed: Option<Memory>) -> How {
    match resumed {
        Some(memory) => How::Resumed { memory },
        None => How::Attached,
    }
}

/// Orders sandboxes of one key: the first is kept. One that was resumed holds work; else the earlier, else the smaller id.
pub(crate) fn senior(a: &SandboxInfo, b: &SandboxInfo) -> std::cmp::Ordering {
    let rank = |info: &SandboxInfo| (info.started_at <= info.created_at, info.created_at);
    rank(a).cmp(&rank(b)).then_with(|| a.id.cmp(&b.id))
}
