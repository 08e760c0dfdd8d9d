use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Secret, nullable};

/// The network policy of a create.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkConfig {
    /// What may be reached although it is denied: CIDR blocks, addresses, domains, `*.domain`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_out: Option<Vec<String>>,
    /// What may not be reached: CIDR blocks and addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deny_out: Option<Vec<String>>,
    /// Whether ports answer without a traffic token; E2B's default is yes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_public_traffic: Option<bool>,
    /// What the `Host` header of requests to ports says; `${PORT}` stands for the port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask_request_host: Option<String>,
    /// Ports whose inside speaks TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub https_ports: Option<Vec<u16>>,
    /// What is done with requests to these domains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<BTreeMap<String, Vec<NetworkRule>>>,
    /// Where all outgoing traffic goes through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress_proxy: Option<EgressProxy>,
}

/// The network policy of a running sandbox, replaced as a whole: what is left out is cleared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkUpdate {
    /// As [`NetworkConfig::allow_out`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allow_out: Option<Vec<String>>,
    /// As [`NetworkConfig::deny_out`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deny_out: Option<Vec<String>>,
    /// As [`NetworkConfig::rules`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rules: Option<BTreeMap<String, Vec<NetworkRule>>>,
    /// As [`NetworkConfig::egress_proxy`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress_proxy: Option<EgressProxy>,
    /// No denies everything.
    #[serde(default, rename = "allow_internet_access", skip_serializing_if = "Option::is_none")]
    pub allow_internet_access: Option<bool>,
}

/// One rule for requests to a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRule {
    /// How requests are changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transform: Option<HeaderTransform>,
}

/// Headers that requests are given on their way out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeaderTransform {
    /// Name and value.
    #[serde(default, deserialize_with = "nullable")]
    pub headers: BTreeMap<String, Secret>,
}

/// A SOCKS5 proxy for outgoing traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressProxy {
    /// Host and port.
    pub address: String,
    /// The user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub username: Option<String>,
    /// The password; never in an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<Secret>,
    /// Whether TLS is spoken to it, or how.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<serde_json::Value>,
}
