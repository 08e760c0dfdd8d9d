//! A sandbox as answers show it.

use std::sync::{Arc, PoisonError};

use axum::Json;
use axum::extract::State;
use sandhold_e2b::wire::{NetworkConfig, Sandbox as Ready, SandboxDetail, State as Shown, Timestamp};
use sandhold_envd::ENVD_VERSION;

use super::PathId;
use crate::app::App;
use crate::error::ApiResult;
use crate::ids::CLIENT_ID;
use crate::sandboxes::{Sandbox, not_found};

/// A sandbox that is ready for use.
pub(super) fn ready(sandbox: &Sandbox) -> Ready {
    Ready {
        sandbox_id: sandbox.id.clone(),
        template_id: sandbox.made.template.clone(),
        client_id: CLIENT_ID.to_owned(),
        envd_version: ENVD_VERSION.to_owned(),
        alias: sandbox.made.alias.clone(),
        envd_access_token: sandbox.access_token.clone().map(Into::into),
        traffic_access_token: sandbox.traffic_token.clone().map(Into::into),
        domain: None,
    }
}

/// The facts that lists show; `None` for one that is as good as gone.
pub(super) fn listed(app: &App, sandbox: &Sandbox) -> Option<SandboxDetail> {
    let state = sandbox.state()?;
    let run = sandbox.run();
    let last = sandbox.samples.lock().unwrap_or_else(PoisonError::into_inner).last().cloned();
    Some(SandboxDetail {
        sandbox_id: sandbox.id.clone(),
        template_id: sandbox.made.template.clone(),
        alias: sandbox.made.alias.clone(),
        client_id: CLIENT_ID.to_owned(),
        started_at: Timestamp(run.started_at),
        end_at: Timestamp(run.end_at),
        cpu_count: app.machine.cpu_count,
        memory_mb: app.machine.memory_mb,
        disk_size_mb: last.map_or(app.machine.disk_mb, |sample| sample.disk_total >> 20),
        state,
        envd_version: ENVD_VERSION.to_owned(),
        metadata: (!sandbox.metadata.is_empty()).then(|| sandbox.metadata.clone()),
        volume_mounts: sandbox.made.volume_mounts.clone(),
        ..SandboxDetail::default()
    })
}

/// `GET /sandboxes/{id}`
pub(super) async fn detail(
    State(app): State<Arc<App>>,
    PathId(id): PathId,
) -> ApiResult<Json<SandboxDetail>> {
    let sandbox = app.sandbox(&id).await?;
    let there = app.check(&sandbox).await?;
    let listed = listed(&app, &sandbox).filter(|_| there);
    let Some(mut detail) = listed else {
        return Err(not_found(&id));
    };
    let run = sandbox.run();
    if detail.state == Shown::Paused {
        detail.pause_mode = Some(run.pause_mode);
    }
    detail.envd_access_token = sandbox.access_token.clone().map(Into::into);
    detail.lifecycle = Some(sandbox.made.lifecycle());
    detail.allow_internet_access = sandbox.made.allow_internet_access;
    detail.network = sandbox.made.network.clone();
    if let Some(update) = run.network {
        detail.allow_internet_access = update.allow_internet_access;
        let kept = detail.network.take().unwrap_or_default();
        detail.network = Some(NetworkConfig {
            allow_out: update.allow_out,
            deny_out: update.deny_out,
            rules: update.rules,
            egress_proxy: None,
            ..kept
        });
    }
    Ok(Json(detail))
}
