//! What is really there of the sandboxes of one state directory: looked at from the host, without the provider.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Everything of a state directory that a caller who destroyed all its sandboxes should not find any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reality {
    /// The directories below `sandboxes`.
    pub(crate) directories: BTreeSet<String>,
    /// The directories below `staging`.
    pub(crate) staged: BTreeSet<String>,
    /// The directories below `snapshots`.
    pub(crate) snapshots: BTreeSet<String>,
    /// Which sandbox each id range is of.
    pub(crate) ids: BTreeSet<String>,
    /// Processes of helpers, daemons and workloads: the id, and what shows that it is ours.
    pub(crate) processes: Vec<(i32, String)>,
    /// Mounts of the host below the state directory.
    pub(crate) mounts: Vec<String>,
    /// Control groups of sandboxes of which this state directory ever had one.
    pub(crate) cgroups: BTreeSet<String>,
    /// Half-built base trees and half-written files.
    pub(crate) fragments: Vec<PathBuf>,
}

impl Reality {
    /// Looks. `known` are the ids of sandboxes that were there once.
    pub(crate) fn of(home: &Path, known: &BTreeSet<String>) -> Self {
        let directories = names(&home.join("sandboxes"));
        let known: BTreeSet<String> = known.union(&directories).cloned().collect();
        let mut cgroups = BTreeSet::new();
        find_cgroups(Path::new("/sys/fs/cgroup"), &known, &mut cgroups);
        let fragments = names(&home.join("base"))
            .into_iter()
            .filter(|name| name.starts_with(".new"))
            .map(|name| home.join("base").join(name))
            .chain(names(home).into_iter().filter(|name| name.ends_with(".new")).map(|name| home.join(name)))
            .collect();
        Self {
            ids: names(&home.join("ids"))
                .iter()
                .map(|name| fs::read_to_string(home.join("ids").join(name)).unwrap_or_default())
                .collect(),
            staged: names(&home.join("staging")),
            snapshots: names(&home.join("snapshots")),
            processes: processes(home, &known),
            mounts: fs::read_to_string("/proc/self/mountinfo")
                .unwrap_or_default()
                .lines()
                .filter(|line| line.contains(&format!("{}/", home.display())))
                .map(str::to_owned)
                .collect(),
            directories,
            cgroups,
            fragments,
        }
    }

    /// Says whether nothing is left.
    pub(crate) fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Waits until nothing is left of a state directory but what all sandboxes share; panics with what there is instead.
pub(crate) fn nothing_is_left(home: &Path, known: &BTreeSet<String>) {
    let mut last = Reality::default();
    let gone = eventually(Duration::from_secs(20), || {
        last = Reality::of(home, known);
        last.is_nothing()
    });
    assert!(gone, "something is left of {}: {last:#?}", home.display());
}

/// Looks again and again until something holds; false when it never did.
pub(crate) fn eventually(patience: Duration, mut holds: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        if holds() {
            return true;
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_micros(500));
    }
}

fn names(directory: &Path) -> BTreeSet<String> {
    fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect()
}

fn find_cgroups(at: &Path, known: &BTreeSet<String>, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(at).into_iter().flatten().flatten() {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.strip_prefix("sandhold-").is_some_and(|id| known.contains(id)) {
            found.insert(entry.path().display().to_string());
        }
        find_cgroups(&entry.path(), known, found);
    }
}

/// What part of a sandbox a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// The process outside that waits for the daemon.
    Monitor,
    /// PID 1.
    Daemon,
    /// Another call of the helper.
    Helper,
}

/// Finds the processes of the helper that work for a state directory.
pub(crate) fn parts(home: &Path) -> Vec<(i32, Part)> {
    let needle = format!("{}/", home.display());
    let mut found = Vec::new();
    for pid in pids() {
        let Ok(words) = fs::read(format!("/proc/{pid}/cmdline")) else { continue };
        let words = String::from_utf8_lossy(&words).into_owned();
        if !words.contains(&needle) || !words.contains("\0local\0") {
            continue;
        }
        let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { continue };
        let inside = status.lines().find_map(|line| line.strip_prefix("NSpid:")).is_some_and(|ids| {
            ids.split_whitespace().count() > 1 && ids.split_whitespace().last() == Some("1")
        });
        let part = match (inside, words.contains("\0run\0")) {
            (true, _) => Part::Daemon,
            (false, true) => Part::Monitor,
            (false, false) => Part::Helper,
        };
        found.push((pid, part));
    }
    found
}

fn processes(home: &Path, known: &BTreeSet<String>) -> Vec<(i32, String)> {
    let needle = format!("{}/sandboxes/", home.display());
    let mut found = Vec::new();
    for pid in pids() {
        let read = |file: &str| {
            fs::read(format!("/proc/{pid}/{file}")).map(|text| String::from_utf8_lossy(&text).into_owned())
        };
        let words = read("cmdline").unwrap_or_default();
        if words.contains(&needle) && words.contains("\0local\0") {
            found.push((pid, words.replace('\0', " ")));
            continue;
        }
        let Ok(variables) = read("environ") else {
            // Of a user inside whose id is not ours: it is known by whose child it is.
            if descends_from(pid, &needle) {
                found.push((pid, format!("{} of another user", words.replace('\0', " "))));
            }
            continue;
        };
        let id = variables.split('\0').find_map(|entry| entry.strip_prefix("SANDHOLD_SANDBOX_ID="));
        if let Some(id) = id.filter(|id| known.contains(*id)) {
            found.push((pid, format!("{} of {id}", words.replace('\0', " "))));
        }
    }
    found
}

/// Says whether a process is below a helper of this state directory.
fn descends_from(mut pid: i32, needle: &str) -> bool {
    loop {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name, in parentheses, may hold anything; the parent is the second field behind it.
        let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
        let Some(parent) = parent.filter(|parent| *parent > 1) else { return false };
        pid = parent;
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words = String::from_utf8_lossy(&words);
        if words.contains(needle) && words.contains("\0local\0") {
            return true;
        }
    }
}

/// Every process of the host.
pub(crate) fn pids() -> Vec<i32> {
    names(Path::new("/proc")).iter().filter_map(|name| name.parse().ok()).collect()
}

/// How many descriptors a process has open, and how many of them watch files.
pub(crate) fn descriptors(pid: i32) -> Open {
    let mut open = Open::default();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        open.all += 1;
        let target = fs::read_link(entry.path()).unwrap_or_default();
        open.inotify += usize::from(target.to_string_lossy().contains("inotify"));
    }
    open.threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().count();
    open
}

/// What a process has open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) all: usize,
    pub(crate) inotify: usize,
    pub(crate) threads: usize,
}

impl fmt::Display for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} descriptors, {} inotify, {} threads", self.all, self.inotify, self.threads)
    }
}

/// The largest resident size that a process ever had, in KiB.
pub(crate) fn peak_kib(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    peak.and_then(|text| text.trim().trim_end_matches(" kB").trim().parse().ok()).unwrap_or_default()
}

/// Kills a process, if it is there.
pub(crate) fn kill(pid: i32) {
    if let Some(pid) = rustix::process::Pid::from_raw(pid) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
