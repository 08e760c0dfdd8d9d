//! The sandbox in which a build does its steps: made when the first one needs it.

use std::sync::Arc;
use std::time::Duration;

use sandhold_core::{
    Attempt, CreateOptions, Error, ErrorKind, ExecOptions, ExecOutput, Generation, Key, Memory, Network,
    OnExpiry, OutputStream, Owner, ProcessSpec, Resources, Result, SandboxHandle, SandboxHandleExt,
    SandboxProvider, SandboxSpec, SnapshotOptions, Tags,
};
use sandhold_e2b::wire::LogLevel;
use tokio::sync::Mutex;
use tokio::task::{JoinError, JoinHandle};

use super::catalog::BASE;
use super::ids;
use super::log::{BuildLog, Lines};
use super::record::{Context, Layer};

/// Whose sandboxes builds are: they are no client's.
pub(crate) const OWNER: &str = "sandhold-server-builds";
/// What the names of snapshots begin with that builds made.
pub(crate) const SNAPSHOT_PREFIX: &str = "sandhold-build-";
/// How long one command may take, as in E2B.
pub(crate) const COMMAND_LIMIT: Duration = Duration::from_secs(3600);
/// How much output is kept to say why a command failed; all of it is in the log.
const KEPT_OUTPUT: usize = 16 * 1024;

type Creating = JoinHandle<Result<Arc<dyn SandboxHandle>>>;

/// The sandbox of one build.
#[derive(Debug)]
pub(crate) struct Session {
    provider: Arc<dyn SandboxProvider>,
    build: String,
    network: Network,
    lease: Duration,
    handle: Mutex<Option<Arc<dyn SandboxHandle>>>,
    /// The create that is under way: it goes on when the build is cancelled, and what it made is ended then.
    creating: Mutex<Option<Creating>>,
}

/// Where lines of output go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Voice<'a> {
    pub(crate) log: &'a BuildLog,
    /// What lines begin with, such as `builder 1/3`.
    pub(crate) prefix: &'a str,
    pub(crate) step: &'a str,
    pub(crate) level: LogLevel,
    /// Leaves out what is written to standard output.
    pub(crate) only_errors: bool,
}

impl Voice<'_> {
    /// Adds one line of output.
    pub(crate) fn output(&self, stream: OutputStream, line: &str) {
        if self.only_errors && stream != OutputStream::Stderr {
            return;
        }
        let stream = if stream == OutputStream::Stderr { "stderr" } else { "stdout" };
        self.log.say(self.level, self.step, format!("[{}] [{stream}]: {line}", self.prefix));
    }
}

impl Session {
    pub(crate) fn new(
        provider: Arc<dyn SandboxProvider>,
        build: &str,
        network: Network,
        lease: Duration,
    ) -> Self {
        Self {
            provider,
            build: build.to_owned(),
            network,
            lease,
            handle: Mutex::new(None),
            creating: Mutex::new(None),
        }
    }

    /// Returns the sandbox, made from a layer if there is none yet.
    pub(crate) async fn handle(&self, from: &Layer) -> Result<Arc<dyn SandboxHandle>> {
        let mut present = self.handle.lock().await;
        if let Some(handle) = &*present {
            return Ok(Arc::clone(handle));
        }
        let spec = SandboxSpec::new(from.snapshot.as_deref().unwrap_or(BASE))
            .with_network(self.network)
            .with_resources(Resources::default())
            // If this server dies, nobody else ends it.
            .with_lease(self.lease)
            .with_on_expiry(OnExpiry::Kill);
        let tags = Tags {
            owner: Owner::new(OWNER)?,
            key: Key::new(self.build.as_str())?,
            generation: Generation::random()?,
            attempt: Attempt::random()?,
        };
        let provider = Arc::clone(&self.provider);
        let create = async move { provider.create_opts(CreateOptions::new(spec, tags)).await };
        let mut creating = self.creating.lock().await;
        let handle = joined(creating.insert(tokio::spawn(create)).await);
        *creating = None;
        let handle = handle?;
        *present = Some(Arc::clone(&handle));
        Ok(handle)
    }

    /// Stores the files of the sandbox.
    pub(crate) async fn snapshot(&self) -> Result<Option<String>> {
        let Some(handle) = self.handle.lock().await.clone() else { return Ok(None) };
        let options = SnapshotOptions::default()
            .with_name(format!("{SNAPSHOT_PREFIX}{}", ids::template()?))
            .with_memory(Memory::Lost);
        let info = self.provider.snapshot(handle.id(), options).await?;
        Ok(Some(info.id.as_str().to_owned()))
    }

    /// Ends the sandbox; the next [`handle`](Self::handle) makes another.
    pub(crate) async fn close(&self) {
        let created = match self.creating.lock().await.take() {
            Some(creating) => joined(creating.await).ok(),
            None => None,
        };
        let Some(handle) = self.handle.lock().await.take().or(created) else { return };
        if let Err(error) = self.provider.destroy(handle.id()).await {
            tracing::warn!(%error, sandbox = handle.id().as_str(), "the sandbox of a build is left to its lease");
        }
    }
}

fn joined<T>(outcome: std::result::Result<Result<T>, JoinError>) -> Result<T> {
    outcome.map_err(|error| Error::new(ErrorKind::Unexpected, "the create broke off").with_source(error))?
}

/// A line of shell text, in a context.
pub(crate) fn shell(line: &str, context: &Context, user: &str) -> ProcessSpec {
    in_context(ProcessSpec::shell(line), context, user)
}

/// A command, in a context.
pub(crate) fn in_context(mut spec: ProcessSpec, context: &Context, user: &str) -> ProcessSpec {
    spec = spec.with_user(user);
    for (name, value) in &context.env {
        // Programs of the system are found also with a broken PATH.
        let value = match name.as_str() {
            "PATH" => format!("{value}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
            _ => value.clone(),
        };
        spec = spec.with_env(name, value);
    }
    spec
}

/// Runs a command to its end, and logs its output as it comes.
pub(crate) async fn run(
    handle: &dyn SandboxHandle,
    spec: ProcessSpec,
    voice: Voice<'_>,
) -> Result<ExecOutput> {
    let mut lines = [Lines::default(), Lines::default()];
    let options = ExecOptions::default().with_timeout(COMMAND_LIMIT).with_output_limit(KEPT_OUTPUT);
    let output = handle
        .exec_streaming(spec, options, |stream, bytes| {
            let lines = &mut lines[usize::from(stream == OutputStream::Stderr)];
            lines.push(bytes, |line| voice.output(stream, &line));
        })
        .await;
    let [stdout, stderr] = &mut lines;
    stdout.flush(|line| voice.output(OutputStream::Stdout, &line));
    stderr.flush(|line| voice.output(OutputStream::Stderr, &line));
    output
}
