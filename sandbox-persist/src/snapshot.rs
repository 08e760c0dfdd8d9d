use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sandhold_core::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::capture::CaptureRules;
use crate::oid::ObjectId;
use crate::receipt::Receipt;

/// The id of a snapshot: `YYYYMMDD-HHMMSS-` in UTC and six hex digits.
///
/// Ids of one vault are in the order of their making, also where the clock was set back.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SnapId(String);

impl SnapId {
    pub(crate) fn at(ms: u64) -> Result<Self> {
        let mut random = [0; 3];
        getrandom::fill(&mut random).map_err(no_random)?;
        let [a, b, c] = random;
        Ok(Self(format!("{}-{a:02x}{b:02x}{c:02x}", crate::time::compact(ms))))
    }

    /// One that follows this one closely, in the same second where there is room.
    pub(crate) fn next(&self) -> Result<Self> {
        let (moment, hex) = self.0.rsplit_once('-').unwrap_or((&self.0, ""));
        let at = u64::from_str_radix(hex, 16).unwrap_or(0xff_ffff);
        let mut random = [0; 1];
        getrandom::fill(&mut random).map_err(no_random)?;
        match at + 1 + u64::from(random[0]) {
            next if next <= 0xff_ffff => Ok(Self(format!("{moment}-{next:06x}"))),
            _ => Self::at((crate::time::of_compact(moment).unwrap_or(0) + 1) * 1000),
        }
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of its ref in the vault.
    #[must_use]
    pub fn ref_name(&self) -> String {
        format!("{}{self}", crate::vault::SNAPSHOTS)
    }
}

fn no_random(failure: getrandom::Error) -> Error {
    Error::new(sandhold_core::ErrorKind::Unexpected, "the system gave no random bytes")
        .with_source(failure.to_string())
}

impl FromStr for SnapId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let shape = "dddddddd-dddddd-xxxxxx";
        let fits = text.len() == shape.len()
            && text.bytes().zip(shape.bytes()).all(|(byte, kind)| match kind {
                b'd' => byte.is_ascii_digit(),
                b'x' => matches!(byte, b'0'..=b'9' | b'a'..=b'f'),
                dash => byte == dash,
            });
        if fits {
            return Ok(Self(text.to_owned()));
        }
        let shown: String = text.chars().take(64).collect();
        Err(Error::invalid_argument(format!(
            "{shown:?} is not the id of a snapshot, which is like 20260131-235959-0a1b2c"
        )))
    }
}

impl TryFrom<String> for SnapId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<SnapId> for String {
    fn from(id: SnapId) -> Self {
        id.0
    }
}

impl fmt::Display for SnapId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name that people gave a snapshot: 1 to 200 bytes of one line.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Label(String);

impl Label {
    /// Checks and wraps a label.
    ///
    /// # Errors
    /// [`sandhold_core::ErrorKind::InvalidArgument`] for an empty one, one above 200 bytes, or one with control
    /// characters.
    pub fn new(text: impl Into<String>) -> Result<Self> {
        let text = text.into();
        if text.is_empty() || text.len() > 200 || text.chars().any(char::is_control) {
            let shown: String = text.chars().take(64).collect();
            return Err(Error::invalid_argument(format!(
                "the label {shown:?} is not 1 to 200 bytes of one line of text"
            )));
        }
        Ok(Self(text))
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for Label {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::new(text)
    }
}

impl From<Label> for String {
    fn from(label: Label) -> Self {
        label.0
    }
}

/// Who asked for a snapshot. Derived from the way it was asked for, never taken from a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Source {
    /// A session that runs along with an agent. The default.
    #[default]
    Run,
    /// A program, through this library.
    Sdk,
}

/// How what the snapshots accompanied has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunOutcome {
    /// It ended well.
    Clean,
    /// A signal ended it.
    Signalled,
    /// It ended with an error.
    Failed,
    /// Nothing ran: somebody asked for this one snapshot.
    Manual,
    /// The state before a run.
    Baseline,
}

/// How a snapshot is best called, in the order in which the rules are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Status {
    /// The state before a run: restoring it takes back all that the run did.
    Baseline,
    /// A snapshot that somebody asked for.
    Snapshot,
    /// A session that nobody ended: it goes on, or its host died.
    Open,
    /// A signal ended the session.
    Interrupted,
    /// The session ended with this exit code.
    Exited(i32),
    /// The session failed.
    Failed,
    /// The session ended well.
    Clean,
}

/// A copy of a snapshot in a bucket, as far as this machine knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RemoteCopy {
    /// The bucket.
    pub bucket: String,
    /// The key of the bundle; empty where nothing was uploaded.
    #[serde(default)]
    pub key: String,
    /// When it was uploaded, in milliseconds since 1970.
    #[serde(default)]
    pub uploaded_at_ms: Option<u64>,
    /// The commit that was uploaded; a session may have moved on since.
    #[serde(default)]
    pub commit: Option<ObjectId>,
    /// The size of the bundle.
    #[serde(default)]
    pub bytes: Option<u64>,
    /// The SHA-256 of the bundle, as this machine knows it.
    #[serde(default)]
    pub sha256: Option<String>,
    /// Why the last upload failed.
    #[serde(default)]
    pub error: Option<String>,
}

impl RemoteCopy {
    /// Makes the record of a copy in this bucket under this key.
    #[must_use]
    pub fn new(bucket: impl Into<String>, key: impl Into<String>) -> Self {
        Self { bucket: bucket.into(), key: key.into(), ..Self::default() }
    }

    /// Tells whether the copy is there, as far as is known.
    #[must_use]
    pub fn is_uploaded(&self) -> bool {
        !self.key.is_empty() && self.error.is_none()
    }
}

/// What the vault knows of a snapshot: its manifest.
///
/// A session moves one snapshot along; its earlier states stay reachable from the later ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// The id.
    pub id: SnapId,
    /// The key of the repository, which is the name of the vault.
    pub repo: String,
    /// The key that the path of the workspace would give; see [`crate::RepoKey::of_path`].
    #[serde(default)]
    pub path_key: String,
    /// The smallest root commit of the repository of the workspace, which is the same in every clone; `None` where there
    /// is no commit and where it cannot be told. See [`crate::RepoKey::of_workspace`].
    #[serde(default)]
    pub root: Option<ObjectId>,
    /// The workspace that was captured.
    pub workspace: PathBuf,
    /// The commit that holds the newest state.
    pub commit: ObjectId,
    /// The tree of that commit: the files.
    pub tree: ObjectId,
    /// The branch that the workspace was on; `None` for a detached head and where there is no repository.
    #[serde(default)]
    pub branch: Option<String>,
    /// The commit that the workspace was at.
    #[serde(default)]
    pub head: Option<ObjectId>,
    /// The commit that the workspace was at when the session began.
    #[serde(default)]
    pub head_at_start: Option<ObjectId>,
    /// Tells whether `head` is in the vault with all its history.
    #[serde(default)]
    pub has_history: bool,
    /// When the session began, in milliseconds since 1970.
    pub started_at_ms: u64,
    /// When the newest state was captured, in milliseconds since 1970.
    pub captured_at_ms: u64,
    /// When the session ended, in milliseconds since 1970.
    #[serde(default)]
    pub ended_at_ms: Option<u64>,
    /// How the session ended.
    #[serde(default)]
    pub outcome: Option<RunOutcome>,
    /// The exit code of what ran.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// How many states the session has captured.
    #[serde(default)]
    pub captures: u64,
    /// The name that people gave it.
    #[serde(default)]
    pub label: Option<Label>,
    /// Who asked for it.
    #[serde(default)]
    pub source: Source,
    /// The agent that worked in the workspace.
    #[serde(default)]
    pub agent: Option<String>,
    /// How long it is to be kept: the rule, such as `168h`, and not a date.
    #[serde(default)]
    pub retention: Option<String>,
    /// The sandbox whose workspace it is of, by its key, and the path inside; `None` for a directory of this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// What git cannot hold, in the blob `side.json` of this commit's tree; see [`crate::SideManifest`].
    #[serde(default)]
    pub side: Option<ObjectId>,
    /// The rules by which it was made.
    #[serde(default)]
    pub rules: CaptureRules,
    /// Files that were captured.
    #[serde(default)]
    pub files: u64,
    /// Their bytes.
    #[serde(default)]
    pub bytes: u64,
    /// Paths that were not captured, or not as they should be; the side manifest tells which.
    #[serde(default)]
    pub skipped: u64,
    /// What was to survive, and did.
    #[serde(default)]
    pub receipt: Option<Receipt>,
    /// The copy in a bucket.
    #[serde(default)]
    pub remote: Option<RemoteCopy>,
    /// What later versions wrote, kept as it is.
    #[serde(flatten)]
    pub other: serde_json::Map<String, serde_json::Value>,
}

impl Snapshot {
    /// How it is best called.
    #[must_use]
    pub fn status(&self) -> Status {
        match (self.outcome, self.exit_code) {
            (Some(RunOutcome::Baseline), _) => Status::Baseline,
            (Some(RunOutcome::Manual), _) => Status::Snapshot,
            _ if self.ended_at_ms.is_none() => Status::Open,
            (Some(RunOutcome::Signalled), _) => Status::Interrupted,
            (_, Some(code)) if code != 0 => Status::Exited(code),
            (Some(RunOutcome::Failed), _) => Status::Failed,
            _ => Status::Clean,
        }
    }

    /// Tells whether its newest state is in the mirror, as far as is known.
    #[must_use]
    pub fn is_mirrored(&self) -> bool {
        self.remote.as_ref().is_some_and(|copy| copy.is_uploaded() && copy.commit == Some(self.commit))
    }

    /// When something last happened to it: its end, else its newest state.
    #[must_use]
    pub fn active_at(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.ended_at_ms.unwrap_or(self.captured_at_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_shape_and_nothing_else_is_one() {
        let id = SnapId::at(0).unwrap();
        assert!(id.as_str().starts_with("19700101-000000-"), "{id}");
        assert_eq!(id.as_str().parse::<SnapId>().unwrap(), id);
        for bad in ["", "../../etc", "19700101-000000-ABCDEF", "19700101-000000-abcdef/x", "é"] {
            assert!(bad.parse::<SnapId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn ids_follow_one_another_whatever_the_clock_says() {
        let mut id: SnapId = "20240229-235959-fffff0".parse().unwrap();
        for _ in 0..100 {
            let next = id.next().unwrap();
            assert!(next > id, "{next} after {id}");
            assert_eq!(next.as_str().parse::<SnapId>().unwrap(), next);
            id = next;
        }
        assert!(id.as_str().starts_with("20240301-00000"), "{id}");
    }
}
