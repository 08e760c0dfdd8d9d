//! Recording what a create has made: once it is compared, where hosts meet in the provider's listing only.

use tokio::time::Instant;

use super::setup::read_mark;
use super::steps::{Acquisition, Found};
use super::{Home, How};
use crate::lifecycle::forget;
use crate::registry::{Lease, Phase, Record};
use crate::tenure::kept;
use crate::{Error, ErrorKind, Outcome, Result, SandboxInfo};

/// The reason of the error after which an acquisition begins again.
pub(super) const CONTENDED: &str = "contended";

impl Acquisition {
    /// Records a sandbox that our create has made, once it is known to be the one of its key; `sent_at` is when the create
    /// was sent.
    ///
    /// Without a registry that spans all contenders, whoever else created at the same time is seen in the listing, and
    /// every contender picks the same winner. The create stays open until then: whoever is cut short in here settles it
    /// at the next acquire, and compares before anybody is handed the sandbox.
    pub(super) async fn contend(
        &self,
        mut found: Found,
        sent_at: Instant,
        mut lease: Lease,
    ) -> Result<(Found, Lease)> {
        if self.home.must_compare() {
            self.stage.of_open_create("contend", &found.record.attempt);
            let compared = kept(&self.home, &self.key, lease, self.compare(&found, sent_at));
            let (is_first, setup);
            ((is_first, setup), lease) = compared.await.map_err(made)?;
            if !is_first {
                return Err(self.stand_back(found, setup.is_none(), lease).await);
            }
            if setup.is_some() {
                (found.record.setup_done, found.how) = (setup, How::Attached);
            }
        }
        if found.record.phase != Phase::Ready {
            found.record = record_made(&self.home, found.record, &lease).await?;
        }
        Ok((found, lease))
    }

    /// Tells whether our sandbox is the one that every contender picks, and which setup another host has done in it that
    /// found it first.
    async fn compare(&self, found: &Found, sent_at: Instant) -> Result<(bool, Option<u64>)> {
        let capabilities = self.home.provider.capabilities();
        let visible = capabilities.list_visibility.unwrap_or_default();
        if !visible.is_zero() {
            tokio::time::sleep(visible).await;
        }
        let listed = self.find_by_key().await?;
        // The provider may tell a sandbox that was resumed from a new one by the age of its attempt alone.
        let drawn = found.record.attempt.drawn_at().and_then(|drawn| drawn.elapsed().ok());
        let took = sent_at.elapsed().max(drawn.unwrap_or_default());
        let in_time = capabilities.create_settle.is_none_or(|settle| took <= settle.max(visible * 2));
        let handle = &found.connection.handle;
        // Nobody else can have had one that we had from its beginning, in time.
        let setup = match in_time && found.how != How::Adopted {
            true => None,
            false => read_mark(&**handle, &found.record.generation).await?,
        };
        let may_win = in_time || listed.len() == 1 || setup.is_some();
        let first = listed.iter().min_by(|a, b| senior(a, b));
        Ok((may_win && first.is_some_and(|first| first.id == *handle.id()), setup))
    }

    /// Gives our sandbox up for another contender's, which is attached to by a new look.
    async fn stand_back(&self, found: Found, nobody_has_it: bool, mut lease: Lease) -> Error {
        let own = found.connection.handle.id();
        tracing::info!(key = %self.key, %own, "another contender created first");
        let ended = async {
            if nobody_has_it {
                self.end(own, &mut lease).await.map_err(made)?;
            }
            forget(&*self.home.registry, found.record, &lease).await
        };
        match ended.await {
            Err(error) => error,
            Ok(_) => self
                .error(
                    ErrorKind::Conflict,
                    "another host created this key's sandbox at the same time; acquire again",
                )
                .with_reason(CONTENDED)
                .retryable(None),
        }
    }
}

/// Says of a failure after a create that there is a sandbox.
pub(super) fn made(error: Error) -> Error {
    error.with_outcome(Outcome::Done)
}

/// Writes down that a create is done.
pub(super) async fn record_made(home: &Home, mut record: Record, lease: &Lease) -> Result<Record> {
    record.enter(Phase::Ready);
    record.replaces = None;
    match home.registry.store(record.clone(), lease).await {
        Ok(record) => Ok(record),
        Err(error) if error.kind() == ErrorKind::Stale && record.setup_done.is_none() => {
            Err(overtaken(home, record, error).await)
        }
        // The intent stands in the registry; the next acquire settles it.
        Err(error) => Err(error.with_context("attempt", &record.attempt).with_outcome(Outcome::Unknown)),
    }
}

/// Ends what a creator made that was overtaken before it could say so in the record, unless the sandbox was taken over too:
/// whoever settled the open attempt found it, and callers have it by now.
async fn overtaken(home: &Home, made: Record, error: Error) -> Error {
    match end_overtaken(home, made).await {
        Ok(()) => error,
        // It is left, and found by its tags.
        Err(cleanup) => error.with_cleanup(&cleanup),
    }
}

/// Gives the attempt up before its sandbox is destroyed: until that is written down, whoever discovers the sandbox may take
/// it for the key's, and from then on nobody does.
async fn end_overtaken(home: &Home, made: Record) -> Result<()> {
    let Some(id) = made.id.clone() else { return Ok(()) };
    let lease = home.lease_in_time(&made.key, "create").await?;
    let mut record = match home.load(&made.key).await? {
        Some(record) if record.has_abandoned(&made.attempt) => None,
        Some(record) if record.attempt == made.attempt => return Ok(()),
        Some(record) => Some(record),
        None => {
            Some(Record { version: 0, id: None, phase: Phase::Destroying, replaces: None, ..made.clone() })
        }
    };
    if let Some(mut record) = record.take() {
        record.give_up(&made.attempt);
        home.registry.store(record, &lease).await?;
    }
    drop(lease);
    home.provider.destroy(&id).await.map(drop)
}

/// Orders sandboxes of one key: the first is kept. One that was resumed holds work; else the earlier, else the smaller id.
pub(crate) fn senior(a: &SandboxInfo, b: &SandboxInfo) -> std::cmp::Ordering {
    let rank = |info: &SandboxInfo| (info.started_at <= info.created_at, info.created_at);
    rank(a).cmp(&rank(b)).then_with(|| a.id.cmp(&b.id))
}
