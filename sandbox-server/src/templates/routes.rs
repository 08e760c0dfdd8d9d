//! The routes of templates, builds and tags.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Request, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, patch, post, put};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use sandhold_core::ErrorKind;
use sandhold_e2b::wire::{
    AliasInfo, AssignTags, AssignedTags, Build, BuildInfo, BuildReason, BuildStatus, BuildStatusAnswer,
    CreatedTemplate, FileUpload, LogEntry, LogLevel, NEXT_TOKEN_HEADER, NewTemplate, RemoveTags, Secret, Tag,
    Template, UpdateTemplate,
};

use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::extract::{Json, Query, Segment};
use crate::guard;

use super::build::Base;
use super::catalog::{self, BASE, BuildRequest, not_found, unknown_build};
use super::log::PAGE;
use super::names::{DEFAULT_TAG, NAMESPACE, TemplateName, parse_tags};
use super::record::{BuildRecord, TemplateRecord};
use super::resolve::ready_build;
use super::uploads;

/// Most cores and memory that a template may ask for; the machine may have less, and then sandboxes get what it has.
const MAX_CPU: u32 = 1024;
const MAX_MEMORY_MB: u64 = 16 << 20;
/// Most lines of one page of a log, and most templates of one page of a list.
const MAX_PAGE: usize = 100;

/// Routes that need an API key.
pub(crate) fn keyed() -> Router<Arc<App>> {
    Router::new()
        .route("/v3/templates", post(create))
        .route("/v2/templates", get(list))
        .route("/templates", get(list_all))
        .route("/v2/templates/{id}", patch(update))
        .route("/v2/templates/{id}/builds/{build}", post(start))
        .route("/templates/aliases/{alias}", get(alias))
        .route("/templates/tags", post(assign_tags).delete(remove_tags))
        .route("/templates/{id}", get(detail).patch(update).delete(remove))
        .route("/templates/{id}/tags", get(tags))
        .route("/templates/{id}/files/{hash}", get(file_link))
        .route("/templates/{id}/builds/{build}/status", get(status))
        .route("/templates/{id}/builds/{build}/logs", get(logs))
        .route("/templates/{id}/builds/{build}", delete(cancel))
}

/// The route that checks the signature of its link.
pub(crate) fn open() -> Router<Arc<App>> {
    Router::new().route("/templates/{id}/uploads/{hash}", put(upload))
}

/// Finds one of this server's own templates.
async fn own(app: &App, text: &str) -> ApiResult<(TemplateName, TemplateRecord)> {
    let name = TemplateName::parse(text).map_err(ApiError::bad_request)?;
    let record = app.templates.catalog.find(&name).await.ok_or_else(|| not_found(text))?;
    Ok((name, record))
}

/// Refuses a name in somebody else's namespace.
fn ours(name: &TemplateName) -> ApiResult<()> {
    match &name.namespace {
        Some(namespace) if !name.is_ours() => Err(ApiError::bad_request(format!(
            "the namespace {namespace:?} is not this server's, which is {NAMESPACE:?}"
        ))),
        _ => Ok(()),
    }
}

async fn create(State(app): State<Arc<App>>, Json(body): Json<NewTemplate>) -> ApiResult<Response> {
    let asked = match (&body.name, &body.alias) {
        (name, Some(alias)) if name.is_empty() => alias,
        (name, _) => name,
    };
    if asked.trim().is_empty() {
        return Err(ApiError::bad_request("Name is required"));
    }
    let name = TemplateName::parse(asked).map_err(ApiError::bad_request)?;
    ours(&name)?;
    if name.name == BASE {
        return Err(ApiError::bad_request("the name base is kept for this machine's own base; use another"));
    }
    let given = name.tag.iter().chain(body.tags.iter().flatten());
    let tags = catalog::or_default(parse_tags(given).map_err(ApiError::bad_request)?);
    if let Some(cpu) = body.cpu_count.filter(|cpu| !(1..=MAX_CPU).contains(cpu)) {
        return Err(ApiError::bad_request(format!("cpuCount {cpu} is not 1 to {MAX_CPU}")));
    }
    // E2B's own rule for memory.
    if let Some(memory) = body.memory_mb.filter(|mb| !(128..=MAX_MEMORY_MB).contains(mb) || mb % 2 != 0) {
        return Err(ApiError::bad_request(format!("memoryMB {memory} is not an even number from 128 on")));
    }
    let request = BuildRequest { tags: tags.clone(), cpu_count: body.cpu_count, memory_mb: body.memory_mb };
    let (record, build) = app.templates.catalog.request(&name, request).await?;
    let answer = CreatedTemplate {
        template_id: record.id.clone(),
        build_id: build,
        public: record.public,
        names: vec![format!("{NAMESPACE}/{}", record.name)],
        tags,
        aliases: vec![record.name],
    };
    Ok((StatusCode::ACCEPTED, axum::Json(answer)).into_response())
}

async fn start(
    State(app): State<Arc<App>>,
    Path((id, build)): Path<(String, String)>,
    Json(body): Json<Build>,
) -> ApiResult<StatusCode> {
    let (_, record) = own(&app, &id).await?;
    if record.build(&build).is_none() {
        return Err(unknown_build(&build));
    }
    let base = match (&body.from_image, &body.from_template) {
        (Some(image), None) => Base::Image(image.clone()),
        (None, Some(template)) => {
            let resolved = crate::resolve::resolve(&app, template).await?;
            let layer = super::record::Layer {
                snapshot: resolved.snapshot.clone(),
                context: resolved.context.clone(),
            };
            let identity = resolved.build_id.as_deref().or(resolved.snapshot.as_deref()).unwrap_or(BASE);
            Base::Template(
                Box::new(super::record::Built { layer, start: resolved.start.clone() }),
                identity.to_owned(),
            )
        }
        _ => return Err(ApiError::bad_request("give either fromImage or fromTemplate")),
    };
    app.templates.catalog.start(&record.id, &build).await?;
    app.templates.spawn(record.id, build, base, body);
    Ok(StatusCode::ACCEPTED)
}

async fn cancel(
    State(app): State<Arc<App>>,
    Path((id, build)): Path<(String, String)>,
) -> ApiResult<StatusCode> {
    let (_, record) = own(&app, &id).await?;
    if record.build(&build).is_none() {
        return Err(unknown_build(&build));
    }
    app.templates.cancel(&build);
    Ok(StatusCode::NO_CONTENT)
}

async fn status(
    State(app): State<Arc<App>>,
    Path((id, build)): Path<(String, String)>,
    query: Query,
) -> ApiResult<axum::Json<BuildStatusAnswer>> {
    let (_, record) = own(&app, &id).await?;
    let level = level(&query)?;
    let limit = query.number::<usize>("limit")?.unwrap_or(PAGE).min(PAGE);
    let offset = query.number("logsOffset")?.unwrap_or_default();
    let found = record.build(&build).ok_or_else(|| unknown_build(&build))?;
    let mut log_entries = app.templates.log(&build, offset, limit).await?;
    log_entries.retain(|entry| level.is_none_or(|level| entry.level >= level));
    // A build may have ended between the two looks: its lines are then read again at the next one.
    let reason = match &found.reason {
        Some(reason) => {
            let mut its: Vec<_> = app.templates.log(&build, 0, usize::MAX).await?;
            its.retain(|entry| entry.step == reason.step && entry.level >= LogLevel::Info);
            let recent = its.split_off(its.len().saturating_sub(PAGE));
            Some(BuildReason {
                message: reason.message.clone(),
                step: reason.step.clone(),
                log_entries: recent,
            })
        }
        None => None,
    };
    Ok(axum::Json(BuildStatusAnswer {
        template_id: record.id.clone(),
        build_id: build,
        status: found.status,
        logs: log_entries.iter().map(|entry| entry.message.clone()).collect(),
        log_entries,
        reason,
    }))
}

fn level(query: &Query) -> ApiResult<Option<LogLevel>> {
    match query.get("level") {
        None => Ok(None),
        Some("debug") => Ok(Some(LogLevel::Debug)),
        Some("info") => Ok(Some(LogLevel::Info)),
        Some("warn") => Ok(Some(LogLevel::Warn)),
        Some("error") => Ok(Some(LogLevel::Error)),
        Some(_) => {
            Err(ApiError::bad_request("the query parameter \"level\" is not debug, info, warn or error"))
        }
    }
}

async fn logs(
    State(app): State<Arc<App>>,
    Path((id, build)): Path<(String, String)>,
    query: Query,
) -> ApiResult<axum::Json<BTreeMap<&'static str, Vec<LogEntry>>>> {
    let (_, record) = own(&app, &id).await?;
    if record.build(&build).is_none() {
        return Err(unknown_build(&build));
    }
    let level = level(&query)?;
    let limit = query.number::<usize>("limit")?.unwrap_or(MAX_PAGE).min(MAX_PAGE);
    let cursor: Option<i64> = query.number("cursor")?;
    let backward = match query.get("direction") {
        None | Some("forward") => false,
        Some("backward") => true,
        Some(_) => {
            return Err(ApiError::bad_request(
                "the query parameter \"direction\" is not forward or backward",
            ));
        }
    };
    let mut all = app.templates.log(&build, 0, usize::MAX).await?;
    all.retain(|entry| level.is_none_or(|level| entry.level >= level));
    if backward {
        all.retain(|entry| cursor.is_none_or(|cursor| entry.timestamp.unix_millis() <= cursor));
        all.reverse();
    } else {
        all.retain(|entry| cursor.is_none_or(|cursor| entry.timestamp.unix_millis() >= cursor));
    }
    all.truncate(limit);
    Ok(axum::Json(BTreeMap::from([("logs", all)])))
}

async fn alias(State(app): State<Arc<App>>, Segment(alias): Segment) -> ApiResult<axum::Json<AliasInfo>> {
    let name = TemplateName::parse(&alias).map_err(ApiError::bad_request)?;
    if name.name == BASE && name.is_ours() {
        return Ok(axum::Json(AliasInfo { template_id: BASE.to_owned(), public: true }));
    }
    let record = app.templates.catalog.find(&name).await.ok_or_else(|| not_found(&alias))?;
    Ok(axum::Json(AliasInfo { template_id: record.id, public: record.public }))
}

async fn assign_tags(State(app): State<Arc<App>>, Json(body): Json<AssignTags>) -> ApiResult<Response> {
    if body.tags.is_empty() {
        return Err(ApiError::bad_request("At least one tag is required"));
    }
    let name = TemplateName::parse(&body.target).map_err(ApiError::bad_request)?;
    ours(&name)?;
    let record = app.templates.catalog.find(&name).await.ok_or_else(|| not_found(&body.target))?;
    let tags = parse_tags(&body.tags).map_err(ApiError::bad_request)?;
    let build = ready_build(&record, name.tag()).ok_or_else(|| {
        ApiError::not_found(format!("Template '{}' with tag '{}' not found", body.target, name.tag()))
    })?;
    app.templates.catalog.assign(&record.id, &build.id, &tags).await?;
    Ok((StatusCode::CREATED, axum::Json(AssignedTags { build_id: build.id.clone(), tags })).into_response())
}

async fn remove_tags(State(app): State<Arc<App>>, Json(body): Json<RemoveTags>) -> ApiResult<StatusCode> {
    let tags = parse_tags(&body.tags).map_err(ApiError::bad_request)?;
    if tags.is_empty() {
        return Err(ApiError::bad_request("At least one tag is required"));
    }
    if tags.iter().any(|tag| tag == DEFAULT_TAG) {
        return Err(ApiError::bad_request("Cannot delete the 'default' tag"));
    }
    let name = TemplateName::parse(&body.name).map_err(ApiError::bad_request)?;
    ours(&name)?;
    if name.tag.is_some() {
        return Err(ApiError::bad_request(
            "Template name should not contain a tag, use the 'tags' field instead",
        ));
    }
    let record = app.templates.catalog.find(&name).await.ok_or_else(|| not_found(&body.name))?;
    app.templates.catalog.unassign(&record.id, &tags).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn tags(State(app): State<Arc<App>>, Segment(id): Segment) -> ApiResult<axum::Json<Vec<Tag>>> {
    let (_, record) = own(&app, &id).await?;
    let mut tags: Vec<_> = record
        .tags
        .iter()
        .map(|(tag, stands)| Tag {
            tag: tag.clone(),
            build_id: stands.build.clone(),
            created_at: stands.since,
        })
        .collect();
    tags.sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| a.tag.cmp(&b.tag)));
    Ok(axum::Json(tags))
}

/// Says where the files of a COPY step are put, at the origin that the client called.
async fn file_link(
    State(app): State<Arc<App>>,
    Path((id, hash)): Path<(String, String)>,
    request: Request,
) -> ApiResult<Response> {
    let (_, record) = own(&app, &id).await?;
    if !uploads::is_hash(&hash) {
        return Err(ApiError::bad_request("the hash is not 64 digits of lower-case hex"));
    }
    let present = app.templates.uploads.find(&hash).await.is_some();
    // Also where they are there: who uploads anyway replaces them.
    let host = guard::host_of(request.uri(), request.headers())
        .ok_or_else(|| ApiError::bad_request("the header Host is missing or not valid"))?;
    let authority = request.headers().get(header::HOST).and_then(|value| value.to_str().ok());
    let authority = authority.map_or_else(|| host.to_string(), str::to_owned);
    let scheme = forwarded_scheme(request.headers());
    let query = uploads::link(&app.tokens, &record.id, &hash);
    let url = format!("{scheme}://{authority}/templates/{}/uploads/{hash}?{query}", record.id);
    let answer = FileUpload { present, url: Some(Secret::new(url)), headers: None };
    Ok((StatusCode::CREATED, axum::Json(answer)).into_response())
}

/// How the client reached a proxy before this server, which itself speaks plain HTTP only.
fn forwarded_scheme(headers: &HeaderMap) -> &'static str {
    match headers.get("x-forwarded-proto").map(HeaderValue::as_bytes) {
        Some(b"https") => "https",
        _ => "http",
    }
}

async fn upload(
    State(app): State<Arc<App>>,
    Path((id, hash)): Path<(String, String)>,
    query: Query,
    request: Request,
) -> ApiResult<StatusCode> {
    let expires = query.number("expires")?.unwrap_or_default();
    let signature = query.get("signature").unwrap_or_default();
    uploads::check_link(&app.tokens, &id, &hash, expires, signature)?;
    let length =
        request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let length: u64 = length.ok_or_else(|| {
        ApiError::new(
            StatusCode::LENGTH_REQUIRED,
            "an upload needs its exact Content-Length; it cannot be chunked",
        )
    })?;
    app.templates.uploads.store(&hash, length, request.into_body()).await?;
    Ok(StatusCode::OK)
}

/// What clients read of a template.
fn shown(app: &App, record: &TemplateRecord, with_builds: bool) -> Template {
    let latest = record.builds.last();
    let best = ready_build(record, DEFAULT_TAG)
        .or_else(|| record.builds.iter().rfind(|build| build.status == BuildStatus::Ready));
    let build = best.or(latest);
    Template {
        template_id: record.id.clone(),
        build_id: build.map(|build| build.id.clone()).unwrap_or_default(),
        public: record.public,
        aliases: vec![record.name.clone()],
        names: vec![format!("{NAMESPACE}/{}", record.name)],
        created_at: record.created_at,
        updated_at: record.updated_at,
        build_count: record.builds.len() as u64,
        build_status: latest.map(|build| build.status),
        cpu_count: build.and_then(|build| build.cpu_count).unwrap_or(app.machine.cpu_count),
        memory_mb: build.and_then(|build| build.memory_mb).unwrap_or(app.machine.memory_mb),
        disk_size_mb: app.machine.disk_mb,
        envd_version: sandhold_envd::ENVD_VERSION.to_owned(),
        builds: with_builds
            .then(|| record.builds.iter().rev().map(|build| shown_build(app, build)).collect()),
        ..Template::default()
    }
}

fn shown_build(app: &App, build: &BuildRecord) -> BuildInfo {
    BuildInfo {
        build_id: build.id.clone(),
        status: build.status,
        created_at: build.created_at,
        updated_at: build.updated_at,
        finished_at: build.finished_at,
        cpu_count: build.cpu_count.unwrap_or(app.machine.cpu_count),
        memory_mb: build.memory_mb.unwrap_or(app.machine.memory_mb),
        disk_size_mb: Some(app.machine.disk_mb),
        envd_version: (build.status == BuildStatus::Ready).then(|| sandhold_envd::ENVD_VERSION.to_owned()),
    }
}

async fn list_all(State(app): State<Arc<App>>) -> axum::Json<Vec<Template>> {
    axum::Json(app.templates.catalog.all().await.iter().map(|record| shown(&app, record, false)).collect())
}

async fn list(State(app): State<Arc<App>>, query: Query) -> ApiResult<Response> {
    let limit = query.number::<usize>("limit")?.unwrap_or(MAX_PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(ApiError::bad_request(format!("the query parameter \"limit\" is not 1 to {MAX_PAGE}")));
    }
    let all = app.templates.catalog.all().await;
    // The cursor is the template after which the page begins, with its place in the order, as it may be gone by then.
    let after = match query.get("nextToken").map(|token| token.split_once('_')) {
        None => None,
        Some(Some((millis, id))) if millis.parse::<i64>().is_ok() => {
            Some((millis.parse().unwrap_or(i64::MAX), id.to_owned()))
        }
        Some(_) => {
            return Err(ApiError::bad_request("the query parameter \"nextToken\" is not one of this list"));
        }
    };
    let place = |record: &TemplateRecord| (record.created_at.unix_millis(), record.id.clone());
    let is_later = |record: &&TemplateRecord| match &after {
        None => true,
        Some((millis, id)) => {
            let (its, name) = place(record);
            its < *millis || (its == *millis && name > *id)
        }
    };
    let mut sorted: Vec<_> = all.iter().collect();
    // By what the cursor can say, which is milliseconds.
    sorted.sort_by(|a, b| {
        b.created_at.unix_millis().cmp(&a.created_at.unix_millis()).then_with(|| a.id.cmp(&b.id))
    });
    let mut rest = sorted.into_iter().filter(is_later);
    let page: Vec<_> = rest.by_ref().take(limit).collect();
    let next = rest.next().and(page.last()).map(|last| place(last));
    let body: Vec<_> = page.iter().map(|record| shown(&app, record, false)).collect();
    let mut response = axum::Json(body).into_response();
    if let Some((millis, id)) = next
        && let Ok(token) = HeaderValue::from_str(&format!("{millis}_{id}"))
    {
        response.headers_mut().insert(NEXT_TOKEN_HEADER, token);
    }
    Ok(response)
}

async fn detail(State(app): State<Arc<App>>, Segment(id): Segment) -> ApiResult<axum::Json<Template>> {
    let (_, record) = own(&app, &id).await?;
    Ok(axum::Json(shown(&app, &record, true)))
}

async fn update(
    State(app): State<Arc<App>>,
    Segment(id): Segment,
    Json(body): Json<UpdateTemplate>,
) -> ApiResult<axum::Json<BTreeMap<&'static str, Vec<String>>>> {
    let (_, record) = own(&app, &id).await?;
    if let Some(public) = body.public {
        app.templates.catalog.set_public(&record.id, public).await?;
    }
    Ok(axum::Json(BTreeMap::from([("names", vec![format!("{NAMESPACE}/{}", record.name)])])))
}

/// Deletes a template, or a snapshot of a sandbox, which clients delete by the same route.
async fn remove(State(app): State<Arc<App>>, Segment(id): Segment) -> ApiResult<StatusCode> {
    let name = TemplateName::parse(&id).map_err(ApiError::bad_request)?;
    if name.name == BASE && name.is_ours() {
        return Err(ApiError::bad_request("the base of this machine cannot be deleted"));
    }
    if let Some(record) = app.templates.catalog.find(&name).await {
        return remove_template(&app, &record).await;
    }
    match app.snapshots.delete(&name).await {
        Ok(true) => Ok(StatusCode::NO_CONTENT),
        Ok(false) => Err(not_found(&id)),
        Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::InvalidState) => {
            Err(in_use(&id))
        }
        Err(error) => Err(error.into()),
    }
}

fn in_use(id: &str) -> ApiError {
    ApiError::bad_request(format!("cannot delete template '{id}' because there are sandboxes using it"))
}

async fn remove_template(app: &Arc<App>, record: &TemplateRecord) -> ApiResult<StatusCode> {
    // One that an earlier server left may be of it: without knowing all of them nothing is deleted.
    app.all_sandboxes().await?;
    let used = || {
        // In this order: a create lets go of it when its sandbox is listed.
        let used = app.holds.is_held(&record.id)
            || app.sandboxes.all().iter().any(|sandbox| sandbox.made.template == record.id);
        used.then(|| in_use(&record.id))
    };
    app.templates.catalog.remove(&record.id, used).await?;
    for build in record.builds.iter().filter(|build| build.status == BuildStatus::Building) {
        app.templates.cancel(&build.id);
    }
    let templates = Arc::clone(&app.templates);
    tokio::spawn(async move { templates.sweep().await });
    Ok(StatusCode::NO_CONTENT)
}
