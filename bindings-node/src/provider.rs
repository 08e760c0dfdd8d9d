//! Where sandboxes are: this machine, or a service that speaks E2B's protocol.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use napi::Env;
use napi::bindgen_prelude::{Object, PromiseRaw, Unknown};
use napi_derive::napi;
use sandhold_core::{Error, ErrorKind, Owner, Providers, Result};
use sandhold_e2b::{AutoResume, DefaultTemplate, E2bConfig, E2bProvider, PublicTraffic};
use sandhold_local::{LocalConfig, LocalProvider, Requirement};

use crate::control::NativeProvider;
use crate::convert::{Options, checked, extract, one_of};
use crate::errors::{thrown, type_error};
use crate::plain::{self, Plain};
use crate::runtime::{NativeCall, call};
use crate::templates::{self, NativeRecipe};
use crate::values;

/// Reads what a provider on this machine is made with.
fn local(given: &mut Options<'_>, packaged_helper: Option<String>) -> napi::Result<LocalConfig> {
    let env = given.env;
    let mut config = LocalConfig::new();
    config.home = given.take::<String>("home")?.map(PathBuf::from);
    config.helper = given.take::<String>("helper")?.map(PathBuf::from);
    config.packaged_helper = packaged_helper.map(PathBuf::from);
    let words: Vec<_> = Requirement::ALL.iter().map(|known| (known.name(), *known)).collect();
    for word in given.take::<Vec<String>>("requirements")?.unwrap_or_default() {
        config.requirements.push(one_of(env, "requirements", &word, &words)?);
    }
    config.in_memory = given.take("inMemory")?.unwrap_or(false);
    if let Some(timeout) = given.millis("startTimeout")? {
        config.start_timeout = timeout;
    }
    Ok(config)
}

/// Reads what an E2B provider is made with. What the environment lacks is an error of its making. The recipe is the default
/// template's.
fn e2b(given: &mut Options<'_>, recipe: Option<&NativeRecipe>) -> napi::Result<Result<E2bConfig>> {
    let env = given.env;
    let (mut config, refused) = match given.take::<String>("apiKey")? {
        Some(key) => (E2bConfig::new(key), None),
        None => match E2bConfig::from_env() {
            Ok(config) => (config, None),
            Err(error) => (E2bConfig::new(""), Some(error)),
        },
    };
    if let Some(domain) = given.take("domain")? {
        config.domain = domain;
    }
    config.api_url = given.take("apiUrl")?.or(config.api_url);
    config.sandbox_url = given.take("sandboxUrl")?.or(config.sandbox_url);
    config.volume_url = given.take("volumeUrl")?.or(config.volume_url);
    config.debug = given.take("debug")?.unwrap_or(config.debug);
    config.allow_plaintext = given.take("allowPlaintext")?.unwrap_or(false);
    for (name, value) in given.take::<BTreeMap<String, String>>("headers")?.unwrap_or_default() {
        config = config.with_header(name, value);
    }
    for (name, field) in [
        ("requestTimeout", &mut config.request_timeout),
        ("lease", &mut config.lease),
        ("maxRun", &mut config.max_run),
        ("listVisibility", &mut config.list_visibility),
    ] {
        if let Some(time) = given.millis(name)? {
            *field = time;
        }
    }
    if let Some(mut retry) = given.options("retry")? {
        if let Some(retries) = retry.count("maxRetries")? {
            config.retry.max_retries = retries;
        }
        for (name, field) in [
            ("initialBackoff", &mut config.retry.initial_backoff),
            ("maxBackoff", &mut config.retry.max_backoff),
            ("budget", &mut config.retry.budget),
        ] {
            if let Some(time) = retry.millis(name)? {
                *field = time;
            }
        }
        retry.finish()?;
    }
    let words = [("token_only", PublicTraffic::TokenOnly), ("everybody", PublicTraffic::Everybody)];
    config.public_traffic = given.word("publicTraffic", &words)?.unwrap_or_default();
    let words = [("off", AutoResume::Off), ("on_traffic", AutoResume::OnTraffic)];
    config.auto_resume = given.word("autoResume", &words)?.unwrap_or_default();
    if let Some(owner) = given.take::<String>("mastraOwner")? {
        config.mastra_owner = Some(checked(env, "mastraOwner", Owner::new(owner))?);
    }
    if let Some(network) = given.any("network")? {
        config.network = plain::read(env, "network", network)?;
    }
    if let Some(mut template) = given.options("defaultTemplate")? {
        let build = templates::build_options(&mut template)?;
        template.finish()?;
        let recipe = recipe.ok_or_else(|| type_error(env, "option 'defaultTemplate': give its recipe"))?;
        config.default_template = Some(DefaultTemplate::new(recipe.0.clone(), build));
    }
    Ok(refused.map_or(Ok(config), Err))
}

/// Sandboxes on this machine.
#[napi]
pub struct NativeLocalProvider(LocalProvider);

#[napi]
impl NativeLocalProvider {
    /// `packaged_helper` is the helper program that lies in this package, where it was built with one.
    #[napi(constructor)]
    pub fn new(
        env: &Env,
        options: Option<Object<'_>>,
        packaged_helper: Option<String>,
    ) -> napi::Result<Self> {
        let mut given = Options::new(env, "LocalProvider", options);
        let config = local(&mut given, packaged_helper)?;
        given.finish()?;
        LocalProvider::new(config).map(Self).map_err(|error| thrown(env, error))
    }

    /// What it has in common with every other one.
    #[napi(getter)]
    pub fn provider(&self) -> NativeProvider {
        NativeProvider(Arc::new(self.0.clone()))
    }

    /// The state directory.
    #[napi(getter)]
    pub fn home(&self) -> String {
        self.0.home().to_string_lossy().into_owned()
    }

    /// Finds out what sandboxes can be on this machine, by starting one.
    #[napi]
    pub fn probe<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let provider = self.0.clone();
        call(env, around, async move {
            let told = provider.probe().await?;
            serde_json::from_str::<serde_json::Value>(&told).map_err(|error| {
                Error::new(ErrorKind::Unexpected, "the probe told no JSON").with_source(error)
            })
        })
    }

    /// Keeps a directory with a whole root as a template.
    #[napi]
    pub fn import_template<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        directory: Unknown<'_>,
        names: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, values::SnapshotInfo>> {
        let directory = extract::<String>(env, "importTemplate", "directory", directory)?;
        let names = extract::<Vec<String>>(env, "importTemplate", "names", names)?;
        let provider = self.0.clone();
        call(env, around, async move { provider.import_template(Path::new(&directory), names).await })
    }
}

/// E2B's cloud, a self-hosted E2B, or any server that speaks its protocol.
#[napi]
pub struct NativeE2BProvider(pub(crate) E2bProvider);

#[napi]
impl NativeE2BProvider {
    #[napi(constructor)]
    pub fn new(env: &Env, options: Option<Object<'_>>, recipe: Option<&NativeRecipe>) -> napi::Result<Self> {
        let mut given = Options::new(env, "E2bProvider", options);
        let config = e2b(&mut given, recipe)?;
        given.finish()?;
        config.and_then(E2bProvider::new).map(Self).map_err(|error| thrown(env, error))
    }

    /// What it has in common with every other one.
    #[napi(getter)]
    pub fn provider(&self) -> NativeProvider {
        NativeProvider(Arc::new(self.0.clone()))
    }
}

/// The providers that a program can use, by name. Each is made when it is asked for.
#[napi]
#[derive(Clone)]
pub struct NativeProviders(pub(crate) Providers);

#[napi]
impl NativeProviders {
    #[napi(constructor)]
    pub fn new(
        env: &Env,
        options: Option<Object<'_>>,
        packaged_helper: Option<String>,
        recipe: Option<&NativeRecipe>,
    ) -> napi::Result<Self> {
        let mut given = Options::new(env, "Providers", options);
        let mut providers = Providers::new();
        if let Some(mut options) = given.options("local")? {
            let config = local(&mut options, packaged_helper)?;
            options.finish()?;
            providers = providers.with("local", move || Ok(Arc::new(LocalProvider::new(config.clone())?)));
        }
        if let Some(mut options) = given.options("e2b")? {
            let config = e2b(&mut options, recipe)?;
            options.finish()?;
            providers = providers.with("e2b", move || Ok(Arc::new(E2bProvider::new(config.clone()?)?)));
        }
        given.finish()?;
        Ok(Self(providers))
    }

    /// The names, sorted.
    #[napi]
    pub fn names(&self) -> Vec<String> {
        self.0.names().map(str::to_owned).collect()
    }

    /// Makes the provider of this name.
    #[napi(js_name = "fromName")]
    pub fn named(&self, env: &Env, name: Unknown<'_>) -> napi::Result<NativeProvider> {
        let name = extract::<String>(env, "fromName", "name", name)?;
        self.0.from_name(&name).map(NativeProvider).map_err(|error| thrown(env, error))
    }

    /// Makes the provider that `SANDHOLD_PROVIDER` names.
    #[napi(js_name = "fromEnv")]
    pub fn named_by_environment(&self, env: &Env) -> napi::Result<NativeProvider> {
        self.0.from_env().map(NativeProvider).map_err(|error| thrown(env, error))
    }
}
