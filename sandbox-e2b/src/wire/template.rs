use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{LogEntry, Secret, Timestamp, nullable};

/// Asks for a template, and for a build of it that waits for its steps: `POST /v3/templates`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewTemplate {
    /// Its name, maybe with a namespace and `:tag`.
    #[serde(default, deserialize_with = "nullable")]
    pub name: String,
    /// Tags that the build gets when it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<Vec<String>>,
    /// Cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_count: Option<u32>,
    /// Memory in MiB.
    #[serde(default, rename = "memoryMB", skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u64>,
    /// Free disk in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_free_disk_mb: Option<u64>,
    /// The name, by its older field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
}

/// A template and its waiting build.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CreatedTemplate {
    /// The template's id.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// The build's id.
    #[serde(rename = "buildID")]
    pub build_id: String,
    /// Whether others may use it.
    #[serde(default, deserialize_with = "nullable")]
    pub public: bool,
    /// Its names, with the namespace.
    #[serde(default, deserialize_with = "nullable")]
    pub names: Vec<String>,
    /// Tags that the build gets when it is ready.
    #[serde(default, deserialize_with = "nullable")]
    pub tags: Vec<String>,
    /// Its names, by their older field.
    #[serde(default, deserialize_with = "nullable")]
    pub aliases: Vec<String>,
}

/// Whether files of a COPY step are there already, and where to put them if not:
/// `GET /templates/{id}/files/{hash}`, answered with 201.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileUpload {
    /// Whether they are there.
    pub present: bool,
    /// Where a tar of them is put, with its exact length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<Secret>,
    /// Headers of that request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
}

/// Starts a waiting build: `POST /v2/templates/{id}/builds/{id}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Build {
    /// The image it starts from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_image: Option<String>,
    /// The template it starts from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_template: Option<String>,
    /// How the image's registry is entered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_image_registry: Option<ImageRegistry>,
    /// What is done, in this order.
    #[serde(default, deserialize_with = "nullable")]
    pub steps: Vec<Step>,
    /// The command that runs when a sandbox starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_cmd: Option<String>,
    /// The command whose success says that the start command is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_cmd: Option<String>,
    /// Whether every layer is made again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
}

/// Credentials for an image's registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
#[non_exhaustive]
pub enum ImageRegistry {
    /// A user and a password.
    Registry {
        /// The user.
        username: String,
        /// The password.
        password: Secret,
    },
    /// A key of Amazon's.
    #[serde(rename_all = "camelCase")]
    Aws {
        /// The key's id.
        aws_access_key_id: String,
        /// The key.
        aws_secret_access_key: Secret,
        /// The region.
        aws_region: String,
    },
    /// A service account of Google's.
    #[serde(rename_all = "camelCase")]
    Gcp {
        /// Its key file.
        service_account_json: Secret,
    },
}

/// One step of a build.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// What it does.
    #[serde(rename = "type")]
    pub kind: StepKind,
    /// Its arguments: COPY `[source, destination, user or "", mode or ""]`, RUN `[command, user?]`, WORKDIR `[path]`,
    /// USER `[name]`, ENV names and values in turn.
    #[serde(default, deserialize_with = "nullable")]
    pub args: Vec<String>,
    /// What the files of a COPY are, as one hash.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files_hash: Option<String>,
    /// Whether this layer and all after it are made again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub force: Option<bool>,
}

/// What a build step does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[non_exhaustive]
pub enum StepKind {
    /// Copies uploaded files.
    Copy,
    /// Runs a command.
    #[default]
    Run,
    /// Sets environment.
    Env,
    /// Sets the directory of later steps, and of commands.
    Workdir,
    /// Sets the user of later steps, and of commands.
    User,
    /// A word of another version.
    #[serde(other)]
    Other,
}

/// What a build is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum BuildStatus {
    /// It waits for its steps.
    #[default]
    Waiting,
    /// It runs.
    Building,
    /// Sandboxes can be made from it.
    Ready,
    /// It failed.
    Error,
    /// A word of another version.
    #[serde(other)]
    Other,
}

impl BuildStatus {
    /// Tells whether nothing more will happen.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Ready | Self::Error)
    }
}

/// How far a build is: `GET /templates/{id}/builds/{id}/status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BuildStatusAnswer {
    /// The template.
    #[serde(default, rename = "templateID", deserialize_with = "nullable")]
    pub template_id: String,
    /// The build.
    #[serde(default, rename = "buildID", deserialize_with = "nullable")]
    pub build_id: String,
    /// What it is doing.
    pub status: BuildStatus,
    /// Log lines from the offset asked for on, at most 100.
    #[serde(default, deserialize_with = "nullable")]
    pub log_entries: Vec<LogEntry>,
    /// The same as text.
    #[serde(default, deserialize_with = "nullable")]
    pub logs: Vec<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<BuildReason>,
}

/// Why a build failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BuildReason {
    /// For people.
    #[serde(default, deserialize_with = "nullable")]
    pub message: String,
    /// `base`, `finalize`, or the number of the step, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Log lines that belong to it.
    #[serde(default, deserialize_with = "nullable")]
    pub log_entries: Vec<LogEntry>,
}

/// What a name stands for: `GET /templates/aliases/{alias}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AliasInfo {
    /// The template.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Whether others may use it.
    #[serde(default, deserialize_with = "nullable")]
    pub public: bool,
}

/// Gives a build more tags: `POST /templates/tags`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignTags {
    /// The build, as `name:tag`.
    pub target: String,
    /// The tags.
    pub tags: Vec<String>,
}

/// What got the tags.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignedTags {
    /// The build.
    #[serde(rename = "buildID")]
    pub build_id: String,
    /// The tags.
    #[serde(default, deserialize_with = "nullable")]
    pub tags: Vec<String>,
}

/// Takes tags away: `DELETE /templates/tags`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveTags {
    /// The template's name.
    pub name: String,
    /// The tags.
    pub tags: Vec<String>,
}

/// One tag of a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Tag {
    /// The tag.
    pub tag: String,
    /// The build it stands for.
    #[serde(rename = "buildID")]
    pub build_id: String,
    /// Since when.
    pub created_at: Timestamp,
}

/// A template, in lists and by id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    /// Its id.
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Its latest build.
    #[serde(default, rename = "buildID", deserialize_with = "nullable")]
    pub build_id: String,
    /// Whether others may use it.
    #[serde(default, deserialize_with = "nullable")]
    pub public: bool,
    /// Its names without a namespace.
    #[serde(default, deserialize_with = "nullable")]
    pub aliases: Vec<String>,
    /// Its names with a namespace.
    #[serde(default, deserialize_with = "nullable")]
    pub names: Vec<String>,
    /// When it was made.
    #[serde(default, deserialize_with = "nullable")]
    pub created_at: Timestamp,
    /// When it was changed.
    #[serde(default, deserialize_with = "nullable")]
    pub updated_at: Timestamp,
    /// When a sandbox was last made from it.
    #[serde(default)]
    pub last_spawned_at: Option<Timestamp>,
    /// How many sandboxes were made from it.
    #[serde(default, deserialize_with = "nullable")]
    pub spawn_count: u64,
    /// How often it was built.
    #[serde(default, deserialize_with = "nullable")]
    pub build_count: u64,
    /// What its latest build is doing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_status: Option<BuildStatus>,
    /// Cores.
    #[serde(default, deserialize_with = "nullable")]
    pub cpu_count: u32,
    /// Memory in MiB.
    #[serde(default, rename = "memoryMB", deserialize_with = "nullable")]
    pub memory_mb: u64,
    /// Disk in MiB.
    #[serde(default, rename = "diskSizeMB", deserialize_with = "nullable")]
    pub disk_size_mb: u64,
    /// The version of the daemon inside.
    #[serde(default, deserialize_with = "nullable")]
    pub envd_version: String,
    /// Its builds; by id only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub builds: Option<Vec<BuildInfo>>,
}

/// One build of a template.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BuildInfo {
    /// Its id.
    #[serde(rename = "buildID")]
    pub build_id: String,
    /// What it is doing.
    #[serde(default, deserialize_with = "nullable")]
    pub status: BuildStatus,
    /// When it was asked for.
    #[serde(default, deserialize_with = "nullable")]
    pub created_at: Timestamp,
    /// When it last changed.
    #[serde(default, deserialize_with = "nullable")]
    pub updated_at: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// Cores.
    #[serde(default, deserialize_with = "nullable")]
    pub cpu_count: u32,
    /// Memory in MiB.
    #[serde(default, rename = "memoryMB", deserialize_with = "nullable")]
    pub memory_mb: u64,
    /// Disk in MiB.
    #[serde(default, rename = "diskSizeMB", skip_serializing_if = "Option::is_none")]
    pub disk_size_mb: Option<u64>,
    /// The version of the daemon inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub envd_version: Option<String>,
}

/// Changes a template: `PATCH /v2/templates/{id}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateTemplate {
    /// Whether others may use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public: Option<bool>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_build_is_read_as_the_official_sdks_write_it_and_written_back_without_additions() {
        let body = json!({
            "fromImage": "debian:12",
            "fromImageRegistry": {
                "type": "aws", "awsAccessKeyId": "a", "awsSecretAccessKey": "b", "awsRegion": "c",
            },
            "steps": [
                {"type": "COPY", "args": ["a", "/b", "", ""], "filesHash": "00", "force": false},
                {"type": "RUN", "args": ["make"]},
            ],
            "startCmd": "serve", "readyCmd": "true", "force": true,
        });
        let build: Build = serde_json::from_value(body.clone()).unwrap();
        assert_eq!(build.steps[0].kind, StepKind::Copy);
        assert_eq!(serde_json::to_value(&build).unwrap(), body);
        for registry in [
            json!({"type": "registry", "username": "u", "password": "p"}),
            json!({"type": "gcp", "serviceAccountJson": "{}"}),
        ] {
            let read: ImageRegistry = serde_json::from_value(registry.clone()).unwrap();
            assert_eq!(serde_json::to_value(&read).unwrap(), registry);
            assert!(!format!("{read:?}").contains("\"p\""));
        }
    }
}
