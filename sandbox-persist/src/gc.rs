//! Deleting what no snapshot needs, and gathering many packs into one.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sandhold_core::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::cancel::{Cancel, run_blocking};
use crate::oid::ObjectId;
use crate::vault::{Closure, Inner, Lock, SNAPSHOTS, Sharing, Store, StoredPack, Vault, copy_all, list};
use crate::{beneath, error, failpoint};

/// How objects are collected.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GcOptions {
    /// Packs that changed within this time are left as they are. 24 hours by default.
    pub min_age: Duration,
    /// With more packs than this they become one. 50 by default.
    pub max_packs: usize,
    /// How long it may take. No limit by default.
    pub budget: Option<Duration>,
}

impl Default for GcOptions {
    fn default() -> Self {
        Self { min_age: Duration::from_secs(24 * 3600), max_packs: 50, budget: None }
    }
}

impl GcOptions {
    /// Collects what nothing has needed for a day.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how old a pack must be.
    #[must_use]
    pub fn with_min_age(mut self, age: Duration) -> Self {
        self.min_age = age;
        self
    }

    /// Sets how many packs there may be.
    #[must_use]
    pub fn with_max_packs(mut self, packs: usize) -> Self {
        self.max_packs = packs;
        self
    }

    /// Limits the time.
    #[must_use]
    pub fn with_budget(mut self, budget: Duration) -> Self {
        self.budget = Some(budget);
        self
    }
}

/// What a collection did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Collected {
    /// Packs that are there now.
    pub packs: u64,
    /// Packs that were deleted.
    pub deleted: u64,
    /// Objects that were copied to a new pack.
    pub copied: u64,
    /// Bytes that are free now.
    pub freed: u64,
}

impl Vault {
    /// Deletes the objects that no snapshot needs any more, and gathers many packs into one.
    ///
    /// It waits until nobody captures, restores or copies in this vault, and keeps others waiting meanwhile. Where a
    /// snapshot has not all its objects, nothing is deleted, since what belongs to it is not known.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidState`] with reason `damaged`, which names the snapshot: see [`Vault::repair`];
    /// [`ErrorKind::Unsupported`] with reason `in_repo` for a vault in somebody's repository;
    /// [`ErrorKind::Timeout`] with reason `busy` or `budget`.
    ///
    /// # Cancellation
    /// Dropping the future stops the work. Whatever moment that is, or a crash, every snapshot stays whole, and the next
    /// collection goes on.
    pub async fn gc(&self, options: GcOptions) -> Result<Collected> {
        let inner = Arc::clone(&self.0);
        run_blocking(options.budget, move |cancel| {
            inner.refuse_in_repo("gc", "git deletes and gathers there, and keeps what snapshots need")?;
            let _alone = Lock::take(&inner.lock_path("vault"), Sharing::Exclusive, cancel)?;
            inner.gc_alone(&options, cancel)
        })
        .await
    }
}

/// What is to become of the packs.
#[derive(Debug, Default)]
struct Plan {
    /// They go, and what is needed of them is copied first.
    deleted: Vec<usize>,
    copied: Vec<ObjectId>,
}

impl Inner {
    fn gc_alone(&self, options: &GcOptions, cancel: &Cancel) -> Result<Collected> {
        self.sweep()?;
        let store = self.objects.store()?;
        if let Some((path, failure)) = store.unusable.first() {
            return Err(refused(path.display().to_string(), failure));
        }
        let mut closure = Closure::default();
        for (name, commit) in self.refs.list(SNAPSHOTS)? {
            closure.reach(&store, commit, cancel).map_err(|failure| match failure.kind() {
                ErrorKind::Cancelled | ErrorKind::Timeout => failure,
                _ => refused(name[SNAPSHOTS.len()..].to_owned(), &failure),
            })?;
        }
        let now = SystemTime::now();
        let is_old =
            |modified: SystemTime| now.duration_since(modified).unwrap_or_default() >= options.min_age;
        let plan = plan(&store, &closure.seen, options.max_packs, |pack| is_old(pack.modified));
        let orphans = self.orphans(is_old)?;

        let before = store.packs.iter().map(|pack| pack.len).sum::<u64>();
        let mut collected = Collected {
            packs: store.packs.len() as u64,
            copied: plan.copied.len() as u64,
            ..Collected::default()
        };
        let mut made = None;
        if !plan.copied.is_empty() {
            let mut writer = self.objects.pack()?;
            copy_all(&store, plan.copied.iter().copied(), &mut writer, cancel)?;
            cancel.check()?;
            made = writer.publish(&self.objects.packs())?;
            failpoint::pass("gc.packed");
        }
        let made = made.map(|digest| self.objects.packs().join(format!("pack-{digest}.pack")));
        // The new pack can be one of those that it was made of.
        let doomed: Vec<&StoredPack> = plan
            .deleted
            .iter()
            .filter_map(|at| store.packs.get(*at))
            .filter(|pack| Some(&pack.path) != made.as_ref())
            .collect();
        if doomed.is_empty() && orphans.is_empty() {
            return Ok(collected);
        }
        // From here on nobody trusts that an object is there because it once was.
        self.renew_generation()?;
        failpoint::pass("gc.renewed");
        for pack in &doomed {
            // Readers go by the index: without it, what is left is an orphan.
            for path in [pack.path.with_extension("idx"), pack.path.clone()] {
                remove(&path)?;
                failpoint::pass("gc.deleted");
            }
        }
        orphans.iter().try_for_each(|path| remove(path))?;
        beneath::sync_dir(&self.objects.packs())?;
        failpoint::pass("gc.done");
        let left = self.objects.store()?.packs;
        collected.packs = left.len() as u64;
        collected.deleted = doomed.len() as u64;
        collected.freed = before.saturating_sub(left.iter().map(|pack| pack.len).sum::<u64>());
        Ok(collected)
    }

    /// Packs without an index: of somebody who died between the two names, or whose index was lost.
    fn orphans(&self, is_old: impl Fn(SystemTime) -> bool) -> Result<Vec<PathBuf>> {
        let mut found = list(&self.objects.packs())?;
        found.retain(|path| {
            path.extension().is_some_and(|end| end == "pack")
                && !path.with_extension("idx").exists()
                && fs::metadata(path).and_then(|stat| stat.modified()).is_ok_and(&is_old)
        });
        Ok(found)
    }
}

fn plan(
    store: &Store,
    needed: &HashSet<ObjectId>,
    max_packs: usize,
    is_old: impl Fn(&StoredPack) -> bool,
) -> Plan {
    let mut plan = Plan::default();
    // The largest first: what several packs have counts for the one that is least worth copying.
    let mut order: Vec<usize> = (0..store.packs.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(store.packs[*at].entries.len()));
    let mut counted: HashSet<ObjectId> = HashSet::new();
    let mut kept = Vec::new();
    for at in order {
        let pack = &store.packs[at];
        let own: Vec<_> = pack
            .entries
            .iter()
            .filter(|entry| needed.contains(&entry.id) && counted.insert(entry.id))
            .collect();
        let live: u64 = own.iter().map(|entry| entry.end - entry.offset).sum();
        let ids = own.iter().map(|entry| entry.id);
        let all_needed = pack.entries.iter().all(|entry| needed.contains(&entry.id));
        match (is_old(pack), live) {
            (true, 0) => plan.deleted.push(at),
            // More than half of it is of no use.
            (true, live) if live < pack.len / 2 => {
                plan.copied.extend(ids);
                plan.deleted.push(at);
            }
            // What is not needed was not for long, and may be asked for again.
            (false, _) if !all_needed => {}
            _ => kept.push((at, ids.collect::<Vec<_>>())),
        }
    }
    if store.packs.len() - plan.deleted.len() > max_packs {
        for (at, ids) in kept {
            plan.copied.extend(ids);
            plan.deleted.push(at);
        }
    }
    plan
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(failure) if failure.kind() != std::io::ErrorKind::NotFound => {
            Err(error::io("delete", path, failure))
        }
        _ => Ok(()),
    }
}

fn refused(what: String, failure: &Error) -> Error {
    Error::new(
        ErrorKind::InvalidState,
        format!("nothing is deleted while {what} is damaged ({}); repair the vault first", failure.message()),
    )
    .with_reason("damaged")
    .with_context("damaged", what)
}
