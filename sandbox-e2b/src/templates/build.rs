//! Builds: asked for, fed with files, started, and followed to their end.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http::header::{CONTENT_LENGTH, HeaderName, HeaderValue};
use sandhold_core::{ByteStream, Error, ErrorKind, LogLine, Outcome, Result, ResultStream};
use tokio::io::AsyncReadExt;

use super::context::{self, Selection};
use super::recipe::{From, Instruction, Recipe};
use crate::control::{Ask, SharedControl, encoded};
use crate::error::{Call, NAME};
use crate::http::{private_link, request, streamed};
use crate::wire::{
    Build, BuildStatus, BuildStatusAnswer, CreatedTemplate, FileUpload, NewTemplate, Step, StepKind,
};

/// How often a build is asked how far it is.
const POLL: Duration = Duration::from_millis(200);

/// How long an upload may take without an end; a large one is slow, and slowness is no fault.
const UPLOAD_TIME: Duration = Duration::from_secs(3600);

/// Size of one piece of an upload.
const PIECE: usize = 256 * 1024;

/// Shapes one build.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BuildOptions {
    /// The template's name.
    pub name: String,
    /// Tags that the build gets once it is ready; default `default`.
    pub tags: Vec<String>,
    /// Cores of its sandboxes; default the server's own.
    pub cpu_count: Option<u32>,
    /// Memory of its sandboxes in MiB; default the server's own.
    pub memory_mb: Option<u64>,
    /// Whether every layer is made again; default no.
    pub force: bool,
}

impl BuildOptions {
    /// A build of a template of this name.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), tags: Vec::new(), cpu_count: None, memory_mb: None, force: false }
    }

    /// Adds a tag that the build gets once it is ready.
    #[must_use]
    pub fn with_tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// Sets the cores of its sandboxes.
    #[must_use]
    pub fn with_cpu_count(mut self, cores: u32) -> Self {
        self.cpu_count = Some(cores);
        self
    }

    /// Sets the memory of its sandboxes, in MiB.
    #[must_use]
    pub fn with_memory_mb(mut self, memory: u64) -> Self {
        self.memory_mb = Some(memory);
        self
    }

    /// Makes every layer again.
    #[must_use]
    pub fn with_force(mut self) -> Self {
        self.force = true;
        self
    }
}

/// A recipe with its files chosen: what will be sent, and what it is as one hash.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    body: Build,
    uploads: Vec<Selection>,
}

impl Prepared {
    /// Reads the context, off the async threads.
    pub(crate) async fn of(recipe: &Recipe) -> Result<Self> {
        let recipe = recipe.clone();
        let prepared = tokio::task::spawn_blocking(move || prepare(&recipe)).await;
        prepared
            .map_err(|error| {
                Error::new(ErrorKind::Unexpected, "the build context was not read").with_source(error)
            })
            .and_then(|prepared| prepared)
            .map_err(|error| error.at(NAME, "build"))
    }

    /// Returns what the template is, as text that goes into a hash. Credentials are no part of it.
    pub(crate) fn identity(&self) -> String {
        let body = Build { from_image_registry: None, force: None, ..self.body.clone() };
        serde_json::to_string(&body).unwrap_or_default()
    }
}

fn prepare(recipe: &Recipe) -> Result<Prepared> {
    let mut steps = Vec::new();
    let mut uploads: Vec<Selection> = Vec::new();
    for instruction in &recipe.instructions {
        match instruction {
            Instruction::Plain(kind, args) => {
                steps.push(Step { kind: *kind, args: args.clone(), files_hash: None, force: None });
            }
            Instruction::Copy { source, target, options } => {
                let directory = recipe.context.as_ref().ok_or_else(|| {
                    Error::invalid_argument("the recipe copies files and names no context; set one")
                })?;
                let mode = options.mode.map(|mode| format!("{mode:04o}")).unwrap_or_default();
                for found in context::select(directory, source, target)? {
                    let user = options.user.clone().unwrap_or_default();
                    steps.push(Step {
                        kind: StepKind::Copy,
                        args: vec![found.source.clone(), target.clone(), user, mode.clone()],
                        files_hash: Some(found.hash.clone()),
                        force: None,
                    });
                    if uploads.iter().all(|known| known.hash != found.hash) {
                        uploads.push(found);
                    }
                }
            }
        }
    }
    let (from_image, from_template) = match &recipe.from {
        From::Image(image) => (Some(image.clone()), None),
        From::Template(template) => (None, Some(template.clone())),
    };
    let body = Build {
        from_image,
        from_template,
        from_image_registry: recipe.registry.clone(),
        steps,
        start_cmd: recipe.start.clone(),
        ready_cmd: recipe.ready.clone(),
        force: None,
    };
    Ok(Prepared { body, uploads })
}

/// A build under way. Dropping it leaves the build alone.
#[derive(Clone, Debug)]
pub struct TemplateBuild {
    control: SharedControl,
    template_id: String,
    build_id: String,
    names: Vec<String>,
}

impl TemplateBuild {
    /// Asks for a build, uploads what the server has not, and starts it.
    pub(crate) async fn start(
        control: &SharedControl,
        prepared: Prepared,
        options: &BuildOptions,
    ) -> Result<Self> {
        let call = Call::idempotent("build").about("template_not_found");
        // A second request makes a second waiting build, which is never started and harms nobody.
        let new = NewTemplate {
            name: options.name.clone(),
            tags: (!options.tags.is_empty()).then(|| options.tags.clone()),
            cpu_count: options.cpu_count,
            memory_mb: options.memory_mb,
            ..NewTemplate::default()
        };
        let reply = control.ask(Ask::new(call, Method::POST, "/v3/templates").with_json(&new)?).await?;
        let created: CreatedTemplate = reply.json()?;
        let build = Self {
            control: Arc::clone(control),
            template_id: created.template_id,
            build_id: created.build_id,
            names: if created.names.is_empty() { created.aliases } else { created.names },
        };
        for files in prepared.uploads {
            build.upload(files).await?;
        }
        let body = Build { force: options.force.then_some(true), ..prepared.body };
        let path =
            format!("/v2/templates/{}/builds/{}", encoded(&build.template_id), encoded(&build.build_id));
        match control.ask(Ask::new(call, Method::POST, path).with_json(&body)?).await {
            Ok(_) => {}
            // The first send was heard: the build waits no more.
            Err(error)
                if error.kind() == ErrorKind::InvalidArgument && error.outcome() == Outcome::Unknown => {}
            Err(error) => return Err(build.named(error)),
        }
        Ok(build)
    }

    /// Returns the id of the template.
    #[must_use]
    pub fn template_id(&self) -> &str {
        &self.template_id
    }

    /// Returns the id of the build.
    #[must_use]
    pub fn build_id(&self) -> &str {
        &self.build_id
    }

    /// Returns the names of the template.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Says how far the build is, with the log from this line on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] or [`ErrorKind::NotFound`] for a build that the server does not know.
    pub async fn status(&self, logs_offset: usize) -> Result<BuildStatusAnswer> {
        let call = Call::look("build_status").about("build_not_found");
        let path = format!(
            "/templates/{}/builds/{}/status?logsOffset={logs_offset}",
            encoded(&self.template_id),
            encoded(&self.build_id)
        );
        let reply = self.control.ask(Ask::new(call, Method::GET, path)).await;
        reply.and_then(|reply| reply.json()).map_err(|error| self.named(error))
    }

    /// Streams the log up to the end of the build; a build that fails ends it with an error.
    #[must_use]
    pub fn logs(&self) -> ResultStream<LogLine> {
        let following = Following { build: self.clone(), offset: 0, lines: VecDeque::new(), asked: false };
        ResultStream::unfold(following, |mut following| async move {
            let line = following.line().await.transpose()?;
            Some((line, following))
        })
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] with reason `build_failed` and the step, when the build failed.
    ///
    /// # Cancellation
    /// Stops waiting; the build goes on.
    pub async fn wait(&self) -> Result<()> {
        let mut logs = self.logs();
        while let Some(line) = logs.next().await {
            line?;
        }
        Ok(())
    }

    fn named(&self, error: Error) -> Error {
        error.with_context("template", &self.template_id).with_context("build", &self.build_id)
    }

    async fn upload(&self, files: Selection) -> Result<()> {
        let call = Call::idempotent("upload").about("template_not_found");
        let path = format!("/templates/{}/files/{}", encoded(&self.template_id), files.hash);
        let link: FileUpload = self.control.ask(Ask::new(call, Method::GET, path)).await?.json()?;
        if link.present {
            return Ok(());
        }
        let url = link
            .url
            .ok_or_else(|| call.unreadable("the server has not the files and says not where they go"))?;
        private_link(url.expose(), self.control.config.allow_plaintext)
            .map_err(|error| self.named(error.at(NAME, "upload")))?;
        let source = PathBuf::from(&files.source);
        let packed = tokio::task::spawn_blocking(move || files.pack()).await;
        let (file, length) = packed.map_err(|error| {
            call.error(ErrorKind::Unexpected, "the files were not packed").with_source(error)
        })??;
        let file = Arc::new(file);
        let headers: Vec<(String, String)> = link.headers.unwrap_or_default().into_iter().collect();
        let policy = self.control.config.retry.clone().with_budget(UPLOAD_TIME);
        policy
            .run(|| async {
                let body = streamed(pieces(&file)?, Some(length));
                let mut request = request(Method::PUT, url.expose(), body)?;
                for (name, value) in &headers {
                    let bad = |_| call.unreadable("the server names a header that cannot be sent");
                    let name = HeaderName::try_from(name).map_err(|error| bad(error.to_string()))?;
                    let value = HeaderValue::try_from(value).map_err(|error| bad(error.to_string()))?;
                    request.headers_mut().insert(name, value);
                }
                // Where the bytes are stored they are not taken in pieces of an unknown number.
                request.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
                let answer = self.control.http.send(&call, request, UPLOAD_TIME).await?;
                if answer.status.is_success() {
                    return Ok(());
                }
                Err(call.answer(answer.status, &answer.headers, &answer.body))
            })
            .await
            .map_err(|error| self.named(error).with_context("source", source.display()))
    }
}

/// Reads a file from its beginning, however often it was read before.
fn pieces(file: &Arc<std::fs::File>) -> Result<ByteStream> {
    let again = file.try_clone().and_then(|mut file| {
        std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(0))?;
        Ok(tokio::fs::File::from_std(file))
    });
    let file = again.map_err(|error| {
        Error::new(ErrorKind::Unexpected, "the packed files cannot be read").with_source(error)
    })?;
    Ok(ByteStream::unfold(file, |mut file| async move {
        let mut piece = bytes::BytesMut::with_capacity(PIECE);
        match file.read_buf(&mut piece).await {
            Ok(0) => None,
            Ok(_) => Some((Ok(Bytes::from(piece)), file)),
            Err(error) => {
                let error =
                    Error::new(ErrorKind::Unexpected, "the packed files cannot be read").with_source(error);
                Some((Err(error), file))
            }
        }
    }))
}

struct Following {
    build: TemplateBuild,
    offset: usize,
    lines: VecDeque<LogLine>,
    asked: bool,
}

impl Following {
    async fn line(&mut self) -> Result<Option<LogLine>> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Ok(Some(line));
            }
            if std::mem::replace(&mut self.asked, true) {
                tokio::time::sleep(POLL).await;
            }
            let status = self.build.status(self.offset).await?;
            self.offset += status.log_entries.len();
            let line = |entry: crate::wire::LogEntry| {
                LogLine::new(entry.timestamp.0, entry.level.as_str(), entry.message)
            };
            self.lines.extend(status.log_entries.into_iter().map(line));
            // The end counts once there is no line left to tell.
            if !self.lines.is_empty() {
                self.asked = false;
                continue;
            }
            match status.status {
                BuildStatus::Ready => return Ok(None),
                BuildStatus::Error => {
                    let reason = status.reason.unwrap_or_default();
                    let error = Call::look("build")
                        .error(ErrorKind::InvalidState, format!("the build failed: {}", reason.message))
                        .with_reason("build_failed")
                        .with_outcome(Outcome::Done);
                    let error = match reason.step {
                        Some(step) => error.with_context("step", step),
                        None => error,
                    };
                    return Err(self.build.named(error));
                }
                _ => {}
            }
        }
    }
}
