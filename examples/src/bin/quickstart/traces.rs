//! What a sandbox would leave on this machine, looked for where it would be.

use std::fs;
use std::path::Path;

use sandhold_core::SandboxId;
use sandhold_local::LocalProvider;

/// Returns every trace of a sandbox: its directory, mounts, processes and control groups.
pub(crate) fn of(provider: &LocalProvider, id: &SandboxId) -> Vec<String> {
    let mut traces = Vec::new();
    let directory = provider.home().join("sandboxes").join(id.as_str());
    if directory.exists() {
        traces.push(format!("directory {}", directory.display()));
    }
    let names =
        |file: &Path| fs::read(file).is_ok_and(|text| String::from_utf8_lossy(&text).contains(id.as_str()));
    for process in entries(Path::new("/proc")) {
        // Every process of it has its id in the environment, or in its command line.
        if names(&process.join("environ")) || names(&process.join("cmdline")) {
            traces.push(format!("process {}", process.display()));
        }
        if names(&process.join("mountinfo")) {
            traces.push(format!("mount in {}", process.display()));
        }
    }
    groups(Path::new("/sys/fs/cgroup"), id.as_str(), 6, &mut traces);
    traces
}

fn groups(directory: &Path, id: &str, depth: usize, traces: &mut Vec<String>) {
    for entry in entries(directory).filter(|entry| entry.is_dir() && !entry.is_symlink()) {
        if entry.file_name().is_some_and(|name| name.to_string_lossy().contains(id)) {
            traces.push(format!("control group {}", entry.display()));
        } else if depth > 0 {
            groups(&entry, id, depth - 1, traces);
        }
    }
}

fn entries(directory: &Path) -> impl Iterator<Item = std::path::PathBuf> {
    fs::read_dir(directory).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()))
}
