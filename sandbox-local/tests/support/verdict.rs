//! What holds after somebody was killed: what a provider says is what is there and what was acknowledged.

#![allow(dead_code, reason = "each program uses a part of it")]

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use sandhold_core::{
    Attempt, ConnectOptions, CreateOptions, Error, ErrorKind, Generation, Key, ListFilter, Owner,
    SandboxHandle, SandboxHandleExt as _, SandboxId, SandboxProvider as _, SandboxSpec, SnapshotFilter, Tags,
};
use sandhold_local::{LocalConfig, LocalProvider};

use super::chaos::{COPIED, Host, PATIENCE, Report, content, fork_of};
use super::reality::{Reality, eventually};

type Verdict<T = ()> = Result<T, String>;

fn said(what: &str, error: &Error) -> String {
    format!("{what}: {error} ({:?})", std::error::Error::source(error).map(ToString::to_string))
}

/// What a dead host said of its work.
struct Scene<'a> {
    home: &'a Path,
    provider: LocalProvider,
    salt: u64,
    host: &'a Host,
}

/// A sandbox that the host made, the steps between which it lives, and the last round whose work is in it.
struct Made {
    id: SandboxId,
    from: &'static str,
    to: &'static str,
    last: u8,
}

/// Compares all that the host made with what is there, and removes it. Returns the ids of what was made to find out.
pub(crate) async fn reach(
    config: &LocalConfig,
    home: &Path,
    attempt: &Attempt,
    salt: u64,
    host: &Host,
    report: &mut Report,
) -> Verdict<Vec<String>> {
    let provider = LocalProvider::new(config.clone()).map_err(|error| said("open", &error))?;
    let scene = Scene { home, provider, salt, host };
    let original =
        Made { id: SandboxId::new(format!("sb-{attempt}")), from: "create", to: "destroy", last: u8::MAX };
    let fork = Made {
        id: SandboxId::new(format!("sb-{}", fork_of(attempt))),
        from: "fork",
        to: "unfork",
        last: COPIED,
    };
    let listed = scene.list().await?;
    if let Some(stranger) = listed.iter().find(|other| **other != original.id && **other != fork.id) {
        return Err(format!("{stranger} is listed and was never made"));
    }
    for made in [&original, &fork] {
        scene.compare(made, listed.contains(&made.id), report).await?;
    }
    scene.compare_snapshots(report).await
}

impl Scene<'_> {
    fn begun(&self, step: &str) -> bool {
        self.host.begun.iter().any(|other| other == step)
    }

    fn done(&self, step: &str) -> bool {
        self.host.done.iter().any(|other| other == step)
    }

    async fn list(&self) -> Verdict<BTreeSet<SandboxId>> {
        tokio::time::timeout(PATIENCE, async {
            let stream = self.provider.list(ListFilter::default()).await?;
            Ok(stream.collect().await?.into_iter().map(|info| info.id).collect())
        })
        .await
        .map_err(|_| "the list hangs".to_owned())?
        .map_err(|error: Error| said("list", &error))
    }

    async fn compare(&self, made: &Made, listed: bool, report: &mut Report) -> Verdict {
        let Made { id, from, to, .. } = made;
        // A destroy that was begun may still be under way in its helper, which outlives its host.
        if self.done(from) && !self.begun(to) && !listed {
            return Err(format!("the sandbox of an acknowledged {from} is not listed"));
        }
        if listed && (self.done(to) || !self.begun(from)) {
            return Err(format!("a sandbox is listed after its {to} or before its {from}"));
        }
        if !listed {
            report.gone += u32::from(self.begun(from));
            let mut there = Reality::default();
            let settled = eventually(Duration::from_secs(20), || {
                there = Reality::of(self.home, &BTreeSet::from([id.to_string()]));
                !there.directories.contains(id.as_str())
                    && there.cgroups.iter().all(|path| !path.ends_with(&format!("sandhold-{id}")))
                    && there.processes.iter().all(|(_, words)| !words.contains(&format!("/sandboxes/{id} ")))
            });
            return if settled { Ok(()) } else { Err(format!("what is not listed is there: {there:#?}")) };
        }

        // The pause of a host that was killed may still be on its way to the daemon.
        let last = self.host.begun.last();
        let mut late = u32::from(last.is_some_and(|step| step == "pause" && self.host.done.last() != last));
        let work = loop {
            let connected =
                tokio::time::timeout(PATIENCE, self.provider.connect_opts(id, ConnectOptions::default()))
                    .await;
            let connection = match connected.map_err(|_| "connect hangs".to_owned())? {
                // Listed while its destroy was under way, and gone now.
                Err(error) if error.kind() == ErrorKind::Gone && self.begun(to) => {
                    report.gone += 1;
                    return Ok(());
                }
                other => other.map_err(|error| said("connect", &error))?,
            };
            report.restarted += u32::from(connection.resumed == Some(sandhold_core::Memory::Lost));
            let work = self.acknowledged(&*connection.handle, made.last, report);
            let work = tokio::time::timeout(Duration::from_secs(30), work).await;
            match work.unwrap_or_else(|_| Err("the connected sandbox hangs".to_owned())) {
                Err(_) if late > 0 => {
                    late = 0;
                    report.late_pauses += 1;
                }
                other => break other,
            }
        };
        report.reconnected += 1;
        report.copies += u32::from(*from == "fork");
        if let Err(broken) = work {
            // The destroy of a host that was killed goes on in its helper.
            let gone = self.begun(to)
                && eventually(Duration::from_secs(20), || {
                    !self.home.join("sandboxes").join(id.as_str()).exists()
                });
            if !gone {
                return Err(broken);
            }
            report.gone += 1;
            return Ok(());
        }
        self.provider.destroy(id).await.map_err(|error| said("destroy", &error))?;
        Ok(())
    }

    /// A snapshot is listed or not there at all, and is whole: a sandbox from it holds the work.
    async fn compare_snapshots(&self, report: &mut Report) -> Verdict<Vec<String>> {
        let listed = async {
            let stream = self.provider.list_snapshots(SnapshotFilter::default()).await?;
            stream.collect().await
        };
        let listed = listed.await.map_err(|error| said("list snapshots", &error))?;
        let there = Reality::of(self.home, &BTreeSet::new()).snapshots;
        if listed.len() != there.len() || listed.iter().any(|known| !there.contains(known.id.as_str())) {
            return Err(format!("snapshots {there:?} are there, and {listed:?} are listed"));
        }
        let kept = self.done("snapshot") && !self.begun("forget");
        let lost = !self.begun("snapshot") || self.done("forget");
        if (kept && listed.len() != 1) || (lost && !listed.is_empty()) || listed.len() > 1 {
            return Err(format!("these snapshots are listed: {listed:?}"));
        }
        let mut made = Vec::new();
        for snapshot in listed {
            let tags = Tags {
                owner: Owner::new("chaos").map_err(|error| said("owner", &error))?,
                key: Key::new("of-snapshot").map_err(|error| said("key", &error))?,
                generation: Generation::random().map_err(|error| said("generation", &error))?,
                attempt: Attempt::random().map_err(|error| said("attempt", &error))?,
            };
            let options = CreateOptions::new(SandboxSpec::new(snapshot.id.as_str()), tags);
            let handle =
                self.provider.create_opts(options).await.map_err(|error| said("from a snapshot", &error))?;
            self.acknowledged(&*handle, COPIED, report).await?;
            self.provider.destroy(handle.id()).await.map_err(|error| said("destroy", &error))?;
            self.provider
                .delete_snapshot(&snapshot.id)
                .await
                .map_err(|error| said("delete a snapshot", &error))?;
            report.copies += 1;
            made.push(handle.id().to_string());
        }
        Ok(made)
    }

    /// Everything up to a round that was acknowledged is there, and commands run.
    async fn acknowledged(&self, handle: &dyn SandboxHandle, last: u8, report: &mut Report) -> Verdict {
        for step in &self.host.done {
            let (path, round, expected) = match step.split_once(' ') {
                Some(("write", path)) => (path, round_of(path), content(path, self.salt)),
                Some(("exec", path)) => {
                    let round = round_of(path);
                    let mut both = content(&format!("w{round}-0"), self.salt);
                    both.extend(content(&format!("w{round}-1"), self.salt));
                    (path, round, both)
                }
                _ => continue,
            };
            if round > last {
                continue;
            }
            let found = handle
                .read_bytes(path)
                .await
                .map_err(|error| format!("{path} was acknowledged and cannot be read: {error}"))?;
            if found != expected {
                return Err(format!(
                    "{path} was acknowledged with {} bytes and now has {} others",
                    expected.len(),
                    found.len()
                ));
            }
            report.writes += 1;
        }
        let output =
            handle.shell("echo alive").await.map_err(|error| format!("nothing runs any more: {error}"))?;
        if output.stdout.text() != "alive\n" {
            return Err(format!("a command said {:?}", output.stdout.text()));
        }
        Ok(())
    }
}

/// The round in the name of a file: its second letter.
fn round_of(path: &str) -> u8 {
    path.as_bytes().get(1).map_or(u8::MAX, |digit| digit.wrapping_sub(b'0'))
}
