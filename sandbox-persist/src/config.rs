//! The settings of a host in layers: defaults, the file of its user, the file of a project.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use sandhold_core::{Error, ErrorKind, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::capture::{CaptureOptions, CaptureRules, Rules};
use crate::error;
use crate::hook::DEFAULT_SAVE_INTERVAL;
use crate::mirror::{MirrorConfig, refuse_project_keys};
use crate::retention::{Retention, parse_age};

/// A file above this is no configuration.
const MAX_BYTES: u64 = 64 << 10;

/// What a host has settled about snapshots, from three layers of which the later wins: the defaults, the file of its
/// user, and the file of a project.
///
/// Both files are JSON. A user's may have `snapshot`, `capture` and `mirror`, a project's `capture` alone, in which it can
/// only leave more out: whoever may write to a project could else send it elsewhere, or switch its snapshots off. No
/// layer holds a credential: `mirror` names the variables that do.
///
/// ```json
/// {
///   "snapshot": { "interval": "5m", "keep_runs": "14d", "keep_manual": "7d", "max_count": 100, "max_mb": 2048,
///                 "require_mirror": false, "superseded": false },
///   "capture": { "max_file_mb": 10, "never": ["*.iso"], "env_files": false, "private_keys": false },
///   "mirror": { "target": { "s3": { "bucket": "my-snapshots" } }, "mode": "all" }
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PersistConfig {
    /// How often the work of a sandbox in use is saved; `None` only before pauses and destroys. Default 5 minutes.
    pub interval: Option<Duration>,
    /// How long snapshots are kept.
    pub retention: Retention,
    /// What is captured.
    pub rules: CaptureRules,
    /// Where copies go. Default nowhere.
    pub mirror: Option<MirrorConfig>,
}

impl Default for PersistConfig {
    fn default() -> Self {
        Self {
            interval: Some(DEFAULT_SAVE_INTERVAL),
            retention: Retention::new(),
            rules: CaptureRules::default(),
            mirror: None,
        }
    }
}

/// What a file of a user may say. What it does not say stays as it is.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct UserFile {
    snapshot: SnapshotKeys,
    capture: CaptureKeys,
    mirror: Option<MirrorConfig>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct SnapshotKeys {
    interval: Option<String>,
    keep_runs: Option<String>,
    keep_manual: Option<String>,
    max_count: Option<usize>,
    max_mb: Option<u64>,
    require_mirror: Option<bool>,
    superseded: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct CaptureKeys {
    max_file_mb: Option<u64>,
    keep_last: Option<bool>,
    never: Vec<String>,
    env_files: Option<bool>,
    private_keys: Option<bool>,
}

/// What a file of a project may say of captures.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ProjectCapture {
    max_file_mb: Option<u64>,
    never: Vec<String>,
}

impl PersistConfig {
    /// Takes the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Lays both files over the defaults; one that is not there says nothing. The project's is read as anybody's: only
    /// where it is a file itself, and up to 64 KiB.
    ///
    /// # Errors
    /// As [`PersistConfig::with_user_file`] and [`PersistConfig::with_project_file`], and whatever the file system says;
    /// [`ErrorKind::InvalidArgument`] for a file above 64 KiB, and for one of a project that is a symlink or no file.
    ///
    /// # Cancellation
    /// None: it blocks for as long as reading two small files takes.
    pub fn load(user: Option<&Path>, project: Option<&Path>) -> Result<Self> {
        let mut config = Self::new();
        if let Some(path) = user
            && let Some(text) = read(path, false)?
        {
            config = config
                .with_user_file(&text)
                .map_err(|failure| failure.with_context("file", path.display()))?;
        }
        if let Some(path) = project
            && let Some(text) = read(path, true)?
        {
            config = config
                .with_project_file(&text)
                .map_err(|failure| failure.with_context("file", path.display()))?;
        }
        Ok(config)
    }

    /// Lays what a user says over what is settled.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for what is no JSON of that shape, an unknown key, or a value that cannot be.
    pub fn with_user_file(mut self, text: &[u8]) -> Result<Self> {
        let file: UserFile =
            serde_json::from_value(Value::Object(parse(text)?)).map_err(|failure| bad(&failure))?;
        let SnapshotKeys { interval, keep_runs, keep_manual, max_count, max_mb, require_mirror, superseded } =
            file.snapshot;
        if let Some(interval) = interval {
            self.interval = age("snapshot.interval", &interval)?;
        }
        let retention = &mut self.retention;
        if let Some(kept) = keep_runs {
            retention.runs = age("snapshot.keep_runs", &kept)?;
        }
        if let Some(kept) = keep_manual {
            retention.manual = age("snapshot.keep_manual", &kept)?;
        }
        retention.max_count = max_count.or(retention.max_count);
        if let Some(limit) = max_mb {
            retention.max_bytes = Some(bytes("snapshot.max_mb", limit)?);
        }
        retention.require_mirror = require_mirror.unwrap_or(retention.require_mirror);
        retention.superseded = superseded.unwrap_or(retention.superseded);

        let CaptureKeys { max_file_mb, keep_last, never, env_files, private_keys } = file.capture;
        if let Some(limit) = max_file_mb {
            self.rules.max_file = Some(bytes("capture.max_file_mb", limit)?).filter(|limit| *limit > 0);
        }
        self.rules.keep_last = keep_last.unwrap_or(self.rules.keep_last);
        self.rules.never.extend(never);
        self.rules.skip_env_files = env_files.map_or(self.rules.skip_env_files, |captured| !captured);
        self.rules.skip_private_keys =
            private_keys.map_or(self.rules.skip_private_keys, |captured| !captured);
        Rules::new(&self.rules)?;
        if let Some(mirror) = file.mirror {
            // One without a bucket is said to be none.
            self.mirror = Some(mirror).filter(|mirror| !mirror.target.is_nowhere());
        }
        Ok(self)
    }

    /// Lays what a project says over what is settled: it may add patterns to `capture.never`, and lower
    /// `capture.max_file_mb`. Keys that are none of persistence are left to others.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] with reason `project_config` where it speaks of snapshots, mirrors, credentials or
    /// the project host, or would have more captured than its host wants; [`ErrorKind::InvalidArgument`] for what is no
    /// JSON of that shape.
    pub fn with_project_file(mut self, text: &[u8]) -> Result<Self> {
        let mut file = parse(text)?;
        refuse_project_keys(file.keys().map(String::as_str))?;
        let Some(capture) = file.remove("capture") else { return Ok(self) };
        let theirs = |key: &&String| !matches!(key.as_str(), "max_file_mb" | "never");
        if let Some(key) = capture.as_object().and_then(|keys| keys.keys().find(theirs)) {
            return Err(refused(format!("it may not set capture.{}", shown(key))));
        }
        let capture: ProjectCapture = serde_json::from_value(capture).map_err(|failure| bad(&failure))?;
        if let Some(limit) = capture.max_file_mb {
            let limit = bytes("capture.max_file_mb", limit)?;
            if limit == 0 || self.rules.max_file.is_some_and(|most| limit > most) {
                return Err(refused("it may lower capture.max_file_mb, and not raise it".to_owned()));
            }
            self.rules.max_file = Some(limit);
        }
        self.rules.never.extend(capture.never);
        Rules::new(&self.rules)?;
        Ok(self)
    }

    /// Options for captures by these rules.
    #[must_use]
    pub fn capture_options(&self) -> CaptureOptions {
        CaptureOptions { rules: self.rules.clone(), ..CaptureOptions::new() }
    }
}

pub(crate) fn read(path: &Path, is_strangers: bool) -> Result<Option<Vec<u8>>> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    if is_strangers {
        flags |= rustix::fs::OFlags::NOFOLLOW;
    }
    let opened = File::options().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(failure) if failure.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(failure) if failure.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            return Err(Error::invalid_argument(format!(
                "{} is a symlink, which is not followed",
                path.display()
            )));
        }
        Err(failure) => return Err(error::io("open", path, failure)),
    };
    let is_file = file.metadata().map_err(|failure| error::io("look at", path, failure))?.is_file();
    if !is_file {
        return Err(Error::invalid_argument(format!("{} is no file", path.display())));
    }
    let mut text = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut text).map_err(|failure| error::io("read", path, failure))?;
    Ok(Some(text))
}

/// An object: serde would take a list for one, by the order of the keys.
pub(crate) fn parse(text: &[u8]) -> Result<Map<String, Value>> {
    if text.len() as u64 > MAX_BYTES {
        return Err(Error::invalid_argument(format!("a configuration has at most {MAX_BYTES} bytes")));
    }
    serde_json::from_slice(text).map_err(|failure| bad(&failure))
}

fn age(key: &str, text: &str) -> Result<Option<Duration>> {
    let age = parse_age(text).ok_or_else(|| {
        Error::invalid_argument(format!(
            "{key} is {:?}, which is no length of time; give one such as `5m`, `168h` or `14d`, and `0s` for none",
            shown(text)
        ))
    })?;
    Ok(Some(age).filter(|age| !age.is_zero()))
}

fn bytes(key: &str, mebibytes: u64) -> Result<u64> {
    mebibytes
        .checked_mul(1 << 20)
        .ok_or_else(|| Error::invalid_argument(format!("{key} is {mebibytes} MiB, more than there can be")))
}

fn bad(failure: &serde_json::Error) -> Error {
    Error::invalid_argument(format!("the configuration cannot be understood: {failure}"))
}

fn refused(what: String) -> Error {
    Error::new(
        ErrorKind::PermissionDenied,
        format!("the configuration of a project was refused: {what}; set it where the host is configured"),
    )
    .with_reason("project_config")
}

fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mirror::{MirrorMode, MirrorTarget};

    const USER: &str = r#"{
        "snapshot": {"interval": "0s", "keep_runs": "3d", "max_count": 9, "max_mb": 2, "require_mirror": true},
        "capture": {"max_file_mb": 20, "never": ["*.iso"], "private_keys": true},
        "mirror": {"target": {"file": "/mirror"}, "mode": "all"}
    }"#;

    #[test]
    fn a_later_layer_wins_and_what_it_does_not_say_stays() {
        let config = PersistConfig::new().with_user_file(USER.as_bytes()).unwrap();
        assert_eq!((config.interval, config.retention.runs), (None, Some(Duration::from_secs(3 * 86_400))));
        assert_eq!(config.retention.manual, Retention::new().manual);
        assert_eq!((config.retention.max_count, config.retention.max_bytes), (Some(9), Some(2 << 20)));
        assert!(config.retention.require_mirror && !config.retention.superseded);
        assert!(config.rules.skip_env_files && !config.rules.skip_private_keys);
        let mirror = config.mirror.as_ref().unwrap();
        assert_eq!(mirror.target, MirrorTarget::File("/mirror".into()));
        assert_eq!(mirror.mode, MirrorMode::All);
        let project = r#"{"capture": {"max_file_mb": 5, "never": ["data/"]}, "scripts": {"build": 1}}"#;
        let config = config.with_project_file(project.as_bytes()).unwrap();
        assert_eq!(config.rules.max_file, Some(5 << 20));
        assert_eq!(config.rules.never, ["*.iso", "data/"]);
        assert_eq!(config.capture_options().rules, config.rules);
        let plain = PersistConfig::new().with_user_file(b"{}").unwrap();
        assert_eq!((plain.interval, plain.rules), (Some(DEFAULT_SAVE_INTERVAL), CaptureRules::default()));
    }

    #[test]
    fn a_project_may_neither_send_itself_elsewhere_nor_switch_its_snapshots_off_nor_have_more_taken() {
        for text in [
            r#"{"mirror": {"target": {"file": "/elsewhere"}}}"#,
            r#"{"Mirror": null}"#,
            r#"{"snapshot": {"interval": "0s"}}"#,
            r#"{"credentials": {"access_key_env": "HOME"}}"#,
            r#"{"project_host": {}}"#,
            r#"{"capture": {"private_keys": true}}"#,
            r#"{"capture": {"env_files": true}}"#,
            r#"{"capture": {"access_key_env": "HOME"}}"#,
            r#"{"capture": {"max_file_mb": 11}}"#,
            r#"{"capture": {"max_file_mb": 0}}"#,
        ] {
            let refused = PersistConfig::new().with_project_file(text.as_bytes()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{text}: {refused}");
            assert_eq!(refused.reason(), Some("project_config"), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_understood_is_refused_and_named() {
        for (text, why) in [
            ("", "understood"),
            ("[]", "understood"),
            (r#"{"snapshot": {"intervall": "5m"}}"#, "intervall"),
            (r#"{"snapshot": {"interval": "often"}}"#, "often"),
            (r#"{"snapshot": {"max_mb": 18446744073709551615}}"#, "max_mb"),
            (r#"{"capture": {"never": [""]}}"#, "pattern"),
            (r#"{"mirror": {"target": {"s3": {"bucket": "b", "secret_key": "x"}}}}"#, "secret_key"),
        ] {
            let refused = PersistConfig::new().with_user_file(text.as_bytes()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{text}");
            assert!(refused.to_string().contains(why), "{text}: {refused}");
        }
        let long = " ".repeat(MAX_BYTES as usize + 1);
        PersistConfig::new().with_project_file(long.as_bytes()).unwrap_err();
    }

    #[test]
    fn a_project_file_is_read_only_where_it_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let (user, project) = (dir.path().join("user"), dir.path().join("project"));
        let load = || PersistConfig::load(Some(&user), Some(&project));
        load().unwrap();
        std::fs::write(&user, USER).unwrap();
        std::os::unix::fs::symlink(&user, &project).unwrap();
        assert!(load().unwrap_err().to_string().contains("symlink"));
        std::fs::remove_file(&project).unwrap();
        std::fs::create_dir(&project).unwrap();
        assert!(load().unwrap_err().to_string().contains("no file"));
        std::fs::remove_dir(&project).unwrap();
        std::fs::write(&project, USER).unwrap();
        assert_eq!(load().unwrap_err().reason(), Some("project_config"));
        std::fs::write(&project, "{}").unwrap();
        assert_eq!(load().unwrap().retention.max_count, Some(9));
    }

    proptest! {
        #[test]
        fn a_project_never_gets_more_than_its_host_gives(text in "\\PC{0,80}", limit in 0u64..30) {
            for text in [text, format!(r#"{{"capture":{{"max_file_mb":{limit}}}}}"#)] {
                if let Ok(config) = PersistConfig::new().with_project_file(text.as_bytes()) {
                    prop_assert!(config.rules.max_file <= Some(crate::DEFAULT_MAX_FILE));
                    prop_assert!(config.mirror.is_none() && config.rules.skip_env_files);
                }
            }
        }
    }
}
