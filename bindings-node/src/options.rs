//! What shapes an acquire, from an object of options.

use std::path::PathBuf;
use std::sync::Arc;

use napi::bindgen_prelude::{FromNapiValue as _, Object};
use napi::{Env, ValueType};
use sandhold_core as core;
use sandhold_core::{
    AcquireOptions, CloneOptions, Exclusion, Key, Kind, Mount, MountSource, Network, OnDuplicates, OnExpiry,
    OnGone, OnResumeFailure, OnSetupFailure, OnSpecConflict, ReplaceWhenGone, Resources, SandboxId,
    SandboxSpec,
};

use crate::convert::{Options, checked, extract};
use crate::errors::{invalid_argument, type_error};
use crate::hooks::NodeHooks;

/// Reads the options of an acquire.
pub(crate) fn acquire(
    env: &Env,
    call: &'static str,
    given: Option<Object<'_>>,
) -> napi::Result<AcquireOptions> {
    let mut given = Options::new(env, call, given);
    let mut options = AcquireOptions::new(spec(&mut given)?);
    options.provider_id = given.take::<String>("providerId")?.map(SandboxId::new);
    let words = [("create", ReplaceWhenGone::Create), ("fail", ReplaceWhenGone::Fail)];
    set(&mut options.replace_when_gone, given.word("replaceWhenGone", &words)?);
    let words = [("fail", OnGone::Fail), ("reacquire", OnGone::Reacquire)];
    set(&mut options.on_gone, given.word("onGone", &words)?);
    let words = [("report", OnDuplicates::Report), ("reap", OnDuplicates::Reap)];
    set(&mut options.on_duplicates, given.word("onDuplicates", &words)?);
    let words = [
        ("error", OnSpecConflict::Error),
        ("keep", OnSpecConflict::Keep),
        ("replace", OnSpecConflict::Replace),
    ];
    set(&mut options.on_spec_conflict, given.word("onSpecConflict", &words)?);
    let words = [("keep", OnSetupFailure::Keep), ("destroy", OnSetupFailure::Destroy)];
    set(&mut options.on_setup_failure, given.word("onSetupFailure", &words)?);
    let words = [("keep", OnResumeFailure::Keep), ("destroy", OnResumeFailure::Destroy)];
    set(&mut options.on_resume_failure, given.word("onResumeFailure", &words)?);
    let words = [("proven", Exclusion::Proven), ("best_effort", Exclusion::BestEffort)];
    set(&mut options.exclusion, given.word("exclusion", &words)?);
    set(&mut options.hook_deadline, given.millis("hookDeadline")?);
    set(&mut options.call_deadline, given.millis("callDeadline")?);
    set(&mut options.deadline, given.millis("deadline")?);
    options.hooks = NodeHooks::take(&mut given)?.map(|hooks| hooks as Arc<dyn core::Hooks>);
    given.finish()?;
    Ok(options)
}

fn set<T>(field: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *field = given;
    }
}

fn spec(given: &mut Options<'_>) -> napi::Result<SandboxSpec> {
    let mut spec = SandboxSpec::default();
    set(&mut spec.template, given.take("template")?);
    set(&mut spec.user, given.take("user")?);
    set(&mut spec.home, given.take("home")?);
    spec.workdir = given.take("workdir")?;
    set(&mut spec.env, given.take("env")?);
    set(&mut spec.metadata, given.take("metadata")?);
    set(&mut spec.resources, resources(given)?);
    let words = [("none", Network::None), ("loopback", Network::Loopback), ("host", Network::Host)];
    set(&mut spec.network, given.word("network", &words)?);
    spec.lease = given.millis("lease")?;
    let words = [("pause", OnExpiry::Pause), ("kill", OnExpiry::Kill)];
    set(&mut spec.on_expiry, given.word("onExpiry", &words)?);
    set(&mut spec.kind, kind(given)?);
    for described in given.take::<Vec<Object<'_>>>("mounts")?.unwrap_or_default() {
        spec.mounts.push(mount(given.env, described)?);
    }
    Ok(spec)
}

fn resources(given: &mut Options<'_>) -> napi::Result<Option<Resources>> {
    let Some(mut limits) = given.options("resources")? else { return Ok(None) };
    let mut resources = Resources::default();
    resources.cpu_millis = limits.count("cpuMillis")?;
    resources.memory = limits.count("memory")?;
    resources.pids = limits.count("pids")?;
    resources.disk = limits.count("disk")?;
    limits.finish()?;
    Ok(Some(resources))
}

fn kind(given: &mut Options<'_>) -> napi::Result<Option<Kind>> {
    let Some(value) = given.any("kind")? else { return Ok(None) };
    let env = given.env;
    if value.get_type()? == ValueType::Object {
        let mut given = Options::new(env, "kind", Some(Object::from_unknown(value)?));
        let (model, image) = (given.take::<String>("gpu")?, given.take::<String>("image")?);
        let count = given.count("count")?;
        given.finish()?;
        return match (model, image, count) {
            (Some(model), None, count) => Ok(Some(Kind::Gpu { model, count: count.unwrap_or(1) })),
            (None, Some(reference), None) => Ok(Some(Kind::Image { reference })),
            _ => Err(type_error(env, "argument 'kind': give { gpu, count } or { image }")),
        };
    }
    match extract::<String>(env, "acquire", "kind", value)?.as_str() {
        "standard" => Ok(Some(Kind::Standard)),
        "privileged" => Ok(Some(Kind::Privileged)),
        other => {
            let problem =
                format!("is {other:?}; give \"standard\", \"privileged\", {{ gpu }} or {{ image }}");
            Err(invalid_argument(env, "kind", &problem))
        }
    }
}

fn mount(env: &Env, described: Object<'_>) -> napi::Result<Mount> {
    let mut given = Options::new(env, "mounts", Some(described));
    let wrong =
        || type_error(env, "argument 'mounts': give { path } with one of hostDir, sharedDir and volume");
    let path = given.take::<String>("path")?.ok_or_else(wrong)?;
    let host = given.take::<String>("hostDir")?;
    let writable = given.take::<bool>("writable")?;
    let shared = given.take::<String>("sharedDir")?;
    let volume = given.take::<String>("volume")?;
    given.finish()?;
    match (host, writable, shared, volume) {
        (Some(host), Some(true), None, None) => Ok(Mount::host_dir_writable(path, host)),
        (Some(host), _, None, None) => Ok(Mount::host_dir(path, host)),
        (None, None, Some(shared), None) => Ok(Mount::shared_dir(path, shared)),
        (None, None, None, Some(name)) => {
            let mut mount = Mount::host_dir(path, PathBuf::new());
            mount.source = MountSource::Volume { name };
            Ok(mount)
        }
        _ => Err(wrong()),
    }
}

/// Reads what differs between a sandbox and a clone of its spec.
pub(crate) fn clone(env: &Env, call: &'static str, given: Option<Object<'_>>) -> napi::Result<CloneOptions> {
    let mut given = Options::new(env, call, given);
    let mut options = CloneOptions::default();
    options.key = match given.take::<String>("key")? {
        Some(key) => Some(checked(env, "key", Key::new(key))?),
        None => None,
    };
    options.provider_id = given.take::<String>("providerId")?.map(SandboxId::new);
    set(&mut options.env, given.take("env")?);
    options.lease = given.millis("lease")?;
    options.workdir = given.take("workdir")?;
    given.finish()?;
    Ok(options)
}
