//! What names in a create request stand for: templates and volumes.

use std::collections::BTreeMap;

use sandhold_core::Mount;
use sandhold_e2b::wire::VolumeMount;

use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::templates::StartCommands;

/// A template that sandboxes can be made from.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Template {
    /// Its id, which clients see.
    pub(crate) id: String,
    /// Its name, where it has one.
    pub(crate) alias: Option<String>,
    /// What the provider makes the sandbox from.
    pub(crate) provided: String,
    /// The variables that every process has, before those of the create.
    pub(crate) env: BTreeMap<String, String>,
    /// The user that commands run as; default the provider's.
    pub(crate) user: Option<String>,
    /// Where commands start; default the user's home.
    pub(crate) workdir: Option<String>,
    /// What runs once the sandbox is there.
    pub(crate) start: Option<StartCommands>,
}

/// Finds a template by id, alias or `namespace/alias`, each maybe with a tag.
///
/// # Errors
/// 400 for what is no reference, 404 in E2B's words for what is not there.
pub(crate) async fn template(app: &App, reference: &str) -> ApiResult<Template> {
    let found = app.templates.resolve(reference).await?;
    let provided = found.provider_template().to_owned();
    let context = found.context.unwrap_or_default();
    Ok(Template {
        id: found.template_id,
        alias: found.alias,
        provided,
        env: context.env,
        user: Some(context.user),
        workdir: context.workdir,
        start: found.start,
    })
}

/// Finds the volumes of a create, and where they are mounted.
///
/// # Errors
/// 400 for one that is not there.
pub(crate) async fn volumes(app: &App, mounts: &[VolumeMount]) -> ApiResult<Vec<Mount>> {
    let _ = app;
    match mounts.first() {
        None => Ok(Vec::new()),
        Some(mount) => Err(ApiError::bad_request(format!("volume '{}' not found", mount.name))),
    }
}
