//! The stores that are reached over a network.
//!
//! Each gets its credentials here, from variables that were named, so that object_store never looks for any itself: no
//! profile, no file in a home, no metadata service.

use std::time::Duration;

use object_store::{BackoffConfig, RetryConfig};
use sandhold_core::{Error, Result};

#[cfg(feature = "azure")]
use super::config::AzureTarget;
#[cfg(feature = "gcs")]
use super::config::GcsTarget;
#[cfg(feature = "s3")]
use super::config::S3Target;
#[cfg(any(feature = "gcs", feature = "azure"))]
use super::credentials::Either;
use super::credentials::Variables;
use super::http::Connector;
use super::store::Store;

fn retry() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(200),
            max_backoff: Duration::from_secs(10),
            base: 2.0,
        },
        max_retries: 5,
        retry_timeout: Duration::from_secs(60),
    }
}

#[cfg(feature = "s3")]
fn refused(failure: object_store::Error) -> Error {
    Error::invalid_argument(format!("the mirror is not configured right: {failure}")).with_source(failure)
}

fn checked(what: &str, name: &str) -> Result<()> {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.' | '_');
    match !name.is_empty() && name.len() <= 222 && name.chars().all(fits) {
        true => Ok(()),
        false => Err(Error::invalid_argument(format!("{name:?} is no name of {what}"))),
    }
}

/// The URL of a server, with the scheme it is reached by.
fn endpoint(given: &str, allow_http: bool) -> Result<String> {
    let url = match given.contains("://") {
        true => given.to_owned(),
        false => format!("https://{given}"),
    };
    let uri: http::Uri = url
        .parse()
        .map_err(|failure| Error::invalid_argument(format!("{given:?} is no URL")).with_source(failure))?;
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let is_here =
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    match uri.scheme_str() {
        _ if host.is_empty() => Err(Error::invalid_argument(format!("{given:?} names no server"))),
        Some("https") => Ok(url),
        Some("http") if allow_http || is_here => Ok(url),
        Some("http") => Err(Error::invalid_argument(format!(
            "snapshots would travel in the clear to {given}; use https, or allow http by name"
        ))),
        _ => Err(Error::invalid_argument(format!("{given:?} is reached neither by https nor by http"))),
    }
}

/// What the library says of a credential may quote it.
#[cfg(any(feature = "gcs", feature = "azure"))]
fn unreadable(variable: &str) -> Error {
    Error::new(
        sandhold_core::ErrorKind::Unauthenticated,
        format!("{variable} does not hold a key of that kind"),
    )
    .with_reason("credential")
}

/// The URL that object_store takes: the server's, or the bucket's own where the bucket is in the host.
#[cfg(feature = "s3")]
fn bucket_url(given: &str, target: &S3Target) -> Result<String> {
    let url = endpoint(given, target.allow_http)?;
    Ok(match target.path_style {
        true => url,
        false => url.replacen("://", &format!("://{}.", target.bucket), 1),
    })
}

#[cfg(feature = "s3")]
pub(super) fn s3(target: &S3Target, variables: &Variables<'_>) -> Result<Store> {
    checked("a bucket", &target.bucket)?;
    let (key, secret) = variables.pair(&target.access_key_env, &target.secret_key_env)?;
    let mut builder = object_store::aws::AmazonS3Builder::new()
        .with_bucket_name(&target.bucket)
        .with_region(&target.region)
        .with_access_key_id(key)
        .with_secret_access_key(secret)
        .with_virtual_hosted_style_request(!target.path_style)
        // R2 and B2 refuse requests that ask for what only Amazon has.
        .with_disable_tagging(true)
        .with_retry(retry())
        .with_http_connector(Connector::new()?);
    if let Some(token) = variables.get(&target.session_token_env)? {
        builder = builder.with_token(token);
    }
    if let Some(given) = &target.endpoint {
        let url = bucket_url(given, target)?;
        builder = builder.with_allow_http(url.starts_with("http:")).with_endpoint(url);
    }
    Ok(Store::cloud(builder.build().map_err(refused)?, &target.bucket, true))
}

#[cfg(feature = "gcs")]
pub(super) fn gcs(target: &GcsTarget, variables: &Variables<'_>) -> Result<Store> {
    checked("a bucket", &target.bucket)?;
    let mut builder = object_store::gcp::GoogleCloudStorageBuilder::new()
        .with_bucket_name(&target.bucket)
        .with_retry(retry())
        .with_http_connector(Connector::new()?);
    let mut named = &target.service_account_env;
    builder = match variables.either(&target.service_account_env, &target.access_token_env)? {
        Either::One(key) => builder.with_service_account_key(key),
        Either::Other(bearer) => {
            named = &target.access_token_env;
            if !bearer.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(unreadable(named));
            }
            let token = object_store::gcp::GcpCredential { bearer };
            builder.with_credentials(std::sync::Arc::new(object_store::StaticCredentialProvider::new(token)))
        }
    };
    if let Some(given) = &target.endpoint {
        let url = endpoint(given, false)?;
        let options = object_store::ClientOptions::new().with_allow_http(url.starts_with("http:"));
        builder = builder.with_client_options(options).with_base_url(&url);
    }
    let store = builder.build().map_err(|_| unreadable(named))?;
    Ok(Store::cloud(store, &target.bucket, true))
}

#[cfg(feature = "azure")]
pub(super) fn azure(target: &AzureTarget, variables: &Variables<'_>) -> Result<Store> {
    checked("an account", &target.account)?;
    checked("a container", &target.container)?;
    let mut builder = object_store::azure::MicrosoftAzureBuilder::new()
        .with_account(&target.account)
        .with_container_name(&target.container)
        .with_disable_tagging(true)
        .with_retry(retry())
        .with_http_connector(Connector::new()?);
    let mut named = &target.access_key_env;
    builder = match variables.either(&target.access_key_env, &target.sas_token_env)? {
        Either::One(key) => builder.with_access_key(key),
        Either::Other(signature) => {
            named = &target.sas_token_env;
            let signature = signature.trim_start_matches('?').to_owned();
            builder.with_config(object_store::azure::AzureConfigKey::SasKey, signature)
        }
    };
    if let Some(given) = &target.endpoint {
        let url = endpoint(given, false)?;
        builder = builder.with_allow_http(url.starts_with("http:")).with_endpoint(url);
    }
    let store = builder.build().map_err(|_| unreadable(named))?;
    Ok(Store::cloud(store, &target.container, false))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(feature = "s3")]
    #[test]
    fn a_bucket_is_in_the_path_or_in_the_host() {
        let mut target = S3Target::new("b").with_endpoint("s3.example.com");
        assert_eq!(bucket_url("s3.example.com", &target).unwrap(), "https://s3.example.com");
        target.path_style = false;
        assert_eq!(bucket_url("s3.example.com:9000", &target).unwrap(), "https://b.s3.example.com:9000");
        assert_eq!(bucket_url("http://localhost:1", &target).unwrap(), "http://b.localhost:1");
    }

    #[test]
    fn only_servers_of_this_machine_are_reached_in_the_clear() {
        assert_eq!(endpoint("r2.example.com", false).unwrap(), "https://r2.example.com");
        for here in ["http://127.0.0.1:9000", "http://localhost", "http://[::1]:9000"] {
            assert_eq!(endpoint(here, false).unwrap(), here);
        }
        assert!(endpoint("http://169.254.169.254", false).is_err());
        assert!(endpoint("http://minio.lan:9000", false).is_err());
        endpoint("http://minio.lan:9000", true).unwrap();
        for bad in ["", "ftp://x", "https://", "file:///etc"] {
            assert!(endpoint(bad, true).is_err(), "{bad}");
        }
    }
}
