use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::list::{QueryError, pairs_of, query_of};
use super::{Timestamp, nullable};

/// Present or past use of a sandbox's resources.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metric {
    /// When it was measured.
    pub timestamp: Timestamp,
    /// The same in seconds since 1970.
    #[serde(default, deserialize_with = "nullable")]
    pub timestamp_unix: i64,
    /// Cores.
    #[serde(default, deserialize_with = "nullable")]
    pub cpu_count: u32,
    /// Per cent of all cores.
    #[serde(default, deserialize_with = "nullable")]
    pub cpu_used_pct: f64,
    /// Memory in use, in bytes.
    #[serde(default, deserialize_with = "nullable")]
    pub mem_used: u64,
    /// Memory, in bytes.
    #[serde(default, deserialize_with = "nullable")]
    pub mem_total: u64,
    /// Memory that holds cached files, in bytes.
    #[serde(default, deserialize_with = "nullable")]
    pub mem_cache: u64,
    /// Disk in use, in bytes.
    #[serde(default, deserialize_with = "nullable")]
    pub disk_used: u64,
    /// Disk, in bytes.
    #[serde(default, deserialize_with = "nullable")]
    pub disk_total: u64,
}

/// The last metric of each of several sandboxes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MetricsById {
    /// By sandbox id.
    #[serde(default, deserialize_with = "nullable")]
    pub sandboxes: BTreeMap<String, Metric>,
}

/// The level of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum LogLevel {
    /// For finding faults.
    Debug,
    /// What happened.
    #[default]
    Info,
    /// What may become a fault.
    Warn,
    /// A fault.
    Error,
    /// A word of another version.
    #[serde(other)]
    Other,
}

impl LogLevel {
    /// Returns the word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
            Self::Other => "other",
        }
    }
}

/// One line of a log, with its parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// When it was written.
    pub timestamp: Timestamp,
    /// The text.
    #[serde(default, deserialize_with = "nullable")]
    pub message: String,
    /// Its level.
    #[serde(default, deserialize_with = "nullable")]
    pub level: LogLevel,
    /// Further parts.
    #[serde(default, deserialize_with = "nullable")]
    pub fields: BTreeMap<String, String>,
    /// The build step it belongs to, in logs of builds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

/// One line of a log, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// When it was written.
    pub timestamp: Timestamp,
    /// The text.
    pub line: String,
}

/// The answer of the older route for logs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Logs {
    /// Lines as text.
    #[serde(default, deserialize_with = "nullable")]
    pub logs: Vec<LogLine>,
    /// The same with their parts.
    #[serde(default, deserialize_with = "nullable")]
    pub log_entries: Vec<LogEntry>,
}

/// The answer of the newer route for logs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogsV2 {
    /// Lines with their parts.
    #[serde(default, deserialize_with = "nullable")]
    pub logs: Vec<LogEntry>,
}

/// Which way a look at the logs goes from its cursor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// To later lines.
    Forward,
    /// To earlier lines. The default.
    #[default]
    Backward,
}

/// The query of `GET /v2/sandboxes/{id}/logs`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Where to begin, in milliseconds since 1970.
    pub cursor: Option<i64>,
    /// At most so many lines, up to 1,000.
    pub limit: Option<u32>,
    /// Which way.
    pub direction: Option<Direction>,
    /// Only lines of this level.
    pub level: Option<LogLevel>,
    /// Only lines that contain this text.
    pub search: Option<String>,
}

impl LogQuery {
    /// Writes the query string, without the question mark.
    #[must_use]
    pub fn to_query(&self) -> String {
        let direction = |direction| match direction {
            Direction::Forward => "forward".to_owned(),
            Direction::Backward => "backward".to_owned(),
        };
        query_of([
            ("cursor", self.cursor.map(|cursor| cursor.to_string())),
            ("limit", self.limit.map(|limit| limit.to_string())),
            ("direction", self.direction.map(direction)),
            ("level", self.level.map(|level| level.as_str().to_owned())),
            ("search", self.search.clone()),
        ])
    }

    /// Reads the query string.
    ///
    /// # Errors
    /// [`QueryError`] for a value that the parameter cannot have.
    pub fn from_query(query: &str) -> Result<Self, QueryError> {
        let mut this = Self::default();
        for (name, value) in pairs_of(query) {
            let bad = || QueryError::new(&name, &value);
            match &*name {
                "cursor" => this.cursor = Some(value.parse().map_err(|_| bad())?),
                "limit" => this.limit = Some(value.parse().map_err(|_| bad())?),
                "direction" => {
                    this.direction = Some(match &*value {
                        "forward" => Direction::Forward,
                        "backward" => Direction::Backward,
                        _ => return Err(bad()),
                    });
                }
                "level" => {
                    this.level = Some(match &*value {
                        "debug" => LogLevel::Debug,
                        "info" => LogLevel::Info,
                        "warn" => LogLevel::Warn,
                        "error" => LogLevel::Error,
                        _ => return Err(bad()),
                    });
                }
                "search" => this.search = Some(value.into_owned()),
                _ => {}
            }
        }
        Ok(this)
    }
}
