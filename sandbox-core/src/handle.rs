use std::fmt;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::files::{
    Download, EntryInfo, FileOptions, ListOptions, ReadOptions, WatchEvent, WatchOptions, WriteOptions,
};
use crate::process::{AttachOptions, Process, ProcessInfo, ProcessSelector, ProcessSpec, Signal};
use crate::stream::{ByteStream, ResultStream};
use crate::{Generation, Result, SandboxId, SandboxInfo};

/// A two-way byte stream to a port inside a sandbox.
pub trait PortStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> PortStream for T {}

impl fmt::Debug for dyn PortStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PortStream")
    }
}

/// The port that reaches the in-sandbox daemon by [`SandboxHandle::dial`]: the one that E2B's envd listens on.
pub const DAEMON_PORT: u16 = 49983;

/// A connected sandbox: what happens inside it. What providers return; users hold a [`crate::Sandbox`].
///
/// Each method is the widest form; shorthands are in [`crate::SandboxHandleExt`]. Dropping a handle leaves the sandbox
/// alone.
///
/// # Errors
/// Every method: [`crate::ErrorKind::Gone`] when the provider says that the sandbox does not exist any more,
/// [`crate::ErrorKind::InvalidState`] with reason [`crate::REASON_PAUSED`] while it is paused or stopped (nothing was sent
/// then), [`crate::ErrorKind::Unavailable`] when it cannot be reached (nothing is said about its existence then), and
/// [`crate::ErrorKind::OutcomeUnknown`] when a call that changes something was sent and its answer was lost.
#[async_trait]
pub trait SandboxHandle: fmt::Debug + Send + Sync + 'static {
    /// Returns the provider's id.
    fn id(&self) -> &SandboxId;

    /// Returns the provider's name.
    fn provider(&self) -> &'static str;

    /// Returns the generation this handle is bound to, or `None` for a sandbox made elsewhere.
    fn generation(&self) -> Option<&Generation>;

    /// Asks for the present facts, without waking the sandbox.
    async fn info(&self) -> Result<SandboxInfo>;

    /// Starts a process and returns as soon as it runs.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidArgument`] for a missing program or directory, a NUL byte, or a bad variable name;
    /// [`crate::ErrorKind::Unauthenticated`] for an unknown user.
    ///
    /// # Cancellation
    /// A process whose start was not waited for is killed, from a task of its own, as nobody knows of it.
    async fn start(&self, spec: ProcessSpec) -> Result<Process>;

    /// Attaches to a process that was started earlier, by this program or another.
    ///
    /// # Errors
    /// [`crate::ErrorKind::NotFound`] when there is no such process and no kept record of it;
    /// [`crate::ErrorKind::Unsupported`] for a replay where [`crate::Capabilities::retained_output`] is off.
    async fn attach(&self, process: ProcessSelector, options: AttachOptions) -> Result<Process>;

    /// Lists the processes that were started through the provider, and kept records of ended ones.
    async fn processes(&self) -> Result<Vec<ProcessInfo>>;

    /// Sends a signal to a process and its whole tree; `false` when it had ended.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Unsupported`] for a signal that the provider cannot send.
    async fn signal(&self, process: ProcessSelector, signal: Signal) -> Result<bool>;

    /// Forgets the kept output and exit of an ended process; `false` when nothing was kept.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidState`] while it runs.
    async fn release(&self, process: ProcessSelector) -> Result<bool>;

    /// Reads a file as a stream.
    ///
    /// # Errors
    /// [`crate::ErrorKind::NotFound`] for a missing file, [`crate::ErrorKind::InvalidArgument`] for a directory.
    async fn read(&self, path: &str, options: ReadOptions) -> Result<Download>;

    /// Writes a file from a stream; parents are created.
    ///
    /// # Errors
    /// [`crate::ErrorKind::StorageFull`], [`crate::ErrorKind::InvalidArgument`] for a directory; the error of the body
    /// itself when it breaks.
    async fn write(&self, path: &str, body: ByteStream, options: WriteOptions) -> Result<EntryInfo>;

    /// Returns facts about a file or directory.
    ///
    /// # Errors
    /// [`crate::ErrorKind::NotFound`].
    async fn stat(&self, path: &str, options: FileOptions) -> Result<EntryInfo>;

    /// Lists a directory, depth first, sorted by name, without the directory itself.
    ///
    /// # Errors
    /// [`crate::ErrorKind::NotFound`]; [`crate::ErrorKind::InvalidArgument`] for a file.
    async fn list(&self, path: &str, options: ListOptions) -> Result<Vec<EntryInfo>>;

    /// Makes a directory and its parents.
    ///
    /// # Errors
    /// [`crate::ErrorKind::AlreadyExists`] when the directory is there; [`crate::ErrorKind::InvalidArgument`] when a
    /// file is.
    async fn make_dir(&self, path: &str, options: FileOptions) -> Result<EntryInfo>;

    /// Renames a file or directory; parents of the destination are created.
    ///
    /// # Errors
    /// [`crate::ErrorKind::NotFound`] for a missing source.
    async fn rename(&self, from: &str, to: &str, options: FileOptions) -> Result<EntryInfo>;

    /// Removes a file, or a directory with all that is in it; a missing one is no error.
    async fn remove(&self, path: &str, options: FileOptions) -> Result<()>;

    /// Watches a directory. It is in force when the call returns; dropping the stream ends it.
    ///
    /// # Errors
    /// [`crate::ErrorKind::NotFound`]; [`crate::ErrorKind::InvalidArgument`] for a file.
    async fn watch(&self, path: &str, options: WatchOptions) -> Result<ResultStream<WatchEvent>>;

    /// Connects to a TCP port inside the sandbox, from inside.
    ///
    /// [`DAEMON_PORT`] is the in-sandbox daemon itself, where the inside has one: the stream takes its plain HTTP. A
    /// program of the sandbox that listens on that number is not reached by it, and so cannot pose as the daemon.
    ///
    /// # Errors
    /// [`crate::ErrorKind::NotFound`] with reason `port_closed` when nothing listens there;
    /// [`crate::ErrorKind::Unsupported`] where [`crate::Capabilities::dial`] is off.
    async fn dial(&self, port: u16) -> Result<Box<dyn PortStream>>;
}
