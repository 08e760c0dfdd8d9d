//! Forks: a snapshot, and a sandbox from it with tags of its own.

use std::time::{Duration, SystemTime};

use sandhold_core::{
    Attempt, CreateOptions, Error, ForkOptions, Network, OnExpiry, Result, SandboxProvider, SandboxSpec,
    SnapshotFilter, SnapshotId,
};

use crate::config::E2bConfig;
use crate::create;
use crate::error::NAME;
use crate::identity;
use crate::provider::E2bProvider;
use crate::wire::{AutoResume, CreateSandbox, OnTimeout, SandboxDetail, SnapshotInfo};

/// What names of snapshots that only carry a fork begin with.
const SNAPSHOT_PREFIX: &str = "sandhold-fork-";

/// A fork that began longer ago than this has ended.
const LONGEST_FORK: Duration = Duration::from_secs(3600);

/// Returns the name of the snapshot that carries a fork.
pub(crate) fn snapshot_name(attempt: &Attempt) -> String {
    format!("{SNAPSHOT_PREFIX}{attempt}")
}

/// Puts together a create that makes a sandbox like the source; the template is still to be set.
pub(crate) fn request(
    config: &E2bConfig,
    source: &SandboxDetail,
    options: &ForkOptions,
) -> Result<(CreateSandbox, CreateOptions)> {
    let lifecycle = source.lifecycle.unwrap_or_default();
    let mut spec = SandboxSpec::new(identity::template(source)).with_user(identity::user(source));
    if let Some(metadata) = &source.metadata {
        spec.metadata = identity::free(metadata);
        // An identity of others is no free pair: the fork is not the sandbox that they made.
        spec.metadata.remove(identity::MASTRA_ID);
    }
    spec.lease = options.lease;
    spec.network =
        if source.allow_internet_access == Some(false) { Network::Loopback } else { Network::Host };
    spec.on_expiry = match lifecycle.on_timeout {
        OnTimeout::Kill => OnExpiry::Kill,
        OnTimeout::Pause => OnExpiry::Pause,
    };
    let create = CreateOptions::new(spec, options.tags.clone());
    let mut request = create::create(config, &create)?;
    if let Some(network) = &source.network {
        let public = request.network.as_ref().and_then(|network| network.allow_public_traffic);
        let mut network = network.clone();
        network.allow_public_traffic = public;
        // E2B never tells the password of a proxy, so that the policy cannot be given again.
        if network
            .egress_proxy
            .as_ref()
            .is_some_and(|proxy| proxy.username.is_some() && proxy.password.is_none())
        {
            return Err(Error::unsupported(NAME, "fork of a sandbox behind an egress proxy with a password"));
        }
        request.network = Some(network);
    }
    request.auto_resume = lifecycle.auto_resume.then_some(AutoResume { enabled: true });
    request.volume_mounts.clone_from(&source.volume_mounts);
    Ok((request, create))
}

/// Returns the attempt of the fork that a snapshot of this name carries.
fn attempt_of(name: &str) -> Option<Attempt> {
    let alias = name.rsplit('/').next().unwrap_or(name);
    let alias = alias.split(':').next().unwrap_or(alias);
    alias.strip_prefix(SNAPSHOT_PREFIX).map(Attempt::new)
}

/// Tells whether a snapshot is there for a fork alone.
pub(crate) fn carries(snapshot: &SnapshotInfo) -> bool {
    !snapshot.names.is_empty() && snapshot.names.iter().all(|name| attempt_of(name).is_some())
}

/// Tells whether a snapshot carries a fork that is made by now, or never will be.
fn is_left_over(name: &str) -> bool {
    let drawn = attempt_of(name).and_then(|attempt| attempt.drawn_at());
    drawn.and_then(|drawn| SystemTime::now().duration_since(drawn).ok()).is_some_and(|age| age > LONGEST_FORK)
}

/// Deletes what earlier forks left: E2B keeps a snapshot as long as a sandbox stands on it.
pub(crate) async fn sweep(provider: E2bProvider) {
    let mut listed = provider.snapshots(&SnapshotFilter::default());
    while let Some(Ok(snapshot)) = listed.next().await {
        if carries(&snapshot) && snapshot.names.iter().all(|name| is_left_over(name)) {
            // In use is the usual answer; the next fork tries again.
            if let Err(error) = provider.delete_snapshot(&SnapshotId::new(&snapshot.snapshot_id)).await {
                tracing::debug!(snapshot = snapshot.snapshot_id, %error, "the snapshot of a fork stays");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_an_old_fork_left_is_swept() {
        let young = snapshot_name(&Attempt::random().unwrap());
        let old = snapshot_name(&Attempt::new(format!("{:012x}7{:019x}", 1_700_000_000_000u64, 1)));
        assert!(is_left_over(&old) && is_left_over(&format!("team/{old}:default")));
        for kept in [young.as_str(), &format!("team/{young}"), "team/mine", "sandhold-fork-x", ""] {
            assert!(!is_left_over(kept), "{kept}");
        }
    }
}
