//! Templates of an account at E2B, and how they are made.

use std::collections::BTreeMap;

use napi::Env;
use napi::bindgen_prelude::{Object, PromiseRaw, Unknown};
use napi_derive::napi;
use sandhold_e2b::{BuildOptions, CopyOptions, Recipe, TemplateBuild, Templates};

use crate::convert::{Options, count, extract};
use crate::errors::{thrown, type_error};
use crate::plain::{self, Plain};
use crate::provider::NativeE2BProvider;
use crate::runtime::{NativeCall, call};
use crate::stream::{NativeLog, NativeTemplateList};
use crate::values;

/// How a template is made. Nothing is read or sent before it is built.
#[napi]
#[derive(Clone)]
pub struct NativeRecipe(pub(crate) Recipe);

impl From<Recipe> for NativeRecipe {
    fn from(recipe: Recipe) -> Self {
        Self(recipe)
    }
}

fn text(env: &Env, call: &str, name: &str, value: Unknown<'_>) -> napi::Result<String> {
    extract(env, call, name, value)
}

#[napi]
impl NativeRecipe {
    /// Starts from a container image.
    #[napi(factory)]
    pub fn from_image(env: &Env, image: Unknown<'_>) -> napi::Result<Self> {
        Ok(Self(Recipe::from_image(text(env, "fromImage", "image", image)?)))
    }

    /// Starts from another template.
    #[napi(factory)]
    pub fn from_template(env: &Env, template: Unknown<'_>) -> napi::Result<Self> {
        Ok(Self(Recipe::from_template(text(env, "fromTemplate", "template", template)?)))
    }

    /// Reads the text of a Dockerfile; its copies come from `context`.
    #[napi(factory)]
    pub fn from_dockerfile_text(
        env: &Env,
        dockerfile: Unknown<'_>,
        context: Unknown<'_>,
        arguments: Unknown<'_>,
    ) -> napi::Result<Self> {
        let dockerfile = text(env, "fromDockerfileText", "text", dockerfile)?;
        let context = text(env, "fromDockerfileText", "context", context)?;
        let arguments: BTreeMap<String, String> = extract(env, "fromDockerfileText", "arguments", arguments)?;
        Recipe::from_dockerfile_text(&dockerfile, context, &arguments)
            .map(Self)
            .map_err(|error| thrown(env, error))
    }

    /// Says how the registry of the image is entered.
    #[napi]
    pub fn with_registry(&self, env: &Env, registry: Unknown<'_>) -> napi::Result<Self> {
        Ok(Self(self.0.clone().with_registry(plain::read(env, "registry", registry)?)))
    }

    /// Sets the directory that copies come from.
    #[napi]
    pub fn with_context(&self, env: &Env, directory: Unknown<'_>) -> napi::Result<Self> {
        Ok(Self(self.0.clone().with_context(text(env, "withContext", "directory", directory)?)))
    }

    /// Copies a file or directory of the context.
    #[napi]
    pub fn copy(
        &self,
        env: &Env,
        source: Unknown<'_>,
        target: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<Self> {
        let (source, target) = (text(env, "copy", "source", source)?, text(env, "copy", "target", target)?);
        let mut given = Options::new(env, "copy", options);
        let mut options = CopyOptions::default();
        options.user = given.take("user")?;
        options.mode = given.count("mode")?;
        given.finish()?;
        Ok(Self(self.0.clone().copy_opts(source, target, options)))
    }

    /// Runs a command of the shell, as another user where one is given.
    #[napi]
    pub fn run(&self, env: &Env, command: Unknown<'_>, options: Option<Object<'_>>) -> napi::Result<Self> {
        let command = text(env, "run", "command", command)?;
        let mut given = Options::new(env, "run", options);
        let user = given.take::<String>("user")?;
        given.finish()?;
        Ok(Self(match user {
            Some(user) => self.0.clone().run_as(user, command),
            None => self.0.clone().run(command),
        }))
    }

    /// Sets a variable for later steps and for sandboxes.
    #[napi]
    pub fn env(&self, env: &Env, name: Unknown<'_>, value: Unknown<'_>) -> napi::Result<Self> {
        let (name, value) = (text(env, "env", "name", name)?, text(env, "env", "value", value)?);
        Ok(Self(self.0.clone().env(name, value)))
    }

    /// Sets the directory of later steps and of sandboxes.
    #[napi]
    pub fn workdir(&self, env: &Env, path: Unknown<'_>) -> napi::Result<Self> {
        Ok(Self(self.0.clone().workdir(text(env, "workdir", "path", path)?)))
    }

    /// Sets the user of later steps and of sandboxes.
    #[napi]
    pub fn user(&self, env: &Env, name: Unknown<'_>) -> napi::Result<Self> {
        Ok(Self(self.0.clone().user(text(env, "user", "name", name)?)))
    }

    /// Sets the command that runs when a sandbox starts.
    #[napi]
    pub fn start_command(&self, env: &Env, command: Unknown<'_>) -> napi::Result<Self> {
        Ok(Self(self.0.clone().start_command(text(env, "startCommand", "command", command)?)))
    }

    /// Sets the command whose success says that the start command is ready.
    #[napi]
    pub fn ready_command(&self, env: &Env, command: Unknown<'_>) -> napi::Result<Self> {
        Ok(Self(self.0.clone().ready_command(text(env, "readyCommand", "command", command)?)))
    }
}

/// Reads a Dockerfile of one stage; its directory is the context of its copies.
#[napi]
pub fn recipe_from_dockerfile<'env>(
    env: &'env Env,
    around: Option<&NativeCall>,
    path: Unknown<'_>,
    arguments: Unknown<'_>,
) -> napi::Result<PromiseRaw<'env, NativeRecipe>> {
    let path = text(env, "fromDockerfile", "path", path)?;
    let arguments: BTreeMap<String, String> = extract(env, "fromDockerfile", "arguments", arguments)?;
    call(env, around, async move { Recipe::from_dockerfile(path, &arguments).await })
}

/// Reads how a build is asked for.
pub(crate) fn build_options(given: &mut Options<'_>) -> napi::Result<BuildOptions> {
    let name = given.take::<String>("name")?;
    let name = name.ok_or_else(|| type_error(given.env, "option 'name': give the name of the template"))?;
    let mut options = BuildOptions::new(name);
    options.tags = given.take("tags")?.unwrap_or_default();
    options.cpu_count = given.count("cpuCount")?;
    options.memory_mb = given.count("memoryMb")?;
    options.force = given.take("force")?.unwrap_or(false);
    Ok(options)
}

/// The templates of an account.
#[napi]
pub struct NativeTemplates(Templates);

#[napi]
impl NativeE2BProvider {
    /// The templates of the account.
    #[napi(getter)]
    pub fn templates(&self) -> NativeTemplates {
        NativeTemplates(self.0.templates())
    }
}

#[napi]
impl NativeTemplates {
    /// Tells whether a name is taken.
    #[napi]
    pub fn exists<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        name: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, bool>> {
        let (templates, name) = (self.0.clone(), text(env, "exists", "name", name)?);
        call(env, around, async move { templates.exists(&name).await })
    }

    /// Starts a build and returns while it runs.
    #[napi]
    pub fn start<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        recipe: &NativeRecipe,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, NativeTemplateBuild>> {
        let (templates, recipe) = (self.0.clone(), recipe.0.clone());
        let mut given = Options::new(env, "start", options);
        let options = build_options(&mut given)?;
        given.finish()?;
        call(env, around, async move { templates.start(&recipe, &options).await })
    }

    /// Builds a template and waits for its end.
    #[napi]
    pub fn build<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        recipe: &NativeRecipe,
        options: Option<Object<'_>>,
    ) -> napi::Result<PromiseRaw<'env, NativeTemplateBuild>> {
        let (templates, recipe) = (self.0.clone(), recipe.0.clone());
        let mut given = Options::new(env, "build", options);
        let options = build_options(&mut given)?;
        given.finish()?;
        call(env, around, async move { templates.build(&recipe, &options).await })
    }

    /// Lists the templates.
    #[napi]
    pub fn list(&self) -> NativeTemplateList {
        self.0.list().into()
    }

    /// Returns a template with its builds.
    #[napi]
    pub fn get<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        name: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (templates, name) = (self.0.clone(), text(env, "get", "name", name)?);
        call(env, around, async move { templates.get(&name).await })
    }

    /// Deletes a template with its builds.
    #[napi]
    pub fn delete<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        name: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, &'static str>> {
        let (templates, name) = (self.0.clone(), text(env, "delete", "name", name)?);
        call(env, around, async move { templates.delete(&name).await.map(values::destroyed) })
    }

    /// Says whether other accounts may use a template.
    #[napi]
    pub fn set_public<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        name: Unknown<'_>,
        public: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, ()>> {
        let (templates, name) = (self.0.clone(), text(env, "setPublic", "name", name)?);
        let public = extract::<bool>(env, "setPublic", "public", public)?;
        call(env, around, async move { templates.set_public(&name, public).await })
    }

    /// Returns the tags of a template.
    #[napi]
    pub fn tags<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        name: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, Vec<Plain>>> {
        let (templates, name) = (self.0.clone(), text(env, "tags", "name", name)?);
        call(env, around, async move { Ok(values::all(templates.tags(&name).await?)) })
    }

    /// Gives the build that `target` (`name:tag`) stands for more tags.
    #[napi]
    pub fn assign_tags<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        target: Unknown<'_>,
        tags: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (templates, target) = (self.0.clone(), text(env, "assignTags", "target", target)?);
        let tags = extract::<Vec<String>>(env, "assignTags", "tags", tags)?;
        call(env, around, async move {
            let tags: Vec<_> = tags.iter().map(String::as_str).collect();
            templates.assign_tags(&target, &tags).await
        })
    }

    /// Takes tags away from a template.
    #[napi]
    pub fn remove_tags<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        name: Unknown<'_>,
        tags: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, ()>> {
        let (templates, name) = (self.0.clone(), text(env, "removeTags", "name", name)?);
        let tags = extract::<Vec<String>>(env, "removeTags", "tags", tags)?;
        call(env, around, async move {
            let tags: Vec<_> = tags.iter().map(String::as_str).collect();
            templates.remove_tags(&name, &tags).await
        })
    }
}

/// A build under way. Dropping it leaves the build alone.
#[napi]
pub struct NativeTemplateBuild(TemplateBuild);

impl From<TemplateBuild> for NativeTemplateBuild {
    fn from(build: TemplateBuild) -> Self {
        Self(build)
    }
}

#[napi]
impl NativeTemplateBuild {
    /// The id of the template.
    #[napi(getter)]
    pub fn template_id(&self) -> String {
        self.0.template_id().to_owned()
    }

    /// The id of the build.
    #[napi(getter)]
    pub fn build_id(&self) -> String {
        self.0.build_id().to_owned()
    }

    /// The names of the template.
    #[napi(getter)]
    pub fn names(&self) -> Vec<String> {
        self.0.names().to_vec()
    }

    /// Says how far the build is, with the log from this line on.
    #[napi]
    pub fn status<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        logs_offset: f64,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let (build, offset) = (self.0.clone(), count(env, "logsOffset", logs_offset)?);
        call(env, around, async move { build.status(offset).await })
    }

    /// Streams the log up to the end of the build.
    #[napi]
    pub fn logs(&self) -> NativeLog {
        self.0.logs().into()
    }

    /// Waits for the end.
    #[napi]
    pub fn wait<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, ()>> {
        let build = self.0.clone();
        call(env, around, async move { build.wait().await })
    }
}
