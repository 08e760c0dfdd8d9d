//! The helper's work on snapshots: copying what a sandbox wrote, importing trees, and removing what was copied.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::fs::CWD;

use crate::cleanup::{is_monitored, remove_tree};
use crate::failure::{Doing, Failure, FailureKind};
use crate::layer::{Content, Meaning, lay, open_dir};
use crate::monitor::SOCKET;
use crate::record::{IdMap, Record, Runtime, Upper};
use crate::rootfs::{self, PARTS};
use crate::state_dir::{STAGING, hold_staging};
use crate::{idmap, inside};

/// How long a daemon may take to stop everything: longer than its freezer's own patience.
const HOLD_PATIENCE: Duration = Duration::from_secs(60);

/// Copies what the sandbox in `dir` stands on and wrote into a new layer at `to`, which is on disk when this returns.
///
/// A sandbox that runs is held still for as long as it takes to copy what it wrote, and goes on, whatever becomes of
/// this process. One that does not run is to be kept from starting by the caller.
pub(crate) fn take(dir: &Path, to: &Path) -> Result<(), Failure> {
    let to = std::path::absolute(to).doing("find the place of the layer")?;
    // The address of a socket holds 107 bytes, and a path may be longer.
    std::env::set_current_dir(dir).doing(format_args!("enter {}", dir.display()))?;
    let dir = std::env::current_dir().doing("find the sandbox")?;
    let record = Record::load(Path::new("."))?;
    let home = home_of(&dir)?;
    let _staging = hold_staging(home).doing("keep the sweep away")?;
    let ids = &record.spec.ids;
    make_parts(&to, ids)?;
    if let Some(under) = rootfs::layer_of(home, &dir, &record.spec.origin) {
        let under = open_dir(CWD, &under).doing("open the layer below")?;
        // As stored: no id of it is one of this sandbox.
        inside::as_root(ids, || lay_parts(&under, &to, Content::Shared, 0))?;
    }
    let held = hold(Path::new("."))?;
    if let Some(upper) = upper(&record, held.is_some())? {
        let first = if let IdMap::Full { start } = ids { *start } else { 0 };
        inside::as_root(ids, || lay_parts(&upper, &to, Content::Copied, first))?;
    }
    drop(held);
    sync(&to)
}

/// Copies a plain tree into a new layer at `to`: the root of a template.
pub(crate) fn import(from: &Path, to: &Path) -> Result<(), Failure> {
    let home = to.ancestors().find(|above| above.file_name().is_some_and(|name| name == STAGING));
    let home = home.and_then(Path::parent).ok_or_else(not_staged)?;
    let _staging = hold_staging(home).doing("keep the sweep away")?;
    let ids = idmap::tier()?;
    make_parts(to, &ids)?;
    let from = open_dir(CWD, from).doing(format_args!("open {}", from.display()))?;
    inside::as_root(&ids, || lay(from.as_fd(), &to.join(PARTS[0]), Content::Copied, Meaning::Tree, 0))?;
    sync(to)
}

/// Removes what was left in staging, or moved there to be removed, also where it belongs to ids of the inside.
pub(crate) fn discard(path: &Path) -> Result<(), Failure> {
    if path.parent().and_then(Path::file_name).is_none_or(|name| name != STAGING) {
        return Err(not_staged());
    }
    inside::as_root(&idmap::tier()?, || remove_tree(path).doing(format_args!("remove {}", path.display())))
}

fn not_staged() -> Failure {
    Failure::new(
        FailureKind::InvalidArgument,
        "the path is not in the staging directory of a state directory",
    )
}

fn home_of(dir: &Path) -> Result<&Path, Failure> {
    let home = dir.parent().and_then(Path::parent);
    home.ok_or_else(|| Failure::new(FailureKind::InvalidArgument, "not the directory of a sandbox"))
}

fn make_parts(to: &Path, ids: &IdMap) -> Result<(), Failure> {
    inside::as_root(ids, || {
        PARTS.iter().try_for_each(|part| {
            let path = to.join(part);
            fs::create_dir_all(&path)
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)))
                .doing(format_args!("make {}", path.display()))
        })
    })
}

fn lay_parts(from: &OwnedFd, to: &Path, content: Content, first: u32) -> Result<(), Failure> {
    PARTS.iter().try_for_each(|part| match open_dir(from, *part) {
        Ok(part_of) => lay(part_of.as_fd(), &to.join(part), content, Meaning::Layer, first),
        // Only where `/usr` cannot be written to there is one for `/usr/local`.
        Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(Failure::os("open the layer", error)),
    })
}

/// Opens what the sandbox wrote; `None` when it wrote nothing that is still there.
fn upper(record: &Record, runs: bool) -> Result<Option<OwnedFd>, Failure> {
    let opened = match record.spec.upper {
        Upper::Disk => open_dir(CWD, "upper"),
        Upper::Tmpfs { .. } if runs => {
            let (monitor, fd) = Runtime::load(Path::new("."))?.memory.ok_or_else(|| {
                Failure::unsupported(
                    "the sandbox was started by an older helper; pause it and resume it first",
                )
            })?;
            // A descriptor of the monitor's, which leads to a file system that has no name out here.
            let flags =
                rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
            rustix::fs::open(format!("/proc/{monitor}/fd/{fd}"), flags, rustix::fs::Mode::empty())
        }
        Upper::Tmpfs { .. } => return Ok(None),
    };
    match opened {
        Ok(upper) => Ok(Some(upper)),
        // It was never started.
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(error) => Err(Failure::os("open what the sandbox wrote", error)),
    }
}

/// Has the daemon hold everything still until the answer is dropped; `None` when nothing runs.
fn hold(dir: &Path) -> Result<Option<UnixStream>, Failure> {
    if !is_monitored(dir)? {
        return Ok(None);
    }
    let asked = || {
        let mut line = UnixStream::connect(dir.join(SOCKET))?;
        line.set_read_timeout(Some(HOLD_PATIENCE))?;
        line.write_all(
            b"POST /sandhold/hold HTTP/1.1\r\nHost: sandbox\r\nConnection: upgrade\r\nUpgrade: hold\r\n\
              Content-Length: 0\r\n\r\n",
        )?;
        let mut head = Vec::new();
        let mut byte = [0];
        while !head.ends_with(b"\r\n\r\n") && head.len() < 4096 && line.read(&mut byte)? == 1 {
            head.push(byte[0]);
        }
        Ok::<_, std::io::Error>((line, head))
    };
    let (line, head) = asked().doing("ask the daemon to hold the sandbox")?;
    if head.starts_with(b"HTTP/1.1 101") {
        return Ok(Some(line));
    }
    let said = String::from_utf8_lossy(&head);
    let said = said.lines().next().unwrap_or("nothing");
    Err(Failure::new(
        FailureKind::Unexpected,
        format!("the daemon cannot hold the sandbox: it said {said:?}"),
    ))
}

fn sync(path: &Path) -> Result<(), Failure> {
    let stored = || fs::File::open(path).and_then(|tree| Ok(rustix::fs::syncfs(tree)?));
    stored().doing(format_args!("write {} to disk", path.display()))
}
