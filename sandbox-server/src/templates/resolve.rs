//! What a name stands for when a sandbox is made.

use sandhold_core::{SnapshotFilter, SnapshotInfo};
use sandhold_e2b::wire::BuildStatus;

use crate::error::{ApiError, ApiResult};

use super::Templates;
use super::catalog::{BASE, not_found};
use super::names::{DEFAULT_TAG, NAMESPACE, TemplateName};
use super::record::{BuildRecord, Context, StartCommands, TemplateRecord};
use super::session::SNAPSHOT_PREFIX;

/// What sandboxes are made from.
#[derive(Clone, Debug, Default)]
pub(crate) struct Resolved {
    /// What clients are told as `templateID`.
    pub(crate) template_id: String,
    /// What clients are told as `alias`.
    pub(crate) alias: Option<String>,
    /// The build, for a template that has one.
    pub(crate) build_id: Option<String>,
    /// The provider's snapshot; `None` for its base.
    pub(crate) snapshot: Option<String>,
    /// How processes start unless the client says otherwise. `None` for a snapshot, which has what its sandbox had.
    pub(crate) context: Option<Context>,
    /// What runs when the sandbox is there.
    pub(crate) start: Option<StartCommands>,
}

impl Resolved {
    /// What the provider calls it.
    pub(crate) fn provider_template(&self) -> &str {
        self.snapshot.as_deref().unwrap_or(BASE)
    }
}

impl Templates {
    /// Finds what a client means by a template: an id, an alias, one with a namespace, each with a tag or without, or
    /// the id of a snapshot.
    ///
    /// # Errors
    /// 400 for what is no name, 404 for what is not there.
    pub(crate) async fn resolve(&self, text: &str) -> ApiResult<Resolved> {
        let name = TemplateName::parse(text).map_err(ApiError::bad_request)?;
        if name.name == BASE && name.is_ours() && name.tag() == DEFAULT_TAG {
            return Ok(base());
        }
        if let Some(record) = self.catalog.find(&name).await {
            let build = ready_build(&record, name.tag()).ok_or_else(|| match record.tags.is_empty() {
                true => ApiError::not_found(format!("template '{name}' has no build that is ready")),
                false => ApiError::not_found(format!(
                    "tag '{}' not found for template '{}'",
                    name.tag(),
                    record.name
                )),
            })?;
            let built = build.built.clone().unwrap_or_default();
            return Ok(Resolved {
                template_id: record.id.clone(),
                alias: Some(record.name.clone()),
                build_id: Some(build.id.clone()),
                snapshot: built.layer.snapshot,
                context: Some(built.layer.context),
                start: built.start,
            });
        }
        match self.snapshot(&name).await? {
            Some(found) => Ok(Resolved {
                template_id: name.to_string(),
                snapshot: Some(found.id.as_str().to_owned()),
                ..Resolved::default()
            }),
            None => Err(not_found(text)),
        }
    }

    /// Finds the snapshot of a sandbox by what clients know it as.
    pub(crate) async fn snapshot(&self, name: &TemplateName) -> ApiResult<Option<SnapshotInfo>> {
        if !self.provider.capabilities().snapshot {
            return Ok(None);
        }
        let mut all = self.provider.list_snapshots(SnapshotFilter::default()).await?;
        while let Some(info) = all.next().await {
            let info = info?;
            if names_of(&info).any(|known| stands_for(&known, name)) {
                return Ok(Some(info));
            }
        }
        Ok(None)
    }
}

/// Returns what clients know a snapshot as: its names, or its id where it has none. Those of builds are no client's.
pub(crate) fn names_of(info: &SnapshotInfo) -> impl Iterator<Item = String> {
    let unnamed = info.names.is_empty().then(|| format!("{}:{DEFAULT_TAG}", info.id.as_str()));
    let named = info.names.iter().filter(|name| !name.starts_with(SNAPSHOT_PREFIX)).cloned();
    unnamed.into_iter().chain(named)
}

/// Says whether a known name, which may lack its defaults, is the one that is meant.
fn stands_for(known: &str, meant: &TemplateName) -> bool {
    let Ok(known) = TemplateName::parse(known) else { return false };
    let namespace = |name: &TemplateName| name.namespace.clone().unwrap_or_else(|| NAMESPACE.to_owned());
    known.name == meant.name && known.tag() == meant.tag() && namespace(&known) == namespace(meant)
}

/// The template that is always there.
pub(crate) fn base() -> Resolved {
    Resolved { template_id: BASE.to_owned(), alias: Some(BASE.to_owned()), ..Resolved::default() }
}

/// Returns the build that a tag stands for, if sandboxes can be made from it.
pub(crate) fn ready_build<'a>(record: &'a TemplateRecord, tag: &str) -> Option<&'a BuildRecord> {
    let build = record.build(&record.tags.get(tag)?.build)?;
    (build.status == BuildStatus::Ready).then_some(build)
}
