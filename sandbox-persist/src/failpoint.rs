//! Named points of no return, where a test ends the process as `kill -9` or a power cut would.

/// Every name, in the order in which each operation comes by.
#[cfg(feature = "testing")]
pub const FAILPOINTS: &[&str] = &[
    "capture.scanned",
    "pack.begun",
    "pack.synced",
    "pack.renamed",
    "pack.published",
    "ref.before",
    "ref.moved",
    "record.written",
    "record.published",
    "cache.written",
    "restore.journalled",
    "restore.staged",
    "restore.replaced",
    "restore.deleted",
    "restore.done",
    "bundle.written",
    "bundle.published",
    "import.checked",
    "prune.unlinked",
    "prune.done",
    "gc.packed",
    "gc.renewed",
    "gc.deleted",
    "gc.done",
    "mirror.planned",
    "mirror.part",
    "mirror.bundle_put",
    "mirror.manifest_put",
    "mirror.recorded",
    "mirror.fetched",
];

/// Ends the process where `SANDHOLD_FAILPOINT` is this name, or `name:N` at the Nth passing.
#[cfg(feature = "testing")]
pub(crate) fn pass(name: &str) {
    use std::sync::atomic::{AtomicU64, Ordering};
    static PASSED: AtomicU64 = AtomicU64::new(0);

    debug_assert!(FAILPOINTS.contains(&name), "{name} is not listed");
    let Ok(wanted) = std::env::var("SANDHOLD_FAILPOINT") else { return };
    let (point, nth) = match wanted.split_once(':') {
        Some((point, nth)) => (point, nth.parse().unwrap_or(1)),
        None => (wanted.as_str(), 1),
    };
    if point == name && PASSED.fetch_add(1, Ordering::SeqCst) + 1 == nth {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

#[cfg(not(feature = "testing"))]
pub(crate) fn pass(_name: &str) {}
