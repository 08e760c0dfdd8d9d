//! One build: its base, its steps, and the try of its start command.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sandhold_core::{ProcessSpec, SandboxHandleExt};
use sandhold_e2b::wire::{Build, LogLevel, StepKind};

use crate::app::blocking;
use crate::images::{self, Found, Image, ImageError, Unpacked};
use crate::rooted;

use super::Templates;
use super::layers::Chain;
use super::log::BuildLog;
use super::record::{Built, Context, Layer, Reason, StartCommands};
use super::session::{SNAPSHOT_PREFIX, Session, Voice, run};
use super::steps::{self, Surroundings};
use super::{ids, start};

/// Changes when images are laid down in another way.
const IMAGE_LAYOUT: u32 = 1;
/// So many paths are named to one `chown`.
const CHOWN_BATCH: usize = 500;

/// What a build starts from.
#[derive(Debug)]
pub(crate) enum Base {
    /// An image by its name.
    Image(String),
    /// What another build made, and the build's id.
    Template(Box<Built>, String),
}

fn fault(step: &str, message: impl Into<String>) -> Reason {
    Reason { message: message.into(), step: Some(step.to_owned()) }
}

impl Templates {
    /// Does everything that a build asks for.
    pub(super) async fn make(
        &self,
        base: &Base,
        request: &Build,
        session: &Session,
        log: &BuildLog,
    ) -> Result<Built, Reason> {
        let force = request.force.unwrap_or_default();
        let (mut layer, inherited, mut chain) = self.base(base, force, session, log).await?;
        let mut forced = force;
        let count = request.steps.len();
        for (index, step) in request.steps.iter().enumerate() {
            let (number, prefix) = ((index + 1).to_string(), format!("builder {}/{count}", index + 1));
            let shown = format!("[{prefix}] {} {}", word(step.kind), step.args.join(" "));
            chain = chain.then(step);
            forced |= step.force.unwrap_or_default();
            if !forced && let Some(known) = self.known(&chain, &number).await? {
                log.say(LogLevel::Info, &number, format!("CACHED {shown}"));
                layer = known;
                // Its sandbox is in the state before this layer.
                session.close().await;
                continue;
            }
            log.say(LogLevel::Info, &number, shown);
            let voice =
                Voice { log, prefix: &prefix, step: &number, level: LogLevel::Info, only_errors: false };
            let at = Surroundings { session, uploads: &self.uploads, layer: &layer, voice };
            let done = steps::execute(step, &at).await.map_err(|why| fault(&number, why))?;
            if done.changed {
                let stored = session.snapshot().await;
                layer.snapshot = stored.map_err(|error| {
                    fault(&number, format!("the layer could not be stored: {}", error.message()))
                })?;
            }
            layer.context = done.context;
            self.remember(&chain, &layer, &number).await?;
        }
        let given = |command: &Option<String>| command.clone().filter(|command| !command.trim().is_empty());
        let (start, ready) = (given(&request.start_cmd), given(&request.ready_cmd));
        let commands = match (&start, &ready) {
            (None, None) => inherited,
            _ => Some(StartCommands { start, ready, context: layer.context.clone() }),
        };
        if let Some(commands) = &commands {
            self.finalize(commands, &layer, session, log).await.map_err(|why| fault("finalize", why))?;
        }
        Ok(Built { layer, start: commands })
    }

    async fn known(&self, chain: &Chain, step: &str) -> Result<Option<Layer>, Reason> {
        self.layers.get(chain).await.map_err(|error| fault(step, error.message()))
    }

    async fn remember(&self, chain: &Chain, layer: &Layer, step: &str) -> Result<(), Reason> {
        let kept = self.layers.put(chain, layer).await;
        kept.map_err(|error| fault(step, format!("the layer could not be kept: {}", error.message())))
    }

    /// Tries the start command on the files as they are stored.
    async fn finalize(
        &self,
        commands: &StartCommands,
        layer: &Layer,
        session: &Session,
        log: &BuildLog,
    ) -> Result<(), String> {
        let handle = session.handle(layer).await;
        let handle = handle.map_err(|error| format!("the sandbox could not be made: {}", error.message()))?;
        for (what, line) in [("start", &commands.start), ("ready", &commands.ready)] {
            if let Some(line) = line {
                log.say(LogLevel::Info, "finalize", format!("[finalize] trying the {what} command: {line}"));
            }
        }
        let voice =
            Voice { log, prefix: "start", step: "finalize", level: LogLevel::Info, only_errors: false };
        start::try_out(handle.as_ref(), commands, voice).await?;
        let note = "[finalize] it is ready; the template keeps files only: the start command runs in each new sandbox";
        log.say(LogLevel::Info, "finalize", note);
        Ok(())
    }

    async fn base(
        &self,
        base: &Base,
        force: bool,
        session: &Session,
        log: &BuildLog,
    ) -> Result<(Layer, Option<StartCommands>, Chain), Reason> {
        match base {
            Base::Template(built, build) => {
                log.say(LogLevel::Info, "base", format!("[base] FROM template build {build}"));
                let chain = Chain::new(&format!("template {build}"));
                Ok((built.layer.clone(), built.start.clone(), chain))
            }
            Base::Image(name) => {
                log.say(LogLevel::Info, "base", format!("[base] FROM {name}"));
                let (library, asked) = (Arc::clone(&self.library), name.clone());
                let found = blocking(move || Ok(library.find(&asked))).await;
                let found = found.map_err(|error| fault("base", error.message()))?;
                match found.map_err(|error| fault("base", error.to_string()))? {
                    Found::Base => {
                        let note = format!(
                            "[base] {name} is not among this server's images; the base of this machine stands in for it"
                        );
                        log.say(LogLevel::Warn, "base", note);
                        Ok((Layer::default(), None, Chain::new("base")))
                    }
                    Found::Directory(path) => {
                        let chain = Chain::new(&format!("root {}", path.display()));
                        let layer =
                            self.import(&path, Context::default()).await.map_err(|why| fault("base", why))?;
                        // What is in a directory may have changed since: nothing that stands on it is taken from before.
                        Ok((layer.clone(), None, chain.on(layer.snapshot.as_deref().unwrap_or_default())))
                    }
                    Found::Image(image) => {
                        let chain = Chain::new(&format!("image {IMAGE_LAYOUT} {}", image.digest));
                        let layer = self.image(image, &chain, force, session, log).await?;
                        Ok((layer, None, chain))
                    }
                }
            }
        }
    }

    /// Makes the layer of an image, once an image.
    async fn image(
        &self,
        image: Box<Image>,
        chain: &Chain,
        force: bool,
        session: &Session,
        log: &BuildLog,
    ) -> Result<Layer, Reason> {
        let base = |why: String| fault("base", why);
        // Two builds from one image do not lay it down twice.
        let _alone = self.importing.lock().await;
        if !force && let Some(known) = self.known(chain, "base").await? {
            log.say(LogLevel::Info, "base", "CACHED [base] image");
            return Ok(known);
        }
        log.say(LogLevel::Info, "base", format!("[base] laying down {} layers", image.layer_count()));
        let env = image.config.env.iter().cloned().collect();
        let (unpacked, directory) = self.unpack(image).await.map_err(|error| base(error.to_string()))?;
        if unpacked.skipped_devices > 0 {
            let note = format!("[base] {} device nodes were left out", unpacked.skipped_devices);
            log.say(LogLevel::Warn, "base", note);
        }
        let context = Context { env, ..Context::default() };
        let mut layer = self.import(&directory.0, context).await.map_err(base)?;
        if !unpacked.owners.is_empty()
            && self.give_away(&unpacked, &layer, session, log).await.map_err(base)?
        {
            let stored = session.snapshot().await;
            layer.snapshot = stored
                .map_err(|error| base(format!("the image could not be stored: {}", error.message())))?;
        }
        self.remember(chain, &layer, "base").await?;
        Ok(layer)
    }

    /// Has the provider take in a root directory.
    async fn import(&self, directory: &Path, context: Context) -> Result<Layer, String> {
        let importer = self
            .importer
            .as_ref()
            .ok_or("this server's provider makes no templates from images; start from a template instead")?;
        let name = ids::template().map_err(|error| error.message().to_owned())?;
        let imported = importer.import_root(directory, &format!("{SNAPSHOT_PREFIX}{name}")).await;
        let imported =
            imported.map_err(|error| format!("the image could not be taken in: {}", error.message()))?;
        Ok(Layer { snapshot: Some(imported.id.as_str().to_owned()), context })
    }

    async fn unpack(&self, image: Box<Image>) -> Result<(Unpacked, Scratch), ImageError> {
        let name = ids::build().map_err(|error| ImageError::Invalid(error.message().to_owned()))?;
        let directory = Scratch(self.scratch.join(name));
        let stop = StopOnDrop(Arc::new(AtomicBool::new(false)));
        let (path, limits, stopped) = (directory.0.clone(), self.image_limits, Arc::clone(&stop.0));
        let work = tokio::task::spawn_blocking(move || {
            images::unpack(&image, &path, limits, &|| stopped.load(Ordering::Relaxed))
        });
        match work.await {
            Ok(unpacked) => Ok((unpacked?, directory)),
            Err(_) => Err(ImageError::Stopped),
        }
    }

    /// Gives files to their owners from inside a sandbox, where the ids are known; `false` where all are one.
    async fn give_away(
        &self,
        unpacked: &Unpacked,
        layer: &Layer,
        session: &Session,
        log: &BuildLog,
    ) -> Result<bool, String> {
        let said = |error: sandhold_core::Error| {
            format!("files could not be given to their owners: {}", error.message())
        };
        let handle = session.handle(layer).await.map_err(said)?;
        let info = handle.info().await.map_err(said)?;
        if info.isolation.is_some_and(|isolation| isolation.users == "single") {
            return Ok(false);
        }
        let voice = Voice { log, prefix: "base", step: "base", level: LogLevel::Debug, only_errors: true };
        for ((uid, gid), paths) in images::by_owner(&unpacked.owners) {
            for batch in paths.chunks(CHOWN_BATCH) {
                let mut args = vec!["-h".to_owned(), format!("{uid}:{gid}"), "--".to_owned()];
                for path in batch {
                    // What is no text is left to root.
                    args.extend(path.to_str().map(|path| format!("/{path}")));
                }
                let spec = ProcessSpec::argv("chown", args).with_user("root").with_cwd("/");
                let output = run(handle.as_ref(), spec, voice).await;
                steps::succeeded(output, "root")
                    .map_err(|why| format!("files could not be given to {uid}:{gid}: {why}"))?;
            }
        }
        // So that the copy that is stored is on disk.
        let synced = handle.exec(ProcessSpec::argv("sync", [""; 0]).with_user("root")).await;
        steps::succeeded(synced, "root")?;
        Ok(true)
    }
}

fn word(kind: StepKind) -> &'static str {
    match kind {
        StepKind::Copy => "COPY",
        StepKind::Run => "RUN",
        StepKind::Env => "ENV",
        StepKind::Workdir => "WORKDIR",
        StepKind::User => "USER",
        _ => "?",
    }
}

/// A directory that is removed when nobody needs it any more.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let path = std::mem::take(&mut self.0);
        let remove = move || {
            if let Err(error) = rooted::remove_tree(&path) {
                tracing::warn!(%error, path = %path.display(), "an unpacked image is left behind");
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}

/// Ends the work on another thread when nobody waits for it any more.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
