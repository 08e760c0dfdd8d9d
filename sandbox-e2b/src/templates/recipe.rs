//! How a template is made: what it starts from, and the steps that follow.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sandhold_core::{Error, Result};

use super::dockerfile;
use crate::error::NAME;
use crate::wire::{ImageRegistry, StepKind};

/// What a template starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum From {
    Image(String),
    Template(String),
}

/// One step, as the caller wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Instruction {
    /// A step without files.
    Plain(StepKind, Vec<String>),
    /// Files of the context.
    Copy { source: String, target: String, options: CopyOptions },
}

/// Shapes one copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyOptions {
    /// Who the files belong to; default the user of the step.
    pub user: Option<String>,
    /// Their permission bits; default as they are.
    pub mode: Option<u32>,
}

impl CopyOptions {
    /// Says who the files belong to.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Sets their permission bits.
    #[must_use]
    pub fn with_mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode);
        self
    }
}

/// How a template is made. Nothing is read or sent before it is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    pub(crate) from: From,
    pub(crate) registry: Option<ImageRegistry>,
    pub(crate) context: Option<PathBuf>,
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) start: Option<String>,
    pub(crate) ready: Option<String>,
}

impl Recipe {
    /// Starts from a container image, such as `debian:12`.
    pub fn from_image(image: impl Into<String>) -> Self {
        Self::new(From::Image(image.into()))
    }

    /// Starts from another template, such as `base`.
    pub fn from_template(template: impl Into<String>) -> Self {
        Self::new(From::Template(template.into()))
    }

    /// Reads a Dockerfile of one stage; its directory is the context of its copies. The file is read at once, its
    /// context when the template is built.
    ///
    /// Steps begin as `root` in `/`, and end as `user` in `/home/user` unless the file says otherwise, as E2B's own SDKs
    /// do it. `CMD` and `ENTRYPOINT` become the start command. `arguments` override the file's `ARG`s.
    ///
    /// # Errors
    /// [`sandhold_core::ErrorKind::InvalidArgument`] for a file that cannot be read or understood, and for an argument
    /// that it does not declare; [`sandhold_core::ErrorKind::Unsupported`] for several stages, other files' stages, and
    /// instructions that a template has no place for.
    pub async fn from_dockerfile(
        path: impl Into<PathBuf>,
        arguments: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let path = path.into();
        let read = path.clone();
        let text = tokio::task::spawn_blocking(move || std::fs::read_to_string(read)).await;
        let text = text.map_err(std::io::Error::other).and_then(|text| text).map_err(|error| {
            Error::invalid_argument(format!("the Dockerfile {} cannot be read", path.display()))
                .with_source(error)
                .at(NAME, "build")
        })?;
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        Self::from_dockerfile_text(&text, directory.unwrap_or(Path::new(".")), arguments)
    }

    /// Reads the text of a Dockerfile; its copies come from `context`.
    ///
    /// # Errors
    /// As [`Recipe::from_dockerfile`].
    pub fn from_dockerfile_text(
        text: &str,
        context: impl Into<PathBuf>,
        arguments: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let recipe = dockerfile::parse(text, arguments).map_err(|error| error.at(NAME, "build"))?;
        Ok(recipe.with_context(context))
    }

    pub(crate) fn new(from: From) -> Self {
        Self { from, registry: None, context: None, instructions: Vec::new(), start: None, ready: None }
    }

    /// Says how the registry of the image is entered.
    #[must_use]
    pub fn with_registry(mut self, registry: ImageRegistry) -> Self {
        self.registry = Some(registry);
        self
    }

    /// Sets the directory that copies come from; nothing outside of it is read.
    #[must_use]
    pub fn with_context(mut self, directory: impl Into<PathBuf>) -> Self {
        self.context = Some(directory.into());
        self
    }

    /// Copies a file or directory of the context; `*` and `?` stand for parts of names.
    #[must_use]
    pub fn copy(self, source: impl Into<String>, target: impl Into<String>) -> Self {
        self.copy_opts(source, target, CopyOptions::default())
    }

    /// Copies as [`Recipe::copy`], with an owner or permissions.
    #[must_use]
    pub fn copy_opts(
        mut self,
        source: impl Into<String>,
        target: impl Into<String>,
        options: CopyOptions,
    ) -> Self {
        self.instructions.push(Instruction::Copy { source: source.into(), target: target.into(), options });
        self
    }

    /// Runs a command of the shell.
    #[must_use]
    pub fn run(self, command: impl Into<String>) -> Self {
        self.plain(StepKind::Run, [command.into()])
    }

    /// Runs a command of the shell as another user.
    #[must_use]
    pub fn run_as(self, user: impl Into<String>, command: impl Into<String>) -> Self {
        self.plain(StepKind::Run, [command.into(), user.into()])
    }

    /// Sets a variable for later steps and for sandboxes.
    #[must_use]
    pub fn env(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.plain(StepKind::Env, [name.into(), value.into()])
    }

    /// Sets the directory of later steps and of sandboxes.
    #[must_use]
    pub fn workdir(self, path: impl Into<String>) -> Self {
        self.plain(StepKind::Workdir, [path.into()])
    }

    /// Sets the user of later steps and of sandboxes.
    #[must_use]
    pub fn user(self, name: impl Into<String>) -> Self {
        self.plain(StepKind::User, [name.into()])
    }

    /// Sets the command that runs when a sandbox starts.
    #[must_use]
    pub fn start_command(mut self, command: impl Into<String>) -> Self {
        self.start = Some(command.into());
        self
    }

    /// Sets the command whose success says that the start command is ready.
    #[must_use]
    pub fn ready_command(mut self, command: impl Into<String>) -> Self {
        self.ready = Some(command.into());
        self
    }

    pub(crate) fn plain(mut self, kind: StepKind, args: impl IntoIterator<Item = String>) -> Self {
        self.instructions.push(Instruction::Plain(kind, args.into_iter().collect()));
        self
    }
}
