//! What must hold on this host before anything is made, compared with what the helper's probe found.

use sandhold_core::{Error, ErrorKind, Result};

use crate::config::Requirement;
use crate::{EnforcedLimits, Failure, FreezerTier, Isolation, Probe, UsersTier, UsrTier};

/// Compares what the probe found with what must hold.
///
/// # Errors
/// [`ErrorKind::Unsupported`] names the first requirement that does not hold, and what was found instead;
/// [`ErrorKind::Unexpected`] when the answer cannot be understood: nothing is taken to hold then.
pub(crate) fn check(answer: &str, requirements: &[Requirement]) -> Result<()> {
    if let Ok(failed) = serde_json::from_str::<Failure>(answer.trim()) {
        return Err(failed.into());
    }
    let probed: Probe = serde_json::from_str(answer.trim()).map_err(|error| {
        Error::new(ErrorKind::Unexpected, format!("the probe's answer cannot be understood: {answer:?}"))
            .with_source(error)
    })?;
    let Some(isolation) = &probed.isolation else {
        let why: Vec<&str> = probed.refused.iter().map(|failure| failure.message.as_str()).collect();
        return Err(unsupported(format!("no sandbox can be started on this host: {}", why.join("; "))));
    };
    for requirement in requirements {
        if let Err(found) = holds(*requirement, isolation, &probed) {
            return Err(unsupported(format!(
                "this host does not meet the requirement `{}`: {found}",
                requirement.name()
            ))
            .with_context("requirement", requirement.name()));
        }
    }
    Ok(())
}

fn unsupported(message: String) -> Error {
    Error::new(ErrorKind::Unsupported, message).with_reason("requirement")
}

/// Says what was found where a requirement does not hold.
fn holds(requirement: Requirement, isolation: &Isolation, probed: &Probe) -> std::result::Result<(), String> {
    let (met, found) = match requirement {
        Requirement::SeveralUsers => (
            isolation.users != UsersTier::Single,
            "all users of a sandbox are one here; run as root, or give this user a range in /etc/subuid and \
             /etc/subgid and install newuidmap"
                .to_owned(),
        ),
        Requirement::WritableUsr => {
            (isolation.usr != UsrTier::ReadOnly, "/usr can only be shown read-only here".to_owned())
        }
        Requirement::Seccomp => {
            (isolation.seccomp, "the kernel takes no filter of system calls".to_owned())
        }
        Requirement::Limits => {
            let EnforcedLimits { cpu, memory, pids } = probed.limits;
            let lacking: Vec<&str> = [("cpu", cpu), ("memory", memory), ("pids", pids)]
                .into_iter()
                .filter_map(|(name, there)| (!there).then_some(name))
                .collect();
            (
                lacking.is_empty(),
                format!(
                    "no limit of {} can be enforced; run as root, or in a delegated control group",
                    lacking.join(", ")
                ),
            )
        }
        Requirement::KernelFreezer => (
            isolation.freezer != FreezerTier::Signals,
            "processes can only be stopped by signals here; run as root, or in a delegated control group".to_owned(),
        ),
        Requirement::NoNetwork => (
            probed.network_none,
            "the kernel cannot keep a sandbox from its own loopback interface; Landlock of version 4 is needed"
                .to_owned(),
        ),
    };
    if met { Ok(()) } else { Err(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEST: &str = r#"{"isolation":{"users":"full","usr":"overlay","network":"loopback","seccomp":true,
        "landlock":7,"freezer":"cgroup_v2"},"refused":[],
        "limits":{"cpu":true,"memory":true,"pids":true},"network_none":true}"#;

    const WORST: &str = r#"{"isolation":{"users":"single","usr":"read_only","network":"loopback","seccomp":false,
        "landlock":0,"freezer":"signals"},"refused":[],
        "limits":{"cpu":true,"memory":false,"pids":true},"network_none":false}"#;

    #[test]
    fn every_requirement_holds_where_everything_was_found() {
        check(BEST, Requirement::ALL).unwrap();
    }

    #[test]
    fn each_requirement_that_does_not_hold_is_named() {
        for requirement in Requirement::ALL {
            let error = check(WORST, &[*requirement]).unwrap_err();
            assert_eq!((error.kind(), error.reason()), (ErrorKind::Unsupported, Some("requirement")));
            assert!(error.message().contains(&format!("`{}`", requirement.name())), "{error}");
        }
        let error = check(WORST, &[Requirement::Limits]).unwrap_err();
        assert!(error.message().contains("limit of memory can"), "{error}");
    }

    #[test]
    fn a_host_without_sandboxes_meets_no_requirement_and_says_why() {
        let answer = r#"{"isolation":null,"refused":[{"kind":"unsupported","message":"no user namespaces"}],
            "limits":{"cpu":false,"memory":false,"pids":false},"network_none":false}"#;
        let error = check(answer, &[Requirement::Seccomp]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("no user namespaces"), "{error}");
    }

    #[test]
    fn an_answer_that_is_not_understood_meets_no_requirement() {
        for answer in ["", "{}", "usage: sandhold-helper", r#"{"isolation":{"users":"magic"}}"#] {
            let error = check(answer, &[Requirement::Seccomp]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unexpected, "{answer}");
        }
        let error =
            check(r#"{"kind":"storage_full","message":"full"}"#, &[Requirement::Seccomp]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StorageFull);
    }
}
