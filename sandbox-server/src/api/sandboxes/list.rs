//! Lists of sandboxes: in pages (`/v2/sandboxes`) and whole (`/sandboxes`).

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::StreamExt as _;
use http::{HeaderName, HeaderValue, Uri};
use sandhold_e2b::wire::{
    ListQuery, MAX_PAGE, NEXT_TOKEN_HEADER, Order, SandboxDetail, State as Shown, TOTAL_RUNNING_HEADER,
    Timestamp,
};

use super::view;
use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::ids;
use crate::sandboxes::Sandbox;

/// So many sandboxes are asked how they are at once.
const AT_ONCE: usize = 16;

/// So often a page is made again because some of its sandboxes were not as this server thought.
const ROUNDS: usize = 3;

/// A place in a list: the start of a run, and an id.
type Place = (SystemTime, String);

/// `GET /sandboxes`
pub(super) async fn running(State(app): State<Arc<App>>, uri: Uri) -> ApiResult<Json<Vec<SandboxDetail>>> {
    let mut query = parse(&uri)?;
    query.state = vec![Shown::Running];
    let mut found = select(&app, &query).await?;
    check(&app, found.iter().map(|(_, sandbox)| sandbox)).await?;
    found.sort_by(|(a, _), (b, _)| compare(a, b));
    let listed = found.iter().filter_map(|(_, sandbox)| view::listed(&app, sandbox));
    Ok(Json(listed.filter(|detail| detail.state == Shown::Running).collect()))
}

/// `GET /v2/sandboxes`
pub(super) async fn page(State(app): State<Arc<App>>, uri: Uri) -> ApiResult<Response> {
    let query = parse(&uri)?;
    let order = query.order.unwrap_or_default();
    let cursor = query.next_token.as_deref().map(|token| read_cursor(token, order)).transpose()?;
    let limit = query.limit.unwrap_or(MAX_PAGE) as usize;
    let mut rounds = 0;
    let (page, more, running) = loop {
        let mut found = select(&app, &query).await?;
        found.sort_by(|(a, _), (b, _)| ordered(a, b, order));
        let running = found.iter().filter(|(_, sandbox)| sandbox.state() == Some(Shown::Running)).count();
        if let Some(cursor) = &cursor {
            found.retain(|(place, _)| ordered(place, cursor, order) == Ordering::Greater);
        }
        let more = found.len() > limit;
        found.truncate(limit);
        // What is shown is as the provider says at this moment.
        let changed = check(&app, found.iter().map(|(_, sandbox)| sandbox)).await?;
        rounds += 1;
        if !changed || rounds == ROUNDS {
            break (found, more, running);
        }
    };
    let listed: Vec<_> = page.iter().filter_map(|(_, sandbox)| view::listed(&app, sandbox)).collect();
    let mut response = Json(listed).into_response();
    let headers = response.headers_mut();
    if let Some((place, _)) = page.last().filter(|_| more)
        && let Ok(token) = HeaderValue::from_str(&write_cursor(place, order))
    {
        headers.insert(HeaderName::from_static(NEXT_TOKEN_HEADER), token);
    }
    if wants(&query, Shown::Running) {
        headers.insert(HeaderName::from_static(TOTAL_RUNNING_HEADER), HeaderValue::from(running));
    }
    Ok(response)
}

fn parse(uri: &Uri) -> ApiResult<ListQuery> {
    ListQuery::from_query(uri.query().unwrap_or_default())
        .map_err(|error| ApiError::bad_request(error.to_string()))
}

fn wants(query: &ListQuery, state: Shown) -> bool {
    query.state.is_empty() || query.state.contains(&state)
}

/// Finds what a query asks for, in no order.
async fn select(app: &Arc<App>, query: &ListQuery) -> ApiResult<Vec<(Place, Arc<Sandbox>)>> {
    let template = match &query.template {
        Some(template) => match template_id(app, template).await? {
            Some(id) => Some(id),
            None => return Ok(Vec::new()),
        },
        None => None,
    };
    let after = query.started_after.map(|after| microseconds(after.0));
    let wanted = |sandbox: &Arc<Sandbox>| {
        let started_at = sandbox.run().started_at;
        let wanted = sandbox.state().is_some_and(|state| wants(query, state))
            && template.as_ref().is_none_or(|template| sandbox.made.template == *template)
            && after.is_none_or(|after| microseconds(started_at) >= after)
            && query.metadata.iter().all(|(name, value)| sandbox.metadata.get(name) == Some(value));
        wanted.then(|| ((started_at, sandbox.id.clone()), Arc::clone(sandbox)))
    };
    Ok(app.all_sandboxes().await?.iter().filter_map(wanted).collect())
}

/// Finds the id of a template that a list is limited to; a tag is refused, and what is not there lists nothing.
async fn template_id(app: &Arc<App>, reference: &str) -> ApiResult<Option<String>> {
    if reference.contains(':') {
        return Err(ApiError::bad_request("the template of a list cannot have a tag"));
    }
    match crate::resolve::template(app, reference).await {
        Ok(template) => Ok(Some(template.id)),
        Err(error) if error.status == http::StatusCode::NOT_FOUND => {
            // Sandboxes of a template that was deleted can still be found by its id.
            Ok(ids::is_plain(reference).then(|| reference.to_owned()))
        }
        Err(error) => Err(error),
    }
}

/// Asks the provider how these are; tells whether one was not as this server thought.
async fn check<'a>(app: &Arc<App>, sandboxes: impl Iterator<Item = &'a Arc<Sandbox>>) -> ApiResult<bool> {
    let mut checks = futures_util::stream::iter(sandboxes.cloned().collect::<Vec<_>>())
        .map(|sandbox| async move {
            let before = (sandbox.state(), sandbox.run().started_at);
            app.check(&sandbox).await?;
            Ok::<_, ApiError>(before != (sandbox.state(), sandbox.run().started_at))
        })
        .buffer_unordered(AT_ONCE);
    let mut changed = false;
    while let Some(one) = checks.next().await {
        changed |= one?;
    }
    Ok(changed)
}

/// Latest first, and then by id.
fn compare(a: &Place, b: &Place) -> Ordering {
    b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1))
}

fn ordered(a: &Place, b: &Place, order: Order) -> Ordering {
    match order {
        Order::Descending => compare(a, b),
        Order::Ascending => compare(b, a),
    }
}

fn microseconds(at: SystemTime) -> u128 {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_micros()
}

/// Ends a cursor of the ascending order, so that none is used in the other.
const ASCENDING: &str = "__asc";

fn write_cursor((started_at, id): &Place, order: Order) -> String {
    let mark = if order == Order::Ascending { ASCENDING } else { "" };
    URL_SAFE_NO_PAD.encode(format!("{}__{id}{mark}", Timestamp(*started_at)))
}

fn read_cursor(token: &str, order: Order) -> ApiResult<Place> {
    let read = || -> Option<Place> {
        let text = String::from_utf8(URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).ok()?).ok()?;
        let (text, found) = match text.strip_suffix(ASCENDING) {
            Some(text) => (text, Order::Ascending),
            None => (text.as_str(), Order::Descending),
        };
        let (at, id) = text.split_once("__")?;
        let at: Timestamp = at.parse().ok()?;
        (found == order && ids::is_plain(id)).then(|| (at.0, id.to_owned()))
    };
    read().ok_or_else(|| ApiError::bad_request("nextToken is not of this list"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_leads_back_to_its_place_in_its_own_order_only() {
        let place = (SystemTime::UNIX_EPOCH + Duration::from_micros(1_785_585_600_123_456), "i1".to_owned());
        for (order, other) in [(Order::Ascending, Order::Descending), (Order::Descending, Order::Ascending)] {
            let token = write_cursor(&place, order);
            assert_eq!(read_cursor(&token, order), Ok(place.clone()));
            assert!(read_cursor(&token, other).is_err());
        }
        for bad in ["", "x", "!!", "MjAyNg", &URL_SAFE_NO_PAD.encode("2026-01-01T00:00:00Z__../x")] {
            assert!(read_cursor(bad, Order::Descending).is_err(), "{bad}");
        }
    }
}
