//! An in-memory provider with real semantics, a script of faults, and counters of what happened at its side.

mod cloud;
mod commands;
mod files;
mod handle;
mod machine;
mod processes;
mod script;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep, timeout};

pub use cloud::{Counts, FakeOptions};
pub use commands::Reply;
pub use script::{Fault, Gate, Verb};

use crate::{
    Capabilities, ConnectOptions, Connection, CreateOptions, DestroyOutcome, Error, ErrorKind, FindQuery,
    ForkOptions, ListFilter, LogLine, LogOptions, Memory, Metrics, Network, Outcome, PauseOptions,
    PauseOutcome, ProcessSpec, Result, ResultStream, SandboxHandle, SandboxId, SandboxInfo, SandboxProvider,
    SandboxSpec, SandboxState, SnapshotFilter, SnapshotId, SnapshotInfo, SnapshotOptions,
};
use cloud::{Cloud, Twist};
use handle::FakeHandle;

/// An in-memory provider: sandboxes with tags, states, leases on tokio's clock, files and a few scripted commands.
///
/// Clones share one cloud. A test that drops every handle and goes on with a clone sees what another process would see.
#[derive(Clone, Debug)]
pub struct FakeProvider {
    cloud: Arc<Cloud>,
    fingerprint: Arc<str>,
}

impl Default for FakeProvider {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeProvider {
    /// An empty cloud with every default.
    #[must_use]
    pub fn new() -> Self {
        Self::with_options(FakeOptions::default())
    }

    /// An empty cloud of this shape.
    #[must_use]
    pub fn with_options(options: FakeOptions) -> Self {
        Self { cloud: Arc::new(Cloud::new(options)), fingerprint: FAKE.into() }
    }

    /// Says another fingerprint, as a provider with other credentials does. The cloud stays the same one.
    #[must_use]
    pub fn with_fingerprint(mut self, fingerprint: &str) -> Self {
        self.fingerprint = fingerprint.into();
        self
    }

    /// Scripts the next call of this verb that has no fault yet. The queue is used up one call at a time.
    pub fn script(&self, verb: Verb, fault: Fault) {
        self.cloud.script(|script| script.push(verb, Some(fault)));
    }

    /// Scripts the next calls of this verb to go as usual, before faults that are added later.
    pub fn script_honest(&self, verb: Verb, calls: usize) {
        self.cloud.script(|script| (0..calls).for_each(|_| script.push(verb, None)));
    }

    /// Scripts every call of this verb for which the queue has nothing.
    pub fn script_always(&self, verb: Verb, fault: Fault) {
        self.cloud.script(|script| script.always(verb, fault));
    }

    /// Forgets the faults of this verb.
    pub fn script_clear(&self, verb: Verb) {
        self.cloud.script(|script| script.clear(verb));
    }

    /// Asks `hook` about every program before the scripted ones: `Some` is what it does.
    pub fn on_command(&self, hook: impl Fn(&ProcessSpec) -> Option<Reply> + Send + Sync + 'static) {
        self.cloud.set_hook(Arc::new(hook));
    }

    /// Returns what happened at the provider's side so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.cloud.counts()
    }

    /// Returns every sandbox that exists, in the order of creation, also those that listings do not show yet.
    #[must_use]
    pub fn alive(&self) -> Vec<SandboxInfo> {
        self.cloud.machines().iter().filter_map(|machine| machine.info()).collect()
    }

    /// Makes a sandbox without tags, as another program would.
    pub fn make_untagged(&self, spec: SandboxSpec) -> SandboxId {
        self.cloud.make(spec, None).id.clone()
    }

    /// Lets a sandbox vanish without a call, as when the provider reclaims it; `false` when it was gone before.
    pub fn vanish(&self, id: &SandboxId) -> bool {
        self.cloud.get(id).is_ok_and(|machine| self.cloud.end(&machine))
    }

    /// Takes the processes of a sandbox and keeps its files, as a reboot does.
    ///
    /// # Errors
    /// [`ErrorKind::Gone`].
    pub fn reboot(&self, id: &SandboxId) -> Result<()> {
        let machine = self.cloud.get(id)?;
        machine::lock(&machine.processes).kill_all();
        machine.life.send_modify(|life| {
            life.state = Some(SandboxState::Stopped);
            life.expires = None;
        });
        Ok(())
    }

    fn needs_snapshots(&self, operation: &'static str) -> Result<()> {
        let can = self.cloud.options.capabilities.snapshot;
        if can { Ok(()) } else { Err(Error::unsupported(FAKE, operation)) }
    }

    async fn call<T: Send + 'static>(
        &self,
        verb: Verb,
        effect: impl FnOnce(&Arc<Cloud>, Twist) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        call(&self.cloud, verb, effect).await
    }
}

/// Runs one call of a verb through the script; `effect` is what it does at the provider's side.
async fn call<T: Send + 'static>(
    cloud: &Arc<Cloud>,
    verb: Verb,
    effect: impl FnOnce(&Arc<Cloud>, Twist) -> Result<T> + Send + 'static,
) -> Result<T> {
    cloud.count(|counts| *counts.calls.entry(verb).or_default() += 1);
    let result = match cloud.next_fault(verb) {
        None => effect(cloud, Twist::None),
        Some(Fault::Before(error)) => Err(error),
        Some(Fault::LoseAnswer(error)) => effect(cloud, Twist::None).and(Err(error)),
        Some(Fault::Delay(delay)) => {
            sleep(delay).await;
            effect(cloud, Twist::None)
        }
        Some(Fault::CommitLate(delay)) => {
            let cloud = Arc::clone(cloud);
            let late = tokio::spawn(async move {
                sleep(delay).await;
                effect(&cloud, Twist::None)
            });
            late.await.map_err(|error| {
                Error::new(ErrorKind::Unexpected, "the late commit broke").with_source(error)
            })?
        }
        Some(Fault::HangBefore) => std::future::pending().await,
        Some(Fault::HangAfter) => {
            let _ = effect(cloud, Twist::None);
            std::future::pending().await
        }
        Some(Fault::HoldBefore(gate)) => {
            gate.pass().await;
            effect(cloud, Twist::None)
        }
        Some(Fault::HoldAfter(gate)) => {
            let answer = effect(cloud, Twist::None);
            gate.pass().await;
            answer
        }
        Some(Fault::WrongGeneration) => effect(cloud, Twist::WrongGeneration),
        Some(Fault::RepeatedCursor) => effect(cloud, Twist::RepeatedCursor),
        Some(Fault::ErrorOnPage(page, error)) => effect(cloud, Twist::ErrorOnPage(page, error)),
    };
    result.map_err(|error| placed(error, verb))
}

/// Says where an error happened, unless it says so itself.
fn placed(error: Error, verb: Verb) -> Error {
    if error.operation().is_empty() { error.at(FAKE, operation(verb)) } else { error }
}

/// The name of the fake.
const FAKE: &str = "fake";

fn operation(verb: Verb) -> &'static str {
    match verb {
        Verb::Find => "find",
        Verb::Connect => "connect",
        Verb::Create => "create",
        Verb::List => "list",
        Verb::Pause => "pause",
        Verb::Destroy => "destroy",
        Verb::SetLease => "set_lease",
        Verb::Snapshot => "snapshot",
        Verb::ListSnapshots => "list_snapshots",
        Verb::DeleteSnapshot => "delete_snapshot",
        Verb::Fork => "fork",
        Verb::Logs => "logs",
        Verb::Metrics => "metrics",
        Verb::UpdateNetwork => "update_network",
        Verb::Inside => "inside",
    }
}

fn late(operation: &'static str, deadline: Duration) -> Error {
    Error::new(ErrorKind::Timeout, format!("no answer within {deadline:?}"))
        .at(FAKE, operation)
        .with_outcome(Outcome::Unknown)
}

#[async_trait]
impl SandboxProvider for FakeProvider {
    fn name(&self) -> &'static str {
        FAKE
    }

    fn fingerprint(&self) -> String {
        self.fingerprint.to_string()
    }

    fn check_spec(&self, spec: &SandboxSpec) -> Result<()> {
        Cloud::check(spec)
    }

    fn capabilities(&self) -> Capabilities {
        self.cloud.options.capabilities.clone()
    }

    async fn find(&self, query: FindQuery) -> Result<Vec<SandboxInfo>> {
        self.call(Verb::Find, move |cloud, twist| {
            let mut found = match query {
                FindQuery::Id(id) => {
                    let known = cloud.get(&id).ok();
                    let shown = known.filter(|new| !cloud.options.hides_new_ids || cloud.is_listed(new));
                    shown.and_then(|machine| machine.info()).into_iter().collect()
                }
                FindQuery::Key { owner, key, attempt } => {
                    let filter = ListFilter::default().with_owner(owner).with_key(key);
                    let mut found = cloud.read_all(&filter, &twist)?;
                    found.retain(|info| {
                        let tags = info.tags.as_ref();
                        attempt
                            .as_ref()
                            .is_none_or(|attempt| tags.is_some_and(|tags| tags.attempt == *attempt))
                    });
                    found
                }
            };
            if matches!(twist, Twist::WrongGeneration) {
                for tags in found.iter_mut().filter_map(|info| info.tags.as_mut()) {
                    tags.generation = cloud::other_generation();
                }
            }
            Ok(found)
        })
        .await
    }

    async fn connect_opts(&self, id: &SandboxId, options: ConnectOptions) -> Result<Connection> {
        if options.memory == Memory::Lost && !self.cloud.options.capabilities.pause_without_memory {
            return Err(Error::unsupported(FAKE, "connect without memory"));
        }
        let (id, deadline) = (id.clone(), options.deadline);
        let call = self.call(Verb::Connect, move |cloud, twist| {
            let machine = cloud.get(&id)?;
            let mut generation = machine.tags.as_ref().map(|tags| tags.generation.clone());
            if matches!(twist, Twist::WrongGeneration) {
                generation = Some(cloud::other_generation());
            }
            if options.generation.is_some() && options.generation != generation {
                return Err(Error::new(
                    ErrorKind::Stale,
                    "the sandbox under this id is of another generation",
                )
                .with_context("sandbox", &id));
            }
            let resumed = cloud.wake(&machine, options.lease, options.memory)?;
            let handle = FakeHandle::new(Arc::clone(cloud), machine, generation);
            Ok(Connection::new(Arc::new(handle), resumed))
        });
        timeout(deadline, call).await.unwrap_or_else(|_| Err(late("connect", deadline)))
    }

    async fn create_opts(&self, options: CreateOptions) -> Result<Arc<dyn SandboxHandle>> {
        let deadline = options.deadline;
        let call = self.call(Verb::Create, move |cloud, _| {
            let machine = cloud.create(options.spec, options.tags)?;
            let generation = machine.tags.as_ref().map(|tags| tags.generation.clone());
            Ok(Arc::new(FakeHandle::new(Arc::clone(cloud), machine, generation)) as Arc<dyn SandboxHandle>)
        });
        timeout(deadline, call).await.unwrap_or_else(|_| Err(late("create", deadline)))
    }

    async fn list(&self, filter: ListFilter) -> Result<ResultStream<SandboxInfo>> {
        self.call(Verb::List, move |cloud, twist| Ok(cloud::pages(Arc::clone(cloud), filter, twist))).await
    }

    async fn pause_opts(&self, id: &SandboxId, options: PauseOptions) -> Result<PauseOutcome> {
        let capabilities = &self.cloud.options.capabilities;
        if !capabilities.pause || options.memory == Memory::Lost && !capabilities.pause_without_memory {
            return Err(Error::unsupported(FAKE, "pause"));
        }
        let id = id.clone();
        self.call(Verb::Pause, move |cloud, _| cloud.pause(&*cloud.get(&id)?, options.memory)).await
    }

    async fn destroy(&self, id: &SandboxId) -> Result<DestroyOutcome> {
        let id = id.clone();
        self.call(Verb::Destroy, move |cloud, _| {
            let ended = cloud.get(&id).is_ok_and(|machine| cloud.end(&machine));
            if ended {
                cloud.count(|counts| counts.destroyed += 1);
            }
            Ok(if ended { DestroyOutcome::Destroyed } else { DestroyOutcome::AlreadyGone })
        })
        .await
    }

    async fn set_lease(&self, id: &SandboxId, lease: Duration) -> Result<()> {
        let capabilities = &self.cloud.options.capabilities;
        if !capabilities.lease {
            return Err(Error::unsupported(FAKE, "set_lease"));
        }
        if let Some(max) = capabilities.max_lease.filter(|max| lease > *max) {
            return Err(Error::invalid_argument(format!(
                "a lease of {lease:?} is above the maximum of {max:?}"
            ))
            .at(FAKE, "set_lease"));
        }
        let id = id.clone();
        self.call(Verb::SetLease, move |cloud, _| {
            cloud.get(&id)?.set_lease(lease);
            Ok(())
        })
        .await
    }

    async fn snapshot(&self, id: &SandboxId, options: SnapshotOptions) -> Result<SnapshotInfo> {
        self.needs_snapshots("snapshot")?;
        let id = id.clone();
        self.call(Verb::Snapshot, move |cloud, _| cloud.snapshot(&*cloud.get(&id)?, options)).await
    }

    async fn list_snapshots(&self, filter: SnapshotFilter) -> Result<ResultStream<SnapshotInfo>> {
        self.needs_snapshots("list_snapshots")?;
        self.call(Verb::ListSnapshots, move |cloud, _| Ok(ResultStream::from_items(cloud.snapshots(&filter))))
            .await
    }

    async fn delete_snapshot(&self, id: &SnapshotId) -> Result<DestroyOutcome> {
        self.needs_snapshots("delete_snapshot")?;
        let id = id.clone();
        self.call(Verb::DeleteSnapshot, move |cloud, _| cloud.delete_snapshot(&id)).await
    }

    async fn fork(&self, id: &SandboxId, options: ForkOptions) -> Result<Arc<dyn SandboxHandle>> {
        if !self.cloud.options.capabilities.fork {
            return Err(Error::unsupported(FAKE, "fork"));
        }
        let id = id.clone();
        self.call(Verb::Fork, move |cloud, _| {
            let machine = cloud.fork(&*cloud.get(&id)?, options)?;
            let generation = machine.tags.as_ref().map(|tags| tags.generation.clone());
            Ok(Arc::new(FakeHandle::new(Arc::clone(cloud), machine, generation)) as Arc<dyn SandboxHandle>)
        })
        .await
    }

    async fn logs(&self, id: &SandboxId, options: LogOptions) -> Result<ResultStream<LogLine>> {
        if !self.cloud.options.capabilities.logs {
            return Err(Error::unsupported(FAKE, "logs"));
        }
        let id = id.clone();
        self.call(Verb::Logs, move |cloud, _| {
            let mut lines = machine::lock(&cloud.get(&id)?.log).clone();
            lines.retain(|line| options.since.is_none_or(|since| line.at >= since));
            lines.truncate(options.limit.unwrap_or(usize::MAX));
            Ok(ResultStream::from_items(lines))
        })
        .await
    }

    async fn metrics(&self, id: &SandboxId) -> Result<Metrics> {
        if !self.cloud.options.capabilities.metrics {
            return Err(Error::unsupported(FAKE, "metrics"));
        }
        let id = id.clone();
        self.call(Verb::Metrics, move |cloud, _| {
            let machine = cloud.get(&id)?;
            let disk_used = machine::lock(&machine.files).total_size();
            Ok(Metrics {
                at: Some(machine.clock.time(Instant::now())),
                cpu_count: 1.0,
                disk_used,
                ..Metrics::default()
            })
        })
        .await
    }

    async fn update_network(&self, id: &SandboxId, network: Network) -> Result<()> {
        let _ = (id, network);
        Err(Error::unsupported(FAKE, "update_network"))
    }
}
