//! An acquired sandbox, for threads and for event loops.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sandhold_core as core;
use sandhold_core::{
    AcquireOutcome, AttachOptions, ByteStream, FileOptions, ListOptions, ReadOptions, ReplayFrom,
    SandboxHandle as _, SandboxHandleExt as _, WatchOptions, WriteOptions,
};

use crate::convert::{self, seconds};
use crate::hooks::Followed;
use crate::process::{self, AsyncProcess, Process};
use crate::stream::{AsyncDownload, AsyncWatch, Download, Watch};
use crate::twins::{Nothing, twins};
use crate::{options, source, values};

/// A sandbox with what is known of its acquire, before it has a face.
pub(crate) struct Taken {
    pub(crate) sandbox: core::Sandbox,
    pub(crate) came: Option<(AcquireOutcome, core::Facts)>,
    /// What is to know of the event loop that it is used from.
    pub(crate) followed: Vec<Arc<Followed>>,
}

macro_rules! faces {
    ($($(#[$doc:meta])* $name:ident { $($enter:tt)+ })+) => {$(
        $(#[$doc])*
        #[pyclass(frozen, module = "sandhold")]
        pub(crate) struct $name(Taken);

        impl From<Taken> for $name {
            fn from(taken: Taken) -> Self {
                Self(taken)
            }
        }

        impl $name {
            /// The face that a hook gets, whose event loop is known already.
            pub(crate) fn bare(sandbox: core::Sandbox) -> Self {
                Self(Taken { sandbox, came: None, followed: Vec::new() })
            }

            $($enter)+
        }

        #[pymethods]
        impl $name {
            /// The key.
            #[getter]
            fn key(&self) -> &str {
                self.0.sandbox.key().as_str()
            }

            /// The namespace of the key.
            #[getter]
            fn owner(&self) -> &str {
                self.0.sandbox.owner().as_str()
            }

            /// The provider's id; None before a lazy value has acquired.
            #[getter]
            fn provider_id(&self) -> Option<&str> {
                self.0.sandbox.provider_id().map(AsRef::as_ref)
            }

            /// The provider's name.
            #[getter]
            fn provider(&self) -> &'static str {
                self.0.sandbox.provider()
            }

            /// The identity of this very sandbox.
            #[getter]
            fn generation(&self) -> Option<&str> {
                self.0.sandbox.generation().map(AsRef::as_ref)
            }

            /// Whether the acquire made it: `created` or `connected`; None for a value that no acquire returned.
            #[getter]
            fn outcome(&self) -> Option<&'static str> {
                self.0.came.as_ref().map(|(outcome, _)| outcome.as_str())
            }

            /// More about how it came; None for a value that no acquire returned.
            #[getter]
            fn facts(&self) -> Option<values::Facts> {
                self.0.came.as_ref().map(|(_, facts)| facts.into())
            }

            /// What a model should know of this sandbox to work in it, as text.
            #[getter]
            fn instructions(&self) -> String {
                self.0.sandbox.instructions()
            }

            /// Lets go of it: this value admits no call any more, and the sandbox stays as it is.
            fn detach(&self) {
                self.0.sandbox.detach();
            }

            /// Returns a value for another sandbox of the same spec, acquired by its first use.
            #[pyo3(signature = (**options))]
            fn clone_with(&self, py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
                let options = options::clone(py, "clone_with", options)?;
                let cloned = self.0.sandbox.clone_with(options);
                let sandbox = cloned.map_err(|error| crate::errors::raised(py, &error))?;
                Ok(Self(Taken { sandbox, came: None, followed: self.0.followed.clone() }))
            }

            fn __repr__(&self) -> String {
                format!("{}(key={:?}, provider_id={:?})", stringify!($name), self.key(), self.provider_id())
            }
        }
    )+};
}

faces! {
    /// A sandbox of a key. Leaving its `with` block lets go of it and leaves the sandbox alone.
    Sandbox {
        fn enter(&self, _py: Python<'_>) -> PyResult<()> {
            Ok(())
        }
    }

    /// A sandbox of a key, for event loops. Leaving its `async with` block lets go of it and leaves the sandbox alone.
    AsyncSandbox {
        fn enter(&self, py: Python<'_>) -> PyResult<()> {
            self.0.followed.iter().try_for_each(|followed| followed.follow(py))
        }
    }
}

#[pymethods]
impl Sandbox {
    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, _raised: &Bound<'_, pyo3::types::PyTuple>) {
        self.detach();
    }
}

#[pymethods]
impl AsyncSandbox {
    fn __aenter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let this = slf.clone().unbind();
        crate::runtime::spawn(slf.py(), async move { Ok(this) })
    }

    #[pyo3(signature = (*_raised))]
    fn __aexit__<'py>(
        &self,
        py: Python<'py>,
        _raised: &Bound<'py, pyo3::types::PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.detach();
        crate::runtime::spawn(py, async { Ok(Nothing) })
    }
}

twins! {
    impl Sandbox, AsyncSandbox;

    /// Runs a command to completion and captures its output. A list is a program and its arguments, a text a line of shell.
    #[pyo3(signature = (command, **options))]
    fn exec(py, this, command: &Bound<'_, PyAny>, **options)
        -> values::ExecOutput, values::ExecOutput
    {
        let (spec, how) = process::exec(py, command, options)?;
        let sandbox = this.0.sandbox.clone();
        async move { how.run(&sandbox, spec).await.map(values::ExecOutput::from) }
    }

    /// Runs a line of shell text to completion and captures its output.
    #[pyo3(signature = (line, **options))]
    fn shell(py, this, line: String, **options) -> values::ExecOutput, values::ExecOutput {
        let line = line.into_pyobject(py)?.into_any();
        let (spec, how) = process::exec(py, &line, options)?;
        let sandbox = this.0.sandbox.clone();
        async move { how.run(&sandbox, spec).await.map(values::ExecOutput::from) }
    }

    /// Starts a process and returns as soon as it runs.
    #[pyo3(signature = (command, **options))]
    fn start(py, this, command: &Bound<'_, PyAny>, **options) -> Process, AsyncProcess {
        let mut spec = convert::command("start", command)?;
        process::start(py, &mut spec, options)?;
        let sandbox = this.0.sandbox.clone();
        async move { sandbox.start(spec).await }
    }

    /// Attaches to a process that was started earlier, by this program or another: by its pid or its tag.
    #[pyo3(signature = (process, *, replay = false, stdout = 0, stderr = 0, pty = 0))]
    fn attach(py, this, process: &Bound<'_, PyAny>, replay: bool, stdout: u64, stderr: u64, pty: u64)
        -> Process, AsyncProcess
    {
        let _ = py;
        let process = process::selector("attach", process)?;
        let mut options = AttachOptions::default();
        if replay || stdout > 0 || stderr > 0 || pty > 0 {
            let mut from = ReplayFrom::start();
            (from.stdout, from.stderr, from.pty) = (stdout, stderr, pty);
            options = options.with_replay(from);
        }
        let sandbox = this.0.sandbox.clone();
        async move { sandbox.attach(process, options).await }
    }

    /// Lists the processes that were started through the provider, and kept records of ended ones.
    fn processes(py, this) -> Vec<values::ProcessInfo>, Vec<values::ProcessInfo> {
        let _ = py;
        let sandbox = this.0.sandbox.clone();
        async move { Ok(sandbox.processes().await?.into_iter().map(Into::into).collect::<Vec<_>>()) }
    }

    /// Sends a signal to a process and its whole tree; False when it had ended.
    #[pyo3(signature = (process, signal = 15))]
    fn signal(py, this, process: &Bound<'_, PyAny>, signal: i32) -> bool, bool {
        let _ = py;
        let process = process::selector("signal", process)?;
        let sandbox = this.0.sandbox.clone();
        async move { sandbox.signal(process, core::Signal(signal)).await }
    }

    /// Forgets the kept output and exit of an ended process; False when nothing was kept.
    fn release(py, this, process: &Bound<'_, PyAny>) -> bool, bool {
        let _ = py;
        let process = process::selector("release", process)?;
        let sandbox = this.0.sandbox.clone();
        async move { sandbox.release(process).await }
    }

    /// Reads a file as a stream of bytes.
    #[pyo3(signature = (path, *, user = None, offset = 0, length = None))]
    fn read(py, this, path: String, user: Option<String>, offset: u64, length: Option<u64>)
        -> Download, AsyncDownload
    {
        let _ = py;
        let mut options = ReadOptions::default().with_offset(offset);
        (options.user, options.length) = (user, length);
        let sandbox = this.0.sandbox.clone();
        async move { sandbox.read(&path, options).await }
    }

    /// Reads a whole file of at most 64 MiB.
    fn read_bytes(py, this, path: String) -> Bytes, Bytes {
        let _ = py;
        let sandbox = this.0.sandbox.clone();
        async move { sandbox.read_bytes(&path).await }
    }

    /// Reads a whole text file of at most 64 MiB.
    fn read_text(py, this, path: String) -> String, String {
        let _ = py;
        let sandbox = this.0.sandbox.clone();
        async move { sandbox.read_text(&path).await }
    }

    /// Writes a file; parents are created. The body is bytes, text, an open binary file, or an iterable of bytes.
    #[pyo3(signature = (path, body, *, user = None, metadata = None, size = None))]
    fn write(
        py, this, path: String, body: &Bound<'_, PyAny>, user: Option<String>,
        metadata: Option<BTreeMap<String, String>>, size: Option<u64>,
    ) -> values::EntryInfo, values::EntryInfo {
        let (body, known) = source::body(py, body, IS_ASYNC)?;
        let mut options = WriteOptions::default();
        options.user = user;
        options.metadata = metadata.unwrap_or_default();
        options.size = size.or(known);
        let sandbox = this.0.sandbox.clone();
        async move { sandbox.write(&path, body, options).await.map(values::EntryInfo::from) }
    }

    /// Writes a whole file.
    fn write_bytes(py, this, path: String, content: Bytes) -> values::EntryInfo, values::EntryInfo {
        let _ = py;
        let sandbox = this.0.sandbox.clone();
        let options = WriteOptions::default().with_size(content.len() as u64);
        async move {
            let written = sandbox.write(&path, ByteStream::from_bytes(content), options).await;
            written.map(values::EntryInfo::from)
        }
    }

    /// Returns facts about a file or directory.
    #[pyo3(signature = (path, *, user = None))]
    fn stat(py, this, path: String, user: Option<String>) -> values::EntryInfo, values::EntryInfo {
        let _ = py;
        let sandbox = this.0.sandbox.clone();
        async move { sandbox.stat(&path, by(user)).await.map(values::EntryInfo::from) }
    }

    /// Tells whether a path exists.
    fn exists(py, this, path: String) -> bool, bool {
        let _ = py;
        let sandbox = this.0.sandbox.clone();
        async move { sandbox.exists(&path).await }
    }

    /// Lists a directory, depth first, sorted by name.
    #[pyo3(signature = (path, *, user = None, depth = 1))]
    fn list(py, this, path: String, user: Option<String>, depth: u32)
        -> Vec<values::EntryInfo>, Vec<values::EntryInfo>
    {
        let _ = py;
        let mut options = ListOptions::default().with_depth(depth);
        options.user = user;
        let sandbox = this.0.sandbox.clone();
        async move { Ok(sandbox.list(&path, options).await?.into_iter().map(Into::into).collect::<Vec<_>>()) }
    }

    /// Makes a directory and its parents.
    #[pyo3(signature = (path, *, user = None))]
    fn make_dir(py, this, path: String, user: Option<String>) -> values::EntryInfo, values::EntryInfo {
        let _ = py;
        let sandbox = this.0.sandbox.clone();
        async move { sandbox.make_dir(&path, by(user)).await.map(values::EntryInfo::from) }
    }

    /// Renames a file or directory; parents of the destination are created.
    #[pyo3(signature = (source, destination, *, user = None))]
    fn rename(py, this, source: String, destination: String, user: Option<String>)
        -> values::EntryInfo, values::EntryInfo
    {
        let _ = py;
        let sandbox = this.0.sandbox.clone();
        async move { sandbox.rename(&source, &destination, by(user)).await.map(values::EntryInfo::from) }
    }

    /// Removes a file, or a directory with all that is in it; a missing one is no error.
    #[pyo3(signature = (path, *, user = None))]
    fn remove(py, this, path: String, user: Option<String>) -> (), Nothing {
        let _ = py;
        let sandbox = this.0.sandbox.clone();
        async move { sandbox.remove(&path, by(user)).await }
    }

    /// Watches a directory; it is in force when the call returns.
    #[pyo3(signature = (path, *, user = None, recursive = false, include_entry = false))]
    fn watch(py, this, path: String, user: Option<String>, recursive: bool, include_entry: bool) -> Watch, AsyncWatch {
        let _ = py;
        let mut options = WatchOptions::default();
        (options.user, options.recursive, options.include_entry) = (user, recursive, include_entry);
        let sandbox = this.0.sandbox.clone();
        async move { sandbox.watch(&path, options).await }
    }

    /// Asks for the present facts, without waking the sandbox.
    fn info(py, this) -> values::SandboxInfo, values::SandboxInfo {
        let _ = py;
        let sandbox = this.0.sandbox.clone();
        async move { sandbox.info().await.map(values::SandboxInfo::from) }
    }

    /// Pauses it. Work that comes later resumes it.
    fn pause(py, this) -> &'static str, &'static str {
        let _ = py;
        let sandbox = this.0.sandbox.clone();
        async move { sandbox.pause().await.map(values::paused) }
    }

    /// Has the persist hook save its work now.
    fn save(py, this) -> (), Nothing {
        let _ = py;
        let sandbox = this.0.sandbox.clone();
        async move { sandbox.save().await }
    }

    /// Resumes it; no effect on a running one.
    fn resume(py, this) -> (), Nothing {
        let _ = py;
        let sandbox = this.0.sandbox.clone();
        async move { sandbox.resume().await }
    }

    /// Lets it rest: the stop hook runs, then it is paused where the provider can.
    fn stop(py, this) -> &'static str, &'static str {
        let _ = py;
        let sandbox = this.0.sandbox.clone();
        async move { sandbox.stop().await.map(values::stopped) }
    }

    /// Destroys it with all that belongs to it.
    fn destroy(py, this) -> &'static str, &'static str {
        let _ = py;
        let sandbox = this.0.sandbox.clone();
        async move { sandbox.destroy().await.map(values::destroyed) }
    }

    /// Sets the lease to end so many seconds from now.
    #[pyo3(signature = (lease))]
    fn set_lease(py, this, lease: f64) -> (), Nothing {
        let lease = seconds(py, "lease", lease)?;
        let sandbox = this.0.sandbox.clone();
        async move { sandbox.set_lease(lease).await }
    }
}

fn by(user: Option<String>) -> FileOptions {
    let mut options = FileOptions::default();
    options.user = user;
    options
}

/// Reads a sandbox of either face.
pub(crate) fn read(call: &'static str, given: &Bound<'_, PyAny>) -> PyResult<core::Sandbox> {
    if let Ok(sandbox) = given.cast::<AsyncSandbox>() {
        return Ok(sandbox.get().0.sandbox.clone());
    }
    let sandbox = convert::extract::<Py<Sandbox>>(call, "sandbox", given)?;
    Ok(sandbox.get().0.sandbox.clone())
}
