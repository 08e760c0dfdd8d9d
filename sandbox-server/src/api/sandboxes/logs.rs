//! What the provider has logged about a sandbox.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::extract::State;
use http::Uri;
use sandhold_core::{LogLine, LogOptions};
use sandhold_e2b::wire::{
    Direction, LogEntry, LogLevel, LogLine as WireLine, LogQuery, Logs, LogsV2, Timestamp,
};

use super::PathId;
use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::extract::Query;

/// Most lines of one answer, and how many it has when nothing is asked for.
const MOST: u32 = 1000;

/// `GET /sandboxes/{id}/logs`
pub(super) async fn v1(
    State(app): State<Arc<App>>,
    PathId(id): PathId,
    query: Query,
) -> ApiResult<Json<Logs>> {
    let since = query.number::<i64>("start")?.map(moment).transpose()?;
    let limit = limit(query.number("limit")?)?;
    let mut entries = lines(&app, &id, since).await?;
    entries.truncate(limit);
    let logs =
        entries.iter().map(|entry| WireLine { timestamp: entry.timestamp, line: entry.message.clone() });
    Ok(Json(Logs { logs: logs.collect(), log_entries: entries }))
}

/// `GET /v2/sandboxes/{id}/logs`
pub(super) async fn v2(State(app): State<Arc<App>>, PathId(id): PathId, uri: Uri) -> ApiResult<Json<LogsV2>> {
    let query = LogQuery::from_query(uri.query().unwrap_or_default())
        .map_err(|error| ApiError::bad_request(error.to_string()))?;
    let limit = limit(query.limit)?;
    let cursor = query.cursor.map(moment).transpose()?;
    let forward = query.direction == Some(Direction::Forward);
    let mut logs = lines(&app, &id, cursor.filter(|_| forward)).await?;
    logs.retain(|entry| {
        (forward || cursor.is_none_or(|cursor| entry.timestamp.0 <= cursor))
            && query.level.is_none_or(|level| entry.level >= level)
            && query.search.as_ref().is_none_or(|text| entry.message.contains(text.as_str()))
    });
    if !forward {
        logs.reverse();
    }
    logs.truncate(limit);
    Ok(Json(LogsV2 { logs }))
}

/// Reads the lines of a sandbox, oldest first.
async fn lines(app: &Arc<App>, id: &str, since: Option<SystemTime>) -> ApiResult<Vec<LogEntry>> {
    let sandbox = app.sandbox(id).await?;
    if !app.provider.capabilities().logs {
        return Ok(Vec::new());
    }
    let mut options = LogOptions::default();
    options.since = since;
    let read = async { app.provider.logs(&sandbox.provided, options).await?.collect().await };
    let lines = match read.await {
        Ok(lines) => lines,
        Err(error) => return Err(app.unread(&sandbox, error).await),
    };
    Ok(lines.into_iter().map(entry).collect())
}

fn entry(line: LogLine) -> LogEntry {
    let level = match line.level.as_str() {
        "debug" | "trace" => LogLevel::Debug,
        "warn" | "warning" => LogLevel::Warn,
        "error" => LogLevel::Error,
        _ => LogLevel::Info,
    };
    LogEntry { timestamp: Timestamp(line.at), message: line.message, level, ..LogEntry::default() }
}

fn moment(millis: i64) -> ApiResult<SystemTime> {
    match Timestamp::from_unix_millis(millis) {
        Some(at) => Ok(at.0),
        None => Err(ApiError::bad_request(format!("{millis} is no moment in milliseconds since 1970"))),
    }
}

fn limit(asked: Option<u32>) -> ApiResult<usize> {
    match asked.unwrap_or(MOST) {
        lines @ 0..=MOST => Ok(lines as usize),
        _ => Err(ApiError::bad_request(format!("limit must be 0 to {MOST}"))),
    }
}
