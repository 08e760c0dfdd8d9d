//! Where E2B is, and how sandboxes are made there.

use std::collections::BTreeMap;
use std::time::Duration;

use sandhold_core::retry::RetryPolicy;
use sandhold_core::{Error, Owner, Result};

use crate::templates::DefaultTemplate;
use crate::wire::{NetworkConfig, Secret};

/// The port of the daemon inside every sandbox.
pub(crate) const ENVD_PORT: u16 = 49_983;

/// Domains where the daemons of all sandboxes stand behind one host.
const SHARED_HOST_DOMAINS: [&str; 7] = [
    "e2b.app",
    "e2b.dev",
    "e2b.pro",
    "e2b-staging.dev",
    "e2b-tango.dev",
    "e2b-juliett.dev",
    "foxtrot-2.e2b.dev",
];

/// Who can reach the ports of a sandbox from outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum PublicTraffic {
    /// Only who has the sandbox's traffic token. The default.
    #[default]
    TokenOnly,
    /// Everybody who knows the id.
    Everybody,
}

/// What traffic does to a sandbox that was paused at the end of its lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum AutoResume {
    /// Nothing: only a connect wakes it. The default.
    #[default]
    Off,
    /// It is woken.
    OnTraffic,
}

/// Configures the provider.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct E2bConfig {
    /// The key of the account (`E2B_API_KEY`).
    pub api_key: Secret,
    /// The domain of the service (`E2B_DOMAIN`). Default `e2b.app`.
    pub domain: String,
    /// The control plane (`E2B_API_URL`). Default `https://api.DOMAIN`.
    pub api_url: Option<String>,
    /// One place for the daemons of all sandboxes (`E2B_SANDBOX_URL`). Default by the domain.
    pub sandbox_url: Option<String>,
    /// The content of volumes (`E2B_VOLUME_API_URL`). Default `https://api.DOMAIN`.
    pub volume_url: Option<String>,
    /// Whether everything is on this machine in the clear (`E2B_DEBUG`). Default no.
    pub debug: bool,
    /// Whether keys and tokens may travel in the clear to another machine. Default no.
    pub allow_plaintext: bool,
    /// Longest time for one request to the control plane. Default 60 s.
    pub request_timeout: Duration,
    /// How often and how fast a request is sent again that may be. Default [`RetryPolicy::default`].
    pub retry: RetryPolicy,
    /// Further headers for the control plane. Default none.
    pub headers: BTreeMap<String, Secret>,
    /// The lease of sandboxes whose spec names none. Default 5 min, as E2B's own.
    pub lease: Duration,
    /// The longest time that a sandbox may run without a pause, by the account's plan; no lease is longer. Default 24 h.
    pub max_run: Duration,
    /// How long after a create a listing may miss it. Default 5 s.
    pub list_visibility: Duration,
    /// Who can reach the ports. Default [`PublicTraffic::TokenOnly`].
    pub public_traffic: PublicTraffic,
    /// What traffic does to a paused sandbox. Default [`AutoResume::Off`].
    pub auto_resume: AutoResume,
    /// The network policy of sandboxes with [`sandhold_core::Network::Host`]. Default no limits.
    pub network: NetworkConfig,
    /// Attaches sandboxes that Mastra has tagged with its own ids, as sandboxes of this owner; such an id is the key.
    /// Default no.
    pub mastra_owner: Option<Owner>,
    /// What stands behind the template `base`, and is built when it is not there. Default E2B's own `base`.
    pub default_template: Option<DefaultTemplate>,
}

impl E2bConfig {
    /// Uses the account of this key, with every default.
    pub fn new(api_key: impl Into<String>) -> Self {
        Self {
            api_key: Secret::new(api_key),
            domain: "e2b.app".to_owned(),
            api_url: None,
            sandbox_url: None,
            volume_url: None,
            debug: false,
            allow_plaintext: false,
            request_timeout: Duration::from_secs(60),
            retry: RetryPolicy::default(),
            headers: BTreeMap::new(),
            lease: Duration::from_secs(300),
            max_run: Duration::from_secs(24 * 3600),
            list_visibility: Duration::from_secs(5),
            public_traffic: PublicTraffic::default(),
            auto_resume: AutoResume::default(),
            network: NetworkConfig::default(),
            mastra_owner: None,
            default_template: None,
        }
    }

    /// Reads `E2B_API_KEY`, `E2B_DOMAIN`, `E2B_API_URL`, `E2B_SANDBOX_URL`, `E2B_VOLUME_API_URL` and `E2B_DEBUG`, as the
    /// official SDKs do.
    ///
    /// # Errors
    /// [`sandhold_core::ErrorKind::Unauthenticated`] when there is no key.
    pub fn from_env() -> Result<Self> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let key = variable("E2B_API_KEY").ok_or_else(|| {
            Error::new(
                sandhold_core::ErrorKind::Unauthenticated,
                "there is no E2B key; set E2B_API_KEY, or give one to E2bConfig::new",
            )
        })?;
        let mut config = Self::new(key);
        if let Some(domain) = variable("E2B_DOMAIN") {
            config.domain = domain;
        }
        config.api_url = variable("E2B_API_URL");
        config.sandbox_url = variable("E2B_SANDBOX_URL");
        config.volume_url = variable("E2B_VOLUME_API_URL");
        config.debug = variable("E2B_DEBUG").is_some_and(|debug| debug.eq_ignore_ascii_case("true"));
        Ok(config)
    }

    /// Uses the service at this domain.
    #[must_use]
    pub fn with_domain(mut self, domain: impl Into<String>) -> Self {
        self.domain = domain.into();
        self
    }

    /// Uses the control plane at this URL.
    #[must_use]
    pub fn with_api_url(mut self, url: impl Into<String>) -> Self {
        self.api_url = Some(url.into());
        self
    }

    /// Reaches the daemons of all sandboxes at this URL.
    #[must_use]
    pub fn with_sandbox_url(mut self, url: impl Into<String>) -> Self {
        self.sandbox_url = Some(url.into());
        self
    }

    /// Reaches the content of volumes at this URL.
    #[must_use]
    pub fn with_volume_url(mut self, url: impl Into<String>) -> Self {
        self.volume_url = Some(url.into());
        self
    }

    /// Lets keys and tokens travel in the clear to another machine.
    #[must_use]
    pub fn with_plaintext_allowed(mut self) -> Self {
        self.allow_plaintext = true;
        self
    }

    /// Sets the longest time for one request to the control plane.
    #[must_use]
    pub fn with_request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Sets how often and how fast a request is sent again.
    #[must_use]
    pub fn with_retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// Adds a header for the control plane.
    #[must_use]
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name.into(), Secret::new(value));
        self
    }

    /// Sets the lease of sandboxes whose spec names none.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets the longest time that the account's plan lets a sandbox run without a pause.
    #[must_use]
    pub fn with_max_run(mut self, max_run: Duration) -> Self {
        self.max_run = max_run;
        self
    }

    /// Sets how long after a create a listing may miss it.
    #[must_use]
    pub fn with_list_visibility(mut self, visibility: Duration) -> Self {
        self.list_visibility = visibility;
        self
    }

    /// Says who can reach the ports of sandboxes.
    #[must_use]
    pub fn with_public_traffic(mut self, traffic: PublicTraffic) -> Self {
        self.public_traffic = traffic;
        self
    }

    /// Says what traffic does to a paused sandbox.
    #[must_use]
    pub fn with_auto_resume(mut self, auto_resume: AutoResume) -> Self {
        self.auto_resume = auto_resume;
        self
    }

    /// Sets the network policy of sandboxes that may reach the internet.
    #[must_use]
    pub fn with_network(mut self, network: NetworkConfig) -> Self {
        self.network = network;
        self
    }

    /// Attaches sandboxes that Mastra has tagged with its own ids, as sandboxes of this owner.
    #[must_use]
    pub fn with_mastra_owner(mut self, owner: Owner) -> Self {
        self.mastra_owner = Some(owner);
        self
    }

    /// Puts a template of one's own behind `base`; it is built when a create says that it is not there.
    #[must_use]
    pub fn with_default_template(mut self, template: DefaultTemplate) -> Self {
        self.default_template = Some(template);
        self
    }

    /// How long a create may take, with all that is sent again.
    pub(crate) fn longest_create(&self) -> Duration {
        self.retry.budget.saturating_add(self.request_timeout)
    }

    /// Returns the URL of the control plane.
    pub(crate) fn api_url(&self) -> String {
        match &self.api_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None if self.debug => "http://localhost:3000".to_owned(),
            None => format!("https://api.{}", self.domain),
        }
    }

    /// Returns the URL of the content of volumes.
    pub(crate) fn volume_url(&self, domain: Option<&str>) -> String {
        match &self.volume_url {
            Some(url) => url.trim_end_matches('/').to_owned(),
            None if self.debug => "http://localhost:8080".to_owned(),
            None => format!("https://api.{}", self.sandbox_domain(domain)),
        }
    }

    /// Returns the domain of a sandbox: what E2B said, where it said something.
    pub(crate) fn sandbox_domain<'a>(&'a self, told: Option<&'a str>) -> &'a str {
        told.filter(|domain| !domain.is_empty()).unwrap_or(&self.domain)
    }

    /// Returns the URL of a sandbox's daemon; requests carry headers that lead to it on a shared host.
    pub(crate) fn envd_url(&self, id: &str, domain: &str) -> String {
        match self.fixed_sandbox_url() {
            Some(url) => url,
            None if SHARED_HOST_DOMAINS.contains(&domain) => format!("https://sandbox.{domain}"),
            None => format!("https://{}", host(ENVD_PORT, id, domain)),
        }
    }

    /// Returns the URL of a sandbox's daemon for requests that carry no headers of ours.
    pub(crate) fn direct_url(&self, id: &str, domain: &str) -> String {
        self.fixed_sandbox_url().unwrap_or_else(|| format!("https://{}", host(ENVD_PORT, id, domain)))
    }

    fn fixed_sandbox_url(&self) -> Option<String> {
        match &self.sandbox_url {
            Some(url) => Some(url.trim_end_matches('/').to_owned()),
            None => self.debug.then(|| format!("http://localhost:{ENVD_PORT}")),
        }
    }

    /// Returns the host of a port, without a scheme.
    pub(crate) fn port_host(&self, port: u16, id: &str, domain: &str) -> String {
        if self.debug { format!("localhost:{port}") } else { host(port, id, domain) }
    }
}

fn host(port: u16, id: &str, domain: &str) -> String {
    format!("{port}-{id}.{domain}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(pairs: &[(&str, &str)]) -> Result<E2bConfig> {
        let pairs: BTreeMap<_, _> = pairs.iter().copied().collect();
        E2bConfig::from_variables(|name| pairs.get(name).map(|value| (*value).to_owned()))
    }

    #[test]
    fn the_environment_means_what_it_means_to_the_official_sdks() {
        let plain = from(&[("E2B_API_KEY", "k")]).unwrap();
        assert_eq!(plain.api_url(), "https://api.e2b.app");
        assert_eq!(plain.envd_url("i1", "e2b.app"), "https://sandbox.e2b.app");
        assert_eq!(plain.envd_url("i1", "own.example"), "https://49983-i1.own.example");
        assert_eq!(plain.direct_url("i1", "e2b.app"), "https://49983-i1.e2b.app");
        assert_eq!(plain.port_host(3000, "i1", "e2b.app"), "3000-i1.e2b.app");
        assert_eq!(plain.volume_url(Some("vol.example")), "https://api.vol.example");

        let debug = from(&[("E2B_API_KEY", "k"), ("E2B_DEBUG", "True")]).unwrap();
        assert_eq!(debug.api_url(), "http://localhost:3000");
        assert_eq!(debug.envd_url("i1", "e2b.app"), "http://localhost:49983");
        assert_eq!(debug.port_host(3000, "i1", "e2b.app"), "localhost:3000");

        let fixed = from(&[
            ("E2B_API_KEY", "k"),
            ("E2B_DOMAIN", "own.example"),
            ("E2B_API_URL", "http://127.0.0.1:1/"),
            ("E2B_SANDBOX_URL", "http://127.0.0.1:2/"),
        ])
        .unwrap();
        assert_eq!(fixed.api_url(), "http://127.0.0.1:1");
        assert_eq!(fixed.direct_url("i1", "own.example"), "http://127.0.0.1:2");
        // A host name is asked of DNS, and no fixed URL changes it.
        assert_eq!(fixed.port_host(3000, "i1", "own.example"), "3000-i1.own.example");
    }

    #[test]
    fn without_a_key_nothing_begins() {
        for pairs in [&[][..], &[("E2B_API_KEY", "")]] {
            assert_eq!(from(pairs).unwrap_err().kind(), sandhold_core::ErrorKind::Unauthenticated);
        }
    }

    #[test]
    fn the_key_is_not_shown() {
        assert!(!format!("{:?}", E2bConfig::new("hush")).contains("hush"));
    }
}
