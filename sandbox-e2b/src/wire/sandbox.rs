use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ApiError, NetworkConfig, Secret, Timestamp, nullable};

/// Asks for a sandbox: `POST /v2/sandboxes`, and `POST /sandboxes` of older servers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CreateSandbox {
    /// A template's id, alias, `namespace/alias`, each maybe with `:tag`, or a snapshot's id.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Seconds until it ends; where unset 300 (v2) or 15 (v1).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// Free text pairs kept with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// Environment of every process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_vars: Option<BTreeMap<String, String>>,
    /// v1 only: whether envd wants a token; v2 always does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secure: Option<bool>,
    /// No denies all egress.
    #[serde(default, rename = "allow_internet_access", skip_serializing_if = "Option::is_none")]
    pub allow_internet_access: Option<bool>,
    /// The network policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkConfig>,
    /// Whether it is paused instead of killed at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_pause: Option<bool>,
    /// Whether that pause keeps memory; default yes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_pause_memory: Option<bool>,
    /// Whether traffic wakes it after such a pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_resume: Option<AutoResume>,
    /// Servers for the MCP gateway; ignored by the control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp: Option<serde_json::Value>,
    /// Identity tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iam: Option<serde_json::Value>,
    /// Volumes and where they appear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_mounts: Option<Vec<VolumeMount>>,
}

/// Whether traffic wakes a sandbox that was paused at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutoResume {
    /// Yes or no.
    pub enabled: bool,
}

/// A volume and the absolute path where it appears.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    /// The volume's name.
    pub name: String,
    /// The path inside.
    pub path: String,
}

/// A sandbox that is ready for use: the answer to create, connect, resume and fork.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Sandbox {
    /// Its id.
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    /// The template it was made from.
    #[serde(default, rename = "templateID", deserialize_with = "nullable")]
    pub template_id: String,
    /// A constant that older clients want to see.
    #[serde(default, rename = "clientID", deserialize_with = "nullable")]
    pub client_id: String,
    /// The version of the daemon inside.
    #[serde(default, deserialize_with = "nullable")]
    pub envd_version: String,
    /// The template's alias.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// The token that the daemon wants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envd_access_token: Option<Secret>,
    /// The token that the other ports want; only without public traffic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic_access_token: Option<Secret>,
    /// The domain of its host names, where it is not the configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
}

/// What a sandbox is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum State {
    /// Commands can run.
    #[default]
    Running,
    /// It is stored; connect resumes it.
    Paused,
    /// A word of another version.
    #[serde(other)]
    Other,
}

impl State {
    /// Returns the word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Other => "other",
        }
    }
}

/// Facts about a sandbox. Lists carry the fields up to [`SandboxDetail::volume_mounts`] only.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxDetail {
    /// Its id.
    #[serde(rename = "sandboxID")]
    pub sandbox_id: String,
    /// The template it was first made from.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// The template's alias.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    /// A constant that older clients want to see.
    #[serde(default, rename = "clientID", deserialize_with = "nullable")]
    pub client_id: String,
    /// When its present run began; for a paused one, when its last run did.
    pub started_at: Timestamp,
    /// When it ends; for a paused one, when it was paused.
    pub end_at: Timestamp,
    /// Cores.
    #[serde(default, deserialize_with = "nullable")]
    pub cpu_count: u32,
    /// Memory in MiB.
    #[serde(default, rename = "memoryMB", deserialize_with = "nullable")]
    pub memory_mb: u64,
    /// Disk in MiB.
    #[serde(default, rename = "diskSizeMB", deserialize_with = "nullable")]
    pub disk_size_mb: u64,
    /// What it is doing.
    pub state: State,
    /// The version of the daemon inside.
    #[serde(default, deserialize_with = "nullable")]
    pub envd_version: String,
    /// Free text pairs kept with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<BTreeMap<String, String>>,
    /// Volumes and where they appear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume_mounts: Option<Vec<VolumeMount>>,
    /// The token that the daemon wants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envd_access_token: Option<Secret>,
    /// The domain of its host names, where it is not the configured one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// Whether egress was denied or allowed in one word at create.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_internet_access: Option<bool>,
    /// The network policy, without passwords.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkConfig>,
    /// What happens at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifecycle: Option<Lifecycle>,
    /// How it was paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_mode: Option<PauseMode>,
}

/// What happens when a sandbox ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifecycle {
    /// Kill or pause.
    pub on_timeout: OnTimeout,
    /// Whether traffic wakes it after such a pause.
    #[serde(default, deserialize_with = "nullable")]
    pub auto_resume: bool,
}

/// Kill or pause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnTimeout {
    /// It is destroyed.
    #[default]
    Kill,
    /// It is paused and kept.
    Pause,
}

/// What a pause kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PauseMode {
    /// Memory and files.
    #[default]
    Full,
    /// Files only.
    Filesystem,
}

/// Connects to a sandbox, and wakes a paused one. In v1 the timeout is required.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connect {
    /// Seconds from now until it ends, never sooner than before; v2's default is 300.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// No starts a paused one anew on its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
}

/// Wakes a paused sandbox, by the older route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resume {
    /// Seconds from now until it ends; default 15.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// Whether it is paused instead of killed at its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auto_pause: Option<bool>,
    /// No starts it anew on its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
}

/// Pauses a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pause {
    /// No keeps only the files; default yes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
    /// Refuses when the daemon inside does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_healthy_guest: Option<bool>,
}

/// Sets when a sandbox ends, also sooner than before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetTimeout {
    /// Seconds from now; 0 ends it at once.
    pub timeout: i64,
}

/// Puts the end of a sandbox off, by the older route.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refresh {
    /// Seconds from now, up to 3600; default 15.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<i64>,
}

/// Makes new sandboxes from the present state of another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    /// Seconds until they end; default 15.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<i64>,
    /// How many; default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<i64>,
}

/// What became of one fork: a sandbox or an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkResult {
    /// The new sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<Sandbox>,
    /// Why there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ApiError>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_create_is_read_as_the_official_sdks_write_it_and_written_back_without_additions() {
        let body = json!({
            "templateID": "base", "metadata": {"a": "b"}, "envVars": {"K": "v"}, "timeout": 62,
            "network": {"allowPublicTraffic": false, "denyOut": ["0.0.0.0/0"]}, "autoPause": true,
            "autoResume": {"enabled": true}, "allow_internet_access": false,
        });
        let create: CreateSandbox = serde_json::from_value(body.clone()).unwrap();
        assert_eq!((create.timeout, create.allow_internet_access), (Some(62), Some(false)));
        assert_eq!(serde_json::to_value(&create).unwrap(), body);
    }

    #[test]
    fn nulls_unknown_fields_and_unknown_states_are_read() {
        let detail: SandboxDetail = serde_json::from_value(json!({
            "sandboxID": "i1", "templateID": "t", "clientID": null, "startedAt": "2026-08-01T12:00:00Z",
            "endAt": "2026-08-01T12:05:00Z", "cpuCount": 2, "memoryMB": 512, "diskSizeMB": null,
            "state": "migrating", "metadata": null, "lifecycle": {"onTimeout": "pause", "autoResume": null},
            "aNewField": [1],
        }))
        .unwrap();
        assert_eq!((detail.state, detail.disk_size_mb, detail.metadata), (State::Other, 0, None));
        assert!(serde_json::from_value::<SandboxDetail>(json!({"sandboxID": "i1"})).is_err());
        assert!(serde_json::from_value::<Sandbox>(json!({})).is_err());
    }
}
