//! What an E2B sandbox is reached by beside its handle: hosts, tokens, signed URLs of files.

use std::collections::BTreeMap;

use napi::Env;
use napi::bindgen_prelude::{Object, PromiseRaw, Unknown};
use napi_derive::napi;
use sandhold_core::SandboxId;
use sandhold_e2b::wire::Secret;
use sandhold_e2b::{SandboxAccess, SignOptions};

use crate::convert::{Options, count, extract};
use crate::errors::thrown;
use crate::plain::{self, Plain};
use crate::provider::NativeE2BProvider;
use crate::runtime::{NativeCall, call};

/// Where a port answers over HTTP, and what requests to it must carry.
#[napi(object, object_from_js = false)]
pub struct PortAccess {
    pub url: String,
    pub headers: BTreeMap<String, String>,
}

/// How a sandbox is reached.
#[napi]
pub struct NativeAccess(SandboxAccess);

impl From<SandboxAccess> for NativeAccess {
    fn from(access: SandboxAccess) -> Self {
        Self(access)
    }
}

fn told(secret: &Secret) -> String {
    secret.expose().to_owned()
}

#[napi]
impl NativeAccess {
    /// The host of a port, without a scheme.
    #[napi]
    pub fn host(&self, env: &Env, port: Unknown<'_>) -> napi::Result<String> {
        Ok(self.0.host(count(env, "port", extract(env, "host", "port", port)?)?))
    }

    /// The token that requests to ports carry.
    #[napi(getter)]
    pub fn traffic_token(&self) -> Option<String> {
        self.0.traffic_token().map(told)
    }

    /// The token of the daemon inside.
    #[napi(getter)]
    pub fn envd_token(&self) -> Option<String> {
        self.0.envd_token().map(told)
    }

    /// Says how a port is asked over HTTP.
    #[napi]
    pub fn port(&self, env: &Env, port: Unknown<'_>) -> napi::Result<PortAccess> {
        let port = self.0.port(count(env, "port", extract(env, "port", "port", port)?)?);
        let headers = port.headers.iter().map(|(name, value)| ((*name).to_owned(), told(value))).collect();
        Ok(PortAccess { url: port.url, headers })
    }

    /// A URL from which one file can be downloaded without any token.
    #[napi]
    pub fn download_url(
        &self,
        env: &Env,
        path: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<String> {
        let path = extract::<String>(env, "downloadUrl", "path", path)?;
        let options = sign(env, "downloadUrl", options)?;
        self.0.download_url(&path, &options).map_err(|error| thrown(env, error))
    }

    /// A URL to which one file can be uploaded without any token.
    #[napi]
    pub fn upload_url(
        &self,
        env: &Env,
        path: Unknown<'_>,
        options: Option<Object<'_>>,
    ) -> napi::Result<String> {
        let path = extract::<String>(env, "uploadUrl", "path", path)?;
        let options = sign(env, "uploadUrl", options)?;
        self.0.upload_url(&path, &options).map_err(|error| thrown(env, error))
    }
}

fn sign(env: &Env, call: &'static str, given: Option<Object<'_>>) -> napi::Result<SignOptions> {
    let mut given = Options::new(env, call, given);
    let mut options = SignOptions::default();
    options.user = given.take("user")?;
    options.expires = given.millis("expires")?;
    given.finish()?;
    Ok(options)
}

#[napi]
impl NativeE2BProvider {
    /// Says how a sandbox is reached. Wakes a paused one.
    #[napi]
    pub fn access<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, NativeAccess>> {
        let id = SandboxId::new(extract::<String>(env, "access", "id", id)?);
        let provider = self.0.clone();
        call(env, around, async move { provider.access(&id).await })
    }

    /// Replaces the whole network policy of a running sandbox.
    #[napi]
    pub fn update_network_policy<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
        policy: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, ()>> {
        let id = SandboxId::new(extract::<String>(env, "updateNetworkPolicy", "id", id)?);
        let policy = plain::read(env, "policy", policy)?;
        let provider = self.0.clone();
        call(env, around, async move { provider.update_network_policy(&id, &policy).await })
    }

    /// The facts in E2B's own words.
    #[napi]
    pub fn detail<'env>(
        &self,
        env: &'env Env,
        around: Option<&NativeCall>,
        id: Unknown<'_>,
    ) -> napi::Result<PromiseRaw<'env, Plain>> {
        let id = SandboxId::new(extract::<String>(env, "detail", "id", id)?);
        let provider = self.0.clone();
        call(env, around, async move { provider.detail(&id).await })
    }
}
