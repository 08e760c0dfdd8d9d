//! Where sandboxes are: this machine, or a service that speaks E2B's protocol.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use napi::Env;
use napi::bindgen_prelude::{Either, Object};
use napi_derive::napi;
use sandhold_core::{Owner, SandboxProvider};
use sandhold_e2b::{AutoResume, E2bConfig, E2bProvider, PublicTraffic};
use sandhold_local::{LocalConfig, LocalProvider, Requirement};

use crate::convert::{Options, checked, one_of};
use crate::errors::thrown;

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
        given.finish()?;
        LocalProvider::new(config).map(Self).map_err(|error| thrown(env, error))
    }

    /// The provider's stable name.
    #[napi(getter)]
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// The state directory.
    #[napi(getter)]
    pub fn home(&self) -> String {
        self.0.home().to_string_lossy().into_owned()
    }
}

/// E2B's cloud, a self-hosted E2B, or any server that speaks its protocol.
#[napi(js_name = "NativeE2bProvider")]
pub struct NativeE2bProvider(E2bProvider);

#[napi]
impl NativeE2bProvider {
    #[napi(constructor)]
    pub fn new(env: &Env, options: Option<Object<'_>>) -> napi::Result<Self> {
        let mut given = Options::new(env, "E2bProvider", options);
        let mut config = match given.take::<String>("apiKey")? {
            Some(key) => E2bConfig::new(key),
            None => E2bConfig::from_env().map_err(|error| thrown(env, error))?,
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
        let words = [("token_only", PublicTraffic::TokenOnly), ("everybody", PublicTraffic::Everybody)];
        config.public_traffic = given.word("publicTraffic", &words)?.unwrap_or_default();
        let words = [("off", AutoResume::Off), ("on_traffic", AutoResume::OnTraffic)];
        config.auto_resume = given.word("autoResume", &words)?.unwrap_or_default();
        if let Some(owner) = given.take::<String>("mastraOwner")? {
            config.mastra_owner = Some(checked(env, "mastraOwner", Owner::new(owner))?);
        }
        given.finish()?;
        E2bProvider::new(config).map(Self).map_err(|error| thrown(env, error))
    }

    /// The provider's stable name.
    #[napi(getter)]
    pub fn name(&self) -> &'static str {
        self.0.name()
    }
}

/// Returns the provider that a host is made of.
pub(crate) fn provider(given: Either<&NativeLocalProvider, &NativeE2bProvider>) -> Arc<dyn SandboxProvider> {
    match given {
        Either::A(local) => Arc::new(local.0.clone()),
        Either::B(remote) => Arc::new(remote.0.clone()),
    }
}
