//! Tries again what is safe to try again.
//!
//! Only idempotent requests go through a [`RetryPolicy`]: it looks at [`Error::is_retryable`], which the place that knows
//! sets, and never at the kind. A create is not idempotent, unless the provider takes an idempotency key.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::{Error, ErrorKind, Outcome, Result};

/// How often and how fast an idempotent request is tried again. Plain data: copy it and set what differs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// Attempts after the first; 0 turns retries off; default 4.
    pub max_retries: u32,
    /// Wait before the first retry, doubled after each and jittered down to half; default 200 ms.
    pub initial_backoff: Duration,
    /// Upper bound of one wait; default 10 s. A delay that the provider names is not shortened by it.
    pub max_backoff: Duration,
    /// Upper bound of all attempts and waits together; default 60 s.
    pub budget: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_retries: 4,
            initial_backoff: Duration::from_millis(200),
            max_backoff: Duration::from_secs(10),
            budget: Duration::from_secs(60),
        }
    }
}

impl RetryPolicy {
    /// One attempt only, within the default budget.
    #[must_use]
    pub fn never() -> Self {
        Self::default().with_max_retries(0)
    }

    /// Sets the number of attempts after the first.
    #[must_use]
    pub fn with_max_retries(mut self, retries: u32) -> Self {
        self.max_retries = retries;
        self
    }

    /// Sets the wait before the first retry.
    #[must_use]
    pub fn with_initial_backoff(mut self, backoff: Duration) -> Self {
        self.initial_backoff = backoff;
        self
    }

    /// Sets the upper bound of one wait.
    #[must_use]
    pub fn with_max_backoff(mut self, backoff: Duration) -> Self {
        self.max_backoff = backoff;
        self
    }

    /// Sets the upper bound of all attempts and waits together.
    #[must_use]
    pub fn with_budget(mut self, budget: Duration) -> Self {
        self.budget = budget;
        self
    }

    /// Runs `attempt` until it succeeds, fails for good, or the policy is used up.
    ///
    /// The provider's own delay ([`Error::retry_after`]) wins over the backoff. One that does not fit into the budget
    /// ends the loop at once: the caller learns the delay, and nothing sleeps in vain.
    ///
    /// # Errors
    /// The last error, with the number of tries as context `attempts`. [`ErrorKind::Timeout`] when an attempt was still
    /// under way at the end of the budget; its outcome is unknown.
    ///
    /// # Cancellation
    /// As the attempt under way; no other begins.
    pub async fn run<T, F>(&self, mut attempt: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send,
    {
        let started = Instant::now();
        let mut backoff = self.initial_backoff.min(self.max_backoff);
        let mut attempts = 1u32;
        let mut earlier: Option<Error> = None;
        loop {
            let Ok(result) = within(started, self.budget, attempt()).await else {
                let mut error = Error::new(
                    ErrorKind::Timeout,
                    format!("no answer within the retry budget of {:?}", self.budget),
                )
                .with_outcome(Outcome::Unknown)
                .with_context("attempts", attempts);
                if let Some(earlier) = earlier {
                    error = error.at(earlier.provider(), earlier.operation()).with_source(earlier);
                }
                return Err(error);
            };
            let error = match result {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let wait = error.retry_after().unwrap_or_else(|| backoff.mul_f64(0.5 + fastrand::f64() / 2.0));
            let fits = started.elapsed().checked_add(wait).is_some_and(|end| end <= self.budget);
            if !error.is_retryable() || attempts > self.max_retries || !fits {
                return Err(error.with_context("attempts", attempts));
            }
            tracing::debug!(kind = %error.kind(), attempts, ?wait, "trying again");
            sleep(wait).await;
            attempts += 1;
            backoff = backoff.saturating_mul(2).min(self.max_backoff);
            earlier = Some(error);
        }
    }
}

/// Ends the future at `started + budget`; a budget beyond what a clock can hold is no bound.
async fn within<F: Future>(started: Instant, budget: Duration, future: F) -> Result<F::Output, ()> {
    match started.checked_add(budget) {
        Some(end) => timeout_at(end, future).await.map_err(|_| ()),
        None => Ok(future.await),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn unavailable(after: Option<Duration>) -> Error {
        Error::new(ErrorKind::Unavailable, "try later").retryable(after)
    }

    fn attempts(error: &Error) -> Option<&str> {
        error.context().find(|(name, _)| *name == "attempts").map(|(_, value)| value)
    }

    async fn failing(policy: &RetryPolicy, error: Error) -> (u32, Error) {
        let calls = AtomicU32::new(0);
        let failed = policy
            .run(|| {
                calls.fetch_add(1, Ordering::Relaxed);
                let error = error.clone();
                async move { Err::<(), _>(error) }
            })
            .await
            .unwrap_err();
        (calls.into_inner(), failed)
    }

    #[tokio::test(start_paused = true)]
    async fn retry_stops_after_max_retries_and_keeps_the_kind() {
        let (calls, error) = failing(&RetryPolicy::default(), unavailable(None)).await;
        assert_eq!((calls, error.kind(), attempts(&error)), (5, ErrorKind::Unavailable, Some("5")));
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_that_is_not_retryable_ends_it_at_once() {
        let error = unavailable(Some(Duration::ZERO)).not_retryable();
        let (calls, error) = failing(&RetryPolicy::default(), error).await;
        assert_eq!((calls, attempts(&error)), (1, Some("1")));
    }

    #[tokio::test(start_paused = true)]
    async fn the_delay_of_the_provider_wins_over_the_backoff() {
        let started = Instant::now();
        let policy = RetryPolicy::default().with_max_retries(1);
        failing(&policy, unavailable(Some(Duration::from_secs(17)))).await;
        let waited = started.elapsed();
        assert!(waited >= Duration::from_secs(17) && waited < Duration::from_secs(18), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_delay_beyond_the_budget_is_reported_and_not_slept() {
        for delay in [Duration::from_secs(61), Duration::MAX] {
            let started = Instant::now();
            let (calls, error) = failing(&RetryPolicy::default(), unavailable(Some(delay))).await;
            assert_eq!((calls, error.retry_after()), (1, Some(delay)));
            assert_eq!(started.elapsed(), Duration::ZERO);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_that_hangs_ends_with_the_budget() {
        let started = Instant::now();
        let calls = AtomicU32::new(0);
        let error = RetryPolicy::default()
            .run(|| {
                let first = calls.fetch_add(1, Ordering::Relaxed) == 0;
                async move {
                    if first {
                        return Err::<(), _>(unavailable(None).at("fake", "find"));
                    }
                    std::future::pending().await
                }
            })
            .await
            .unwrap_err();
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Timeout, Outcome::Unknown));
        assert_eq!((attempts(&error), error.operation()), (Some("2"), "find"));
        let waited = started.elapsed();
        assert!(waited >= Duration::from_secs(60) && waited < Duration::from_secs(61), "{waited:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn waits_double_up_to_their_bound() {
        let policy = RetryPolicy::default()
            .with_max_retries(6)
            .with_initial_backoff(Duration::from_secs(1))
            .with_max_backoff(Duration::from_secs(4));
        let started = Instant::now();
        failing(&policy, unavailable(None)).await;
        // 1, 2, 4, 4, 4, 4 seconds, each between half and whole.
        let waited = started.elapsed();
        assert!(
            waited > Duration::from_millis(9_400) && waited <= Duration::from_millis(19_100),
            "{waited:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn success_after_failures_is_success() {
        let calls = AtomicU32::new(0);
        let result = RetryPolicy::default()
            .run(|| {
                let call = calls.fetch_add(1, Ordering::Relaxed);
                async move { if call < 3 { Err(unavailable(None)) } else { Ok(call) } }
            })
            .await;
        assert_eq!(result.unwrap(), 3);
    }
}
