//! Network policies: what is no policy, and what this machine can enforce of one.

use std::net::IpAddr;

use http::StatusCode;
use sandhold_core::Network;
use sandhold_e2b::wire::{NetworkConfig, NetworkRule, NetworkUpdate};

use crate::config::Egress;
use crate::error::{ApiError, ApiResult};

/// What denies everything.
const ALL: &str = "0.0.0.0/0";

const MAX_RULE_DOMAINS: usize = 10;
const MAX_RULE_HEADERS: usize = 20;
const MAX_DOMAIN: usize = 128;
const MAX_HEADER_NAME: usize = 64;
const MAX_HEADER_VALUE: usize = 2048;

/// What a policy says of outgoing traffic, in one form for create and update.
pub(crate) fn egress_of(network: &NetworkConfig, allow_internet_access: Option<bool>) -> NetworkUpdate {
    NetworkUpdate {
        allow_out: network.allow_out.clone(),
        deny_out: network.deny_out.clone(),
        rules: network.rules.clone(),
        egress_proxy: network.egress_proxy.clone(),
        allow_internet_access,
    }
}

/// Refuses what is no policy, with E2B's statuses.
pub(crate) fn check(policy: &NetworkUpdate) -> ApiResult<()> {
    let denied = policy.deny_out.as_deref().unwrap_or_default();
    for entry in denied {
        if !is_block(entry) {
            return Err(ApiError::bad_request(format!(
                "denyOut takes addresses and CIDR blocks only, not {:?}",
                shown(entry)
            )));
        }
    }
    for entry in policy.allow_out.as_deref().unwrap_or_default() {
        if is_block(entry) {
            continue;
        }
        if !is_domain(entry) {
            return Err(ApiError::bad_request(format!(
                "allowOut takes addresses, CIDR blocks and domains, not {:?}",
                shown(entry)
            )));
        }
        if !denied.iter().any(|entry| entry == ALL) {
            return Err(ApiError::bad_request(format!(
                "domains in allowOut need {ALL:?} in denyOut, which denies everything else"
            )));
        }
    }
    if let Some(rules) = &policy.rules {
        if rules.len() > MAX_RULE_DOMAINS {
            return Err(ApiError::bad_request(format!(
                "there can be rules for {MAX_RULE_DOMAINS} domains at most"
            )));
        }
        for (domain, rules) in rules {
            check_rules(domain, rules)?;
        }
    }
    if policy.egress_proxy.is_some() {
        return Err(ApiError::new(StatusCode::FORBIDDEN, "egress proxies are not available on this server"));
    }
    Ok(())
}

fn check_rules(domain: &str, rules: &[NetworkRule]) -> ApiResult<()> {
    if domain.len() > MAX_DOMAIN || !is_domain(domain) {
        return Err(ApiError::bad_request(format!("{:?} is no domain for rules", shown(domain))));
    }
    if rules.len() > 1 {
        return Err(ApiError::bad_request("there can be one transform for each domain"));
    }
    for transform in rules.iter().filter_map(|rule| rule.transform.as_ref()) {
        let long = |(name, value): (&String, &sandhold_e2b::wire::Secret)| {
            name.is_empty() || name.len() > MAX_HEADER_NAME || value.expose().len() > MAX_HEADER_VALUE
        };
        if transform.headers.len() > MAX_RULE_HEADERS || transform.headers.iter().any(long) {
            return Err(ApiError::bad_request(format!(
                "a transform sets {MAX_RULE_HEADERS} headers at most, with names of {MAX_HEADER_NAME} and values of \
                 {MAX_HEADER_VALUE} bytes at most"
            )));
        }
    }
    Ok(())
}

/// The network that enforces a policy on this machine.
///
/// # Errors
/// 400 for a policy that lets some traffic through and not all: this machine cannot sort it, and to let everything
/// through would be a lie.
pub(crate) fn enforced(policy: &NetworkUpdate, egress: Egress) -> ApiResult<Network> {
    // What cannot go out at all keeps to every policy.
    if egress == Egress::Loopback || policy.allow_internet_access == Some(false) {
        return Ok(Network::Loopback);
    }
    let some = |list: &Option<Vec<String>>| list.as_ref().is_some_and(|list| !list.is_empty());
    let transforms = policy.rules.as_ref().is_some_and(|rules| !rules.is_empty());
    let denies_all = policy.deny_out.as_ref().is_some_and(|denied| denied.iter().any(|entry| entry == ALL));
    match (some(&policy.deny_out), some(&policy.allow_out), transforms) {
        (false, _, false) => Ok(Network::Host),
        (true, false, _) if denies_all => Ok(Network::Loopback),
        _ => Err(ApiError::bad_request(
            "this server can allow all egress or none; deny everything (denyOut 0.0.0.0/0 alone, or \
             allow_internet_access: false), or nothing",
        )),
    }
}

fn is_block(entry: &str) -> bool {
    let (address, length) = match entry.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (entry, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let most = if address.is_ipv4() { 32 } else { 128 };
    length.is_none_or(|length| length.parse::<u8>().is_ok_and(|length| length <= most))
}

fn is_domain(entry: &str) -> bool {
    let name = entry.strip_prefix("*.").unwrap_or(entry);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (1..=253).contains(&name.len())
        && name.split('.').all(|label| !label.is_empty() && label.bytes().all(plain))
        && !name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sandhold_e2b::wire::{HeaderTransform, Secret};

    use super::*;

    fn policy(allow: &[&str], deny: &[&str]) -> NetworkUpdate {
        let list = |entries: &[&str]| Some(entries.iter().map(|entry| (*entry).to_owned()).collect());
        NetworkUpdate { allow_out: list(allow), deny_out: list(deny), ..NetworkUpdate::default() }
    }

    #[test]
    fn what_is_no_policy_is_refused() {
        for good in [
            policy(&[], &[]),
            policy(&["1.1.1.1", "10.0.0.0/8", "::1/128"], &[]),
            policy(&["*.example.com", "api.test"], &[ALL]),
        ] {
            assert_eq!(check(&good), Ok(()), "{good:?}");
        }
        for bad in [
            policy(&[], &["example.com"]),
            policy(&[], &["1.1.1.1/33"]),
            policy(&["example.com"], &[]),
            policy(&["1.2.3"], &[ALL]),
            policy(&["a b"], &[ALL]),
        ] {
            assert_eq!(check(&bad).unwrap_err().status, StatusCode::BAD_REQUEST, "{bad:?}");
        }
    }

    #[test]
    fn rules_have_the_limits_of_e2b() {
        let rules =
            |domains: usize, domain: &str, transforms: usize, headers: usize, name: &str, value: usize| {
                let pairs: BTreeMap<_, _> =
                    (0..headers).map(|n| (format!("{name}{n:02}"), Secret::new("v".repeat(value)))).collect();
                let transform = NetworkRule { transform: Some(HeaderTransform { headers: pairs }) };
                let all =
                    (0..domains).map(|n| (format!("{domain}{n:02}"), vec![transform.clone(); transforms]));
                NetworkUpdate { rules: Some(all.collect()), ..NetworkUpdate::default() }
            };
        let (domain, name) = (format!("{}.{}", "d".repeat(63), "d".repeat(62)), "n".repeat(62));
        assert_eq!(check(&rules(10, &domain, 1, 20, &name, 2048)), Ok(()));
        for bad in [
            rules(11, "d", 1, 1, "n", 1),
            rules(1, &format!("d{domain}"), 1, 1, "n", 1),
            rules(1, "a b", 1, 1, "n", 1),
            rules(1, "d", 2, 1, "n", 1),
            rules(1, "d", 1, 21, "n", 1),
            rules(1, "d", 1, 1, &format!("n{name}"), 1),
            rules(1, "d", 1, 1, "n", 2049),
        ] {
            assert_eq!(check(&bad).unwrap_err().status, StatusCode::BAD_REQUEST, "{bad:?}");
        }
    }

    #[test]
    fn a_policy_is_enforced_whole_or_refused() {
        let enforce = |policy: &NetworkUpdate| enforced(policy, Egress::Host);
        let none = NetworkUpdate { allow_internet_access: Some(false), ..NetworkUpdate::default() };
        assert_eq!(enforce(&none), Ok(Network::Loopback));
        assert_eq!(enforce(&NetworkUpdate::default()), Ok(Network::Host));
        assert_eq!(enforce(&policy(&["1.1.1.1"], &[])), Ok(Network::Host));
        assert_eq!(enforce(&policy(&[], &[ALL])), Ok(Network::Loopback));
        assert!(enforce(&policy(&["1.1.1.1"], &[ALL])).is_err());
        assert!(enforce(&policy(&[], &["1.1.1.1"])).is_err());
        assert_eq!(enforced(&policy(&["1.1.1.1"], &[ALL]), Egress::Loopback), Ok(Network::Loopback));
    }
}
