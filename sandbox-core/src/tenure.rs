//! The right to change a record, over time: lent to hooks, renewed while they run, and put down before another contender
//! can have it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard, OwnedMutexGuard, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::acquire::{Home, refuse_inside};
use crate::registry::{Lease, Record};
use crate::{Error, ErrorKind, Key, Result};

/// A lease in use. A flight lends its own to the values that its hooks get: what they do to the sandbox would else wait
/// for the very flight that waits for them.
#[derive(Debug)]
pub(crate) struct Tenure {
    lease: Mutex<Option<Lease>>,
    /// Held by the call that changes the sandbox under it: one at a time.
    call: Arc<Mutex<()>>,
    used: AtomicBool,
    at_rest: watch::Sender<bool>,
}

impl Tenure {
    pub(crate) fn new(lease: Lease) -> Arc<Self> {
        Arc::new(Self {
            lease: Mutex::new(Some(lease)),
            call: Arc::default(),
            used: AtomicBool::new(false),
            at_rest: watch::Sender::default(),
        })
    }

    /// Ends it, after the call that uses it right now.
    pub(crate) async fn end(&self) -> Option<Lease> {
        let _call = self.call.lock().await;
        self.lease.lock().await.take()
    }

    /// Says whether a call that it was lent to may have written the record.
    pub(crate) fn was_used(&self) -> bool {
        self.used.load(Ordering::Acquire)
    }

    /// Says whether the sandbox was stopped or destroyed by a call that it was lent to, and not resumed since.
    pub(crate) fn is_at_rest(&self) -> bool {
        *self.at_rest.borrow()
    }

    /// Waits until the sandbox was stopped or destroyed, and for so long not resumed since.
    pub(crate) async fn rested(&self, grace: Duration) {
        let mut at_rest = self.at_rest.subscribe();
        // The sender is this tenure's own: no wait ends without what it waits for.
        while at_rest.wait_for(|at_rest| *at_rest).await.is_ok() {
            if timeout(grace, at_rest.wait_for(|at_rest| !at_rest)).await.is_err() {
                return;
            }
        }
    }

    /// The lease, for the moment of its use: it is not renewed meanwhile.
    async fn lease(&self, home: &Home, key: &Key) -> Result<MappedMutexGuard<'_, Lease>> {
        MutexGuard::try_map(self.lease.lock().await, Option::as_mut)
            .map_err(|_| Lease::lost(&home.owner, key))
    }

    /// Stores a record under it.
    pub(crate) async fn store(&self, home: &Home, record: Record) -> Result<Record> {
        let lease = self.lease(home, &record.key.clone()).await?;
        home.registry.store(record, &lease).await
    }

    /// Runs work while the lease is renewed. Work that is not done when it can be renewed no more is dropped, before
    /// another contender can have the lease.
    ///
    /// # Errors
    /// [`ErrorKind::Stale`] with reason `lease_lost` then; what the registry answered, and the work was not begun, where
    /// it had to be renewed first.
    pub(crate) async fn keep<T>(
        &self,
        home: &Home,
        key: &Key,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        refresh(home, key, &mut *self.lease(home, key).await?).await?;
        tokio::select! {
            biased;
            lost = self.renewed_until_lost(home, key) => Err(lost),
            done = work => done,
        }
    }

    async fn renewed_until_lost(&self, home: &Home, key: &Key) -> Error {
        let ttl = home.record_lease;
        let mut until = match self.lease(home, key).await {
            Ok(lease) => lease.valid_until,
            Err(lost) => return lost,
        };
        let (mut pause, mut why) = (ttl / 3, None::<Error>);
        loop {
            let renewal = async {
                sleep(pause).await;
                let mut lease = self.lease(home, key).await?;
                home.registry.renew(&home.owner, key, &mut lease, ttl).await?;
                Ok::<_, Error>(lease.valid_until)
            };
            let end = async {
                match until {
                    Some(until) => sleep_until(until.checked_sub(margin(home)).unwrap_or(until)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                renewed = renewal => match renewed {
                    Ok(renewed) => (until, pause) = (renewed, ttl / 3),
                    Err(error) if error.kind() == ErrorKind::Stale => return error,
                    Err(error) => (why, pause) = (Some(error), ttl / 12),
                },
                () = end => {
                    let lost = Lease::lost(&home.owner, key);
                    return match why {
                        Some(why) => lost.with_source(why),
                        None => lost,
                    };
                }
            }
        }
    }
}

/// Runs work while a lease is renewed, as [`Tenure::keep`], and gives the lease back with what came of it.
pub(crate) async fn kept<T>(
    home: &Home,
    key: &Key,
    lease: Lease,
    work: impl Future<Output = Result<T>>,
) -> Result<(T, Lease)> {
    let tenure = Tenure::new(lease);
    let done = tenure.keep(home, key, work).await?;
    let lease = tenure.end().await.ok_or_else(|| Lease::lost(&home.owner, key))?;
    Ok((done, lease))
}

/// What is left of a lease when the last call under it has ended: enough to write down what became of it.
fn margin(home: &Home) -> Duration {
    home.record_lease.saturating_sub(home.call_limit())
}

/// Renews a lease where what was done under it before has used half of it.
///
/// # Errors
/// What the registry answered; [`ErrorKind::Stale`] with reason `lease_lost` where it did not answer in time.
pub(crate) async fn refresh(home: &Home, key: &Key, lease: &mut Lease) -> Result<()> {
    let Some(until) = lease.valid_until else { return Ok(()) };
    let left = until.saturating_duration_since(Instant::now());
    if left > home.record_lease / 2 {
        return Ok(());
    }
    let renewal = home.registry.renew(&home.owner, key, lease, home.record_lease);
    timeout(left, renewal).await.unwrap_or_else(|_| Err(Lease::lost(&home.owner, key)))
}

/// How long a call that is sent now may last.
pub(crate) fn left(home: &Home, lease: &Lease) -> Duration {
    match lease.valid_until {
        Some(until) => until.saturating_duration_since(Instant::now()).saturating_sub(margin(home)),
        None => home.call_limit(),
    }
}

/// Sends a call that must not act once another contender has the lease: it is waited for no longer than that is sure.
///
/// # Errors
/// [`ErrorKind::Stale`] with reason `lease_lost`, and nothing was sent, when this process slept for too long;
/// [`ErrorKind::OutcomeUnknown`] when no answer came in time.
pub(crate) async fn within<T>(
    home: &Home,
    key: &Key,
    lease: &Lease,
    operation: &'static str,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    let limit = left(home, lease);
    if limit.is_zero() {
        return Err(Lease::lost(&home.owner, key));
    }
    timeout(limit, call).await.unwrap_or_else(|_| {
        Err(Error::new(
            ErrorKind::OutcomeUnknown,
            format!("the {operation} did not answer within {limit:?}; ask for it again"),
        )
        .at(home.provider.name(), operation)
        .with_context("key", key))
    })
}

/// The right of one call to change the record: under a lease of its own, or the one that a flight lent.
pub(crate) struct Held {
    tenure: Arc<Tenure>,
    _call: OwnedMutexGuard<()>,
    is_lent: bool,
}

impl Held {
    /// Takes the lease, waiting no longer than the host's limit.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] with reason `reentrant` inside a hook that runs under the lease of this very key.
    pub(crate) async fn take(
        home: &Home,
        key: &Key,
        lent: &Weak<Tenure>,
        operation: &'static str,
    ) -> Result<Self> {
        if let Some(tenure) = lent.upgrade() {
            let call = Arc::clone(&tenure.call).lock_owned().await;
            if tenure.lease.lock().await.is_some() {
                tenure.used.store(true, Ordering::Release);
                return Ok(Self { tenure, _call: call, is_lent: true });
            }
        }
        // Around this hook the lease is held by whoever waits for it.
        refuse_inside(home, key, operation)?;
        let tenure = Tenure::new(home.lease_in_time(key, operation).await?);
        let call = Arc::clone(&tenure.call).lock_owned().await;
        Ok(Self { tenure, _call: call, is_lent: false })
    }

    pub(crate) async fn lease(&self, home: &Home, key: &Key) -> Result<MappedMutexGuard<'_, Lease>> {
        self.tenure.lease(home, key).await
    }

    /// What lives as long as this right.
    pub(crate) fn tenure(&self) -> Weak<Tenure> {
        Arc::downgrade(&self.tenure)
    }

    /// As [`Tenure::keep`].
    pub(crate) async fn keep<T>(
        &self,
        home: &Home,
        key: &Key,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.tenure.keep(home, key, work).await
    }

    /// Notes what a call did, for the flight that lent its lease.
    pub(crate) fn rests(&self, at_rest: bool) {
        if self.is_lent {
            self.tenure.at_rest.send_replace(at_rest);
        }
    }
}
