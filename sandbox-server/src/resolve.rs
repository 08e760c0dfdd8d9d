//! What names in a create request stand for: templates and volumes.

use sandhold_core::Mount;
use sandhold_e2b::wire::VolumeMount;

use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::holds::Hold;
use crate::templates::resolve::Resolved;
use crate::templates::{self, Context, StartCommands, TemplateName};

/// A template that sandboxes can be made from.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Template {
    /// Its id, which clients see.
    pub(crate) id: String,
    /// Its name, where it has one.
    pub(crate) alias: Option<String>,
    /// What the provider makes the sandbox from.
    pub(crate) provided: String,
    /// How processes start unless the client says otherwise.
    pub(crate) context: Context,
    /// What runs once the sandbox is there.
    pub(crate) start: Option<StartCommands>,
}

/// Finds a template by id, alias or `namespace/alias`, each maybe with a tag.
///
/// # Errors
/// 400 for what is no reference, 404 in E2B's words for what is not there.
pub(crate) async fn template(app: &App, reference: &str) -> ApiResult<Template> {
    let found = resolve(app, reference).await?;
    let provided = found.provider_template().to_owned();
    Ok(Template {
        id: found.template_id,
        alias: found.alias,
        provided,
        context: found.context,
        start: found.start,
    })
}

/// Finds a template as [`template`] does, and keeps it from being deleted.
///
/// # Errors
/// As [`template`].
pub(crate) async fn held_template(app: &App, reference: &str) -> ApiResult<(Template, Hold)> {
    loop {
        let id = template(app, reference).await?.id;
        let hold = app.holds.hold(&id);
        // It may have been deleted before it was held.
        let found = template(app, reference).await?;
        if found.id == id {
            return Ok((found, hold));
        }
    }
}

/// Finds what a reference stands for, among templates and then among snapshots of sandboxes.
///
/// # Errors
/// As [`template`].
pub(crate) async fn resolve(app: &App, reference: &str) -> ApiResult<Resolved> {
    let name = TemplateName::parse(reference).map_err(ApiError::bad_request)?;
    if let Some(found) = app.templates.resolve(&name).await? {
        return Ok(found);
    }
    app.snapshots.resolve(&name).await?.ok_or_else(|| templates::not_found(reference))
}

/// Finds the volumes of a create, and where they are mounted; keeps them from being deleted.
///
/// # Errors
/// 400 for one that is not there.
pub(crate) async fn volumes(app: &App, mounts: &[VolumeMount]) -> ApiResult<(Vec<Mount>, Vec<Hold>)> {
    let (mut found, mut holds) = (Vec::with_capacity(mounts.len()), Vec::with_capacity(mounts.len()));
    for mount in mounts {
        let held = app.volumes.held(&mount.name, &app.holds).await;
        let (directory, hold) =
            held.ok_or_else(|| ApiError::bad_request(format!("volume '{}' not found", mount.name)))?;
        holds.push(hold);
        found.push(Mount::shared_dir(&mount.path, directory));
    }
    Ok((found, holds))
}
