//! Settling a create whose outcome is open: its sandbox is found and adopted, or its absence is proven.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::contend::{CONTENDED, made};
use super::flight::Stage;
use super::steps::{Acquisition, Found};
use super::{Acquired, Home, How, ReplaceWhenGone};
use crate::lifecycle::forget;
use crate::registry::{Lease, Phase, Record};
use crate::tenure::{kept, refresh, within};
use crate::{Error, ErrorKind, FindQuery, Outcome, Result, SandboxInfo};

/// Pauses between two looks for an attempt whose answer was lost: the first, and the longest.
pub(super) const SETTLE_POLL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

impl Acquisition {
    /// Takes over an open create: its sandbox is adopted, or its absence is proven.
    pub(super) async fn settle_and_go_on(&self, mut record: Record, lease: Lease) -> Result<Acquired> {
        let since = record.begun();
        // A conflict with what may not be there is none yet.
        let is_to_be_replaced = self.is_to_be_replaced(&record);
        // Not where this caller wants another one, or none; nor where the age of an attempt tells contenders apart.
        let may_send = self.home.provider.capabilities().idempotent_create
            && self.home.spans_hosts()
            && self.options.provider_id.is_none()
            && matches!(is_to_be_replaced, Ok(false))
            && (record.replaces.is_none() || self.options.replace_when_gone == ReplaceWhenGone::Create);
        let absence = if may_send { Absence::Seen } else { Absence::Proven };
        if self.options.provider_id.is_some() && !self.home.provider.capabilities().tags {
            // Nothing can be looked for: the caller says which one it is.
            record.abandon();
            return Box::pin(self.by_id(Some(record), lease)).await;
        }
        // Whoever sent it may have been more patient than this caller. How old it is counts only as far as it is known.
        let look = settle(&self.home, &record, since, self.home.call_limit(), absence, &self.stage);
        let (found, lease) = kept(&self.home, &self.key, lease, look).await?;
        match found {
            Some(info) => {
                let is_to_be_replaced = is_to_be_replaced?;
                let (found, lease) = self.adopt(record, info, since, lease).await?;
                self.check_named(found.connection.handle.id())?;
                match is_to_be_replaced {
                    true => Box::pin(self.replace(found.record, lease)).await,
                    false => Box::pin(self.set_up(found, lease)).await,
                }
            }
            None if may_send => {
                let (found, lease) = self.send_create(record, 1, lease).await.map_err(|error| {
                    // The attempt made its sandbox, and that one has ended meanwhile: nobody had it.
                    let is_spent = error.kind() == ErrorKind::Gone && error.outcome() == Outcome::NotStarted;
                    if is_spent { error.with_reason(CONTENDED) } else { error }
                })?;
                Box::pin(self.set_up(found, lease)).await
            }
            None => {
                record.abandon();
                Box::pin(self.by_id(Some(record), lease)).await
            }
        }
    }

    /// Takes care of a create from its sending on.
    pub(super) fn open(&self, record: &Record, sent_at: Instant) -> Open {
        let background = Self { stage: Arc::default(), ..self.clone() };
        Open(Some((background, record.clone(), sent_at)))
    }

    /// Settles a create that nobody waits for any more, as long as it may take and somebody would wait.
    async fn settle_later(self, record: Record, sent_at: Instant) {
        let bound = self.home.provider.capabilities().create_settle.unwrap_or_default();
        let patience = self.longest_call().saturating_add(bound).saturating_add(self.home.wait_limit);
        let key = &self.key;
        match tokio::time::timeout(patience, self.settle_left(record, sent_at)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(%key, %error, "a create that was left is settled by the next acquire")
            }
            Err(_) => {
                tracing::warn!(%key, "a create that was left could not be settled; the next acquire does")
            }
        }
    }

    /// Looks without the lease, so that nobody waits for it, and takes the lease to write down what it found.
    async fn settle_left(&self, record: Record, sent_at: Instant) -> Result<()> {
        let Self { home, key, .. } = self;
        // Whoever has had the lease since has settled it, or sent it again. Versions begin anew where a record was removed.
        let is_open = |now: &Record| {
            now.phase == Phase::Creating && now.attempt == record.attempt && now.version == record.version
        };
        if !home.load(key).await?.is_some_and(|now| is_open(&now)) {
            return Ok(());
        }
        let found = settle(home, &record, sent_at, self.longest_call(), Absence::Proven, &self.stage).await?;
        let lease = home.lease_in_time(key, "settle").await?;
        let Some(now) = home.load(key).await?.filter(is_open) else { return Ok(()) };
        match found {
            Some(info) => self.adopt(now, info, sent_at, lease).await.map(drop),
            None => give_up(home, now, &lease).await,
        }
    }

    /// The longest that a create of this acquisition is waited for.
    pub(super) fn longest_call(&self) -> Duration {
        self.options.call_deadline.min(self.home.call_limit())
    }

    /// Connects to a sandbox of our own attempt that was never handed out; `sent_at` is when its create was sent.
    pub(super) async fn adopt(
        &self,
        mut record: Record,
        info: SandboxInfo,
        sent_at: Instant,
        mut lease: Lease,
    ) -> Result<(Found, Lease)> {
        self.check_owner(&info, None)?;
        self.stage.of_open_create("connect", &record.attempt);
        refresh(&self.home, &self.key, &mut lease).await.map_err(made)?;
        let connect = within(&self.home, &self.key, &lease, "connect", self.connect(&info));
        let Some(connection) = connect.await.map_err(made)? else {
            return Err(self
                .error(ErrorKind::Unavailable, "the created sandbox was found and then gone; acquire again")
                .with_context("id", info.id)
                .with_outcome(Outcome::Done)
                .retryable(None));
        };
        record.id = Some(info.id);
        record.fingerprint = self.home.provider.fingerprint();
        let old = record.replaces.clone();
        let found = Found { record, connection, how: How::Adopted, duplicates: Vec::new() };
        // While its answer was lost, another host may have made one.
        let (mut found, lease) = self.contend(found, sent_at, lease).await?;
        if let Some(old) = old.filter(|_| found.how == How::Adopted) {
            found.how = How::Replaced { old };
        }
        Ok((found, lease))
    }
}

/// A create that was sent and is not settled yet. Whoever drops it, also by an error or in the middle of an await, leaves
/// it to be settled in the background.
#[must_use]
pub(super) struct Open(Option<(Acquisition, Record, Instant)>);

impl Open {
    /// Ends the care for it: its outcome is recorded.
    pub(super) fn close(mut self) {
        self.0 = None;
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some((acquisition, record, sent_at)) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(acquisition.settle_later(record, sent_at));
        }
    }
}

/// When an attempt counts as absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absence {
    /// When a complete listing has not shown it: the same attempt is sent again, and yields the same sandbox.
    Seen,
    /// When a complete listing has not shown it that began after the longest create could have become visible.
    Proven,
}

impl Absence {
    /// What is enough where the same attempt may be sent again, or stays known as given up.
    pub(crate) fn of_idempotent(home: &Home) -> Self {
        if home.provider.capabilities().idempotent_create { Self::Seen } else { Self::Proven }
    }
}

/// Gives an attempt up that is proven absent, as far as the provider keeps its bound: should a sandbox of it come after
/// all, it is known.
pub(super) async fn give_up(home: &Home, mut record: Record, lease: &Lease) -> Result<()> {
    record.abandon();
    forget(&*home.registry, record, lease).await.map(drop)
}

/// Finds the sandbox of an attempt whose answer was lost, or proves that there is none.
///
pub(crate) async fn settle(
    home: &Home,
    record: &Record,
    since: Instant,
    call_deadline: Duration,
    absence: Absence,
    stage: &Stage,
) -> Result<Option<SandboxInfo>> {
    stage.of_open_create("settle", &record.attempt);
    let capabilities = home.provider.capabilities();
    let error = |kind, message: Cow<'static, str>| {
        Error::new(kind, message)
            .at(home.provider.name(), "settle")
            .with_context("key", &record.key)
            .with_context("attempt", &record.attempt)
    };
    if !capabilities.tags {
        // No listing tells what an attempt has made. Where it may be sent again, that tells.
        return match absence {
            Absence::Seen => Ok(None),
            Absence::Proven => Err(error(
                ErrorKind::OutcomeUnknown,
                "a create's answer was lost, and the provider keeps no tags to find its sandbox by; look there, and name \
                 what it made by provider_id"
                    .into(),
            )),
        };
    }
    let mut pause = SETTLE_POLL.0;
    loop {
        let provable = absence == Absence::Seen
            || capabilities
                .create_settle
                .is_some_and(|settle| since.elapsed() > call_deadline.saturating_add(settle));
        let query = FindQuery::Key {
            owner: record.owner.clone(),
            key: record.key.clone(),
            attempt: Some(record.attempt.clone()),
        };
        let mut asked_for = Duration::ZERO;
        match home.provider.find(query).await {
            Ok(mut found) => match found.len() {
                0 if provable => {
                    home.check_absence(record, "settle")?;
                    return Ok(None);
                }
                0 => {}
                1 => return Ok(found.pop()),
                several => {
                    let message = format!("{several} sandboxes carry one attempt");
                    return Err(error(ErrorKind::Unexpected, message.into()));
                }
            },
            Err(lost) if lost.is_retryable() || lost.kind() == ErrorKind::Unavailable => {
                tracing::debug!(key = %record.key, error = %lost, "the look for a lost create failed; looking again");
                asked_for = lost.retry_after().unwrap_or_default();
            }
            Err(cause) => {
                let message = "a create's answer was lost and its sandbox cannot be looked for";
                return Err(error(ErrorKind::OutcomeUnknown, message.into()).with_source(cause));
            }
        }
        tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0).max(asked_for)).await;
        pause = (pause * 2).min(SETTLE_POLL.1);
    }
}
