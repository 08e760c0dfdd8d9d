//! What this host can do, found out by doing it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::control::{Info, Isolation};
use crate::failure::{Doing, Failure, FailureKind};
use crate::monitor::{READY, SOCKET};
use crate::record::{IdMap, Limits, Record, Spec};
use crate::state_dir::STAGING;
use crate::{cgroup, cleanup, idmap, state_dir, sys};

/// What this host can do for this user.
#[non_exhaustive]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Probe {
    /// What keeps a sandbox apart, in the best tier that a sandbox really started in; none if none did.
    pub isolation: Option<Isolation>,
    /// Why not better: what each tier that was tried first, or at all, failed with.
    pub refused: Vec<Failure>,
    /// Which limits can be enforced.
    pub limits: EnforcedLimits,
    /// Whether network `none` can be enforced; the others can wherever a sandbox starts.
    pub network_none: bool,
}

/// Which limits can be enforced.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnforcedLimits {
    /// Processor time.
    pub cpu: bool,
    /// Memory.
    pub memory: bool,
    /// Processes and threads.
    pub pids: bool,
}

/// Ends the sandbox of a probe that died.
const MOST_MILLIS: u64 = 60_000;

/// Starts a sandbox in each tier, best first, until one works. Blocks for some ten milliseconds.
pub(crate) fn probe(home: &Path) -> Result<Probe, Failure> {
    let id = format!("probe-{}", std::process::id());
    let mut refused = Vec::new();
    let mut isolation = None;
    // Nobody lists what is there, and when this process dies the next create removes it.
    let staging = state_dir::hold_staging(home).doing("prepare the state directory")?;
    let best = idmap::choose(home, &id)?;
    let tiers = match best {
        IdMap::Ranges { .. } => vec![best, IdMap::Single],
        _ => vec![best],
    };
    for ids in tiers {
        let dir = home.join(STAGING).join(&id);
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .doing(format_args!("make {}", dir.display()))?;
        let mut spec = Spec::new(&id, ids);
        spec.lease_ms = Some(MOST_MILLIS);
        Record::new(spec).save(&dir)?;
        let started = start(&dir).and_then(|()| ask(&dir));
        let destroyed = cleanup::destroy(&dir);
        match started {
            Ok(info) => {
                destroyed?;
                isolation = Some(info.isolation);
                break;
            }
            Err(error) => refused.push(error),
        }
    }
    let enforced = |limits: Limits| match cgroup::prepare(&id, &limits, |_| Ok(())) {
        Ok(groups) => cgroup::remove(&groups.dirs),
        Err(_) => false,
    };
    let none = Limits::default;
    let limits = EnforcedLimits {
        cpu: enforced(Limits { cpu_millis: Some(1000), ..none() }),
        memory: enforced(Limits { memory_bytes: Some(1 << 30), ..none() }),
        pids: enforced(Limits { pids: Some(1000), ..none() }),
    };
    drop(staging);
    let network_none = isolation.is_some() && sys::landlock_version() >= sys::LANDLOCK_WITH_NETWORK;
    Ok(Probe { isolation, refused, limits, network_none })
}

/// Starts the sandbox in `dir` by another process of this program.
fn start(dir: &Path) -> Result<(), Failure> {
    let program = std::env::current_exe().doing("find this program")?;
    let output = Command::new(program)
        .args(["local", "run", "--dir"])
        .arg(dir)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .doing("start a sandbox")?;
    let said = String::from_utf8_lossy(&output.stdout);
    if said.trim() == READY {
        return Ok(());
    }
    Err(serde_json::from_str(said.trim())
        .unwrap_or_else(|_| Failure::new(FailureKind::Unexpected, "the monitor said nothing")))
}

/// Asks the daemon of the sandbox in `dir` about it.
fn ask(dir: &Path) -> Result<Info, Failure> {
    std::env::set_current_dir(dir).doing("enter the sandbox's directory")?;
    let mut stream = UnixStream::connect(SOCKET).doing("reach the daemon")?;
    stream
        .write_all(b"GET /sandhold/info HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\n\r\n")
        .doing("ask the daemon")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).doing("hear from the daemon")?;
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    serde_json::from_str(body).map_err(|error| {
        Failure::new(FailureKind::Unexpected, format!("the daemon's answer is damaged: {error}"))
    })
}
