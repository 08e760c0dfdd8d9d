//! Settings that a program changes while it runs, beneath those that its host and its user have fixed.

use std::path::Path;

use sandhold_core::{Error, ErrorKind, Result};
use serde_json::{Map, Value};

use crate::config::{self, PersistConfig};
use crate::durable;

/// The sections of a layer, whose keys are settled one by one; `mirror` is settled as a whole.
const SECTIONS: [&str; 2] = ["snapshot", "capture"];
const MIRROR: &str = "mirror";
/// Each layer adds to it, so that none keeps another from it.
const ADDED: &str = "capture.never";

/// The settings of a host in the layers that only it may write: what its code fixes, over what its user wrote to a file, over
/// what was chosen while it ran.
///
/// What a higher layer says is *pinned*: it can be chosen no more, and is never written into the layer of what was chosen.
/// All layers are JSON of the shape that [`PersistConfig`] shows for a user's file. A project's file is no layer of these;
/// lay it over the result by [`PersistConfig::with_project_file`].
#[derive(Clone, Debug, Default)]
pub struct PersistSettings {
    host: Layer,
    user: Layer,
    chosen: Layer,
}

/// What came of [`PersistSettings::update`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettingsChange {
    /// The keys that say something else now in the layer of what was chosen, such as `snapshot.interval`.
    pub changed: Vec<String>,
    /// The keys that were asked for and left as they are, as a higher layer has fixed them.
    pub pinned: Vec<String>,
}

/// What one layer says, without what it leaves open.
#[derive(Clone, Debug, Default, PartialEq)]
struct Layer(Map<String, Value>);

impl PersistSettings {
    /// Takes the defaults, with nothing fixed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the file of a user, and the one that [`PersistSettings::save`] wrote; one that is not there says nothing.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], which names the file, for what is no configuration, and whatever the file system
    /// says.
    ///
    /// # Cancellation
    /// None: it blocks for as long as reading two small files takes.
    pub fn load(user: Option<&Path>, chosen: Option<&Path>) -> Result<Self> {
        let layer = |path: Option<&Path>| -> Result<Layer> {
            let Some(path) = path else { return Ok(Layer::default()) };
            let Some(text) = config::read(path, false)? else { return Ok(Layer::default()) };
            Layer::parse(&text).map_err(|failure| failure.with_context("file", path.display()))
        };
        let loaded = Self { host: Layer::default(), user: layer(user)?, chosen: layer(chosen)? };
        loaded.resolve()?;
        Ok(loaded)
    }

    /// Fixes what the code of the host wants, over whatever files and requests say.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for what is no configuration.
    pub fn with_host(mut self, text: &[u8]) -> Result<Self> {
        self.host = Layer::parse(text)?;
        self.resolve()?;
        Ok(self)
    }

    /// Settles all layers.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for layers that do not go together, such as too many patterns in all.
    pub fn resolve(&self) -> Result<PersistConfig> {
        self.layers_with(&self.chosen)
    }

    fn layers_with(&self, chosen: &Layer) -> Result<PersistConfig> {
        [chosen, &self.user, &self.host]
            .into_iter()
            .try_fold(PersistConfig::new(), |config, layer| config.with_user_file(&layer.text()?))
    }

    /// The keys that can be chosen no more, in order.
    #[must_use]
    pub fn pinned(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.host.keys().chain(self.user.keys()).collect();
        keys.retain(|key| key != ADDED);
        keys.sort();
        keys.dedup();
        keys
    }

    /// Changes what was chosen: a key that is absent from `change` stays, `null` or `""` takes back what was chosen for
    /// it, and anything else is the new value. A mirror without a bucket is none.
    ///
    /// Nothing is written; see [`PersistSettings::save`], and [`crate::VaultHook::apply`] for what runs already.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] with reason `pinned` for a mirror that is fixed: it would be thought to be elsewhere.
    /// [`ErrorKind::InvalidArgument`] for what is no configuration. Nothing is changed then.
    pub fn update(&mut self, change: &[u8]) -> Result<SettingsChange> {
        let pinned = self.pinned();
        let mut chosen = self.chosen.clone();
        let mut answer = SettingsChange::default();
        for (key, value) in entries(config::parse(change)?)? {
            if pinned.contains(&key) {
                if key == MIRROR {
                    return Err(Error::new(
                        ErrorKind::Conflict,
                        "the mirror is fixed by the host or the file of its user; change it there",
                    )
                    .with_reason("pinned"));
                }
                answer.pinned.push(key);
            } else if chosen.set(&key, value) {
                answer.changed.push(key);
            }
        }
        self.layers_with(&chosen)?;
        self.chosen = chosen;
        Ok(answer)
    }

    /// Writes what was chosen, and nothing that another layer or a default says, for [`PersistSettings::load`]. The file is
    /// whole or as it was, also after a power cut.
    ///
    /// # Errors
    /// Whatever the file system says.
    ///
    /// # Cancellation
    /// None: it blocks until the file is on the disk.
    pub fn save(&self, chosen: &Path) -> Result<()> {
        let mut staged = chosen.as_os_str().to_owned();
        staged.push(format!(".{}.new", std::process::id()));
        durable::replace(staged.as_ref(), chosen, &self.chosen.text()?)
    }
}

impl Layer {
    fn parse(text: &[u8]) -> Result<Self> {
        let mut layer = Self::default();
        for (key, value) in entries(config::parse(text)?)? {
            layer.set(&key, value);
        }
        // Each layer by itself has to be one.
        PersistConfig::new().with_user_file(&layer.text()?)?;
        Ok(layer)
    }

    /// Says something of a key, or nothing any more; tells whether that is another thing than before.
    fn set(&mut self, key: &str, value: Value) -> bool {
        let is_open = value.is_null() || value.as_str().is_some_and(str::is_empty);
        let value = (!is_open).then_some(value);
        let Some((section, name)) = key.split_once('.') else {
            let before = match &value {
                Some(value) => self.0.insert(key.to_owned(), value.clone()),
                None => self.0.remove(key),
            };
            return before != value;
        };
        let section = self.0.entry(section).or_insert_with(|| Value::Object(Map::new()));
        let Some(section) = section.as_object_mut() else { return false };
        let before = match &value {
            Some(value) => section.insert(name.to_owned(), value.clone()),
            None => section.remove(name),
        };
        before != value
    }

    fn keys(&self) -> impl Iterator<Item = String> {
        self.0.iter().flat_map(|(key, value)| match value.as_object().filter(|_| is_section(key)) {
            Some(section) => section.keys().map(|name| format!("{key}.{name}")).collect(),
            None => vec![key.clone()],
        })
    }

    fn text(&self) -> Result<Vec<u8>> {
        serde_json::to_vec_pretty(&self.0)
            .map_err(|failure| Error::new(ErrorKind::Unexpected, format!("settings are no JSON: {failure}")))
    }
}

fn is_section(key: &str) -> bool {
    SECTIONS.contains(&key)
}

/// What a text says, key by key.
fn entries(text: Map<String, Value>) -> Result<Vec<(String, Value)>> {
    let mut found = Vec::new();
    for (key, value) in text {
        match value {
            Value::Object(section) if is_section(&key) => {
                found.extend(section.into_iter().map(|(name, value)| (format!("{key}.{name}"), value)));
            }
            // It leaves the whole section open.
            Value::Null if is_section(&key) => {}
            value if is_section(&key) || key.contains('.') => {
                return Err(Error::invalid_argument(format!(
                    "the configuration cannot be understood: {key:?} is {value}, and not a section of settings"
                )));
            }
            value => found.push((key, value)),
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::mirror::MirrorTarget;

    const DAY: Duration = Duration::from_secs(86_400);

    fn update(settings: &mut PersistSettings, change: &str) -> (Vec<String>, Vec<String>) {
        let change = settings.update(change.as_bytes()).unwrap();
        (change.changed, change.pinned)
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn absent_leaves_empty_clears_and_a_value_sets() {
        let mut settings = PersistSettings::new();
        let all = r#"{"snapshot": {"interval": "1m", "max_count": 3}, "capture": {"max_file_mb": 5}}"#;
        let keys = names(&["capture.max_file_mb", "snapshot.interval", "snapshot.max_count"]);
        assert_eq!(update(&mut settings, all), (keys, vec![]));
        let changed = update(&mut settings, r#"{"snapshot": {"interval": "", "max_count": null}}"#);
        assert_eq!(changed.0, names(&["snapshot.interval", "snapshot.max_count"]));
        let config = settings.resolve().unwrap();
        assert_eq!((config.interval, config.retention.max_count), (PersistConfig::new().interval, None));
        assert_eq!(config.rules.max_file, Some(5 << 20));
        assert_eq!(update(&mut settings, r#"{"capture": {"max_file_mb": 5}}"#), (vec![], vec![]));
        assert_eq!(update(&mut settings, "{}"), (vec![], vec![]));
    }

    #[test]
    fn what_the_host_or_its_user_has_fixed_is_reported_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (user, chosen) = (dir.path().join("user"), dir.path().join("chosen"));
        std::fs::write(
            &user,
            r#"{"snapshot": {"keep_runs": "3d", "keep_manual": ""}, "capture": {"never": ["a"]}}"#,
        )
        .unwrap();
        let load = || {
            let settings = PersistSettings::load(Some(&user), Some(&chosen)).unwrap();
            settings.with_host(br#"{"snapshot": {"interval": "2m"}}"#).unwrap()
        };
        let mut settings = load();
        assert_eq!(settings.pinned(), names(&["snapshot.interval", "snapshot.keep_runs"]));
        let change = r#"{"snapshot": {"interval": "9m", "keep_runs": "9d", "keep_manual": "9d"}, "capture": {"never": ["b"]}}"#;
        let (changed, pinned) = update(&mut settings, change);
        assert_eq!(changed, names(&["capture.never", "snapshot.keep_manual"]));
        assert_eq!(pinned, names(&["snapshot.interval", "snapshot.keep_runs"]));
        settings.save(&chosen).unwrap();
        // What is resolved is never written back: it would be fixed for ever.
        let written: Value = serde_json::from_slice(&std::fs::read(&chosen).unwrap()).unwrap();
        assert_eq!(
            written,
            serde_json::json!({"snapshot": {"keep_manual": "9d"}, "capture": {"never": ["b"]}})
        );
        let config = load().resolve().unwrap();
        assert_eq!(config.interval, Some(Duration::from_secs(120)));
        assert_eq!((config.retention.runs, config.retention.manual), (Some(3 * DAY), Some(9 * DAY)));
        assert_eq!(config.rules.never, ["b", "a"]);
        std::fs::remove_file(&user).unwrap();
        assert_eq!(load().resolve().unwrap().retention.runs, PersistConfig::new().retention.runs);
    }

    #[test]
    fn a_mirror_is_settled_as_a_whole_and_one_that_is_fixed_is_refused() {
        let bucket = |name: &str| format!(r#"{{"mirror": {{"target": {{"s3": {{"bucket": "{name}"}}}}}}}}"#);
        let mut settings = PersistSettings::new();
        update(&mut settings, &bucket("mine"));
        let mirror = settings.resolve().unwrap().mirror.unwrap();
        assert!(matches!(mirror.target, MirrorTarget::S3(target) if target.bucket == "mine"));
        // No bucket is off, which is another thing than saying nothing.
        update(&mut settings, &bucket(""));
        assert!(settings.resolve().unwrap().mirror.is_none());
        update(&mut settings, r#"{"mirror": ""}"#);
        assert_eq!(settings.chosen, Layer::default());

        for name in ["theirs", ""] {
            let mut fixed = PersistSettings::new().with_host(bucket(name).as_bytes()).unwrap();
            let before = fixed.resolve().unwrap().mirror;
            let both = r#"{"snapshot": {"interval": "1m"}, "mirror": {"target": {"file": "/elsewhere"}}}"#;
            let refused = fixed.update(both.as_bytes()).unwrap_err();
            assert_eq!((refused.kind(), refused.reason()), (ErrorKind::Conflict, Some("pinned")));
            assert_eq!(fixed.resolve().unwrap().mirror, before);
            assert_eq!(fixed.chosen, Layer::default());
        }
    }

    #[test]
    fn what_is_no_setting_changes_nothing() {
        let mut settings = PersistSettings::new();
        update(&mut settings, r#"{"snapshot": {"interval": "1m"}}"#);
        let before = settings.chosen.clone();
        for bad in [
            "",
            "[]",
            r#"{"snapshot": {"interval": "2m", "max_count": "many"}}"#,
            r#"{"snapshot": {"intervall": "2m"}}"#,
            r#"{"snapshot": 3}"#,
            r#"{"snapshot.interval": "2m"}"#,
            r#"{"capture": {"never": [""]}}"#,
            r#"{"mirror": {"target": {"s3": {"bucket": "b", "secret_key": "x"}}}}"#,
            r#"{"other": 1}"#,
        ] {
            let refused = settings.update(bad.as_bytes()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{bad}");
            assert_eq!(settings.chosen, before, "{bad}");
        }
    }
}
