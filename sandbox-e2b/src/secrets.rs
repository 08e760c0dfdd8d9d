//! Secrets that E2B keeps and puts into requests of sandboxes.

use std::collections::BTreeMap;

use http::{Method, StatusCode};
use sandhold_core::{DestroyOutcome, Result, ResultStream};

use crate::control::{Ask, SharedControl, encoded};
use crate::error::Call;
use crate::paging::pages;
use crate::provider::E2bProvider;
use crate::wire::{NewSecret, Secret, SecretInfo, UpdateSecret};

/// The reason of an error about a secret that does not exist.
const MISSING: &str = "secret_not_found";

/// The secrets of an account. Their values are never told.
#[derive(Clone, Debug)]
pub struct Secrets {
    control: SharedControl,
}

impl E2bProvider {
    /// Returns the secrets of the account.
    #[must_use]
    pub fn secrets(&self) -> Secrets {
        Secrets { control: self.control().clone() }
    }
}

impl Secrets {
    /// Stores a secret. Sent once: a second one of the same name is refused.
    ///
    /// # Errors
    /// [`sandhold_core::ErrorKind::InvalidArgument`] or [`sandhold_core::ErrorKind::Conflict`] for a name that cannot be
    /// used, or is.
    pub async fn create(
        &self,
        name: &str,
        value: Secret,
        metadata: Option<BTreeMap<String, String>>,
    ) -> Result<SecretInfo> {
        let call = Call::once("create_secret").about(MISSING);
        let body = NewSecret { name: name.to_owned(), value, metadata };
        self.control.ask(Ask::new(call, Method::POST, "/secrets").with_json(&body)?).await?.json()
    }

    /// Gives a secret, by id or name, another value.
    ///
    /// # Errors
    /// [`sandhold_core::ErrorKind::NotFound`] with reason `secret_not_found`.
    pub async fn update(
        &self,
        secret: &str,
        value: Secret,
        metadata: Option<BTreeMap<String, String>>,
    ) -> Result<SecretInfo> {
        let call = Call::once("update_secret").about(MISSING);
        let ask = Ask::new(call, Method::POST, format!("/secrets/{}", encoded(secret)));
        self.control.ask(ask.with_json(&UpdateSecret { value, metadata })?).await?.json()
    }

    /// Returns facts about a secret, by id or name.
    ///
    /// # Errors
    /// [`sandhold_core::ErrorKind::NotFound`] with reason `secret_not_found`.
    pub async fn get(&self, secret: &str) -> Result<SecretInfo> {
        let call = Call::look("get_secret").about(MISSING);
        self.control.ask(Ask::new(call, Method::GET, format!("/secrets/{}", encoded(secret)))).await?.json()
    }

    /// Streams the secrets of the account.
    #[must_use]
    pub fn list(&self) -> ResultStream<SecretInfo> {
        let call = Call::look("list_secrets").about(MISSING);
        pages(&self.control, call, |cursor| match cursor {
            Some(cursor) => format!("/secrets?nextToken={}", encoded(&cursor)),
            None => "/secrets".to_owned(),
        })
    }

    /// Deletes a secret, by id or name.
    ///
    /// # Errors
    /// Whatever keeps the server from saying so.
    pub async fn delete(&self, secret: &str) -> Result<DestroyOutcome> {
        let call = Call::idempotent("delete_secret").about(MISSING);
        let ask = Ask::new(call, Method::DELETE, format!("/secrets/{}", encoded(secret)));
        let reply = self.control.ask(ask.with_also(StatusCode::NOT_FOUND)).await?;
        let done = reply.status().is_success() || reply.doubted;
        Ok(if done { DestroyOutcome::Destroyed } else { DestroyOutcome::AlreadyGone })
    }
}
