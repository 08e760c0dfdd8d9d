//! The provider's side of a fake: what exists, what was scripted, what was counted.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::commands::Hook;
use super::files::Tree;
use super::machine::{Clock, Machine, gone, lock};
use super::script::{Fault, Script, Verb};
use super::{FAKE, Memory, PauseOutcome};
use crate::{
    Attempt, Capabilities, DestroyOutcome, Error, ErrorKind, ForkOptions, Generation, Key, Kind, ListFilter,
    MountSource, Owner, Result, ResultStream, SandboxId, SandboxInfo, SandboxSpec, SandboxState,
    SnapshotFilter, SnapshotId, SnapshotInfo, SnapshotOptions, Tags,
};

/// The shape of a fake cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FakeOptions {
    /// What it says that it can, and keeps to. Default: everything but idempotent creates, metrics and mounts;
    /// listings show a sandbox at once.
    pub capabilities: Capabilities,
    /// Sandboxes on one page of a listing; default 100.
    pub page_size: usize,
    /// `find` by id shows a new sandbox no earlier than a listing does. Default no: at once.
    pub hides_new_ids: bool,
}

impl Default for FakeOptions {
    fn default() -> Self {
        let capabilities = Capabilities {
            list_visibility: Some(Duration::ZERO),
            create_settle: Some(Duration::from_secs(5)),
            find_without_waking: true,
            tags: true,
            pause: true,
            pause_keeps_memory: true,
            pause_without_memory: true,
            snapshot: true,
            fork: true,
            logs: true,
            lease: true,
            dial: true,
            retained_output: true,
            signal_tree: true,
            egress_policy: true,
            binary_exec: true,
            ..Capabilities::default()
        };
        Self { capabilities, page_size: 100, hides_new_ids: false }
    }
}

impl FakeOptions {
    /// Hides a new sandbox from listings and from `find` by key for this time.
    #[must_use]
    pub fn with_list_visibility(mut self, delay: Duration) -> Self {
        self.capabilities.list_visibility = Some(delay);
        self.capabilities.create_settle = Some(delay + Duration::from_secs(5));
        self
    }

    /// Hides a new sandbox as long from `find` by id.
    #[must_use]
    pub fn with_hidden_new_ids(mut self) -> Self {
        self.hides_new_ids = true;
        self
    }

    /// Makes creates of one attempt yield one sandbox.
    #[must_use]
    pub fn with_idempotent_create(mut self) -> Self {
        self.capabilities.idempotent_create = true;
        self
    }

    /// Takes [`Capabilities::pause`] away.
    #[must_use]
    pub fn without_pause(mut self) -> Self {
        self.capabilities.pause = false;
        self
    }

    /// Lets a pause lose the processes.
    #[must_use]
    pub fn without_memory(mut self) -> Self {
        self.capabilities.pause_keeps_memory = false;
        self
    }

    /// Changes what the fake says that it can.
    #[must_use]
    pub fn with_capabilities(mut self, change: impl FnOnce(&mut Capabilities)) -> Self {
        change(&mut self.capabilities);
        self
    }

    /// Sets the sandboxes on one page; at least 1.
    #[must_use]
    pub fn with_page_size(mut self, sandboxes: usize) -> Self {
        self.page_size = sandboxes.max(1);
        self
    }
}

/// What happened at the provider's side, whatever the callers were told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Calls that arrived, by verb.
    pub calls: HashMap<Verb, usize>,
    /// Sandboxes made.
    pub created: usize,
    /// Sandboxes made, by owner and key.
    pub created_by_key: HashMap<(Owner, Key), usize>,
    /// Creates that an earlier one of the same attempt had answered.
    pub deduplicated: usize,
    /// Sandboxes destroyed by a call.
    pub destroyed: usize,
    /// Paused or stopped sandboxes that a connect woke.
    pub resumed: usize,
    /// Sandboxes that a call paused.
    pub paused: usize,
    /// Pages of listings that were served.
    pub pages: usize,
    /// Processes that were started.
    pub processes: usize,
}

impl Counts {
    /// Returns how many calls of this verb arrived.
    #[must_use]
    pub fn of(&self, verb: Verb) -> usize {
        self.calls.get(&verb).copied().unwrap_or_default()
    }

    /// Returns how many sandboxes were made for this key.
    #[must_use]
    pub fn created_for(&self, owner: &Owner, key: &Key) -> usize {
        self.created_by_key.get(&(owner.clone(), key.clone())).copied().unwrap_or_default()
    }
}

/// How a call that takes effect answers.
#[derive(Clone, Debug)]
pub(super) enum Twist {
    None,
    WrongGeneration,
    RepeatedCursor,
    ErrorOnPage(usize, Error),
}

/// A generation that no sandbox of any test has.
pub(super) fn other_generation() -> Generation {
    Generation::new("another-generation")
}

/// A stored state.
struct Stored {
    info: SnapshotInfo,
    files: Tree,
}

#[derive(Default)]
struct State {
    machines: Vec<Arc<Machine>>,
    snapshots: Vec<Stored>,
    /// How many were taken: ids are not given again.
    taken: u64,
    script: Script,
    counts: Counts,
    hook: Option<Hook>,
}

pub(super) struct Cloud {
    pub(super) options: FakeOptions,
    clock: Clock,
    state: Mutex<State>,
}

impl fmt::Debug for Cloud {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cloud").field("options", &self.options).finish_non_exhaustive()
    }
}

impl Cloud {
    pub(super) fn new(options: FakeOptions) -> Self {
        Self { options, clock: Clock::new(), state: Mutex::default() }
    }

    pub(super) fn script(&self, change: impl FnOnce(&mut Script)) {
        change(&mut lock(&self.state).script);
    }

    pub(super) fn next_fault(&self, verb: Verb) -> Option<Fault> {
        lock(&self.state).script.take(verb)
    }

    pub(super) fn set_hook(&self, hook: Hook) {
        lock(&self.state).hook = Some(hook);
    }

    pub(super) fn hook(&self) -> Option<Hook> {
        lock(&self.state).hook.clone()
    }

    pub(super) fn counts(&self) -> Counts {
        lock(&self.state).counts.clone()
    }

    pub(super) fn count(&self, change: impl FnOnce(&mut Counts)) {
        change(&mut lock(&self.state).counts);
    }

    pub(super) fn machines(&self) -> Vec<Arc<Machine>> {
        lock(&self.state).machines.clone()
    }

    /// Returns the machine with this id, or the provider's own word that there is none.
    pub(super) fn get(&self, id: &SandboxId) -> Result<Arc<Machine>> {
        let machine = lock(&self.state).machines.iter().find(|machine| machine.id == *id).cloned();
        machine.filter(|machine| machine.settle().state.is_some()).ok_or_else(|| gone(id))
    }

    pub(super) fn make(&self, spec: SandboxSpec, tags: Option<Tags>) -> Arc<Machine> {
        make(&mut lock(&self.state), spec, tags, self.clock, None)
    }

    /// Makes a sandbox, or returns the one that this attempt has made where creates are idempotent.
    pub(super) fn create(&self, spec: SandboxSpec, tags: Tags) -> Result<Arc<Machine>> {
        self.make_or_find(spec, tags, None)
    }

    /// Makes a sandbox of the files of another one, as [`create`](Self::create) does.
    pub(super) fn fork(&self, source: &Machine, options: ForkOptions) -> Result<Arc<Machine>> {
        let mut spec = source.spec.clone();
        spec.lease = options.lease.or(spec.lease);
        let files = lock(&source.files).copy();
        self.make_or_find(spec, options.tags, Some(files))
    }

    /// Stores the files of a sandbox.
    pub(super) fn snapshot(&self, machine: &Machine, options: SnapshotOptions) -> Result<SnapshotInfo> {
        let mut state = lock(&self.state);
        let taken = |name: &String| state.snapshots.iter().any(|stored| stored.info.names.contains(name));
        if let Some(name) = options.name.as_ref().filter(|name| taken(name)) {
            return Err(
                Error::new(ErrorKind::Conflict, "another snapshot has this name").with_context("name", name)
            );
        }
        state.taken += 1;
        let mut info = SnapshotInfo::new(SnapshotId::new(format!("snapshot-{}", state.taken)))
            .with_created_at(self.clock.time(Instant::now()))
            .with_sandbox(machine.id.clone());
        info.names.extend(options.name);
        let files = lock(&machine.files).copy();
        state.snapshots.push(Stored { info: info.clone(), files });
        Ok(info)
    }

    pub(super) fn snapshots(&self, filter: &SnapshotFilter) -> Vec<SnapshotInfo> {
        let state = lock(&self.state);
        let all = state.snapshots.iter().map(|stored| &stored.info);
        all.filter(|info| filter.matches(info)).cloned().collect()
    }

    pub(super) fn delete_snapshot(&self, id: &SnapshotId) -> Result<DestroyOutcome> {
        let mut state = lock(&self.state);
        let Some(place) = state.snapshots.iter().position(|stored| stored.info.id == *id) else {
            return Ok(DestroyOutcome::AlreadyGone);
        };
        let standing = state
            .machines
            .iter()
            .find(|machine| machine.spec.template == id.as_str() && machine.settle().state.is_some());
        if let Some(machine) = standing {
            return Err(Error::new(ErrorKind::Conflict, "a sandbox stands on this snapshot")
                .with_reason("in_use")
                .with_context("sandbox", &machine.id));
        }
        state.snapshots.remove(place);
        Ok(DestroyOutcome::Destroyed)
    }

    fn make_or_find(&self, spec: SandboxSpec, tags: Tags, files: Option<Tree>) -> Result<Arc<Machine>> {
        Self::check(&spec)?;
        // One lock over look-up and make: two creates of one attempt cannot both miss.
        let mut state = lock(&self.state);
        if self.options.capabilities.idempotent_create {
            let made = state.machines.iter().find(|machine| has_attempt(machine, &tags.attempt)).cloned();
            if let Some(machine) = made {
                if machine.settle().state.is_none() {
                    return Err(machine.gone_error());
                }
                if machine.spec != spec || machine.tags.as_ref() != Some(&tags) {
                    return Err(Error::new(ErrorKind::Conflict, "this attempt has made another sandbox")
                        .with_context("attempt", &tags.attempt));
                }
                state.counts.deduplicated += 1;
                return Ok(machine);
            }
        }
        let stored = state.snapshots.iter().find(|stored| stored.info.id.as_str() == spec.template);
        let files = files.or_else(|| stored.map(|stored| stored.files.copy()));
        if files.is_none() && spec.template.starts_with("snap") {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no snapshot {:?}", spec.template))
                .with_reason("template"));
        }
        Ok(make(&mut state, spec, Some(tags), self.clock, files))
    }

    pub(super) fn check(spec: &SandboxSpec) -> Result<()> {
        let unsupported = |what: String| {
            Err(Error::new(ErrorKind::Unsupported, format!("the fake has no {what}; leave it out"))
                .at(FAKE, "create"))
        };
        if spec.kind != Kind::Standard {
            return unsupported(format!("sandboxes of the kind {:?}", spec.kind));
        }
        if let Some(mount) = spec.mounts.first() {
            let what = match &mount.source {
                MountSource::HostDir { .. } | MountSource::SharedDir { .. } => "host directories",
                MountSource::Volume { .. } => "volumes",
            };
            return unsupported(format!("{what} to mount at {:?}", mount.path));
        }
        if spec.resources != crate::Resources::default() {
            return unsupported("limits".to_owned());
        }
        Ok(())
    }

    /// Resumes a paused or stopped machine; a lease only grows.
    pub(super) fn wake(
        &self,
        machine: &Machine,
        lease: Option<Duration>,
        memory: Memory,
    ) -> Result<Option<Memory>> {
        let mut resumed = None;
        let mut existed = false;
        machine.life.send_modify(|life| {
            let Some(state) = life.state else { return };
            existed = true;
            let now = Instant::now();
            let asked = lease.map(|lease| now.checked_add(lease));
            if state == SandboxState::Running {
                // No lease is the longest one.
                life.expires = match (life.expires, asked) {
                    (Some(has), Some(asked)) => asked.map(|asked| asked.max(has)),
                    (has, _) => has,
                };
                return;
            }
            resumed = Some(match state {
                SandboxState::Paused
                    if life.memory == Memory::Kept && self.options.capabilities.pause_keeps_memory =>
                {
                    memory
                }
                _ => Memory::Lost,
            });
            life.state = Some(SandboxState::Running);
            life.started = now;
            life.expires =
                asked.unwrap_or_else(|| machine.spec.lease.and_then(|lease| now.checked_add(lease)));
        });
        if !existed {
            return Err(machine.gone_error());
        }
        if resumed == Some(Memory::Lost) {
            lock(&machine.processes).kill_all();
        }
        if resumed.is_some() {
            machine.note("resumed");
            self.count(|counts| counts.resumed += 1);
        }
        Ok(resumed)
    }

    pub(super) fn pause(&self, machine: &Machine, memory: Memory) -> Result<PauseOutcome> {
        let memory = if self.options.capabilities.pause_keeps_memory { memory } else { Memory::Lost };
        let mut outcome = Err(machine.gone_error());
        machine.life.send_if_modified(|life| match life.state {
            Some(SandboxState::Running) => {
                outcome = Ok(PauseOutcome::Paused);
                life.state = Some(SandboxState::Paused);
                life.memory = memory;
                life.expires = None;
                true
            }
            Some(_) => {
                outcome = Ok(PauseOutcome::AlreadyPaused);
                false
            }
            None => false,
        });
        if matches!(outcome, Ok(PauseOutcome::Paused)) {
            machine.note("paused");
            self.count(|counts| counts.paused += 1);
            if memory == Memory::Lost {
                lock(&machine.processes).kill_all();
            }
        }
        outcome
    }

    /// Ends a machine; `false` when it had ended.
    pub(super) fn end(&self, machine: &Machine) -> bool {
        machine.life.send_if_modified(|life| life.state.take().is_some())
    }

    /// Whether a listing shows it yet.
    pub(super) fn is_listed(&self, machine: &Machine) -> bool {
        machine.created.elapsed() >= self.options.capabilities.list_visibility.unwrap_or_default()
    }

    /// Serves one page: the matching sandboxes after the cursor, and the cursor of the next page.
    fn page(&self, filter: &ListFilter, after: u64) -> (Vec<SandboxInfo>, Option<u64>) {
        self.count(|counts| counts.pages += 1);
        let mut page = Vec::new();
        let mut cursor = after;
        for machine in self.machines() {
            if machine.number <= after || !self.is_listed(&machine) {
                continue;
            }
            let Some(info) = machine.info().filter(|info| filter.matches(info)) else { continue };
            if page.len() == self.options.page_size {
                return (page, Some(cursor));
            }
            cursor = machine.number;
            page.push(info);
        }
        (page, None)
    }

    /// Reads one page as a client does: a failing page and a repeated cursor are errors.
    fn read(&self, filter: &ListFilter, number: usize, after: u64, twist: &Twist) -> Result<Page> {
        if let Twist::ErrorOnPage(at, error) = twist
            && *at == number
        {
            return Err(error.clone());
        }
        let (items, mut next) = self.page(filter, after);
        if matches!(twist, Twist::RepeatedCursor) && number > 1 {
            next = Some(after);
        }
        if next == Some(after) {
            return Err(Error::new(
                ErrorKind::Unexpected,
                "the provider answered with the cursor it was asked for",
            )
            .with_reason("repeated_cursor")
            .with_context("page", number));
        }
        Ok(Page { items, next })
    }

    /// Reads every page; an error anywhere is the answer.
    pub(super) fn read_all(&self, filter: &ListFilter, twist: &Twist) -> Result<Vec<SandboxInfo>> {
        let (mut all, mut number, mut after) = (Vec::new(), 1, 0);
        loop {
            let page = self.read(filter, number, after, twist)?;
            all.extend(page.items);
            match page.next {
                Some(next) => (number, after) = (number + 1, next),
                None => return Ok(all),
            }
        }
    }
}

struct Page {
    items: Vec<SandboxInfo>,
    next: Option<u64>,
}

fn has_attempt(machine: &Machine, attempt: &Attempt) -> bool {
    machine.tags.as_ref().is_some_and(|tags| tags.attempt == *attempt)
}

fn make(
    state: &mut State,
    spec: SandboxSpec,
    tags: Option<Tags>,
    clock: Clock,
    files: Option<Tree>,
) -> Arc<Machine> {
    let number = state.machines.len() as u64 + 1;
    let id = SandboxId::new(format!("fake-{number}"));
    state.counts.created += 1;
    if let Some(tags) = &tags {
        *state.counts.created_by_key.entry((tags.owner.clone(), tags.key.clone())).or_default() += 1;
    }
    let machine = Arc::new(Machine::new(id, number, tags, spec, clock, files));
    state.machines.push(Arc::clone(&machine));
    machine
}

/// Streams the pages of a listing; each is fetched when the one before is used up.
pub(super) fn pages(cloud: Arc<Cloud>, filter: ListFilter, twist: Twist) -> ResultStream<SandboxInfo> {
    struct Reader {
        items: std::vec::IntoIter<SandboxInfo>,
        number: usize,
        next: Option<u64>,
    }
    let start = Reader { items: Vec::new().into_iter(), number: 0, next: Some(0) };
    ResultStream::unfold(start, move |mut reader| {
        let item = loop {
            if let Some(info) = reader.items.next() {
                break Some(Ok(info));
            }
            let Some(after) = reader.next else { break None };
            reader.number += 1;
            match cloud.read(&filter, reader.number, after, &twist) {
                Ok(page) => {
                    reader.items = page.items.into_iter();
                    reader.next = page.next;
                }
                Err(error) => break Some(Err(error.at(FAKE, "list"))),
            }
        };
        std::future::ready(item.map(|item| (item, reader)))
    })
}
