//! The decisions of one acquisition, in the order of the contract: record, preferred id, discovery, create, setup.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::contend::CONTENDED;
use super::flight::{Stage, spec_conflict};
use super::home::{Home, Leased};
use super::settle::SETTLE_POLL;
use super::setup::read_mark;
use super::{AcquireOptions, Acquired, How, OnSpecConflict, ReplaceWhenGone};
use crate::events::EventKind;
use crate::hooks::Hooks;
use crate::lifecycle::{finish_destroy, is_abandoned, owes_a_hook, usual_memory};
use crate::registry::{Lease, Phase, Record};
use crate::tenure::{kept, refresh, within};
use crate::{
    ConnectOptions, Connection, Error, ErrorKind, Key, Memory, Result, SandboxId, SandboxInfo,
    SandboxProviderExt as _, SandboxState,
};

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
pub(super) enum Look {
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
        let mut pause = SETTLE_POLL.0;
        loop {
            match self.run_once().await {
                // What it held is not the key's any more: a new look shows what is.
                Err(error) if error.reason() == Some(CONTENDED) => {}
                result => return result,
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(SETTLE_POLL.1);
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
        // On the heap, as every long way from here on: a hook at its end needs the stack.
        Box::pin(self.run_leased(lease)).await
    }

    /// The everyday way back: a ready sandbox with its setup done needs one read, one find and one connect.
    async fn attach_without_lease(&self, record: Record) -> Result<Option<Acquired>> {
        let setup_is_done = record.setup_done.is_some_and(|done| done >= self.wanted_setup())
            && !self.hooks.as_ref().is_some_and(|hooks| hooks.runs_on_every_start());
        let Some(id) = record.id.clone() else { return Ok(None) };
        let same_id = self.options.provider_id.as_ref().is_none_or(|wanted| *wanted == id);
        // Where it is found under other credentials than it was made under, those are written down under the lease.
        let same_scope = record.fingerprint == self.home.provider.fingerprint();
        if record.phase != Phase::Ready || !setup_is_done || !same_id || !same_scope {
            return Ok(None);
        }
        if self.is_to_be_replaced(&record)? {
            return Ok(None);
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
        if let Some(known) = record.as_ref().and_then(|record| record.id.as_ref()) {
            self.check_named(known)?;
        }
        // An open create is settled first: what it made is replaced like any other.
        let is_made = |record: &&Record| !record.is_tombstone() && record.phase != Phase::Creating;
        if let Some(record) = record.as_ref().filter(is_made)
            && self.is_to_be_replaced(record)?
        {
            return Box::pin(self.replace(record.clone(), lease)).await;
        }
        match record {
            Some(record) if record.phase == Phase::Creating => self.settle_and_go_on(record, lease).await,
            record => Box::pin(self.by_id(record, lease)).await,
        }
    }

    /// Refuses a sandbox of another spec than the wanted one, unless the caller takes it as it is; `true` where it is to be
    /// replaced.
    pub(super) fn is_to_be_replaced(&self, record: &Record) -> Result<bool> {
        match (record.spec.conflicts_with(&self.options.spec), self.options.on_spec_conflict) {
            (None, _) | (_, OnSpecConflict::Keep) => Ok(false),
            (Some(field), OnSpecConflict::Error) => Err(spec_conflict(&self.key, field)),
            (Some(_), OnSpecConflict::Replace) => Ok(true),
        }
    }

    /// Refuses a key whose sandbox is another than the one that the caller names.
    pub(super) fn check_named(&self, known: &SandboxId) -> Result<()> {
        match &self.options.provider_id {
            Some(wanted) if wanted != known => Err(self
                .error(
                    ErrorKind::Conflict,
                    "the record of this key names another sandbox than provider_id; destroy or detach that one first",
                )
                .with_reason("provider_id")
                .with_context("record_id", known)
                .with_context("provider_id", wanted)),
            _ => Ok(()),
        }
    }

    /// The preferred id: the caller's, else the record's.
    pub(super) async fn by_id(&self, mut record: Option<Record>, mut lease: Lease) -> Result<Acquired> {
        let known = record.as_ref().and_then(|record| record.id.clone());
        let gone = match self.options.provider_id.clone().or(known) {
            Some(id) => {
                self.stage.enter("find");
                let look = kept(&self.home, &self.key, lease, self.look(&id, record.as_ref()));
                let look_at;
                (look_at, lease) = look.await?;
                if let Look::Here(info) = look_at
                    && !self.end_given_up(&info, record.as_ref(), &mut lease).await?
                {
                    self.check_owner(&info, record.as_ref())?;
                    let (mut present, is_known) = match &record {
                        Some(record) if record.id.is_some() => (record.clone(), true),
                        other => (self.record_of(&info, other.as_ref())?, false),
                    };
                    if !is_known && self.is_to_be_replaced(&present)? {
                        return Box::pin(self.replace(present, lease)).await;
                    }
                    self.stage.enter("connect");
                    if let Some(connection) = self.reach(&mut present, &info, &mut lease).await? {
                        return self.attached(present, connection, Vec::new(), is_known, lease).await;
                    }
                    record = (present.version > 0).then_some(present);
                }
                Some(id)
            }
            // What an earlier acquire has found gone, and could not replace.
            None => record.as_ref().and_then(|record| record.replaces.clone()),
        };
        if let Some(id) = &gone {
            self.check_may_replace(id)?;
        }
        self.discover(record, gone, lease).await
    }

    /// Refuses to take the place of one that is gone where the caller wants that one or none.
    pub(super) fn check_may_replace(&self, gone: &SandboxId) -> Result<()> {
        match self.options.replace_when_gone {
            ReplaceWhenGone::Create => Ok(()),
            ReplaceWhenGone::Fail => {
                Err(self.error(ErrorKind::Gone, "the sandbox of this key is gone").with_context("id", gone))
            }
        }
    }

    /// Looks for a sandbox by id; *gone* must hold under the credentials that made it.
    pub(super) async fn look(&self, id: &SandboxId, record: Option<&Record>) -> Result<Look> {
        if let Some(info) = self.home.provider.find_id(id).await? {
            return Ok(Look::Here(Box::new(info)));
        }
        // A fresh id may not be shown yet, and one that no record names may be as fresh as can be.
        let visible = self.home.provider.capabilities().list_visibility.unwrap_or_default();
        let mut age = Duration::ZERO;
        if let Some(record) = record.filter(|record| record.id.as_ref() == Some(id)) {
            self.home.check_absence(record, "acquire")?;
            age = record.phase_age();
        }
        if age < visible {
            // The whole bound: how old it is was told by another clock.
            tokio::time::sleep(visible).await;
            if let Some(info) = self.home.provider.find_id(id).await? {
                return Ok(Look::Here(Box::new(info)));
            }
        }
        Ok(Look::Gone)
    }

    /// Destroys a sandbox of an attempt that was given up: nobody was handed it, and nobody will be. `false` where it is none.
    pub(super) async fn end_given_up(
        &self,
        info: &SandboxInfo,
        record: Option<&Record>,
        lease: &mut Lease,
    ) -> Result<bool> {
        let given_up = is_abandoned(record, info);
        if given_up {
            self.end(&info.id, lease).await?;
        }
        Ok(given_up)
    }

    /// Destroys a sandbox that is not the key's, while the lease is sure.
    pub(super) async fn end(&self, id: &SandboxId, lease: &mut Lease) -> Result<()> {
        refresh(&self.home, &self.key, lease).await?;
        within(&self.home, &self.key, lease, "destroy", self.home.provider.destroy(id)).await.map(drop)
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
            let can = self.home.provider.capabilities();
            can.check_lease(&self.options.spec).map_err(|error| {
                error.at(self.home.provider.name(), "acquire").with_context("key", &self.key)
            })?;
            options = options.with_lease(lease);
        }
        match self.home.provider.connect_opts(&info.id, options).await {
            Ok(connection) => Ok(Some(connection)),
            Err(error) if error.kind() == ErrorKind::Gone => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A record, still to be stored, for a sandbox that has none here.
    pub(super) fn record_of(&self, info: &SandboxInfo, over: Option<&Record>) -> Result<Record> {
        self.home.record_of(&self.key, info, self.options.spec.clone(), over)
    }

    /// An existing sandbox, connected under the lease: its record, which is a new one unless it `is_known`, is brought up to
    /// date, then its setup is looked at.
    pub(super) async fn attached(
        &self,
        mut record: Record,
        mut connection: Connection,
        duplicates: Vec<SandboxId>,
        is_known: bool,
        lease: Lease,
    ) -> Result<Acquired> {
        // The mark says what is done inside; whether anybody was handed it is said by the record, where every host has it.
        let mut was_handed_out = record.setup_done.is_some();
        if record.setup_done.is_none() {
            let mark = read_mark(&*connection.handle, &record.generation).await;
            record.setup_done = mark.map_err(|error| match error.kind() {
                // As if the connect had said so.
                ErrorKind::Gone => error.with_reason(CONTENDED),
                _ => error,
            })?;
            was_handed_out = record.setup_done.is_some() && !(is_known && self.home.spans_hosts());
        }
        connection.resumed = connection.resumed.or(self.resumed.get().copied());
        // It runs, and nobody has said that the hook of its last resume ended well.
        let owed = owes_a_hook(record.phase).then(|| usual_memory(&self.home));
        let resumed = connection.resumed.or(owed);
        let how = if was_handed_out { how_connected(resumed) } else { How::Unfinished };
        // What was resumed is ready once its hook has ended well.
        let phase = if resumed.is_some() { Phase::Resuming } else { Phase::Ready };
        let here = self.home.provider.fingerprint();
        if record.phase != phase || record.fingerprint != here {
            // It was seen from here, so that what is gone from here is gone.
            record.fingerprint = here;
            record.enter(phase);
            record = self.home.registry.store(record, &lease).await?;
        }
        Box::pin(self.set_up(Found { record, connection, how, duplicates }, lease)).await
    }
}

pub(super) fn how_connected(resumed: Option<Memory>) -> How {
    match resumed {
        Some(memory) => How::Resumed { memory },
        None => How::Attached,
    }
}
