use serde::{Deserialize, Serialize};

/// The error object: the body of every failed answer of the control plane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiError {
    /// The HTTP status, once more. The official SDKs decide by it.
    pub code: i32,
    /// What went wrong, for people.
    pub message: String,
    /// What went wrong, for programs, where the status does not tell; see [`codes`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
}

impl ApiError {
    /// An error of this status with this text.
    pub fn new(code: u16, message: impl Into<String>) -> Self {
        Self { code: i32::from(code), message: message.into(), error_code: None }
    }

    /// Adds the code for programs.
    #[must_use]
    pub fn with_error_code(mut self, code: impl Into<String>) -> Self {
        self.error_code = Some(code.into());
        self
    }
}

/// Known values of [`ApiError::error_code`].
pub mod codes {
    /// The idempotency key was used before, with another body.
    pub const IDEMPOTENCY_MISMATCH: &str = "idempotency_request_mismatch";
    /// A create with this idempotency key is under way.
    pub const IDEMPOTENCY_IN_PROGRESS: &str = "idempotency_in_progress";
    /// What became of the first create with this idempotency key is not known.
    pub const IDEMPOTENCY_UNKNOWN: &str = "idempotency_outcome_unknown";
    /// The create with this idempotency key made its sandbox, which has ended. Said by Sandhold's server alone.
    pub const IDEMPOTENCY_ENDED: &str = "idempotency_sandbox_ended";
    /// The daemon inside did not answer while the sandbox was to be stored.
    pub const GUEST_UNRESPONSIVE: &str = "sandbox_snapshot_guest_agent_unresponsive";
}
