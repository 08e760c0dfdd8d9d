//! Creating: intent before the call, unknown outcomes settled, contenders without a shared registry compared.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::flight::Stage;
use super::steps::{Acquisition, CONTENDED, Found, senior};
use super::{Acquired, Exclusion, Home, How};
use crate::lifecycle::forget;
use crate::registry::{Lease, Phase, Record, RegistryScope};
use crate::{
    Connection, CreateOptions, Error, ErrorKind, FindQuery, Outcome, Result, SandboxHandle, SandboxId,
    SandboxInfo, Tags,
};

/// Pauses between two looks for an attempt whose answer was lost: the first, and the longest.
const SETTLE_POLL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// How often one attempt is sent to a provider that makes one sandbox of it, before its answer is given up.
const MAX_SENDS: u32 = 3;

/// What became of one create call.
enum Sent {
    Made { record: Record, handle: Arc<dyn SandboxHandle>, lease: Lease },
    Failed { record: Record, error: Error, lease: Lease },
}

impl Acquisition {
    /// Creates under a new attempt. `record` is the one to write over, `old` the sandbox it takes the place of.
    pub(super) async fn create(
        &self,
        record: Option<Record>,
        old: Option<SandboxId>,
        lease: Lease,
    ) -> Result<Acquired> {
        self.check_exclusion()?;
        let mut intent = Record::intent(
            self.home.owner.clone(),
            self.key.clone(),
            self.home.provider.name(),
            self.home.provider.fingerprint(),
            self.options.spec.clone(),
        )?;
        if let Some(record) = record {
            intent.version = record.version;
            intent.abandoned = record.abandoned;
        }
        self.stage.enter("intent");
        let intent = self.home.registry.store(intent, &lease).await?;
        self.send_create(intent, old, lease).await
    }

    fn check_exclusion(&self) -> Result<()> {
        let capabilities = self.home.provider.capabilities();
        let bounded = capabilities.list_visibility.is_some() && capabilities.create_settle.is_some();
        if self.home.registry.scope() == RegistryScope::Process
            && !bounded
            && self.options.exclusion == Exclusion::Proven
        {
            return Err(self
                .error(
                    ErrorKind::Unsupported,
                    "the provider states no bound on its listing: use a registry that all hosts share, or say Exclusion::BestEffort",
                )
                .with_reason("exclusion"));
        }
        Ok(())
    }

    /// Sends the create of a stored intent and sees it to its end.
    pub(super) async fn send_create(
        &self,
        record: Record,
        old: Option<SandboxId>,
        mut lease: Lease,
    ) -> Result<Acquired> {
        let idempotent = self.home.provider.capabilities().idempotent_create;
        let (mut record, mut sends) = (record, 0);
        loop {
            self.stage.enter("create");
            self.home.registry.renew(&self.home.owner, &self.key, &mut lease, self.home.record_lease).await?;
            let sent_at = Instant::now();
            sends += 1;
            let error = match self.send(record, lease).await? {
                Sent::Made { record, handle, lease } => {
                    let how = match old {
                        Some(old) => How::Replaced { old },
                        None => How::Fresh,
                    };
                    let connection = Connection::new(handle, None);
                    let found = Found { record, connection, how, duplicates: Vec::new() };
                    return self.contend(found, sent_at, lease).await;
                }
                Sent::Failed { record: unmade, error, lease: kept } => {
                    (record, lease) = (unmade, kept);
                    error
                }
            };
            if error.outcome() == Outcome::NotStarted {
                // Nothing was made, so nothing must be settled; the next acquire begins afresh.
                forget(&*self.home.registry, record, &lease).await?;
                return Err(error);
            }
            tracing::warn!(key = %self.key, %error, "the answer of a create was lost; looking for its sandbox");
            match settle(&self.home, &record, sent_at, self.options.call_deadline, &self.stage).await? {
                Some(info) => return self.adopt(record, info, sent_at, lease).await,
                // The same attempt again yields the same sandbox, whether the lost call is done, under way or never came.
                None if idempotent && sends < MAX_SENDS => {}
                None if idempotent => {
                    return Err(error
                        .with_context("attempt", &record.attempt)
                        .with_outcome(Outcome::Unknown)
                        .not_retryable());
                }
                None => {
                    // Proven absent, as far as the provider keeps its bound: should one come after all, it is known.
                    record.abandon();
                    forget(&*self.home.registry, record, &lease).await?;
                    return Err(error.with_outcome(Outcome::NotStarted));
                }
            }
        }
    }

    /// One create call, in a task of its own: a flight that is cancelled leaves it to end and to be recorded.
    async fn send(&self, mut record: Record, lease: Lease) -> Result<Sent> {
        let home = Arc::clone(&self.home);
        let mut deadline = self.options.call_deadline.min(home.call_limit());
        let tags = Tags {
            owner: record.owner.clone(),
            key: record.key.clone(),
            generation: record.generation.clone(),
            attempt: record.attempt.clone(),
        };
        let task = tokio::spawn(async move {
            // Looked at last: this process may have been stopped since the lease was renewed.
            if let Some(until) = lease.valid_until {
                let margin = home.record_lease - home.call_limit();
                let left = until.saturating_duration_since(Instant::now()).saturating_sub(margin);
                if left.is_zero() {
                    return Err(Lease::lost(&record.owner, &record.key));
                }
                deadline = deadline.min(left);
            }
            let options = CreateOptions::new(record.spec.clone(), tags).with_deadline(deadline);
            let answer = tokio::time::timeout(deadline, home.provider.create_opts(options)).await;
            let handle = match answer {
                Ok(Ok(handle)) => handle,
                Ok(Err(error)) => return Ok(Sent::Failed { record, error, lease }),
                Err(_) => {
                    let error = Error::new(
                        ErrorKind::OutcomeUnknown,
                        format!("the create did not answer within {deadline:?}"),
                    )
                    .at(home.provider.name(), "create");
                    return Ok(Sent::Failed { record, error, lease });
                }
            };
            record.id = Some(handle.id().clone());
            record.enter(Phase::Ready);
            match home.registry.store(record.clone(), &lease).await {
                Ok(record) => Ok(Sent::Made { record, handle, lease }),
                Err(error) if error.kind() == ErrorKind::Stale => Err(overtaken(&home, record, error).await),
                // The intent stands in the registry; the next acquire settles it.
                Err(error) => Err(error.with_outcome(Outcome::Unknown)),
            }
        });
        task.await.map_err(|error| {
            self.error(ErrorKind::OutcomeUnknown, "the create's task ended without a result")
                .with_source(error)
        })?
    }

    /// Without a registry that spans all contenders, whoever else created at the same time is seen in the listing, and
    /// every contender picks the same winner.
    pub(super) async fn contend(&self, found: Found, sent_at: Instant, lease: Lease) -> Result<Acquired> {
        let capabilities = self.home.provider.capabilities();
        if self.home.registry.scope() > RegistryScope::Process || !capabilities.tags {
            return self.set_up(found, lease).await;
        }
        self.stage.enter("contend");
        let visible = capabilities.list_visibility.unwrap_or_default();
        if !visible.is_zero() {
            tokio::time::sleep(visible).await;
        }
        let mut listed = self.find_by_key().await?;
        let in_time =
            capabilities.create_settle.is_none_or(|settle| sent_at.elapsed() <= settle.max(visible * 2));
        listed.sort_by(senior);
        let own = found.connection.handle.id().clone();
        match listed.first() {
            Some(winner) if winner.id == own && (in_time || listed.len() == 1) => {
                self.set_up(found, lease).await
            }
            winner => {
                // Nobody was handed ours; the winner is attached to by a new look.
                let winner = winner.map(|info| info.id.to_string()).unwrap_or_default();
                tracing::info!(key = %self.key, own = %own, winner, "another contender created first");
                self.home.provider.destroy(&own).await?;
                forget(&*self.home.registry, found.record, &lease).await?;
                drop(lease);
                Err(self
                    .error(
                        ErrorKind::Conflict,
                        "another host created this key's sandbox at the same time; acquire again",
                    )
                    .with_reason(CONTENDED)
                    .retryable(None))
            }
        }
    }
}

/// Finds the sandbox of an attempt whose answer was lost, or proves that there is none.
///
/// Absence counts only from a complete listing that began after the longest create could have become visible, or at
/// once where the same attempt may be sent again.
pub(crate) async fn settle(
    home: &Home,
    record: &Record,
    since: Instant,
    call_deadline: Duration,
    stage: &Stage,
) -> Result<Option<SandboxInfo>> {
    stage.settle(&record.attempt);
    let capabilities = home.provider.capabilities();
    let error = |kind, message: Cow<'static, str>| {
        Error::new(kind, message)
            .at(home.provider.name(), "settle")
            .with_context("key", &record.key)
            .with_context("attempt", &record.attempt)
    };
    let mut pause = SETTLE_POLL.0;
    loop {
        let provable = capabilities.idempotent_create
            || capabilities
                .create_settle
                .is_some_and(|settle| since.elapsed() > call_deadline.saturating_add(settle));
        let query = FindQuery::Key {
            owner: record.owner.clone(),
            key: record.key.clone(),
            attempt: Some(record.attempt.clone()),
        };
        match home.provider.find(query).await {
            Ok(mut found) => match found.len() {
                0 if provable => return Ok(None),
                0 => {}
                1 => return Ok(found.pop()),
                several => {
                    let message = format!("{several} sandboxes carry one attempt");
                    return Err(error(ErrorKind::Unexpected, message.into()));
                }
            },
            Err(lost) if lost.is_retryable() || lost.kind() == ErrorKind::Unavailable => {
                tracing::debug!(key = %record.key, error = %lost, "the look for a lost create failed; looking again");
            }
            Err(cause) => {
                let message = "a create's answer was lost and its sandbox cannot be looked for";
                return Err(error(ErrorKind::OutcomeUnknown, message.into()).with_source(cause));
            }
        }
        tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
        pause = (pause * 2).min(SETTLE_POLL.1);
    }
}

/// Ends what a creator made that was overtaken before it could say so in the record, unless the sandbox was taken over too:
/// whoever settled the open attempt found it, and callers have it by now.
async fn overtaken(home: &Home, made: Record, error: Error) -> Error {
    let Some(id) = made.id else { return error };
    match home.load(&made.key).await {
        Ok(Some(record)) if record.attempt == made.attempt && !record.has_abandoned(&made.attempt) => error,
        Ok(_) => match home.provider.destroy(&id).await {
            Ok(_) => error,
            Err(cleanup) => error.with_cleanup(&cleanup),
        },
        // Whose it is is unknown, so it is left; its attempt stands in the record, or in the list of those given up.
        Err(cleanup) => error.with_cleanup(&cleanup),
    }
}
