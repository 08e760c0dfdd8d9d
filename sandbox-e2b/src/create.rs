//! From a spec to what E2B is asked for. What E2B cannot do is refused here, before anything is sent.

use std::time::Duration;

use sandhold_core::{
    CreateOptions, Error, ErrorKind, Kind, MountSource, Network, OnExpiry, Resources, Result, SandboxSpec,
};

use crate::config::{AutoResume, E2bConfig, PublicTraffic};
use crate::error::NAME;
use crate::identity;
use crate::wire::{self, CreateSandbox, NetworkConfig, VolumeMount};

/// Puts the request together. It depends on nothing but its arguments: the same attempt sends the same bytes.
pub(crate) fn create(config: &E2bConfig, options: &CreateOptions) -> Result<CreateSandbox> {
    let spec = &options.spec;
    refuse(spec)?;
    let paused = spec.on_expiry == OnExpiry::Pause;
    Ok(CreateSandbox {
        template_id: spec.template.clone(),
        timeout: Some(lease_seconds(config, spec.lease.unwrap_or(config.lease))?),
        metadata: Some(identity::metadata(&spec.metadata, &options.tags, &spec.user, &spec.template)?),
        env_vars: (!spec.env.is_empty()).then(|| spec.env.clone()),
        allow_internet_access: (spec.network == Network::Loopback).then_some(false),
        network: Some(network(config, spec.network)),
        auto_pause: Some(paused),
        auto_resume: (paused && config.auto_resume == AutoResume::OnTraffic)
            .then_some(wire::AutoResume { enabled: true }),
        volume_mounts: volumes(spec)?,
        ..CreateSandbox::default()
    })
}

/// The policy of a create: the configured one where the internet may be reached at all.
pub(crate) fn network(config: &E2bConfig, network: Network) -> NetworkConfig {
    let mut policy = if network == Network::Host {
        config.network.clone()
    } else {
        // What concerns requests from outside holds without the internet too.
        NetworkConfig {
            mask_request_host: config.network.mask_request_host.clone(),
            https_ports: config.network.https_ports.clone(),
            ..NetworkConfig::default()
        }
    };
    // Only inside `network` is this heeded; at the top level E2B ignores it.
    policy.allow_public_traffic = Some(config.public_traffic == PublicTraffic::Everybody);
    policy
}

/// Refuses what cannot be asked for.
pub(crate) fn check(spec: &SandboxSpec) -> Result<()> {
    refuse(spec)?;
    volumes(spec).map(drop)
}

fn refuse(spec: &SandboxSpec) -> Result<()> {
    let unsupported = |what: String| Err(Error::new(ErrorKind::Unsupported, what).at(NAME, "create"));
    if spec.kind != Kind::Standard {
        let what =
            "E2B makes sandboxes from templates; build one from the image, and name it as the template";
        return unsupported(format!("the kind {:?} is not there: {what}", spec.kind));
    }
    if spec.resources != Resources::default() {
        return unsupported(
            "E2B gives a sandbox the resources of its template; set CPU and memory when the template is built"
                .to_owned(),
        );
    }
    if spec.network == Network::None {
        return unsupported("E2B keeps loopback; ask for the network `loopback`".to_owned());
    }
    let usual = if spec.user == "root" { "/root".to_owned() } else { format!("/home/{}", spec.user) };
    if spec.home != usual && spec.home != "/home/user" {
        return unsupported(format!("the home {:?} is decided by the template; leave it unset", spec.home));
    }
    if let Some(workdir) = &spec.workdir {
        return unsupported(format!(
            "the directory {workdir:?} is decided by the template; set it there, or for each command"
        ));
    }
    Ok(())
}

fn volumes(spec: &SandboxSpec) -> Result<Option<Vec<VolumeMount>>> {
    let mut mounts = Vec::new();
    for mount in &spec.mounts {
        match &mount.source {
            MountSource::Volume { name } => {
                mounts.push(VolumeMount { name: name.clone(), path: mount.path.clone() });
            }
            _ => {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("{:?} cannot be mounted at E2B; use a volume", mount.path),
                )
                .at(NAME, "create"));
            }
        }
    }
    Ok((!mounts.is_empty()).then_some(mounts))
}

/// Returns a lease in the whole seconds that E2B counts in, rounded up.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] above the longest run of the account's plan.
pub(crate) fn lease_seconds(config: &E2bConfig, lease: Duration) -> Result<i64> {
    if lease > config.max_run {
        return Err(Error::invalid_argument(format!(
            "a lease of {lease:?} is longer than the plan's longest run of {:?}; ask for less, or raise max_run",
            config.max_run
        ))
        .at(NAME, "lease"));
    }
    let whole = lease.as_secs() + u64::from(lease.subsec_nanos() > 0);
    Ok(i64::try_from(whole).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use sandhold_core::{Attempt, Generation, Key, Mount, Owner, Tags};

    use super::*;

    fn options(spec: SandboxSpec) -> CreateOptions {
        let tags = Tags {
            owner: Owner::default(),
            key: Key::new("k").unwrap(),
            generation: Generation::new("g"),
            attempt: Attempt::new("a"),
        };
        CreateOptions::new(spec, tags)
    }

    fn config() -> E2bConfig {
        E2bConfig::new("k")
    }

    #[test]
    fn ports_are_closed_to_the_public_inside_the_network_object() {
        let create = create(&config(), &options(SandboxSpec::default())).unwrap();
        let json = serde_json::to_value(&create).unwrap();
        assert_eq!(json["network"]["allowPublicTraffic"], false);
        assert_eq!(json.get("allowPublicTraffic"), None);
        assert_eq!((&json["allow_internet_access"], &json["autoPause"]), (&false.into(), &true.into()));
        assert_eq!(json["timeout"], 300);
        let open = config().with_public_traffic(PublicTraffic::Everybody);
        let create =
            super::create(&open, &options(SandboxSpec::default().with_network(Network::Host))).unwrap();
        let json = serde_json::to_value(&create).unwrap();
        assert_eq!(json["network"]["allowPublicTraffic"], true);
        assert_eq!(json.get("allow_internet_access"), None);
    }

    #[test]
    fn one_attempt_sends_the_same_bytes_every_time() {
        let options = options(SandboxSpec::default().with_env("A", "b").with_metadata("c", "d"));
        let bytes = || serde_json::to_vec(&create(&config(), &options).unwrap()).unwrap();
        assert_eq!(bytes(), bytes());
    }

    #[test]
    fn what_e2b_cannot_do_is_refused_before_anything_is_sent() {
        let spec = SandboxSpec::default;
        for spec in [
            spec().with_kind(Kind::Privileged),
            spec().with_resources(Resources::default().with_memory(1)),
            spec().with_network(Network::None),
            spec().with_home("/srv"),
            spec().with_workdir("/srv"),
            spec().with_mount(Mount::host_dir("/mounted", "/tmp")),
        ] {
            let error = create(&config(), &options(spec)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        }
        for spec in
            [spec().with_metadata("sandhold-key", "x"), spec().with_lease(Duration::from_secs(24 * 3600 + 1))]
        {
            let error = create(&config(), &options(spec)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        }
    }

    #[test]
    fn leases_are_rounded_up_to_whole_seconds() {
        assert_eq!(lease_seconds(&config(), Duration::from_millis(61_500)).unwrap(), 62);
        assert_eq!(lease_seconds(&config(), Duration::ZERO).unwrap(), 0);
    }
}
