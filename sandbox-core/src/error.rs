use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use crate::ErrorKind;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What is known about the effect of a failed operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The operation provably had no effect. The default.
    #[default]
    NotStarted,
    /// The operation took effect, and the error came afterwards.
    Done,
    /// It may or may not have taken effect.
    Unknown,
}

impl Outcome {
    /// Returns the stable snake_case code.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotStarted => "not_started",
            Self::Done => "done",
            Self::Unknown => "unknown",
        }
    }
}

type Source = std::sync::Arc<dyn StdError + Send + Sync>;

/// An error of any Sandhold call: one kind, where it happened, and what may be done about it.
///
/// `Display` is one line and does not repeat the source. Cloning is cheap enough for sharing one
/// failure between the callers that waited for it.
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    reason: Option<&'static str>,
    message: Cow<'static, str>,
    provider: &'static str,
    operation: &'static str,
    context: Vec<(&'static str, String)>,
    retryable: bool,
    retry_after: Option<Duration>,
    outcome: Option<Outcome>,
    source: Option<Source>,
}

impl Error {
    /// Makes an error that is not retryable and does not say what is known about the effect.
    ///
    /// [`Error::outcome`] is then [`Outcome::NotStarted`], and [`Outcome::Unknown`] for
    /// [`ErrorKind::OutcomeUnknown`]; a create is not taken at that word, see [`crate::SandboxProvider::create_opts`].
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Self(Box::new(Inner {
            kind,
            reason: None,
            message: message.into(),
            provider: "",
            operation: "",
            context: Vec::new(),
            retryable: false,
            retry_after: None,
            outcome: None,
            source: None,
        }))
    }

    /// Makes the error for a call that `provider` has not.
    pub fn unsupported(provider: &'static str, operation: &'static str) -> Self {
        Self::new(ErrorKind::Unsupported, format!("{provider} does not support {operation}"))
            .at(provider, operation)
    }

    /// Makes the error for a bad value; `what` should name the value and the way out.
    pub fn invalid_argument(what: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidArgument, what)
    }

    /// Says where it happened: the provider's name and the operation.
    #[must_use]
    pub fn at(mut self, provider: &'static str, operation: &'static str) -> Self {
        self.0.provider = provider;
        self.0.operation = operation;
        self
    }

    /// Adds a stable reason within the kind, such as `reentrant` within `conflict`.
    #[must_use]
    pub fn with_reason(mut self, reason: &'static str) -> Self {
        self.0.reason = Some(reason);
        self
    }

    /// Adds a pair that is safe to log. A later pair of the same name replaces the earlier one.
    #[must_use]
    pub fn with_context(mut self, name: &'static str, value: impl fmt::Display) -> Self {
        self.0.context.retain(|(known, _)| *known != name);
        self.0.context.push((name, value.to_string()));
        self
    }

    /// Adds the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(Source::from(source.into()));
        self
    }

    /// Marks the error as worth another try, after `retry_after` where the provider named a delay.
    #[must_use]
    pub fn retryable(mut self, retry_after: Option<Duration>) -> Self {
        self.0.retryable = true;
        self.0.retry_after = retry_after;
        self
    }

    /// Takes the retry mark away: the caller knows that the operation may have taken effect.
    #[must_use]
    pub fn not_retryable(mut self) -> Self {
        self.0.retryable = false;
        self
    }

    /// Says what is known about the effect.
    #[must_use]
    pub fn with_outcome(mut self, outcome: Outcome) -> Self {
        self.0.outcome = Some(outcome);
        self
    }

    /// Adds the failure of the clean-up that followed; both travel together.
    #[must_use]
    pub fn with_cleanup(self, cleanup: &Error) -> Self {
        self.with_context("cleanup", cleanup)
    }

    /// Returns the kind.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the stable reason within the kind, where a caller can act on one.
    #[must_use]
    pub fn reason(&self) -> Option<&'static str> {
        self.0.reason
    }

    /// Returns the message without place and context.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the provider's name, or an empty string where none was involved.
    #[must_use]
    pub fn provider(&self) -> &'static str {
        self.0.provider
    }

    /// Returns the operation that failed, or an empty string.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// Returns the context pairs, which are safe to log.
    pub fn context(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.context.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// Tells whether another try may succeed and cannot do harm.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.0.retryable
    }

    /// Returns the delay that the provider asked for.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Returns what is known about the effect.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        self.0.outcome.unwrap_or(match self.0.kind {
            ErrorKind::OutcomeUnknown => Outcome::Unknown,
            _ => Outcome::NotStarted,
        })
    }

    /// Tells whether the create that failed with this has provably made nothing.
    ///
    /// The error says so, or says that the create may be sent again, or is of a kind that a provider answers in the place
    /// of making one. Everything else counts as a lost answer: a second sandbox is worse than a look that finds none.
    pub(crate) fn refuses_create(&self) -> bool {
        match self.0.outcome {
            Some(outcome) => outcome == Outcome::NotStarted,
            None => {
                self.is_retryable()
                    || matches!(
                        self.kind(),
                        ErrorKind::Gone
                            | ErrorKind::InvalidArgument
                            | ErrorKind::NotFound
                            | ErrorKind::PermissionDenied
                            | ErrorKind::QuotaExceeded
                            | ErrorKind::RateLimited
                            | ErrorKind::Unauthenticated
                            | ErrorKind::Unsupported
                    )
            }
        }
    }
}

impl From<std::convert::Infallible> for Error {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        write!(f, "{}", inner.kind)?;
        if let Some(reason) = inner.reason {
            write!(f, " ({reason})")?;
        }
        match (inner.provider, inner.operation) {
            ("", "") => {}
            ("", operation) => write!(f, " at {operation}")?,
            (provider, "") => write!(f, " at {provider}")?,
            (provider, operation) => write!(f, " at {provider} {operation}")?,
        }
        write!(f, ": {}", inner.message)?;
        for (index, (name, value)) in inner.context.iter().enumerate() {
            write!(f, "{}{name}={value}", if index == 0 { " [" } else { ", " })?;
        }
        if !inner.context.is_empty() {
            f.write_str("]")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        f.debug_struct("Error")
            .field("kind", &inner.kind)
            .field("reason", &inner.reason)
            .field("message", &inner.message)
            .field("provider", &inner.provider)
            .field("operation", &inner.operation)
            .field("context", &inner.context)
            .field("retryable", &inner.retryable)
            .field("retry_after", &inner.retry_after)
            .field("outcome", &self.outcome())
            .field("source", &inner.source)
            .finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_one_line_without_the_source() {
        let error = Error::new(ErrorKind::RateLimited, "too many sandboxes are starting")
            .at("e2b", "create")
            .with_context("status", 429)
            .with_source("the body");
        assert_eq!(
            error.to_string(),
            "rate_limited at e2b create: too many sandboxes are starting [status=429]"
        );
        assert_eq!(error.source().map(ToString::to_string).as_deref(), Some("the body"));
    }

    #[test]
    fn an_error_is_one_pointer_wide() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
    }
}
