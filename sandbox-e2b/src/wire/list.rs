use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use super::{State, Timestamp, decode_metadata, encode_metadata};

/// The header that carries the cursor of the next page; absent on the last.
pub const NEXT_TOKEN_HEADER: &str = "x-next-token";

/// The header that counts running sandboxes before paging.
pub const TOTAL_RUNNING_HEADER: &str = "x-total-running";

/// The largest page, and the default.
pub const MAX_PAGE: u32 = 100;

/// A query parameter with a value that it cannot have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryError {
    name: String,
    value: String,
}

impl QueryError {
    pub(crate) fn new(name: &str, value: &str) -> Self {
        Self { name: name.to_owned(), value: value.chars().take(64).collect() }
    }
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the query parameter {} cannot be {:?}", self.name, self.value)
    }
}

impl std::error::Error for QueryError {}

/// Writes the pairs that have a value.
pub(crate) fn query_of<const N: usize>(pairs: [(&str, Option<String>); N]) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    for (name, value) in pairs {
        if let Some(value) = value {
            query.append_pair(name, &value);
        }
    }
    query.finish()
}

pub(crate) fn pairs_of(query: &str) -> form_urlencoded::Parse<'_> {
    form_urlencoded::parse(query.as_bytes())
}

/// The order of a list, by the start of the present run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Latest first. The default.
    #[default]
    Descending,
    /// Earliest first.
    Ascending,
}

/// The query of `GET /v2/sandboxes`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListQuery {
    /// Only sandboxes that carry all these pairs.
    pub metadata: BTreeMap<String, String>,
    /// Only sandboxes in one of these states; empty for all.
    pub state: Vec<State>,
    /// Only sandboxes whose run began then or later; compared to the microsecond.
    pub started_after: Option<Timestamp>,
    /// Only sandboxes of this template, by id or alias, without a tag.
    pub template: Option<String>,
    /// The order.
    pub order: Option<Order>,
    /// The size of a page, 1 to [`MAX_PAGE`].
    pub limit: Option<u32>,
    /// The cursor of the page.
    pub next_token: Option<String>,
}

impl ListQuery {
    /// Writes the query string, without the question mark.
    #[must_use]
    pub fn to_query(&self) -> String {
        let states: Vec<_> = self.state.iter().map(|state| state.as_str()).collect();
        query_of([
            ("metadata", (!self.metadata.is_empty()).then(|| encode_metadata(&self.metadata))),
            ("state", (!states.is_empty()).then(|| states.join(","))),
            ("startedAfter", self.started_after.map(|at| at.to_string())),
            ("template", self.template.clone()),
            ("order", self.order.map(|order| order.as_str().to_owned())),
            ("limit", self.limit.map(|limit| limit.to_string())),
            ("nextToken", self.next_token.clone()),
        ])
    }

    /// Reads the query string. States may be joined by commas or repeated.
    ///
    /// # Errors
    /// [`QueryError`] for a value that the parameter cannot have.
    pub fn from_query(query: &str) -> Result<Self, QueryError> {
        let mut this = Self::default();
        for (name, value) in pairs_of(query) {
            let bad = || QueryError::new(&name, &value);
            match &*name {
                "metadata" => this.metadata = decode_metadata(&value).map_err(|_| bad())?,
                "state" => {
                    for state in value.split(',').filter(|state| !state.is_empty()) {
                        this.state.push(match state {
                            "running" => State::Running,
                            "paused" => State::Paused,
                            _ => return Err(bad()),
                        });
                    }
                }
                "startedAfter" => this.started_after = Some(value.parse().map_err(|_| bad())?),
                "template" => this.template = Some(value.into_owned()),
                "order" => {
                    this.order = Some(match &*value {
                        "asc" => Order::Ascending,
                        "desc" => Order::Descending,
                        _ => return Err(bad()),
                    });
                }
                "limit" => this.limit = Some(page_size(&name, &value)?),
                "nextToken" => this.next_token = cursor(value),
                _ => {}
            }
        }
        Ok(this)
    }
}

/// The query of `GET /snapshots`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotQuery {
    /// Only snapshots of this sandbox.
    pub sandbox_id: Option<String>,
    /// Only snapshots of this name, maybe with `:tag`.
    pub name: Option<String>,
    /// The size of a page, 1 to [`MAX_PAGE`].
    pub limit: Option<u32>,
    /// The cursor of the page.
    pub next_token: Option<String>,
}

impl SnapshotQuery {
    /// Writes the query string, without the question mark.
    #[must_use]
    pub fn to_query(&self) -> String {
        query_of([
            ("sandboxID", self.sandbox_id.clone()),
            ("name", self.name.clone()),
            ("limit", self.limit.map(|limit| limit.to_string())),
            ("nextToken", self.next_token.clone()),
        ])
    }

    /// Reads the query string.
    ///
    /// # Errors
    /// [`QueryError`] for a value that the parameter cannot have.
    pub fn from_query(query: &str) -> Result<Self, QueryError> {
        let mut this = Self::default();
        for (name, value) in pairs_of(query) {
            match &*name {
                "sandboxID" => this.sandbox_id = Some(value.into_owned()),
                "name" => this.name = Some(value.into_owned()),
                "limit" => this.limit = Some(page_size(&name, &value)?),
                "nextToken" => this.next_token = cursor(value),
                _ => {}
            }
        }
        Ok(this)
    }
}

impl Order {
    /// Returns the word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Descending => "desc",
            Self::Ascending => "asc",
        }
    }
}

fn page_size(name: &str, value: &str) -> Result<u32, QueryError> {
    match value.parse() {
        Ok(size @ 1..=MAX_PAGE) => Ok(size),
        _ => Err(QueryError::new(name, value)),
    }
}

fn cursor(value: Cow<'_, str>) -> Option<String> {
    (!value.is_empty()).then(|| value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_query_is_read_as_both_official_sdks_write_it() {
        for joined in ["state=running,paused", "state=running%2Cpaused", "state=running&state=paused"] {
            let query = ListQuery::from_query(&format!("{joined}&limit=1&nextToken=&extra=1")).unwrap();
            assert_eq!(query.state, [State::Running, State::Paused]);
            assert_eq!((query.limit, query.next_token), (Some(1), None));
        }
    }

    #[test]
    fn a_list_query_is_read_back_as_it_was_written() {
        let query = ListQuery {
            metadata: BTreeMap::from([("a b".to_owned(), "é&=".to_owned())]),
            state: vec![State::Paused],
            started_after: Some("2026-08-01T12:00:00.25Z".parse().unwrap()),
            template: Some("ns/base".to_owned()),
            order: Some(Order::Ascending),
            limit: Some(100),
            next_token: Some("a+b/c==".to_owned()),
        };
        assert_eq!(ListQuery::from_query(&query.to_query()), Ok(query));
    }

    #[test]
    fn a_bad_parameter_is_named() {
        for bad in
            ["limit=0", "limit=101", "limit=x", "state=gone", "order=up", "startedAfter=now", "metadata=x"]
        {
            let error = ListQuery::from_query(bad).unwrap_err();
            assert!(error.to_string().contains(bad.split('=').next().unwrap()), "{error}");
        }
    }
}
