//! How much memory sandboxes take.

use std::fs;

use sandhold_core::{ProcessSpec, SandboxHandleExt as _};

use crate::Result;
use crate::report::{Bound, Report};
use crate::stage::Stage;

/// Keeps many sandboxes alive, each with a command behind it, and shares out what they take.
pub(crate) async fn alive(stage: &Stage, report: &mut Report) -> Result<()> {
    let mut crowd = Vec::new();
    for _ in 0..stage.crowd {
        let made = stage.create().await?;
        made.exec(ProcessSpec::argv("/bin/true", [] as [&str; 0])).await?;
        crowd.push(made);
    }
    let (mut sum, mut most) = (0.0, 0.0_f64);
    for made in &crowd {
        let mut bytes = 0;
        for pid in made.processes()? {
            bytes += field(&format!("/proc/{pid}/smaps_rollup"), "Pss:")?;
        }
        let mebibytes = bytes as f64 / (1 << 20) as f64;
        sum += mebibytes;
        most = most.max(mebibytes);
    }
    let count = crowd.len();
    for made in crowd {
        made.destroy().await?;
    }
    let note = format!("PSS, mean of {count} alive; the largest {most:.2}");
    report.add(
        "monitor and daemon of an idle sandbox",
        sum / count as f64,
        "MiB",
        Some(Bound::AtMost(6.0)),
        note,
    );
    Ok(())
}

/// Returns a field of a file of `/proc`, in bytes.
fn field(path: &str, name: &str) -> Result<u64> {
    let text = fs::read_to_string(path).map_err(|error| format!("read {path}: {error}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    number.map(|kibibytes| kibibytes * 1024).ok_or_else(|| format!("{path} has no {name}").into())
}

/// The peak of one process from here on.
pub(crate) struct Peak {
    pid: u32,
    before: u64,
}

impl Peak {
    pub(crate) fn begin(pid: u32) -> Result<Self> {
        // 5 sets the peak back to what is resident now.
        fs::write(format!("/proc/{pid}/clear_refs"), "5")
            .map_err(|error| format!("reset the peak: {error}"))?;
        Ok(Self { pid, before: field(&format!("/proc/{pid}/status"), "VmRSS:")? })
    }

    pub(crate) fn growth(&self) -> Result<u64> {
        Ok(field(&format!("/proc/{}/status", self.pid), "VmHWM:")?.saturating_sub(self.before))
    }
}
