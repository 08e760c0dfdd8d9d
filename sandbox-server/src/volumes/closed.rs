//! Removing what this server may not: without root, files that belong to users inside are not its own.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sandhold_core::{
    Attempt, CreateOptions, Error, ErrorKind, Generation, Key, Mount, OnExpiry, Owner, ProcessSpec, Result,
    SandboxHandleExt, SandboxProvider, SandboxSpec, Tags,
};

use crate::templates::{BUILDERS, short_id};

/// Where a volume is shown to the sandbox that is made for it.
const PLACE: &str = "/mnt/volume";
/// How long that sandbox may live, should this server die.
const LEASE: Duration = Duration::from_secs(600);

/// Removes a path of a volume as root inside, from a sandbox that is made for it. Every way out of the volume ends in that
/// sandbox.
pub(super) async fn remove(provider: &Arc<dyn SandboxProvider>, volume: &Path, path: &Path) -> Result<()> {
    let path = Path::new(PLACE).join(path);
    let path = path.to_str().ok_or_else(|| Error::invalid_argument("the path is no text"))?;
    let spec = SandboxSpec::default()
        .with_mount(Mount::shared_dir(PLACE, volume))
        .with_lease(LEASE)
        .with_on_expiry(OnExpiry::Kill);
    let tags = Tags {
        owner: Owner::new(BUILDERS)?,
        key: Key::new(format!("volume-{}", short_id()?))?,
        generation: Generation::random()?,
        attempt: Attempt::random()?,
    };
    let handle = provider.create_opts(CreateOptions::new(spec, tags)).await?;
    // What is in the volume, should the path be the volume itself, which is a mount.
    let line = "if [ \"$1\" = \"$2\" ]; then find \"$1\" -mindepth 1 -delete; else rm -rf -- \"$1\"; fi";
    let spec = ProcessSpec::argv("/bin/sh", ["-c", line, "remove", path.trim_end_matches('/'), PLACE]);
    let removed = handle.exec(spec.with_user("root").with_cwd("/")).await;
    let ended = provider.destroy(handle.id()).await;
    let removed = removed?;
    ended?;
    if removed.exit.success() {
        return Ok(());
    }
    let why = removed.stderr.text().trim().to_owned();
    Err(Error::new(ErrorKind::PermissionDenied, format!("the files could not be removed: {why}")))
}
