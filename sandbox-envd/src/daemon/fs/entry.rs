//! What the protocol tells about a file.

use std::fs::{self, Metadata as Stat};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::daemon::fs::actor::Actor;
use crate::daemon::fs::{metadata, mode, path};
use crate::messages::filesystem::{EntryInfo, FileType};

/// Describes the entry at `path`.
///
/// A link has the type and the permission bits of what it leads to (an unspecified type when that is
/// missing), but its own size, owner and mode string. Blocks.
pub(crate) fn describe(path: &Path, actor: &Actor) -> io::Result<EntryInfo> {
    let stat = fs::symlink_metadata(path)?;
    Ok(describe_stat(path, &stat, actor))
}

fn describe_stat(path: &Path, stat: &Stat, actor: &Actor) -> EntryInfo {
    let link_target = mode::is_link(stat.mode()).then(|| fs::canonicalize(path));
    let target_mode = match &link_target {
        None => Some(stat.mode()),
        Some(target) => target.as_ref().ok().and_then(|t| fs::metadata(t).ok()).map(|stat| stat.mode()),
    };
    let (owner, group) = actor.owner_names(stat.uid(), stat.gid());
    EntryInfo {
        name: path::base_name(path).to_string_lossy().into_owned(),
        r#type: file_type(target_mode).into(),
        path: path.to_string_lossy().into_owned(),
        size: i64::try_from(stat.len()).unwrap_or(i64::MAX),
        mode: target_mode.unwrap_or_default() & 0o777,
        permissions: mode::go_mode_string(stat.mode()),
        owner,
        group,
        modified_time: buffa_types::google::protobuf::Timestamp {
            seconds: stat.mtime(),
            nanos: i32::try_from(stat.mtime_nsec()).unwrap_or_default(),
            ..Default::default()
        }
        .into(),
        symlink_target: link_target
            .map(|target| target.unwrap_or_else(|_| PathBuf::from(path)).to_string_lossy().into_owned()),
        metadata: metadata::read(path).into_iter().collect(),
    }
}

fn file_type(mode: Option<u32>) -> FileType {
    match mode {
        Some(mode) if mode::is_regular(mode) => FileType::FILE_TYPE_FILE,
        Some(mode) if mode::is_directory(mode) => FileType::FILE_TYPE_DIRECTORY,
        _ => FileType::FILE_TYPE_UNSPECIFIED,
    }
}
