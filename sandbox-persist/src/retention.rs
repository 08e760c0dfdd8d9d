//! Which snapshots are kept, and for how long.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sandhold_core::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::cancel::{Cancel, run_blocking};
use crate::failpoint;
use crate::oid::ObjectId;
use crate::restore::{Wanted, unfinished};
use crate::snapshot::{RunOutcome, SnapId, Snapshot, Status};
use crate::vault::{Closure, Inner, Lock, Sharing, Store, Vault};

const DAY: Duration = Duration::from_secs(24 * 3600);
/// A session that nobody ended counts as ended after this much silence.
const SILENCE: Duration = Duration::from_secs(3600);

/// How long snapshots are kept. The rule of a snapshot's own ([`crate::CaptureOptions::retention`]) wins over the ages.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Retention {
    /// How long snapshots of runs are kept; `None` or zero is for ever. 14 days by default.
    pub runs: Option<Duration>,
    /// How long snapshots are kept that somebody asked for; `None` or zero is for ever. 7 days by default.
    pub manual: Option<Duration>,
    /// How many are kept at most, the newest. No limit by default.
    pub max_count: Option<usize>,
    /// How many bytes of packs the kept ones need at most, the newest first. No limit by default.
    pub max_bytes: Option<u64>,
    /// Whether only snapshots go whose newest state has a copy in a bucket. `false` by default.
    pub require_mirror: bool,
    /// Whether snapshots go whose very files were committed since: a newer snapshot of the workspace, which stays, has that
    /// commit in its history. `false` by default.
    pub superseded: bool,
    /// Whether nothing is deleted, and the answer tells what would be. `false` by default.
    pub dry: bool,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            runs: Some(14 * DAY),
            manual: Some(7 * DAY),
            max_count: None,
            max_bytes: None,
            require_mirror: false,
            superseded: false,
            dry: false,
        }
    }
}

impl Retention {
    /// 14 days for runs, 7 for what somebody asked for.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long snapshots of runs are kept.
    #[must_use]
    pub fn with_runs(mut self, age: Option<Duration>) -> Self {
        self.runs = age;
        self
    }

    /// Sets how long snapshots are kept that somebody asked for.
    #[must_use]
    pub fn with_manual(mut self, age: Option<Duration>) -> Self {
        self.manual = age;
        self
    }

    /// Limits their number.
    #[must_use]
    pub fn with_max_count(mut self, count: usize) -> Self {
        self.max_count = Some(count);
        self
    }

    /// Limits what they take.
    #[must_use]
    pub fn with_max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Keeps what has no copy in a bucket.
    #[must_use]
    pub fn with_require_mirror(mut self, require: bool) -> Self {
        self.require_mirror = require;
        self
    }

    /// Lets snapshots go whose very files were committed since.
    #[must_use]
    pub fn with_superseded(mut self, superseded: bool) -> Self {
        self.superseded = superseded;
        self
    }

    /// Only tells what would be deleted.
    #[must_use]
    pub fn with_dry(mut self, dry: bool) -> Self {
        self.dry = dry;
        self
    }

    /// The age at which a snapshot may go; `None` is never. A rule of its own that cannot be read is never, too.
    fn age_of(&self, snapshot: &Snapshot) -> Option<Duration> {
        let age = match (&snapshot.retention, snapshot.outcome) {
            (Some(own), _) => parse_age(own),
            (None, Some(RunOutcome::Manual)) => self.manual,
            (None, _) => self.runs,
        };
        age.filter(|age| !age.is_zero())
    }
}

/// Reads a rule such as `168h`, `1h30m`, `45s` or `14d`.
pub(crate) fn parse_age(text: &str) -> Option<Duration> {
    let mut total: u64 = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|letter: char| !letter.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        let end =
            rest[digits..].find(|letter: char| letter.is_ascii_digit()).map_or(rest.len(), |at| digits + at);
        let seconds = match &rest[digits..end] {
            "s" => 1,
            "m" => 60,
            "h" => 3600,
            "d" => 24 * 3600,
            _ => return None,
        };
        total = total.checked_add(number.checked_mul(seconds)?)?;
        rest = &rest[end..];
    }
    (!text.is_empty()).then(|| Duration::from_secs(total))
}

/// Refuses a rule of a snapshot's own that nobody could read later: it would be kept for ever, which is hardly meant.
pub(crate) fn refuse_unreadable(rule: Option<&str>) -> Result<()> {
    let Some(text) = rule.filter(|text| parse_age(text).is_none()) else { return Ok(()) };
    let shown: String = text.chars().take(64).collect();
    Err(Error::new(
        ErrorKind::InvalidArgument,
        format!(
            "{shown:?} is no length of time; give one such as `168h`, `14d` or `1h30m`, and `0s` for ever"
        ),
    ))
}

/// Why a snapshot stays though a limit would have it go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum KeptBecause {
    /// It is the newest of its workspace that can be restored.
    LastGood,
    /// Its session goes on, or was silent for less than an hour.
    Live,
    /// Its newest state has no copy in a bucket, and the policy wants one.
    NotMirrored,
    /// A restore of it was begun and has not ended, or one over what it alone may have.
    Restoring,
    /// It was moved along meanwhile.
    Moved,
}

/// What a look at all snapshots led to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Pruned {
    /// Snapshots that were deleted, or would be, the oldest first.
    pub removed: Vec<SnapId>,
    /// Snapshots that a limit would have had go, and that stay.
    pub kept: Vec<(SnapId, KeptBecause)>,
}

impl Vault {
    /// Deletes the snapshots whose time is over, and those above the limits. Their objects go with the next
    /// [`Vault::gc`]. It waits until nobody captures, restores or copies in this vault.
    ///
    /// The last snapshot of a workspace that can be restored is never deleted, nor is one of a session that goes on, nor
    /// anything in a bucket: the manifest of a snapshot that has a copy there stays, and says where.
    ///
    /// # Errors
    /// Whatever the file system says. What was deleted until then is deleted.
    ///
    /// # Cancellation
    /// Dropping the future stops it before the next snapshot. Each is there, or is not.
    pub async fn prune(&self, retention: Retention) -> Result<Pruned> {
        let inner = Arc::clone(&self.0);
        run_blocking(None, move |cancel| inner.prune(&retention, SystemTime::now(), cancel)).await
    }

    /// Sets how long one snapshot is kept, such as `168h`; `None` leaves it to the rule for all.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for what is no length of time, [`ErrorKind::NotFound`].
    pub async fn set_retention(&self, id: &SnapId, retention: Option<&str>) -> Result<Snapshot> {
        refuse_unreadable(retention)?;
        let retention = retention.map(ToOwned::to_owned);
        self.update(id.clone(), move |snapshot| snapshot.retention = retention).await
    }
}

impl Inner {
    fn prune(&self, retention: &Retention, now: SystemTime, cancel: &Cancel) -> Result<Pruned> {
        // Whoever restores relies on a snapshot to have what is overwritten, and says so a moment later.
        let _alone = Lock::take(&self.lock_path("vault"), Sharing::Exclusive, cancel)?;
        let known = self.records.list(&self.objects, &self.refs)?;
        let snapshots = self.held_snapshots()?;
        let doomed = self.over_limits(&snapshots, retention, now, cancel)?;
        let mut pruned = Pruned::default();
        if snapshots.len() < known.len() {
            self.remove_leftovers(&known, &snapshots, retention, now, &mut pruned, cancel)?;
        }
        if doomed.is_empty() {
            return Ok(pruned);
        }
        let good = self.last_good(&snapshots)?;
        // Run again, a restore asks whether what it was written over is still kept.
        let begun: BTreeSet<SnapId> =
            unfinished(self)?.into_iter().flat_map(|begun| [Some(begun.id), begun.over]).flatten().collect();
        for snapshot in &snapshots {
            if !doomed.contains(&snapshot.id) {
                continue;
            }
            cancel.check()?;
            let is_live = snapshot.status() == Status::Open && since(now, snapshot.active_at()) < SILENCE;
            let kept = match () {
                () if is_live => Some(KeptBecause::Live),
                () if good.contains(&snapshot.id) => Some(KeptBecause::LastGood),
                () if begun.contains(&snapshot.id) => Some(KeptBecause::Restoring),
                () if retention.require_mirror && !snapshot.is_mirrored() => Some(KeptBecause::NotMirrored),
                () if retention.dry => None,
                () => self.unlink(snapshot, cancel)?,
            };
            match kept {
                Some(why) => pruned.kept.push((snapshot.id.clone(), why)),
                None => pruned.removed.push(snapshot.id.clone()),
            }
        }
        Ok(pruned)
    }

    /// Removes manifests whose refs are gone, as whoever was killed between the two leaves them, where their time is
    /// over. Others stay: a repair may find that their objects are still there.
    fn remove_leftovers(
        &self,
        known: &[Snapshot],
        held: &[Snapshot],
        retention: &Retention,
        now: SystemTime,
        pruned: &mut Pruned,
        cancel: &Cancel,
    ) -> Result<()> {
        let doomed = self.over_limits(known, retention, now, cancel)?;
        for snapshot in known {
            let is_held = held.iter().any(|held| held.id == snapshot.id);
            if is_held || has_copy(snapshot) || !doomed.contains(&snapshot.id) {
                continue;
            }
            if !retention.dry {
                let _alone = Lock::take(&self.lock_path("records"), Sharing::Exclusive, cancel)?;
                // Somebody may have brought it back meanwhile.
                if self.refs.read(&snapshot.id.ref_name())?.is_some() {
                    continue;
                }
                self.records.remove(&snapshot.id)?;
            }
            pruned.removed.push(snapshot.id.clone());
        }
        Ok(())
    }

    /// The ref goes first: what has none is not there, whatever its manifest says.
    fn unlink(&self, snapshot: &Snapshot, cancel: &Cancel) -> Result<Option<KeptBecause>> {
        let _alone = Lock::take(&self.lock_path("records"), Sharing::Exclusive, cancel)?;
        match self.refs.swap(&snapshot.id.ref_name(), Some(snapshot.commit), None, cancel) {
            Ok(()) => {}
            Err(failure) if failure.reason() == Some("ref_moved") => return Ok(Some(KeptBecause::Moved)),
            Err(failure) => return Err(failure),
        }
        failpoint::pass("prune.unlinked");
        if !has_copy(snapshot) {
            self.records.remove(&snapshot.id)?;
        }
        failpoint::pass("prune.done");
        Ok(None)
    }

    /// The snapshots whose objects are here, oldest first.
    pub(crate) fn held_snapshots(&self) -> Result<Vec<Snapshot>> {
        let refs = self.refs.list(crate::vault::SNAPSHOTS)?;
        let mut found = self.records.list(&self.objects, &self.refs)?;
        found.retain(|snapshot| refs.contains_key(&snapshot.id.ref_name()));
        Ok(found)
    }

    fn over_limits(
        &self,
        snapshots: &[Snapshot],
        retention: &Retention,
        now: SystemTime,
        cancel: &Cancel,
    ) -> Result<BTreeSet<SnapId>> {
        let mut doomed = BTreeSet::new();
        let mut kept = Vec::new();
        for snapshot in snapshots {
            let age = since(now, snapshot.active_at());
            match retention.age_of(snapshot) {
                Some(limit) if age > limit => drop(doomed.insert(snapshot.id.clone())),
                _ => kept.push(snapshot),
            }
        }
        // A rule of its own is a promise, which no limit for all takes back.
        kept.retain(|snapshot| snapshot.retention.is_none());
        if let Some(count) = retention.max_count {
            let over = kept.len().saturating_sub(count);
            doomed.extend(kept.drain(..over).map(|snapshot| snapshot.id.clone()));
        }
        if let Some(limit) = retention.max_bytes {
            let store = self.objects.store()?;
            let mut closure = Closure::default();
            let mut bytes = 0;
            for snapshot in kept.into_iter().rev() {
                // What is missing takes no place.
                let found = closure.walk(&store, snapshot.commit, cancel, |_| Ok(()))?;
                bytes += found.iter().map(|(_, id)| store.stored_len(*id)).sum::<u64>();
                if bytes > limit {
                    doomed.insert(snapshot.id.clone());
                }
            }
        }
        if retention.superseded {
            self.add_superseded(snapshots, &mut doomed, cancel)?;
        }
        Ok(doomed)
    }

    /// Adds the snapshots whose files are those of a commit that a newer one has, which stays.
    fn add_superseded(
        &self,
        snapshots: &[Snapshot],
        doomed: &mut BTreeSet<SnapId>,
        cancel: &Cancel,
    ) -> Result<()> {
        let repository = self.objects.open()?;
        let mut committed: BTreeMap<&Path, BTreeSet<ObjectId>> = BTreeMap::new();
        let mut walked = BTreeSet::new();
        for snapshot in snapshots.iter().rev() {
            cancel.check()?;
            if doomed.contains(&snapshot.id) {
                continue;
            }
            let trees = committed.entry(&snapshot.workspace).or_default();
            if trees.contains(&snapshot.tree)
                && snapshot.retention.is_none()
                && snapshot.receipt.is_none()
                && self.is_but_files(&repository, snapshot)
            {
                doomed.insert(snapshot.id.clone());
                continue;
            }
            if let Some(head) = snapshot.head.filter(|head| snapshot.has_history && walked.insert(*head)) {
                trees.extend(trees_of(&repository, head));
            }
        }
        Ok(())
    }

    /// Whether git can hold all of it.
    fn is_but_files(&self, repository: &git2::Repository, snapshot: &Snapshot) -> bool {
        crate::capture::read_side(repository, snapshot)
            .is_ok_and(|side| side.empty_dirs.is_empty() && side.metadata.is_empty())
    }

    /// For each workspace the newest snapshot that can be restored: a baseline only where there is nothing else.
    fn last_good(&self, snapshots: &[Snapshot]) -> Result<BTreeSet<SnapId>> {
        let (store, repository) = (self.objects.store()?, self.objects.open()?);
        let is_baseline = |snapshot: &Snapshot| snapshot.status() == Status::Baseline;
        let mut good: BTreeMap<&Path, &Snapshot> = BTreeMap::new();
        for snapshot in snapshots.iter().rev() {
            let is_settled = good
                .get(&*snapshot.workspace)
                .is_some_and(|known| !is_baseline(known) || is_baseline(snapshot));
            if !is_settled && is_good(&store, &repository, snapshot) {
                good.insert(&snapshot.workspace, snapshot);
            }
        }
        Ok(good.into_values().map(|snapshot| snapshot.id.clone()).collect())
    }
}

/// Whether all that a restore would read is there, as far as the indexes tell.
fn is_good(store: &Store, repository: &git2::Repository, snapshot: &Snapshot) -> bool {
    crate::capture::read_side(repository, snapshot).is_ok()
        && Wanted::read(repository, snapshot.tree)
            .is_ok_and(|wanted| wanted.items.values().all(|item| store.has(item.id)))
}

/// Whether some state of it is elsewhere, which its manifest alone tells.
fn has_copy(snapshot: &Snapshot) -> bool {
    snapshot.remote.as_ref().is_some_and(|remote| !remote.key.is_empty())
}

/// The trees of a commit and of those before it, as far back as anybody would look.
fn trees_of(repository: &git2::Repository, head: ObjectId) -> BTreeSet<ObjectId> {
    const COMMITS: usize = 1000;
    let Ok(mut walk) = repository.revwalk() else { return BTreeSet::new() };
    if walk.push(head.into()).is_err() {
        return BTreeSet::new();
    }
    walk.take(COMMITS).map_while(|id| Some(repository.find_commit(id.ok()?).ok()?.tree_id().into())).collect()
}

/// Zero where the clock was set back.
fn since(now: SystemTime, then: SystemTime) -> Duration {
    now.duration_since(then).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_numbers_with_units_and_anything_else_is_for_ever() {
        for (text, seconds) in
            [("168h", 604_800), ("14d", 1_209_600), ("1h30m", 5400), ("0s", 0), ("45s", 45)]
        {
            assert_eq!(parse_age(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "12", "h", "1.5h", "-1h", "1w", "for ever", "99999999999999999999h", "1h30"] {
            assert_eq!(parse_age(text), None, "{text}");
        }
    }
}
