//! Control groups: one group a sandbox in each hierarchy that is needed, holding its processes and nothing else.
//!
//! The daemon stays where its monitor is, so that a freeze or a limit never reaches it.
//!
//! Where both versions are mounted, version 1 is taken for freezing: there a child joins by writing to `tasks`,
//! which takes 0.03 ms, while a write to `cgroup.procs` of version 2 waits for all processors (8 ms measured).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::failure::{Doing, Failure};
use crate::record::Limits;

/// How the processes of a sandbox are frozen.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FreezerTier {
    /// By `cgroup.freeze` of version 2.
    CgroupV2,
    /// By the freezer hierarchy of version 1.
    CgroupV1,
    /// By `SIGSTOP` to each process.
    Signals,
}

/// A hierarchy that is mounted, and where this process is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hierarchy {
    /// The controllers of version 1; none for version 2.
    controllers: Vec<String>,
    mount: PathBuf,
    own: PathBuf,
}

impl Hierarchy {
    fn is_v2(&self) -> bool {
        self.controllers.is_empty()
    }
}

/// The files of a group that freezes.
#[derive(Debug)]
pub(crate) struct FreezerGroup {
    pub(crate) tier: FreezerTier,
    /// Takes the order.
    pub(crate) order: File,
    /// Says how far it is.
    pub(crate) state: File,
}

/// The groups of one sandbox, made but empty.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// Their directories.
    pub(crate) dirs: Vec<PathBuf>,
    /// Files that a process joins by writing `0` to.
    pub(crate) join: Vec<File>,
    /// What freezes and thaws; none where only signals can.
    pub(crate) freezer: Option<FreezerGroup>,
    /// Tells how often memory ran out, where it is limited.
    pub(crate) memory: Option<File>,
}

/// Finds the mounted hierarchies from the texts of `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn hierarchies(mountinfo: &str, cgroup: &str) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let (left, right): (Vec<&str>, Vec<&str>) = (left.split(' ').collect(), right.split(' ').collect());
        let (Some(root), Some(mount), Some(kind)) = (left.get(3), left.get(4), right.first()) else {
            continue;
        };
        let options: Vec<&str> = right.get(2).map(|text| text.split(',').collect()).unwrap_or_default();
        let own = |wanted: &dyn Fn(&str) -> bool| {
            let path = cgroup.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':');
                wanted(fields.nth(1)?).then(|| fields.next()).flatten()
            })?;
            let below = Path::new(path).strip_prefix(root).ok()?.to_path_buf();
            Some(Path::new(mount).join(below))
        };
        let entry = match *kind {
            "cgroup2" => own(&|names| names.is_empty()).map(|own| (Vec::new(), own)),
            "cgroup" => {
                own(&|names| !names.is_empty() && names.split(',').all(|name| options.contains(&name)))
                    .map(|own| (options.iter().map(|&name| name.to_owned()).collect(), own))
            }
            _ => None,
        };
        if let Some((controllers, own)) = entry {
            found.push(Hierarchy { controllers, mount: mount.into(), own });
        }
    }
    found
}

fn mounted() -> Vec<Hierarchy> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    hierarchies(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"))
}

fn open_write(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).custom_flags(libc::O_CLOEXEC).open(path)
}

fn put(dir: &Path, file: &str, value: impl ToString) -> io::Result<()> {
    open_write(&dir.join(file))?.write_all(value.to_string().as_bytes())
}

/// One limit as both versions spell it.
struct Wanted {
    controller: &'static str,
    v1: Vec<(&'static str, u64)>,
    v2: Vec<(&'static str, String)>,
}

/// Period of processor shares in microseconds: the kernel's own default.
const CPU_PERIOD: u64 = 100_000;

fn wanted(limits: &Limits) -> Vec<Wanted> {
    let mut all = Vec::new();
    if let Some(millis) = limits.cpu_millis {
        let quota = (millis * CPU_PERIOD / 1000).max(1000);
        all.push(Wanted {
            controller: "cpu",
            v1: vec![("cpu.cfs_period_us", CPU_PERIOD), ("cpu.cfs_quota_us", quota)],
            v2: vec![("cpu.max", format!("{quota} {CPU_PERIOD}"))],
        });
    }
    if let Some(bytes) = limits.memory_bytes {
        all.push(Wanted {
            controller: "memory",
            v1: vec![("memory.limit_in_bytes", bytes)],
            v2: vec![("memory.max", bytes.to_string())],
        });
    }
    if let Some(pids) = limits.pids {
        all.push(Wanted {
            controller: "pids",
            v1: vec![("pids.max", pids)],
            v2: vec![("pids.max", pids.to_string())],
        });
    }
    all
}

/// Makes the groups of the sandbox `id`.
///
/// `planned` is called with each directory before it is made, so that it is written down who has to remove it.
pub(crate) fn prepare(
    id: &str,
    limits: &Limits,
    mut planned: impl FnMut(&Path) -> Result<(), Failure>,
) -> Result<Groups, Failure> {
    let mounted = mounted();
    let mut groups = Groups::default();
    let name = format!("sandhold-{id}");
    let result = (|| {
        let mut v2_controllers: Vec<&Wanted> = Vec::new();
        let wanted = wanted(limits);
        for limit in &wanted {
            match mounted.iter().find(|at| at.controllers.iter().any(|name| name == limit.controller)) {
                Some(at) => {
                    let dir = make_v1(at, &name, &mut groups, &mut planned)
                        .map_err(|error| refuse(limit.controller, &error.to_string()))?;
                    for (file, value) in &limit.v1 {
                        put(&dir, file, value)
                            .map_err(|error| refuse(limit.controller, &error.to_string()))?;
                    }
                    if limit.controller == "memory" {
                        // Without accounting of swap the file is not there.
                        let _ = put(&dir, "memory.memsw.limit_in_bytes", limit.v1[0].1);
                        groups.memory = File::open(dir.join("memory.oom_control")).ok();
                    }
                }
                None => v2_controllers.push(limit),
            }
        }
        let v1_freezer = mounted.iter().find(|at| at.controllers.iter().any(|name| name == "freezer"));
        if let Some(at) = v1_freezer
            && let Ok(dir) = make_v1(at, &name, &mut groups, &mut planned)
            && let (Ok(order), Ok(state)) =
                (open_write(&dir.join("freezer.state")), File::open(dir.join("freezer.state")))
        {
            groups.freezer = Some(FreezerGroup { tier: FreezerTier::CgroupV1, order, state });
        }
        if groups.freezer.is_none() || !v2_controllers.is_empty() {
            let made = mounted
                .iter()
                .find(|at| at.is_v2())
                .map(|at| make_v2(at, &name, &v2_controllers, &mut planned));
            match made {
                Some(Ok(dir)) => {
                    for (file, value) in v2_controllers.iter().flat_map(|limit| &limit.v2) {
                        put(&dir, file, value).map_err(|error| refuse(file, &error.to_string()))?;
                    }
                    if limits.memory_bytes.is_some() {
                        let _ = put(&dir, "memory.swap.max", 0);
                        groups.memory = File::open(dir.join("memory.events")).ok();
                    }
                    groups.join.push(open_write(&dir.join("cgroup.procs")).doing("open a control group")?);
                    if groups.freezer.is_none()
                        && let (Ok(order), Ok(state)) =
                            (open_write(&dir.join("cgroup.freeze")), File::open(dir.join("cgroup.events")))
                    {
                        groups.freezer = Some(FreezerGroup { tier: FreezerTier::CgroupV2, order, state });
                    }
                    groups.dirs.push(dir);
                }
                Some(Err(error)) if !v2_controllers.is_empty() => {
                    return Err(refuse(v2_controllers[0].controller, &error.to_string()));
                }
                None if !v2_controllers.is_empty() => {
                    return Err(refuse(v2_controllers[0].controller, "no hierarchy has this controller"));
                }
                _ => {}
            }
        }
        Ok(())
    })();
    if let Err(error) = result {
        remove(&groups.dirs);
        return Err(error);
    }
    Ok(groups)
}

/// Reads how many processes were killed for want of memory, from `memory.oom_control` or `memory.events`.
pub(crate) fn memory_kills(file: &File) -> u64 {
    let mut text = [0; 1024];
    let length = file.read_at(&mut text, 0).unwrap_or(0);
    String::from_utf8_lossy(&text[..length])
        .lines()
        .find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
        .unwrap_or(0)
}

fn refuse(what: &str, why: &str) -> Failure {
    Failure::unsupported(format!(
        "the {what} limit cannot be enforced here: {why}; leave it out, run as root, or in a delegated control group"
    ))
}

fn make_v1(
    at: &Hierarchy,
    name: &str,
    groups: &mut Groups,
    planned: &mut impl FnMut(&Path) -> Result<(), Failure>,
) -> Result<PathBuf, Failure> {
    let dir = at.own.join(name);
    if groups.dirs.contains(&dir) {
        return Ok(dir);
    }
    planned(&dir)?;
    make_dir(&dir).doing(format_args!("make {}", dir.display()))?;
    groups.dirs.push(dir.clone());
    groups.join.push(open_write(&dir.join("tasks")).doing("open a control group")?);
    Ok(dir)
}

fn make_dir(dir: &Path) -> io::Result<()> {
    match fs::create_dir(dir) {
        // Left by an earlier run of this sandbox; it is empty, or the run would still hold the sandbox's lock.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Makes a version 2 group in the nearest place that has the controllers and that we may move processes to.
fn make_v2(
    at: &Hierarchy,
    name: &str,
    wanted: &[&Wanted],
    planned: &mut impl FnMut(&Path) -> Result<(), Failure>,
) -> Result<PathBuf, Failure> {
    let mut last = Failure::unsupported("no control group of ours to make one in");
    for parent in at.own.ancestors().take_while(|parent| parent.starts_with(&at.mount)) {
        let enabled = fs::read_to_string(parent.join("cgroup.subtree_control")).unwrap_or_default();
        let missing =
            wanted.iter().filter(|limit| !enabled.split_whitespace().any(|name| name == limit.controller));
        // Refused where the group has processes of its own: then its parent is tried.
        let refused =
            missing.map(|limit| put(parent, "cgroup.subtree_control", format!("+{}", limit.controller)));
        if let Some(Err(error)) = refused.into_iter().find(Result::is_err) {
            last = Failure::os(format_args!("enable controllers in {}", parent.display()), error);
            continue;
        }
        // A process may be moved by who can write to the nearest common ancestor.
        if let Err(error) = open_write(&parent.join("cgroup.procs")) {
            last = Failure::os(format_args!("move processes below {}", parent.display()), error);
            continue;
        }
        let dir = parent.join(name);
        planned(&dir)?;
        match make_dir(&dir) {
            Ok(()) => return Ok(dir),
            Err(error) => last = Failure::os(format_args!("make {}", dir.display()), error),
        }
    }
    Err(last)
}

/// Lets frozen groups run, so that a kill can land in them, and kills what is in them.
pub(crate) fn thaw_and_kill(dirs: &[PathBuf]) {
    for dir in dirs {
        let _ = put(dir, "cgroup.kill", 1);
        let _ = put(dir, "cgroup.freeze", 0);
        for pid in members(dir) {
            if let Some(pid) = rustix::process::Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        let _ = put(dir, "freezer.state", "THAWED");
    }
}

/// Returns the processes of a group.
pub(crate) fn members(dir: &Path) -> Vec<i32> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Removes empty groups and says whether none is left.
pub(crate) fn remove(dirs: &[PathBuf]) -> bool {
    dirs.iter().fold(true, |gone, dir| {
        let removed = match fs::remove_dir(dir) {
            Ok(()) => true,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        gone && removed
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_groups_are_found_below_the_root_of_each_mount() {
        let mountinfo = "\
32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 /job /sys/fs/cgroup/memory rw,relatime shared:3 - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
        let cgroup = "9:name=systemd:/\n4:memory:/job/a\n1:cpu:/\n0::/x/y\n";
        let found = hierarchies(mountinfo, cgroup);
        let own: Vec<&str> = found.iter().filter_map(|at| at.own.to_str()).collect();
        assert_eq!(
            own,
            [
                "/sys/fs/cgroup/cpu/",
                "/sys/fs/cgroup/memory/a",
                "/sys/fs/cgroup/systemd/",
                "/sys/fs/cgroup/unified/x/y"
            ]
        );
        assert!(found[3].is_v2());
    }
}
