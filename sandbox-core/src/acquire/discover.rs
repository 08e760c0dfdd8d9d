//! Discovery: the sandboxes of a key by their tags, and what becomes of more than one.

use std::time::SystemTime;

use super::contend::{CONTENDED, senior};
use super::steps::Acquisition;
use super::{Acquired, OnDuplicates, ReplacedBecause};
use crate::events::EventKind;
use crate::registry::{Lease, Phase, Record};
use crate::tenure::kept;
use crate::{ErrorKind, FindQuery, Result, SandboxId, SandboxInfo};

impl Acquisition {
    /// Looks for sandboxes of this owner and key on every page, in every state.
    pub(super) async fn discover(
        &self,
        record: Option<Record>,
        old: Option<SandboxId>,
        mut lease: Lease,
    ) -> Result<Acquired> {
        self.stage.enter("discover");
        if !self.home.provider.capabilities().tags {
            return self.create_anew(record, old, lease).await;
        }
        let mut found = self.find_by_key().await?;
        // One that is younger than the listing's bound may have an elder sibling that is not listed yet.
        let visible = self.home.provider.capabilities().list_visibility.unwrap_or_default();
        let young = |info: &SandboxInfo| {
            SystemTime::now().duration_since(info.created_at).unwrap_or_default() < visible
        };
        if found.iter().any(young) {
            let again = async {
                tokio::time::sleep(visible).await;
                self.find_by_key().await
            };
            (found, lease) = kept(&self.home, &self.key, lease, again).await?;
        }
        let mut candidates = Vec::new();
        for info in found {
            if !self.end_given_up(&info, record.as_ref(), &mut lease).await? {
                candidates.push(info);
            }
        }
        // The recorded generation first, wherever it is found; then the one that every contender would choose.
        let recorded = record.as_ref().map(|record| record.generation.clone());
        let is_recorded = |info: &SandboxInfo| {
            recorded.as_ref().zip(info.tags.as_ref()).is_some_and(|(known, tags)| *known == tags.generation)
        };
        candidates.sort_by(|a, b| is_recorded(b).cmp(&is_recorded(a)).then_with(|| senior(a, b)));
        let mut candidates = candidates.into_iter();
        let Some(chosen) = candidates.next() else {
            return self.create_anew(record, old, lease).await;
        };
        self.check_owner(&chosen, None)?;
        let mut fresh = self.record_of(&chosen, record.as_ref())?;
        let is_to_be_replaced = self.is_to_be_replaced(&fresh)?;
        let duplicates = self.see_to_duplicates(&mut fresh, candidates.collect(), &mut lease).await?;
        if is_to_be_replaced {
            let mut acquired = Box::pin(self.replace(fresh, lease)).await?;
            acquired.facts.duplicates = duplicates;
            return Ok(acquired);
        }
        self.stage.enter("connect");
        match self.reach(&mut fresh, &chosen, &mut lease).await? {
            Some(connection) => self.attached(fresh, connection, duplicates, false, lease).await,
            // As if it had not been listed; one of the others is the key's by now.
            None if !duplicates.is_empty() => Err(self
                .error(ErrorKind::Gone, "the sandbox was listed and then gone")
                .with_context("id", chosen.id)
                .with_reason(CONTENDED)),
            None => {
                self.check_may_replace(&chosen.id)?;
                self.create_anew(Some(fresh), Some(chosen.id), lease).await
            }
        }
    }

    /// Creates in the place of one that is gone, or of the one that an acquire before could not replace.
    async fn create_anew(
        &self,
        record: Option<Record>,
        gone: Option<SandboxId>,
        lease: Lease,
    ) -> Result<Acquired> {
        let known = record.as_ref().filter(|record| record.replaces.is_some() && record.replaces == gone);
        let because = known.and_then(|record| record.replaced_because).unwrap_or(ReplacedBecause::Gone);
        self.create(record, gone.map(|gone| (gone, because)), lease).await
    }

    /// Reports the other sandboxes of the key, and reaps them where that was asked for; returns those that are left.
    async fn see_to_duplicates(
        &self,
        chosen: &mut Record,
        others: Vec<SandboxInfo>,
        lease: &mut Lease,
    ) -> Result<Vec<SandboxId>> {
        if others.is_empty() {
            return Ok(Vec::new());
        }
        tracing::warn!(key = %self.key, others = others.len(), "several sandboxes of one key");
        let reap = self.options.on_duplicates == OnDuplicates::Reap;
        if reap {
            // Written down first: whoever comes after a crash here destroys them too.
            others
                .iter()
                .filter_map(|info| info.tags.as_ref())
                .for_each(|tags| chosen.give_up(&tags.attempt));
            chosen.enter(Phase::Ready);
            *chosen = self.home.registry.store(chosen.clone(), lease).await?;
        }
        let mut left = Vec::new();
        for info in others {
            if reap {
                self.end(&info.id, lease).await?;
            } else {
                left.push(info.id.clone());
            }
            self.tell(chosen.id.as_ref(), EventKind::DuplicateFound { other: info.id, reaped: reap });
        }
        Ok(left)
    }

    pub(super) async fn find_by_key(&self) -> Result<Vec<SandboxInfo>> {
        let query = FindQuery::Key { owner: self.home.owner.clone(), key: self.key.clone(), attempt: None };
        self.home.provider.find(query).await
    }
}
