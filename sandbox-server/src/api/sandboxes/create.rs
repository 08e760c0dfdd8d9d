//! `POST /v2/sandboxes` and `POST /sandboxes`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use http::{HeaderMap, HeaderValue, StatusCode};
use sandhold_e2b::wire::{CreateSandbox, Sandbox as Ready, VolumeMount};
use sha2::{Digest, Sha256};

use super::view;
use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::sandboxes::{Identity, Made, NewSandbox, RESERVED};
use crate::templates::Context;
use crate::{api, extract, network, resolve};

/// What differs between the two routes.
struct Version {
    default_timeout: u64,
    always_secure: bool,
}

const V1: Version = Version { default_timeout: 15, always_secure: false };
const V2: Version = Version { default_timeout: 300, always_secure: true };

/// Where the daemon of a sandbox keeps its own files.
const DAEMON_FILES: &str = "/run/e2b";

/// The longest argument or variable of a program, with its name and end: `MAX_ARG_STRLEN` of Linux.
const MAX_VARIABLE: usize = 128 * 1024;

/// All variables; Linux lets arguments and variables have 2 MiB with the usual stack of 8 MiB.
const MAX_ENV: usize = 1536 * 1024;

/// The longest path of Linux (`PATH_MAX`) with room for where the sandbox's root lies, and the longest name in one.
const MAX_PATH: usize = 2048;
const MAX_NAME: usize = 255;

const IDEMPOTENCY_KEY: &str = "idempotency-key";

pub(super) async fn v1(
    State(app): State<Arc<App>>,
    request: Request,
) -> ApiResult<(StatusCode, Json<Ready>)> {
    create(app, request, V1).await
}

pub(super) async fn v2(
    State(app): State<Arc<App>>,
    request: Request,
) -> ApiResult<(StatusCode, Json<Ready>)> {
    create(app, request, V2).await
}

async fn create(app: Arc<App>, request: Request, version: Version) -> ApiResult<(StatusCode, Json<Ready>)> {
    let key = idempotency_key(request.headers())?;
    let body = extract::read(request).await?;
    let asked: serde_json::Value = extract::parse(&body)?;
    // Maps are sorted, so that the order of fields does not matter.
    let identity = key.map(|key| Identity { key, request: hex(&Sha256::digest(asked.to_string())) });
    let asked: CreateSandbox = serde_json::from_value(asked)
        .map_err(|error| ApiError::bad_request(format!("the request body is not valid: {error}")))?;
    let request = identity.as_ref().map(|identity| identity.request.clone());
    let sandbox =
        api::to_the_end(
            async move { app.create_sandbox(identity, checked(&app, asked, version, request)).await },
        )
        .await?;
    Ok((StatusCode::CREATED, Json(view::ready(&sandbox))))
}

/// Checks everything that can be checked before anything is made.
async fn checked(
    app: &Arc<App>,
    asked: CreateSandbox,
    version: Version,
    request: Option<String>,
) -> ApiResult<NewSandbox> {
    let timeout = match asked.timeout {
        None => version.default_timeout.min(app.config.max_run.as_secs().max(1)),
        Some(seconds) => match u64::try_from(seconds) {
            Ok(seconds @ 1..) => app.check_timeout(Duration::from_secs(seconds))?.as_secs(),
            _ => return Err(ApiError::bad_request("Timeout must be greater than 0")),
        },
    };
    let auto_pause = asked.auto_pause.unwrap_or(false);
    let auto_pause_memory = asked.auto_pause_memory.unwrap_or(true);
    let auto_resume = asked.auto_resume.is_some_and(|resume| resume.enabled);
    if !auto_pause_memory && !auto_pause {
        return Err(ApiError::bad_request("autoPauseMemory: false needs autoPause: true"));
    }
    if auto_resume && !auto_pause {
        return Err(ApiError::bad_request("autoResume needs autoPause: true"));
    }
    if auto_resume && !auto_pause_memory {
        return Err(ApiError::bad_request("autoResume needs a pause that keeps memory"));
    }
    if asked.iam.is_some_and(|iam| !iam.is_null()) {
        return Err(ApiError::bad_request("identity tokens are not available on this server"));
    }
    let metadata = asked.metadata.unwrap_or_default();
    if let Some(name) = metadata.keys().find(|name| name.starts_with(RESERVED)) {
        return Err(ApiError::bad_request(format!("the metadata name {name:?} is reserved")));
    }
    let secure = version.always_secure || asked.secure.unwrap_or(false);
    let policy = asked.network.clone().unwrap_or_default();
    if policy.allow_public_traffic == Some(false) && !secure {
        return Err(ApiError::bad_request("allowPublicTraffic: false needs secure: true"));
    }
    if policy.https_ports.as_ref().is_some_and(|ports| ports.contains(&sandhold_core::DAEMON_PORT)) {
        return Err(ApiError::bad_request("httpsPorts cannot hold 49983, the port of the sandbox's daemon"));
    }
    if policy.mask_request_host.as_deref().is_some_and(|mask| HeaderValue::from_str(mask).is_err()) {
        return Err(ApiError::bad_request("maskRequestHost has a character that no header can carry"));
    }
    let egress = network::egress_of(&policy, asked.allow_internet_access);
    network::check(&egress)?;
    let mounts = asked.volume_mounts.unwrap_or_default();
    check_mounts(&mounts)?;
    let (template, hold) = resolve::held_template(app, &asked.template_id).await?;
    let env = asked.env_vars.unwrap_or_default();
    // What is made from a snapshot has the variables of its source, as stored memory keeps them at E2B.
    let mut context = template.context.clone();
    context.env.extend(env.clone());
    check_env(&context.env)?;
    let (found, mut holds) = resolve::volumes(app, &mounts).await?;
    holds.push(hold);
    Ok(NewSandbox {
        network: network::enforced(&egress, app.config.egress)?,
        mounts: found,
        made: Made {
            template: template.id.clone(),
            alias: template.alias.clone(),
            context: (context != Context::default()).then_some(context),
            start: template.start.clone(),
            secure,
            timeout,
            auto_pause,
            auto_pause_memory,
            auto_resume,
            allow_internet_access: asked.allow_internet_access,
            network: asked.network,
            volume_mounts: (!mounts.is_empty()).then_some(mounts),
            request,
        },
        template,
        metadata,
        env,
        holds,
    })
}

/// Refuses variables with which the kernel starts no program.
fn check_env(env: &BTreeMap<String, String>) -> ApiResult<()> {
    let size = |(name, value): (&String, &String)| name.len() + value.len() + 2;
    if let Some((name, _)) = env.iter().find(|(name, value)| size((name, value)) > MAX_VARIABLE) {
        let shown: String = name.chars().take(64).collect();
        return Err(ApiError::bad_request(format!(
            "the variable {shown:?} of envVars is larger than {MAX_VARIABLE} bytes"
        )));
    }
    if env.iter().map(size).sum::<usize>() > MAX_ENV {
        return Err(ApiError::bad_request(format!("envVars are larger than {MAX_ENV} bytes")));
    }
    Ok(())
}

fn check_mounts(mounts: &[VolumeMount]) -> ApiResult<()> {
    let mut paths = BTreeSet::new();
    for mount in mounts {
        let path = mount.path.as_str();
        let parts = path.strip_prefix('/').filter(|rest| !rest.is_empty()).map(|rest| rest.split('/'));
        let clean = parts.is_some_and(|mut parts| parts.all(|part| !matches!(part, "" | "." | "..")));
        if !clean || path.contains('\0') {
            return Err(ApiError::bad_request(format!("the mount path {path:?} is not absolute and clean")));
        }
        if path.len() > MAX_PATH || path.split('/').any(|part| part.len() > MAX_NAME) {
            let shown: String = path.chars().take(64).collect();
            return Err(ApiError::bad_request(format!(
                "the mount path {shown:?}... is longer than a path can be"
            )));
        }
        if Path::new(path).starts_with(DAEMON_FILES) || Path::new(DAEMON_FILES).starts_with(path) {
            return Err(ApiError::bad_request(format!(
                "the mount path {path:?} would hide {DAEMON_FILES}, which belongs to the sandbox's daemon"
            )));
        }
        if !paths.insert(path) {
            return Err(ApiError::bad_request(format!("two volumes are to be mounted at {path:?}")));
        }
    }
    Ok(())
}

fn idempotency_key(headers: &HeaderMap) -> ApiResult<Option<String>> {
    let Some(key) = headers.get(IDEMPOTENCY_KEY) else { return Ok(None) };
    let allowed = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
    match key.to_str() {
        Ok(key) if (1..=255).contains(&key.len()) && key.as_bytes().iter().all(allowed) => {
            Ok(Some(key.to_owned()))
        }
        _ => Err(ApiError::bad_request(
            "Idempotency-Key is not 1 to 255 lower-case letters, digits and dashes",
        )),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
