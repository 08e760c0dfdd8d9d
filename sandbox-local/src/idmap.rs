//! Users: which ids the inside gets, and how its map is written.

use std::fs::{self, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, getegid, geteuid};

use crate::failure::{Doing, Failure, FailureKind};
use crate::record::IdMap;

/// Ids that a full map needs.
const COUNT: u32 = 65536;
/// Host ids that full maps are taken from: high enough for no account, and below 2^31.
const FIRST: u32 = 0x5000_0000;
const SLOTS: u32 = 0x2000;

/// Chooses the best tier that this caller can have, and ids in it for the sandbox `id`.
///
/// # Errors
/// [`FailureKind::Unsupported`] if every range is taken.
pub fn choose(home: &Path, id: &str) -> Result<IdMap, Failure> {
    match tier()? {
        IdMap::Full { .. } => allocate(home, id).map(|start| IdMap::Full { start }),
        other => Ok(other),
    }
}

/// The best tier that this caller can have; a full map has no ids of its own yet, and starts at 0: ids as they are
/// stored in base trees and snapshots.
pub(crate) fn tier() -> Result<IdMap, Failure> {
    if geteuid().is_root() {
        let own = OwnIds::read();
        return match (own.has_ranges(), own.is_root_outside()) {
            (true, _) => Ok(IdMap::Full { start: 0 }),
            // Root of a user namespace that an ordinary user made.
            (false, false) => Ok(IdMap::Single),
            (false, true) => Err(Failure::unsupported(
                "this is root of a user namespace that has no ids for sandboxes; run outside it, or as an ordinary user",
            )),
        };
    }
    Ok(subordinate().unwrap_or(IdMap::Single))
}

/// Gives back the ids of a sandbox that is gone.
pub(crate) fn release(home: &Path, map: &IdMap, id: &str) {
    if let IdMap::Full { start } = map {
        let path = home.join("ids").join(start.to_string());
        // Given back twice, it may be another's by now.
        if fs::read_to_string(&path).is_ok_and(|owner| owner == id) {
            let _ = fs::remove_file(path);
        }
    }
}

/// The ids that the user namespace of this process has.
struct OwnIds {
    /// First id here, first id outside, and how many, for users and for groups.
    users: Vec<(u64, u64, u64)>,
    groups: Vec<(u64, u64, u64)>,
}

impl OwnIds {
    fn read() -> Self {
        let read = |file: &str| Self::parse(&fs::read_to_string(file).unwrap_or_default());
        Self { users: read("/proc/self/uid_map"), groups: read("/proc/self/gid_map") }
    }

    fn parse(text: &str) -> Vec<(u64, u64, u64)> {
        let line = |line: &str| {
            let mut fields = line.split_whitespace().map(|field| field.parse().ok());
            Some((fields.next()??, fields.next()??, fields.next()??))
        };
        text.lines().filter_map(line).collect()
    }

    /// Says whether every range that a full map is taken from can be used.
    fn has_ranges(&self) -> bool {
        let (first, last) = (u64::from(FIRST), u64::from(FIRST) + u64::from(SLOTS) * u64::from(COUNT));
        [&self.users, &self.groups].iter().all(|map| {
            map.iter().any(|(inside, _, count)| *inside <= first && last <= inside.saturating_add(*count))
        })
    }

    /// Says whether root here is root one namespace further out, or may be.
    fn is_root_outside(&self) -> bool {
        !self.users.iter().any(|(inside, outside, _)| *inside == 0 && *outside != 0)
    }
}

fn allocate(home: &Path, id: &str) -> Result<u32, Failure> {
    let dir = home.join("ids");
    fs::create_dir_all(&dir).doing("make the directory of id ranges")?;
    let given: Vec<(u64, u64)> =
        ["/etc/subuid", "/etc/subgid"].iter().flat_map(|file| ranges(file)).collect();
    let offset = (RandomState::new().build_hasher().finish() % u64::from(SLOTS)) as u32;
    for slot in (0..SLOTS).map(|slot| (slot + offset) % SLOTS) {
        let start = FIRST + slot * COUNT;
        let (low, high) = (u64::from(start), u64::from(start) + u64::from(COUNT));
        if given.iter().any(|(first, count)| *first < high && low < first + count) {
            continue;
        }
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(dir.join(start.to_string())) {
            Ok(mut file) => {
                if let Err(error) = file.write_all(id.as_bytes()) {
                    let _ = fs::remove_file(dir.join(start.to_string()));
                    return Err(Failure::os("record an id range", error));
                }
                return Ok(start);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Failure::os("record an id range", error)),
        }
    }
    Err(Failure::unsupported(
        "all id ranges of this state directory are taken; destroy sandboxes that are not needed",
    ))
}

/// Reads the first and the number of ids of every line of `/etc/subuid` or `/etc/subgid`.
fn ranges(file: &str) -> Vec<(u64, u64)> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| range(line).map(|(_, first, count)| (first, count))).collect()
}

fn range(line: &str) -> Option<(&str, u64, u64)> {
    let mut fields = line.trim().split(':');
    let (owner, first, count) = (fields.next()?, fields.next()?, fields.next()?);
    Some((owner, first.parse().ok()?, count.parse().ok()?))
}

/// Returns the ranges that `newuidmap` lets this caller use, if there are any.
fn subordinate() -> Option<IdMap> {
    let uid = geteuid().as_raw();
    let name = user_name(uid);
    let own = |file: &str| {
        let text = fs::read_to_string(file).ok()?;
        let mut lines = text.lines().filter_map(range);
        lines
            .find(|(owner, _, count)| {
                (Some(*owner) == name.as_deref() || owner.parse() == Ok(uid))
                    && *count >= u64::from(COUNT) - 1
            })
            .map(|(_, first, _)| first)
    };
    let (uid_start, gid_start) = (own("/etc/subuid")?, own("/etc/subgid")?);
    for program in ["newuidmap", "newgidmap"] {
        if !["/usr/bin", "/bin", "/usr/local/bin"].iter().any(|dir| Path::new(dir).join(program).exists()) {
            return None;
        }
    }
    Some(IdMap::Ranges {
        uid_start: u32::try_from(uid_start).ok()?,
        gid_start: u32::try_from(gid_start).ok()?,
        count: COUNT - 1,
    })
}

/// Finds the name of a user in `/etc/passwd`. Other sources of names are not asked: that would load the host's
/// modules into a static program.
fn user_name(uid: u32) -> Option<String> {
    let text = fs::read_to_string("/etc/passwd").ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// Writes the id maps of a process that was just started in a new user namespace.
pub(crate) fn write(map: &IdMap, pid: Pid) -> Result<(), Failure> {
    let proc = format!("/proc/{}", pid.as_raw_nonzero());
    let put = |file: &str, text: String| {
        OpenOptions::new()
            .write(true)
            .open(format!("{proc}/{file}"))
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|error| {
                Failure::unsupported(format!(
                    "this host does not let us map users: writing {file} failed: {error}; user namespaces may be \
                     restricted for this program (kernel.apparmor_restrict_unprivileged_userns)"
                ))
            })
    };
    match map {
        IdMap::Full { start } => {
            put("uid_map", format!("0 {start} {COUNT}"))?;
            put("gid_map", format!("0 {start} {COUNT}"))
        }
        IdMap::Ranges { uid_start, gid_start, count } => {
            let caller = [geteuid().as_raw(), getegid().as_raw()];
            for (program, own, first) in
                [("newuidmap", caller[0], uid_start), ("newgidmap", caller[1], gid_start)]
            {
                let output = Command::new(program)
                    .args([pid.as_raw_nonzero().to_string(), "0".into(), own.to_string(), "1".into()])
                    .args(["1".into(), first.to_string(), count.to_string()])
                    .stdin(Stdio::null())
                    .output()
                    .doing(format_args!("run {program}"))?;
                if !output.status.success() {
                    let said = String::from_utf8_lossy(&output.stderr);
                    return Err(Failure::unsupported(format!("{program} refused: {}", said.trim())));
                }
            }
            Ok(())
        }
        IdMap::Single => {
            let (uid, gid) = (geteuid(), getegid());
            if uid.is_root() && OwnIds::read().is_root_outside() {
                return Err(Failure::new(
                    FailureKind::InvalidArgument,
                    "a single id map would make root inside root outside; use the full tier as root",
                ));
            }
            put("setgroups", "deny".into())?;
            put("uid_map", format!("0 {} 1", uid.as_raw()))?;
            put("gid_map", format!("0 {} 1", gid.as_raw()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(map: &str) -> OwnIds {
        OwnIds { users: OwnIds::parse(map), groups: OwnIds::parse(map) }
    }

    #[test]
    fn root_of_the_machine_has_ranges_and_root_of_a_namespace_only_what_was_mapped() {
        let machine = own("         0          0 4294967295\n");
        assert!(machine.has_ranges() && machine.is_root_outside());
        let rootless = own("0 1000 1\n1 100000 65536\n");
        assert!(!rootless.has_ranges() && !rootless.is_root_outside());
        let nested = own("0 0 1\n");
        assert!(!nested.has_ranges() && nested.is_root_outside());
        // What cannot be read is taken for the worst.
        assert!(!own("").has_ranges() && own("").is_root_outside());
    }
}
