//! Creating: the intent is written down right before the call, and its outcome is seen to the end.

use std::sync::Arc;

use tokio::time::Instant;

use super::contend::record_made;
use super::settle::{Absence, give_up, settle};
use super::steps::{Acquisition, Found};
use super::{Acquired, Exclusion, How, ReplacedBecause};
use crate::lifecycle::forget;
use crate::registry::{Lease, Phase, Record};
use crate::tenure::kept;
use crate::{Connection, CreateOptions, Error, ErrorKind, Outcome, Result, SandboxHandle, SandboxId, Tags};

/// How often one attempt is sent to a provider that makes one sandbox of it, before its answer is given up.
const MAX_SENDS: u32 = 3;

/// What became of one create call.
enum Sent {
    Made { record: Record, handle: Arc<dyn SandboxHandle>, lease: Lease },
    Failed { record: Record, error: Error, lease: Lease },
}

impl Acquisition {
    /// Creates under a new attempt. `record` is the one to write over, `old` the sandbox it takes the place of, and why.
    pub(super) async fn create(
        &self,
        record: Option<Record>,
        old: Option<(SandboxId, ReplacedBecause)>,
        lease: Lease,
    ) -> Result<Acquired> {
        self.check_create()?;
        let mut intent = Record::intent(
            self.home.owner.clone(),
            self.key.clone(),
            self.home.provider.name(),
            self.home.provider.fingerprint(),
            self.options.spec.clone(),
        )?;
        (intent.replaces, intent.replaced_because) = old.unzip();
        if let Some(record) = record {
            intent.version = record.version;
            intent.abandoned = record.abandoned;
        }
        self.stage.enter("intent");
        let (found, lease) = self.send_create(intent, 0, lease).await?;
        Box::pin(self.set_up(found, lease)).await
    }

    /// Refuses what no create could bring, before anything is written down or ended for it.
    pub(super) fn check_create(&self) -> Result<()> {
        let capabilities = self.home.provider.capabilities();
        capabilities
            .check(&self.options.spec)
            .map_err(|error| error.at(self.home.provider.name(), "acquire").with_context("key", &self.key))
            .and_then(|()| self.home.provider.check_spec(&self.options.spec))
            .map_err(|error| error.with_outcome(Outcome::NotStarted))?;
        // Without a common registry hosts meet in the listing of what is tagged with the key.
        let bounded = capabilities.tags
            && capabilities.list_visibility.is_some()
            && capabilities.create_settle.is_some();
        if !self.home.spans_hosts() && !bounded && self.options.exclusion == Exclusion::Proven {
            return Err(self
                .error(
                    ErrorKind::Unsupported,
                    "the provider states no bound on its listing: use a registry that all hosts share, or say Exclusion::BestEffort",
                )
                .with_reason("exclusion"));
        }
        Ok(())
    }

    /// Sends the create of an intent, which is written down here, and sees it to its end. `sends` is how often it is known
    /// to have been sent before.
    pub(super) async fn send_create(
        &self,
        mut record: Record,
        mut sends: u32,
        mut lease: Lease,
    ) -> Result<(Found, Lease)> {
        let home = &self.home;
        let idempotent = home.provider.capabilities().idempotent_create;
        let old = record.replaces.clone();
        let last = sends + MAX_SENDS;
        loop {
            home.registry.renew(&home.owner, &self.key, &mut lease, home.record_lease).await?;
            // Whoever takes this create over counts its time from here.
            record.enter(Phase::Creating);
            let sent_at = Instant::now();
            record = home.registry.store(record, &lease).await?;
            self.stage.of_open_create("create", &record.attempt);
            let open = self.open(&record, sent_at);
            sends += 1;
            let error = match self.send(record, sent_at, lease).await? {
                Sent::Made { record, handle, lease } => {
                    let how = match old {
                        Some(old) => How::Replaced { old },
                        None => How::Fresh,
                    };
                    let connection = Connection::new(handle, None);
                    let found = Found { record, connection, how, duplicates: Vec::new() };
                    let settled = self.contend(found, sent_at, lease).await?;
                    open.close();
                    return Ok(settled);
                }
                Sent::Failed { record: unmade, error, lease: kept } => {
                    (record, lease) = (unmade, kept);
                    error
                }
            };
            if error.refuses_create() {
                // Only the end of what an attempt has made tells what became of an earlier send of it: that one may have
                // been carried out, or be on its way, so the attempt stays open.
                if sends > 1 && error.kind() != ErrorKind::Gone {
                    return Err(error
                        .with_context("attempt", &record.attempt)
                        .with_outcome(Outcome::Unknown));
                }
                open.close();
                // Nothing was made, so nothing must be settled; the next acquire begins where this one did.
                forget(&*home.registry, record, &lease).await?;
                return Err(error);
            }
            tracing::warn!(key = %self.key, %error, "the answer of a create was lost; looking for its sandbox");
            // An attempt that was sent before with another body has made a sandbox, which is listed in time.
            let exists = matches!(error.kind(), ErrorKind::Conflict | ErrorKind::AlreadyExists);
            let absence = if exists { Absence::Proven } else { Absence::of_idempotent(home) };
            let look = settle(home, &record, sent_at, self.longest_call(), absence, &self.stage);
            let found;
            (found, lease) = kept(home, &self.key, lease, look).await?;
            match found {
                Some(info) => {
                    let settled = self.adopt(record, info, sent_at, lease).await?;
                    open.close();
                    return Ok(settled);
                }
                // The same attempt again yields the same sandbox, whether the lost call is done, under way or never came.
                None if idempotent && sends < last => open.close(),
                None if idempotent => {
                    return Err(error
                        .with_context("attempt", &record.attempt)
                        .with_outcome(Outcome::Unknown)
                        .not_retryable());
                }
                None => {
                    give_up(home, record, &lease).await?;
                    open.close();
                    return Err(error.with_outcome(Outcome::NotStarted));
                }
            }
        }
    }

    /// One create call, in a task of its own: a flight that is cancelled leaves it to end and to be recorded.
    async fn send(&self, mut record: Record, sent_at: Instant, lease: Lease) -> Result<Sent> {
        let home = Arc::clone(&self.home);
        let longest = self.longest_call();
        let tags = Tags {
            owner: record.owner.clone(),
            key: record.key.clone(),
            generation: record.generation.clone(),
            attempt: record.attempt.clone(),
        };
        let attempt = record.attempt.clone();
        let task = tokio::spawn(async move {
            // Looked at last: this process may have been stopped since the lease was renewed and the intent written.
            let mut deadline = longest.saturating_sub(sent_at.elapsed());
            if let Some(until) = lease.valid_until {
                let margin = home.record_lease - home.call_limit();
                let left = until.saturating_duration_since(Instant::now()).saturating_sub(margin);
                deadline = deadline.min(left);
            }
            if deadline.is_zero() {
                return Err(Lease::lost(&record.owner, &record.key));
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
            if !home.must_compare() {
                record = record_made(&home, record, &lease).await?;
            }
            Ok(Sent::Made { record, handle, lease })
        });
        task.await.map_err(|error| {
            self.error(ErrorKind::OutcomeUnknown, "the create's task ended without a result")
                .with_context("attempt", attempt)
                .with_source(error)
        })?
    }
}
