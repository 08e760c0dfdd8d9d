//! The provider's verbs that only look: metrics and logs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sandhold_core::{LogLine, LogOptions, Metrics, Result, SandboxId};

use crate::provider::{Inner, Look, blocking, gone};
use crate::record::Upper;
use crate::{journal, link, state_dir};

impl Inner {
    /// Reads the log, also of a sandbox whose lease ran out.
    pub(crate) async fn logs(&self, id: &SandboxId, options: LogOptions) -> Result<Vec<LogLine>> {
        let Some(directory) = self.home.directory(id) else { return Err(gone(id)) };
        let there = self.record(id).await?.is_some();
        let missing = gone(id);
        blocking(move || {
            if !there && !state_dir::is_ended(&directory) {
                return Err(missing);
            }
            Ok(journal::read(&directory, &options))
        })
        .await
    }

    /// Asks the daemon what the processes use, and counts what was written.
    pub(crate) async fn metrics(&self, id: &SandboxId) -> Result<Metrics> {
        let Some((record, registration)) = self.record(id).await? else { return Err(gone(id)) };
        let directory = self.directory(id)?;
        let mut metrics = Metrics::default();
        metrics.at = Some(SystemTime::now());
        let cores = std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
        metrics.cpu_count =
            record.spec.limits.cpu_millis.map_or(cores, |millis| (millis as f64 / 1000.0).min(cores));
        metrics.memory_total = record.spec.limits.memory_bytes.unwrap_or_default();
        let usage = match self.look(id, &registration.spec.user).await? {
            Look::Gone => return Err(gone(id)),
            Look::Running(_) => Some(link::usage(&link::client(&directory, &registration.spec.user)?).await?),
            // Nothing runs, so nothing is used but the disk.
            Look::Stopped | Look::Between => None,
        };
        if let Some(usage) = &usage {
            metrics.cpu_used_percent = usage.cpu_percent;
            metrics.memory_used = usage.memory;
            if metrics.memory_total == 0 {
                metrics.memory_total = usage.memory_of_host;
            }
        }
        match (&record.spec.upper, usage) {
            (Upper::Tmpfs { bytes }, usage) => {
                metrics.disk_total = *bytes;
                metrics.disk_used = usage.map_or(0, |usage| usage.disk_used);
            }
            (Upper::Disk, usage) => {
                metrics.disk_total = usage.map_or(0, |usage| usage.disk_total);
                metrics.disk_used = blocking(move || Ok(space_of(&directory.join("upper")))).await?;
            }
        }
        Ok(metrics)
    }
}

/// Adds up the blocks of a tree. What cannot be looked at, or goes away meanwhile, counts nothing.
fn space_of(path: &Path) -> u64 {
    let mut blocks = 0;
    let mut left: Vec<PathBuf> = vec![path.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().filter_map(|entry| entry.ok()) {
            let Ok(meta) = entry.metadata() else { continue };
            blocks += meta.blocks();
            if meta.is_dir() {
                left.push(entry.path());
            }
        }
    }
    blocks * 512
}
