//! What a sandbox is reached by: hosts, tokens, signed file URLs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use sandhold_core::{Error, ErrorKind, Result, SandboxId};
use sha2::{Digest, Sha256};

use crate::config::{E2bConfig, ENVD_PORT};
use crate::error::NAME;
use crate::wire::Secret;

/// The header that carries the traffic token to a port.
const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";

/// How a sandbox is reached beside its handle: by host names, by its tokens, and by URLs that need none.
#[derive(Clone, Debug)]
pub struct SandboxAccess {
    pub(crate) config: E2bConfig,
    pub(crate) id: SandboxId,
    pub(crate) domain: String,
    pub(crate) envd_token: Option<Secret>,
    pub(crate) traffic_token: Option<Secret>,
}

/// Where a port answers over HTTP, and what requests to it must carry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAccess {
    /// The URL, without a path.
    pub url: String,
    /// Headers for every request.
    pub headers: Vec<(&'static str, Secret)>,
}

/// What may be done with a signed URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SignOptions {
    /// The user whose file it is; default the template's own user.
    pub user: Option<String>,
    /// When it ends; default never.
    pub expires: Option<Duration>,
}

impl SignOptions {
    /// Says whose file it is.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Lets the URL end so long from now.
    #[must_use]
    pub fn with_expires(mut self, after: Duration) -> Self {
        self.expires = Some(after);
        self
    }
}

impl SandboxAccess {
    /// Returns the host of a port, without a scheme: `PORT-ID.DOMAIN`.
    #[must_use]
    pub fn host(&self, port: u16) -> String {
        self.config.port_host(port, self.id.as_str(), &self.domain)
    }

    /// Returns the token that requests to ports carry, where ports are not open to everybody.
    #[must_use]
    pub fn traffic_token(&self) -> Option<&Secret> {
        self.traffic_token.as_ref()
    }

    /// Returns the token of the daemon inside.
    #[must_use]
    pub fn envd_token(&self) -> Option<&Secret> {
        self.envd_token.as_ref()
    }

    /// Says how a port is asked over HTTP: at its host, or at the one URL of all sandboxes with headers that lead to it.
    #[must_use]
    pub fn port(&self, port: u16) -> PortAccess {
        let mut headers = Vec::new();
        let url = match &self.config.sandbox_url {
            Some(url) => {
                headers.push(("e2b-sandbox-id", Secret::new(self.id.as_str())));
                headers.push(("e2b-sandbox-port", Secret::new(port.to_string())));
                url.trim_end_matches('/').to_owned()
            }
            None if self.config.debug => format!("http://{}", self.host(port)),
            None => format!("https://{}", self.host(port)),
        };
        if port != ENVD_PORT
            && let Some(token) = &self.traffic_token
        {
            headers.push((TRAFFIC_TOKEN, token.clone()));
        }
        PortAccess { url, headers }
    }

    /// Returns a URL from which one file can be downloaded without any token.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a sandbox without a token of its own; [`ErrorKind::InvalidArgument`] for an expiry
    /// that no clock can hold.
    pub fn download_url(&self, path: &str, options: &SignOptions) -> Result<String> {
        self.signed("read", path, options)
    }

    /// Returns a URL to which one file can be uploaded without any token; an empty path leaves it to the upload.
    ///
    /// # Errors
    /// As [`SandboxAccess::download_url`].
    pub fn upload_url(&self, path: &str, options: &SignOptions) -> Result<String> {
        self.signed("write", path, options)
    }

    fn signed(&self, operation: &str, path: &str, options: &SignOptions) -> Result<String> {
        let token = self.envd_token.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::Unsupported, "the sandbox has no token to sign a URL with").at(NAME, "sign")
        })?;
        let expires = match options.expires {
            None => None,
            Some(after) => Some(expiry(after).ok_or_else(|| {
                Error::invalid_argument(format!("no clock holds a moment {after:?} from now"))
                    .at(NAME, "sign")
            })?),
        };
        let user = options.user.as_deref().unwrap_or_default();
        let mut query = form_urlencoded::Serializer::new(String::new());
        if !path.is_empty() {
            query.append_pair("path", path);
        }
        if !user.is_empty() {
            query.append_pair("username", user);
        }
        query.append_pair("signature", &signature(path, operation, user, token.expose(), expires));
        if let Some(expires) = expires {
            query.append_pair("signature_expiration", &expires.to_string());
        }
        let base = self.config.direct_url(self.id.as_str(), &self.domain);
        Ok(format!("{base}/files?{}", query.finish()))
    }
}

fn expiry(after: Duration) -> Option<u64> {
    Some(SystemTime::now().checked_add(after)?.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

/// Signs one operation on one path, as envd checks it.
fn signature(path: &str, operation: &str, user: &str, token: &str, expires: Option<u64>) -> String {
    let mut signed = format!("{path}:{operation}:{user}:{token}");
    if let Some(expires) = expires {
        signed.push_str(&format!(":{expires}"));
    }
    format!("v1_{}", STANDARD_NO_PAD.encode(Sha256::digest(signed)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(config: E2bConfig) -> SandboxAccess {
        SandboxAccess {
            config,
            id: SandboxId::new("i1"),
            domain: "e2b.app".to_owned(),
            envd_token: Some(Secret::new("t")),
            traffic_token: Some(Secret::new("traffic")),
        }
    }

    #[test]
    fn a_signature_is_the_one_that_envd_expects() {
        // From the official SDK's own test.
        let token = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0";
        assert_eq!(
            signature("hello.txt", "read", "user", token, None),
            "v1_gUtH/s9YCJWgCizjfUxuWfhFE4QSydOWEIIvfLwDr6E"
        );
        assert_ne!(
            signature("hello.txt", "read", "user", token, Some(1)),
            signature("hello.txt", "read", "user", token, None)
        );
    }

    #[test]
    fn a_signed_url_says_path_user_and_end_and_no_token() {
        let options = SignOptions::default().with_user("root").with_expires(Duration::from_secs(60));
        let url = access(E2bConfig::new("k")).download_url("/a b", &options).unwrap();
        assert!(
            url.starts_with("https://49983-i1.e2b.app/files?path=%2Fa+b&username=root&signature=v1_"),
            "{url}"
        );
        assert!(url.contains("&signature_expiration="), "{url}");
        let fixed = access(E2bConfig::new("k").with_sandbox_url("http://127.0.0.1:1"));
        let url = fixed.upload_url("", &SignOptions::default()).unwrap();
        assert!(url.starts_with("http://127.0.0.1:1/files?signature=v1_"), "{url}");
        let endless = SignOptions::default().with_expires(Duration::MAX);
        assert_eq!(fixed.upload_url("", &endless).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn a_port_is_asked_at_its_host_or_at_the_one_place_with_headers() {
        let plain = access(E2bConfig::new("k"));
        assert_eq!(plain.host(3000), "3000-i1.e2b.app");
        let port = plain.port(3000);
        assert_eq!(port.url, "https://3000-i1.e2b.app");
        assert_eq!(port.headers, [(TRAFFIC_TOKEN, Secret::new("traffic"))]);
        let fixed = access(E2bConfig::new("k").with_sandbox_url("http://127.0.0.1:1/")).port(3000);
        assert_eq!((fixed.url.as_str(), fixed.headers.len()), ("http://127.0.0.1:1", 3));
        assert!(plain.port(ENVD_PORT).headers.is_empty());
    }
}
