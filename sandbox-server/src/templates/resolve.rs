//! What a name stands for when a sandbox is made.

use sandhold_e2b::wire::BuildStatus;

use crate::error::{ApiError, ApiResult};

use super::Templates;
use super::catalog::BASE;
use super::names::{DEFAULT_TAG, TemplateName};
use super::record::{BuildRecord, Context, StartCommands, TemplateRecord};

/// What the SDKs make a sandbox from that is to have MCP servers, unless their user names a template. Nobody has built it
/// here, so the base stands in, and the SDKs tell their user that there is no gateway in it.
const MCP_GATEWAY: &str = "mcp-gateway";

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
    /// How processes start unless the client says otherwise.
    pub(crate) context: Context,
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
    /// Finds a template by its id, its alias, or one with a namespace, each with a tag or without.
    ///
    /// # Errors
    /// 404 for one that has no build that is ready, or none with the tag.
    pub(crate) async fn resolve(&self, name: &TemplateName) -> ApiResult<Option<Resolved>> {
        if name.name == BASE && name.is_ours() && name.tag() == DEFAULT_TAG {
            return Ok(Some(named(BASE)));
        }
        if let Some(record) = self.catalog.find(name).await {
            let build = ready_build(&record, name.tag()).ok_or_else(|| match record.tags.is_empty() {
                true => ApiError::not_found(format!("template '{name}' has no build that is ready")),
                false => ApiError::not_found(format!(
                    "tag '{}' not found for template '{}'",
                    name.tag(),
                    record.name
                )),
            })?;
            let built = build.built.clone().unwrap_or_default();
            return Ok(Some(Resolved {
                template_id: record.id.clone(),
                alias: Some(record.name.clone()),
                build_id: Some(build.id.clone()),
                snapshot: built.layer.snapshot,
                context: built.layer.context,
                start: built.start,
            }));
        }
        if name.name == MCP_GATEWAY && name.is_ours() && name.tag() == DEFAULT_TAG {
            return Ok(Some(named(MCP_GATEWAY)));
        }
        Ok(None)
    }
}

/// The provider's base by one of the names that are always there.
fn named(name: &str) -> Resolved {
    Resolved { template_id: name.to_owned(), alias: Some(name.to_owned()), ..Resolved::default() }
}

/// Returns the build that a tag stands for, if sandboxes can be made from it.
pub(crate) fn ready_build<'a>(record: &'a TemplateRecord, tag: &str) -> Option<&'a BuildRecord> {
    let build = record.build(&record.tags.get(tag)?.build)?;
    (build.status == BuildStatus::Ready).then_some(build)
}
