//! What never changes after a create. It travels in the provider's own record, so that a create is one step.

use std::collections::BTreeMap;

use sandhold_core::{Error, ErrorKind, Result};
use sandhold_e2b::wire::{Lifecycle, NetworkConfig, OnTimeout, VolumeMount};
use serde::{Deserialize, Serialize};

use crate::templates::{Context, StartCommands};

/// What names of metadata begin with that belong to this server; clients neither see nor set them.
pub(crate) const RESERVED: &str = "sandhold.server/";

const MADE: &str = "sandhold.server/made";

/// How a sandbox was asked for, as far as no provider has a place for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Made {
    /// The template's id, as clients see it.
    pub(crate) template: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) alias: Option<String>,
    /// Whether its daemon wants a token.
    pub(crate) secure: bool,
    /// The timeout of the create, in seconds.
    pub(crate) timeout: u64,
    /// Whether it is paused at its end.
    pub(crate) auto_pause: bool,
    /// Whether that pause keeps memory.
    pub(crate) auto_pause_memory: bool,
    /// Whether traffic wakes it.
    pub(crate) auto_resume: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) allow_internet_access: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<NetworkConfig>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) volume_mounts: Option<Vec<VolumeMount>>,
    /// How the template's processes start, which snapshots of the sandbox take over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) context: Option<Context>,
    /// What the template starts in each sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) start: Option<StartCommands>,
    /// What was asked for, where the create had an idempotency key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request: Option<String>,
}

impl Made {
    /// Puts it beside a client's metadata.
    pub(crate) fn put(&self, metadata: &mut BTreeMap<String, String>) -> Result<()> {
        let text = serde_json::to_string(self).map_err(|error| {
            Error::new(ErrorKind::Unexpected, "the request cannot be written as JSON").with_source(error)
        })?;
        metadata.insert(MADE.to_owned(), text);
        Ok(())
    }

    /// Takes it out of a provider's metadata, which then is the client's.
    pub(crate) fn take(metadata: &mut BTreeMap<String, String>) -> Result<Self> {
        let text = metadata.remove(MADE);
        metadata.retain(|name, _| !name.starts_with(RESERVED));
        let text = text.ok_or_else(|| {
            Error::new(ErrorKind::Unexpected, format!("the sandbox's record has no {MADE:?}"))
        })?;
        serde_json::from_str(&text).map_err(|error| {
            Error::new(ErrorKind::Unexpected, format!("{MADE:?} of the sandbox cannot be understood"))
                .with_source(error)
        })
    }

    pub(crate) fn lifecycle(&self) -> Lifecycle {
        let on_timeout = if self.auto_pause { OnTimeout::Pause } else { OnTimeout::Kill };
        Lifecycle { on_timeout, auto_resume: self.auto_resume }
    }

    /// Whether ports answer to everybody.
    pub(crate) fn is_public(&self) -> bool {
        self.network.as_ref().and_then(|network| network.allow_public_traffic).unwrap_or(true)
    }

    /// Whether TLS is spoken on a port inside.
    pub(crate) fn speaks_tls(&self, port: u16) -> bool {
        let ports = self.network.as_ref().and_then(|network| network.https_ports.as_ref());
        ports.is_some_and(|ports| ports.contains(&port))
    }
}
