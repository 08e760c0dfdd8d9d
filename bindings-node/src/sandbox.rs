//! An acquired sandbox.

use napi::Env;
use napi::bindgen_prelude::{Either, Object, PromiseRaw, Unknown};
use napi_derive::napi;
use sandhold_core as core;
use sandhold_core::{
    AcquireOutcome, AttachOptions, ByteStream, FileOptions, ListOptions, ReadOptions, ReplayFrom,
    SandboxHandle as _, SandboxHandleExt as _, WatchOptions, WriteOptions,
};

use crate::convert::{Options, extract, millis};
use crate::errors::thrown;
use crate::js::Data;
use crate::process::{self, NativeProcess};
use crate::runtime::{NativeCall, call};
use crate::stream::{NativeDownload, NativeWatch};
use crate::upload::NativeUpload;
use crate::{options, values};

/// A sandbox with what is known of its acquire.
pub(crate) struct Taken {
    pub(crate) sandbox: core::Sandbox,
    pub(crate) came: Option<(AcquireOutcome, core::Facts)>,
}

/// A sandbox of a key.
#[napi]
pub struct NativeSandbox(Taken);

impl From<Taken> for NativeSandbox {
    fn from(taken: Taken) -> Self {
        Self(taken)
    }
}

impl NativeSandbox {
    /// The same sandbox.
    pub(crate) fn sandbox(&self) -> core::Sandbox {
        self.0.sandbox.clone()
    }
}

#[napi]
impl NativeSandbox {
    /// The key.
    #[napi(getter)]
    pub fn key(&self) -> String {
        self.0.sandbox.key().to_string()
    }

    /// The namespace of the key.
    #[napi(getter)]
    pub fn owner(&self) -> String {
        self.0.sandbox.owner().to_string()
    }

    /// The provider's id; none before a lazy value has acquired.
    #[napi(getter)]
    pub fn provider_id(&self) -> Option<String> {
        self.0.sandbox.provider_id().map(ToString::to_string)
    }

    /// The provider's name.
    #[napi(getter)]
    pub fn provider(&self) -> &'static str {
        self.0.sandbox.provider()
    }

    /// The identity of this very sandbox.
    #[napi(getter)]
    pub fn generation(&self) -> Option<String> {
        self.0.sandbox.generation().map(ToString::to_string)
    }

    /// Whether the acquire made it; none for a value that no acquire returned.
    #[napi(getter)]
    pub fn outcome(&self) -> Option<&'static str> {
        self.0.came.as_ref().map(|(outcome, _)| outcome.as_str())
    }

    /// More about how it came; none for a value that no acquire returned.
    #[napi(getter)]
    pub fn facts(&self) -> Option<values::Facts> {
        self.0.came.as_ref().map(|(_, facts)| facts.into())
    }

    /// What a model should know of this sandbox to work in it.
    #[napi(getter)]
    pub fn instructions(&self) -> String {
        self.0.sandbox.instructions()
    }

    /// Lets go of it: this value admits no call any more, and the sandbox stays as it is.
    #[napi]
    pub fn detach(&self) {
        self.0.sandbox.detach();
    }

    /// Returns a value for another sandbox of the same spec, acquired by its first use.
    #[napi]
    pub fn clone_with(&self, env: &Env, options: Option<Object<'_>>) -> napi::Result<Self> {
        let options = options::clone(env, "cloneWith", options)?;
        let sandbox = self.0.sandbox.clone_with(options).map_err(|error| thrown(env, error))?;
        Ok(Self(Taken { sandbox, came: None }))
    }

    /// Runs a command to completion and captures its output.
    #[napi]
    pub fn exec<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        command: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, values::ExecOutput>> {
        let (spec, how) = process::exec(env, command, options)?;
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { how.run(&sandbox, spec).await })
    }

    /// Starts a process and returns as soon as it runs.
    #[napi]
    pub fn start<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        command: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, NativeProcess>> {
        let spec = process::start(env, command, options)?;
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { sandbox.start(spec).await })
    }

    /// Attaches to a process that was started earlier: by its pid or its tag.
    #[napi]
    pub fn attach<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        process: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, NativeProcess>> {
        let process = process::selector(env, "attach", process)?;
        let options = attach(env, options)?;
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { sandbox.attach(process, options).await })
    }

    /// Lists the processes that were started through the provider, and kept records of ended ones.
    #[napi]
    pub fn processes<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, Vec<values::ProcessInfo>>> {
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { Ok(values::all(sandbox.processes().await?)) })
    }

    /// Sends a signal to a process and its whole tree; false when it had ended.
    #[napi]
    pub fn signal<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        process: Unknown<'_>,
        signal: f64,
    ) -> napi::Result<PromiseRaw<'env, bool>> {
        let process = process::selector(env, "signal", process)?;
        let signal = process::signal(env, signal)?;
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { sandbox.signal(process, signal).await })
    }

    /// Forgets the kept output and exit of an ended process; false when nothing was kept.
    #[napi]
    pub fn release<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        process: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, bool>> {
        let process = process::selector(env, "release", process)?;
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { sandbox.release(process).await })
    }

    /// Reads a file as a stream of bytes.
    #[napi]
    pub fn read<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        path: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, NativeDownload>> {
        let path = extract::<String>(env, "read", "path", path)?;
        let options = read(env, options)?;
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { sandbox.read(&path, options).await })
    }

    /// Reads a whole file of at most 64 MiB.
    #[napi]
    pub fn read_bytes<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        path: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, Data>> {
        let path = extract::<String>(env, "readBytes", "path", path)?;
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { sandbox.read_bytes(&path).await })
    }

    /// Reads a whole text file of at most 64 MiB.
    #[napi]
    pub fn read_text<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        path: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, String>> {
        let path = extract::<String>(env, "readText", "path", path)?;
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { sandbox.read_text(&path).await })
    }

    /// Writes a file; parents are created. The body is bytes, a text, or what an upload is fed.
    #[napi]
    pub fn write<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        path: Unknown<'_>,
        body: Either<&NativeUpload, Unknown<'_>>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, values::EntryInfo>> {
        let path = extract::<String>(env, "write", "path", path)?;
        let (body, known) = match body {
            Either::A(upload) => (upload.body(), None),
            Either::B(body) => {
                let body = process::bytes(env, "write", "body", body)?;
                let size = body.len() as u64;
                (ByteStream::from_bytes(body), Some(size))
            }
        };
        let mut options = write(env, options)?;
        options.size = options.size.or(known);
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { sandbox.write(&path, body, options).await })
    }

    /// Returns facts about a file or directory.
    #[napi]
    pub fn stat<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        path: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, values::EntryInfo>> {
        let path = extract::<String>(env, "stat", "path", path)?;
        let options = by(env, "stat", options)?;
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { sandbox.stat(&path, options).await })
    }

    /// Makes a directory and its parents.
    #[napi]
    pub fn make_dir<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        path: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, values::EntryInfo>> {
        let path = extract::<String>(env, "makeDir", "path", path)?;
        let options = by(env, "makeDir", options)?;
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { sandbox.make_dir(&path, options).await })
    }

    /// Tells whether a path exists.
    #[napi]
    pub fn exists<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        path: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, bool>> {
        let path = extract::<String>(env, "exists", "path", path)?;
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { sandbox.exists(&path).await })
    }

    /// Lists a directory, depth first, sorted by name.
    #[napi]
    pub fn list<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        path: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, Vec<values::EntryInfo>>> {
        let path = extract::<String>(env, "list", "path", path)?;
        let options = list(env, options)?;
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { Ok(values::all(sandbox.list(&path, options).await?)) })
    }

    /// Renames a file or directory; parents of the destination are created.
    #[napi]
    pub fn rename<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        source: Unknown<'_>,
        destination: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, values::EntryInfo>> {
        let source = extract::<String>(env, "rename", "source", source)?;
        let destination = extract::<String>(env, "rename", "destination", destination)?;
        let options = by(env, "rename", options)?;
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { sandbox.rename(&source, &destination, options).await })
    }

    /// Removes a file, or a directory with all that is in it; a missing one is no error.
    #[napi]
    pub fn remove<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        path: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, ()>> {
        let path = extract::<String>(env, "remove", "path", path)?;
        let options = by(env, "remove", options)?;
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { sandbox.remove(&path, options).await })
    }

    /// Watches a directory; it is in force when the promise is fulfilled.
    #[napi]
    pub fn watch<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        path: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, NativeWatch>> {
        let path = extract::<String>(env, "watch", "path", path)?;
        let options = watch(env, options)?;
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { sandbox.watch(&path, options).await })
    }

    /// Asks for the present facts, without waking the sandbox.
    #[napi]
    pub fn info<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, values::SandboxInfo>> {
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { sandbox.info().await })
    }

    /// Pauses it. Work that comes later resumes it.
    #[napi]
    pub fn pause<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, &'static str>> {
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { sandbox.pause().await.map(values::paused) })
    }

    /// Has the persist hook save its work now.
    #[napi]
    pub fn save<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, ()>> {
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { sandbox.save().await })
    }

    /// Resumes it; no effect on a running one.
    #[napi]
    pub fn resume<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, ()>> {
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { sandbox.resume().await })
    }

    /// Lets it rest: the stop hook runs, then it is paused where the provider can.
    #[napi]
    pub fn stop<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, &'static str>> {
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { sandbox.stop().await.map(values::stopped) })
    }

    /// Destroys it with all that belongs to it.
    #[napi]
    pub fn destroy<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, &'static str>> {
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { sandbox.destroy().await.map(values::destroyed) })
    }

    /// Sets the lease to end so many milliseconds from now.
    #[napi]
    pub fn set_lease<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        lease: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, ()>> {
        let lease = millis(env, "lease", extract(env, "setLease", "lease", lease)?)?;
        let sandbox = self.0.sandbox.clone();
        call(env, around, async move { sandbox.set_lease(lease).await })
    }
}

fn attach(env: &Env, given: Option<Object<'_>>) -> napi::Result<AttachOptions> {
    let mut given = Options::new(env, "attach", given);
    let replay = given.take("replay")?.unwrap_or(false);
    let mut from = ReplayFrom::start();
    from.stdout = given.count("stdout")?.unwrap_or(0);
    from.stderr = given.count("stderr")?.unwrap_or(0);
    from.pty = given.count("pty")?.unwrap_or(0);
    given.finish()?;
    let options = AttachOptions::default();
    let replay = replay || from.stdout > 0 || from.stderr > 0 || from.pty > 0;
    Ok(if replay { options.with_replay(from) } else { options })
}

fn read(env: &Env, given: Option<Object<'_>>) -> napi::Result<ReadOptions> {
    let mut given = Options::new(env, "read", given);
    let mut options = ReadOptions::default().with_offset(given.count("offset")?.unwrap_or(0));
    options.user = given.take("user")?;
    options.length = given.count("length")?;
    given.finish()?;
    Ok(options)
}

fn write(env: &Env, given: Option<Object<'_>>) -> napi::Result<WriteOptions> {
    let mut given = Options::new(env, "write", given);
    let mut options = WriteOptions::default();
    options.user = given.take("user")?;
    options.metadata = given.take("metadata")?.unwrap_or_default();
    options.size = given.count("size")?;
    given.finish()?;
    Ok(options)
}

fn by(env: &Env, call: &'static str, given: Option<Object<'_>>) -> napi::Result<FileOptions> {
    let mut given = Options::new(env, call, given);
    let mut options = FileOptions::default();
    options.user = given.take("user")?;
    given.finish()?;
    Ok(options)
}

fn list(env: &Env, given: Option<Object<'_>>) -> napi::Result<ListOptions> {
    let mut given = Options::new(env, "list", given);
    let mut options = ListOptions::default().with_depth(given.count("depth")?.unwrap_or(1));
    options.user = given.take("user")?;
    given.finish()?;
    Ok(options)
}

fn watch(env: &Env, given: Option<Object<'_>>) -> napi::Result<WatchOptions> {
    let mut given = Options::new(env, "watch", given);
    let mut options = WatchOptions::default();
    options.user = given.take("user")?;
    options.recursive = given.take("recursive")?.unwrap_or(false);
    options.include_entry = given.take("includeEntry")?.unwrap_or(false);
    given.finish()?;
    Ok(options)
}
