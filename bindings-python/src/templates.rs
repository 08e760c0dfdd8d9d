//! Templates of an E2B account: what sandboxes are made from.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::SystemTime;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use sandhold_e2b as e2b;
use sandhold_e2b::wire::{BuildStatus, ImageRegistry};
use sandhold_e2b::{BuildOptions, CopyOptions};

use crate::convert::Options;
use crate::errors::raised;
use crate::facts::LogLine;
use crate::options::set;
use crate::runtime;
use crate::stream::{self, AsyncItems, Items};
use crate::twins::{Nothing, twins};
use crate::values::{destroyed, values};

values! {
    /// A build of a template.
    BuildInfo {
        /// Its id.
        build_id: String,
        /// How far it is: `waiting`, `building`, `ready` or `error`.
        status: &'static str,
        /// When it was asked for.
        created_at: SystemTime,
        /// When it last changed.
        updated_at: SystemTime,
        /// When it ended.
        finished_at: Option<SystemTime>,
        /// Cores of its sandboxes.
        cpu_count: u32,
        /// Memory of its sandboxes in MiB.
        memory_mb: u64,
        /// Disk of its sandboxes in MiB.
        disk_size_mb: Option<u64>,
        /// The version of the daemon inside.
        envd_version: Option<String>,
    }

    /// A template.
    Template {
        /// Its id.
        template_id: String,
        /// The build that it stands for.
        build_id: String,
        /// Other accounts may use it.
        public: bool,
        /// Its names.
        names: Vec<String>,
        /// Its names without the account's.
        aliases: Vec<String>,
        /// When it was made.
        created_at: SystemTime,
        /// When it last changed.
        updated_at: SystemTime,
        /// When a sandbox was last made from it.
        last_spawned_at: Option<SystemTime>,
        /// How many sandboxes were made from it.
        spawn_count: u64,
        /// How many builds it had.
        build_count: u64,
        /// How far its newest build is.
        build_status: Option<&'static str>,
        /// Cores of its sandboxes.
        cpu_count: u32,
        /// Memory of its sandboxes in MiB.
        memory_mb: u64,
        /// Disk of its sandboxes in MiB.
        disk_size_mb: u64,
        /// The version of the daemon inside.
        envd_version: String,
        /// Its builds, where they were asked for.
        builds: Option<Vec<BuildInfo>>,
    }

    /// A name for one build of a template.
    Tag {
        /// The tag.
        tag: String,
        /// The build.
        build_id: String,
        /// When it was given.
        created_at: SystemTime,
    }

    /// What a build got.
    AssignedTags {
        /// The build.
        build_id: String,
        /// The tags.
        tags: Vec<String>,
    }

    /// How far a build is.
    BuildAnswer {
        /// `waiting`, `building`, `ready` or `error`.
        status: &'static str,
        /// The log from the asked line on.
        logs: Vec<LogLine>,
        /// What went wrong.
        message: Option<String>,
        /// The step that went wrong.
        step: Option<String>,
    }
}

fn status(status: BuildStatus) -> &'static str {
    match status {
        BuildStatus::Building => "building",
        BuildStatus::Ready => "ready",
        BuildStatus::Error => "error",
        _ => "waiting",
    }
}

impl From<e2b::wire::BuildInfo> for BuildInfo {
    fn from(build: e2b::wire::BuildInfo) -> Self {
        Self {
            build_id: build.build_id,
            status: status(build.status),
            created_at: build.created_at.0,
            updated_at: build.updated_at.0,
            finished_at: build.finished_at.map(|at| at.0),
            cpu_count: build.cpu_count,
            memory_mb: build.memory_mb,
            disk_size_mb: build.disk_size_mb,
            envd_version: build.envd_version,
        }
    }
}

impl From<e2b::wire::Template> for Template {
    fn from(found: e2b::wire::Template) -> Self {
        Self {
            template_id: found.template_id,
            build_id: found.build_id,
            public: found.public,
            names: found.names,
            aliases: found.aliases,
            created_at: found.created_at.0,
            updated_at: found.updated_at.0,
            last_spawned_at: found.last_spawned_at.map(|at| at.0),
            spawn_count: found.spawn_count,
            build_count: found.build_count,
            build_status: found.build_status.map(status),
            cpu_count: found.cpu_count,
            memory_mb: found.memory_mb,
            disk_size_mb: found.disk_size_mb,
            envd_version: found.envd_version,
            builds: found.builds.map(|builds| builds.into_iter().map(Into::into).collect()),
        }
    }
}

impl From<e2b::wire::Tag> for Tag {
    fn from(tag: e2b::wire::Tag) -> Self {
        Self { tag: tag.tag, build_id: tag.build_id, created_at: tag.created_at.0 }
    }
}

impl From<e2b::wire::AssignedTags> for AssignedTags {
    fn from(assigned: e2b::wire::AssignedTags) -> Self {
        Self { build_id: assigned.build_id, tags: assigned.tags }
    }
}

impl From<e2b::wire::BuildStatusAnswer> for BuildAnswer {
    fn from(answer: e2b::wire::BuildStatusAnswer) -> Self {
        let line = |entry: e2b::wire::LogEntry| LogLine {
            at: entry.timestamp.0,
            level: entry.level.as_str().to_owned(),
            message: entry.message,
        };
        let (message, step) = answer.reason.map_or((None, None), |why| (Some(why.message), why.step));
        Self {
            status: status(answer.status),
            logs: answer.log_entries.into_iter().map(line).collect(),
            message,
            step,
        }
    }
}

/// How a template is made. Every call returns a recipe with one more step.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct Recipe(pub(crate) e2b::Recipe);

impl Recipe {
    fn with(&self, step: impl FnOnce(e2b::Recipe) -> e2b::Recipe) -> Self {
        Self(step(self.0.clone()))
    }
}

#[pymethods]
impl Recipe {
    /// Starts from a container image, such as `debian:12`.
    #[staticmethod]
    fn from_image(image: String) -> Self {
        Self(e2b::Recipe::from_image(image))
    }

    /// Starts from another template, such as `base`.
    #[staticmethod]
    fn from_template(template: String) -> Self {
        Self(e2b::Recipe::from_template(template))
    }

    /// Reads a Dockerfile of one stage; its directory is the context of its copies.
    #[staticmethod]
    #[pyo3(signature = (path, *, arguments = None))]
    fn from_dockerfile(
        py: Python<'_>,
        path: PathBuf,
        arguments: Option<BTreeMap<String, String>>,
    ) -> PyResult<Self> {
        let arguments = arguments.unwrap_or_default();
        runtime::wait(py, e2b::Recipe::from_dockerfile(path, &arguments)).map(Self)
    }

    /// Reads the text of a Dockerfile; its copies come from `context`.
    #[staticmethod]
    #[pyo3(signature = (text, context, *, arguments = None))]
    fn from_dockerfile_text(
        py: Python<'_>,
        text: &str,
        context: PathBuf,
        arguments: Option<BTreeMap<String, String>>,
    ) -> PyResult<Self> {
        let read = e2b::Recipe::from_dockerfile_text(text, context, &arguments.unwrap_or_default());
        read.map(Self).map_err(|error| raised(py, &error))
    }

    /// Says how the registry of the image is entered: by a name and a password.
    fn with_registry(&self, username: String, password: String) -> Self {
        self.with(|recipe| {
            recipe.with_registry(ImageRegistry::Registry { username, password: password.into() })
        })
    }

    /// Says how the registry of the image is entered: Amazon's.
    fn with_aws_registry(&self, access_key_id: String, secret_access_key: String, region: String) -> Self {
        self.with(|recipe| {
            recipe.with_registry(ImageRegistry::Aws {
                aws_access_key_id: access_key_id,
                aws_secret_access_key: secret_access_key.into(),
                aws_region: region,
            })
        })
    }

    /// Says how the registry of the image is entered: Google's.
    fn with_gcp_registry(&self, service_account_json: String) -> Self {
        self.with(|recipe| {
            recipe.with_registry(ImageRegistry::Gcp { service_account_json: service_account_json.into() })
        })
    }

    /// Sets the directory that copies come from; nothing outside of it is read.
    fn with_context(&self, directory: PathBuf) -> Self {
        self.with(|recipe| recipe.with_context(directory))
    }

    /// Copies a file or directory of the context; `*` and `?` stand for parts of names.
    #[pyo3(signature = (source, target, *, user = None, mode = None))]
    fn copy(&self, source: String, target: String, user: Option<String>, mode: Option<u32>) -> Self {
        let mut options = CopyOptions::default();
        (options.user, options.mode) = (user, mode);
        self.with(|recipe| recipe.copy_opts(source, target, options))
    }

    /// Runs a command of the shell, as another user where one is given.
    #[pyo3(signature = (command, *, user = None))]
    fn run(&self, command: String, user: Option<String>) -> Self {
        self.with(|recipe| match user {
            Some(user) => recipe.run_as(user, command),
            None => recipe.run(command),
        })
    }

    /// Sets a variable for later steps and for sandboxes.
    fn env(&self, name: String, value: String) -> Self {
        self.with(|recipe| recipe.env(name, value))
    }

    /// Sets the directory of later steps and of sandboxes.
    fn workdir(&self, path: String) -> Self {
        self.with(|recipe| recipe.workdir(path))
    }

    /// Sets the user of later steps and of sandboxes.
    fn user(&self, name: String) -> Self {
        self.with(|recipe| recipe.user(name))
    }

    /// Sets the command that runs when a sandbox starts.
    fn start_command(&self, command: String) -> Self {
        self.with(|recipe| recipe.start_command(command))
    }

    /// Sets the command whose success says that the start command is ready.
    fn ready_command(&self, command: String) -> Self {
        self.with(|recipe| recipe.ready_command(command))
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

/// What stands behind the template `base`, and is built when it is not there.
#[pyclass(frozen, module = "sandhold")]
pub(crate) struct DefaultTemplate(pub(crate) e2b::DefaultTemplate);

#[pymethods]
impl DefaultTemplate {
    #[new]
    #[pyo3(signature = (recipe, name, **options))]
    fn new(
        py: Python<'_>,
        recipe: Py<Recipe>,
        name: String,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let options = build_options(py, "DefaultTemplate", name, options)?;
        Ok(Self(e2b::DefaultTemplate::new(recipe.get().0.clone(), options)))
    }

    fn __repr__(&self) -> String {
        format!("{:?}", self.0)
    }
}

fn build_options(
    py: Python<'_>,
    call: &'static str,
    name: String,
    given: Option<&Bound<'_, PyDict>>,
) -> PyResult<BuildOptions> {
    let mut given = Options::new(py, call, given)?;
    let mut options = BuildOptions::new(name);
    if let Some(tags) = given.take::<Vec<String>>("tags")? {
        options.tags = tags;
    }
    options.cpu_count = given.take("cpu_count")?;
    options.memory_mb = given.take("memory_mb")?;
    set(&mut options.force, given.take("force")?);
    given.finish()?;
    Ok(options)
}

macro_rules! faces {
    ($($(#[$doc:meta])* $name:ident: $inner:ty)+) => {$(
        $(#[$doc])*
        #[pyclass(frozen, module = "sandhold")]
        pub(crate) struct $name(pub(crate) $inner);

        impl From<$inner> for $name {
            fn from(inner: $inner) -> Self {
                Self(inner)
            }
        }

        impl $name {
            fn enter(&self, _py: Python<'_>) -> PyResult<()> {
                Ok(())
            }
        }
    )+};
}

faces! {
    /// The templates of an account.
    Templates: e2b::Templates
    /// The templates of an account, for event loops.
    AsyncTemplates: e2b::Templates
    /// A build that was begun.
    TemplateBuild: e2b::TemplateBuild
    /// A build that was begun, for event loops.
    AsyncTemplateBuild: e2b::TemplateBuild
}

twins! {
    impl Templates, AsyncTemplates;

    /// Tells whether a name is taken, by a template of this account or of another.
    fn exists(py, this, name: String) -> bool, bool {
        let _ = py;
        let templates = this.0.clone();
        async move { templates.exists(&name).await }
    }

    /// Starts a build and returns while it runs.
    #[pyo3(signature = (recipe, name, **options))]
    fn start(py, this, recipe: Py<Recipe>, name: String, **options) -> TemplateBuild, AsyncTemplateBuild {
        let options = build_options(py, "start", name, options)?;
        let templates = this.0.clone();
        async move { templates.start(&recipe.get().0, &options).await }
    }

    /// Builds a template and waits for its end.
    #[pyo3(signature = (recipe, name, **options))]
    fn build(py, this, recipe: Py<Recipe>, name: String, **options) -> TemplateBuild, AsyncTemplateBuild {
        let options = build_options(py, "build", name, options)?;
        let templates = this.0.clone();
        async move { templates.build(&recipe.get().0, &options).await }
    }

    /// Lists the templates of the account.
    fn list(py, this) -> Items, AsyncItems {
        let _ = py;
        let templates = this.0.clone();
        async move { Ok(stream::items::<_, Template>(templates.list())) }
    }

    /// Returns a template with its builds.
    fn get(py, this, name: String) -> Template, Template {
        let _ = py;
        let templates = this.0.clone();
        async move { templates.get(&name).await.map(Template::from) }
    }

    /// Deletes a template with its builds.
    fn delete(py, this, name: String) -> &'static str, &'static str {
        let _ = py;
        let templates = this.0.clone();
        async move { templates.delete(&name).await.map(destroyed) }
    }

    /// Says whether other accounts may use a template.
    fn set_public(py, this, name: String, public: bool) -> (), Nothing {
        let _ = py;
        let templates = this.0.clone();
        async move { templates.set_public(&name, public).await }
    }

    /// Returns the tags of a template.
    fn tags(py, this, name: String) -> Vec<Tag>, Vec<Tag> {
        let _ = py;
        let templates = this.0.clone();
        async move { Ok(templates.tags(&name).await?.into_iter().map(Into::into).collect::<Vec<_>>()) }
    }

    /// Gives the build that `target`, a `name:tag`, stands for more tags.
    fn assign_tags(py, this, target: String, tags: Vec<String>) -> AssignedTags, AssignedTags {
        let _ = py;
        let templates = this.0.clone();
        async move {
            let tags: Vec<_> = tags.iter().map(String::as_str).collect();
            templates.assign_tags(&target, &tags).await.map(AssignedTags::from)
        }
    }

    /// Takes tags away from a template.
    fn remove_tags(py, this, name: String, tags: Vec<String>) -> (), Nothing {
        let _ = py;
        let templates = this.0.clone();
        async move {
            let tags: Vec<_> = tags.iter().map(String::as_str).collect();
            templates.remove_tags(&name, &tags).await
        }
    }
}

macro_rules! builds {
    ($($name:ident)+) => {$(
        #[pymethods]
        impl $name {
            /// The id of the template.
            #[getter]
            fn template_id(&self) -> &str {
                self.0.template_id()
            }

            /// The id of the build.
            #[getter]
            fn build_id(&self) -> &str {
                self.0.build_id()
            }

            /// The names of the template.
            #[getter]
            fn names(&self) -> Vec<String> {
                self.0.names().to_vec()
            }

            fn __repr__(&self) -> String {
                format!("{}(build_id={:?}, names={:?})", stringify!($name), self.0.build_id(), self.0.names())
            }
        }
    )+};
}

builds! { TemplateBuild AsyncTemplateBuild }

twins! {
    impl TemplateBuild, AsyncTemplateBuild;

    /// Says how far the build is, with the log from this line on.
    #[pyo3(signature = (*, logs_offset = 0))]
    fn status(py, this, logs_offset: usize) -> BuildAnswer, BuildAnswer {
        let _ = py;
        let build = this.0.clone();
        async move { build.status(logs_offset).await.map(BuildAnswer::from) }
    }

    /// Tells the lines of the log up to the end of the build; a build that fails ends them with an error.
    fn logs(py, this) -> Items, AsyncItems {
        let _ = py;
        let build = this.0.clone();
        async move { Ok(stream::items::<_, LogLine>(build.logs())) }
    }

    /// Waits for the end.
    fn wait(py, this) -> (), Nothing {
        let _ = py;
        let build = this.0.clone();
        async move { build.wait().await }
    }
}
