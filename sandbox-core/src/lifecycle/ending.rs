//! Destroy by key and id: written down before it is sent, finished by whoever comes next, and forgotten.

use std::sync::{Arc, Weak};

use super::{check_named, named, own_record, settled, tagged};
use crate::acquire::Home;
use crate::events::EventKind;
use crate::fate::{End, Fate};
use crate::hooks::Hooks;
use crate::registry::{Lease, Phase, Record, Registry};
use crate::tenure::{Held, within};
use crate::{DestroyOutcome, Key, Result, SandboxId, SandboxInfo, SandboxProviderExt as _, SandboxSpec};

/// Destroys the sandbox of a key from a fresh process; an open create is settled and ended too.
pub(crate) async fn destroy(
    home: &Home,
    key: &Key,
    wanted: Option<&SandboxId>,
    hooks: Option<&Arc<dyn Hooks>>,
) -> Result<DestroyOutcome> {
    let held = Held::take(home, key, &Weak::new(), "destroy").await?;
    let destroyed = destroy_held(home, key, wanted, hooks, &held).await?;
    // Of what the key has under this lease: a start was waited for, and an acquire after the destroy makes another one.
    if let Some(fate) = home.fates.of(key) {
        fate.finish(End::Destroyed);
    }
    Ok(destroyed)
}

async fn destroy_held(
    home: &Home,
    key: &Key,
    wanted: Option<&SandboxId>,
    hooks: Option<&Arc<dyn Hooks>>,
    held: &Held,
) -> Result<DestroyOutcome> {
    let record = match home.load(key).await? {
        Some(record) if record.phase == Phase::Creating => settled(home, record, held, "destroy").await?,
        record => record,
    };
    check_named(home, record.as_ref(), wanted)?;
    let lease = held.lease(home, key).await?;
    let record = match record {
        Some(record) if record.is_tombstone() => {
            let left = replace_nothing(home, record, &lease).await?;
            return destroy_unrecorded(home, key, wanted, left, hooks, &lease).await;
        }
        Some(record) => record,
        None => return destroy_unrecorded(home, key, wanted, None, hooks, &lease).await,
    };
    let id = record.id.clone();
    let (outcome, _) = destroy_recorded(home, record, &lease).await?;
    if outcome == DestroyOutcome::Destroyed {
        home.tell(hooks, key, id.as_ref(), EventKind::Destroyed);
    }
    Ok(outcome)
}

/// Lets what a key without a sandbox gets next take the place of nothing; returns what is left of its record.
async fn replace_nothing(home: &Home, tombstone: Record, lease: &Lease) -> Result<Option<Record>> {
    match tombstone.replaces {
        Some(_) => forget(&*home.registry, Record { replaces: None, ..tombstone }, lease).await,
        None => Ok(Some(tombstone)),
    }
}

/// Where no record names one, the one that the caller names is destroyed, else what the provider has tagged with the key; `over` is what there is of a record.
async fn destroy_unrecorded(
    home: &Home,
    key: &Key,
    wanted: Option<&SandboxId>,
    mut over: Option<Record>,
    hooks: Option<&Arc<dyn Hooks>>,
    lease: &Lease,
) -> Result<DestroyOutcome> {
    let mut outcome = DestroyOutcome::AlreadyGone;
    let found = match wanted {
        Some(wanted) => named(home, key, wanted).await?.into_iter().collect(),
        None => tagged(home, key).await?,
    };
    for info in found {
        let destroyed;
        (destroyed, over) = destroy_listed(home, key, &info, over.as_ref(), lease).await?;
        if destroyed == DestroyOutcome::Destroyed {
            home.tell(hooks, key, Some(&info.id), EventKind::Destroyed);
            outcome = DestroyOutcome::Destroyed;
        }
    }
    Ok(outcome)
}

/// Destroys a sandbox that no record names, and writes that down first all the same: whoever discovers it meanwhile would
/// take it for the key's.
async fn destroy_listed(
    home: &Home,
    key: &Key,
    info: &SandboxInfo,
    over: Option<&Record>,
    lease: &Lease,
) -> Result<(DestroyOutcome, Option<Record>)> {
    let record = home.record_of(key, info, SandboxSpec::default(), over)?;
    destroy_recorded(home, record, lease).await
}

/// Destroys one sandbox of a key.
pub(crate) async fn destroy_one(home: &Home, key: &Key, fate: &Fate, held: &Held) -> Result<DestroyOutcome> {
    let lease = held.lease(home, key).await?;
    let destroyed = match own_record(home, key, fate).await? {
        Some(record) => destroy_recorded(home, record, &lease).await?.0,
        None => {
            let left = home.load(key).await?;
            if let Some(info) = home.provider.find_id(&fate.id).await? {
                destroy_listed(home, key, &info, left.as_ref(), &lease).await?.0
            } else {
                // An acquire has found it gone, and could not replace it.
                let of_it = |left: &Record| left.is_tombstone() && left.replaces.as_ref() == Some(&fate.id);
                if let Some(tombstone) = left.filter(of_it) {
                    replace_nothing(home, tombstone, &lease).await?;
                }
                DestroyOutcome::AlreadyGone
            }
        }
    };
    held.rests(true);
    Ok(destroyed)
}

/// The record of a sandbox that may be changed from here: one that was made under other credentials is looked for first, so
/// that nothing is written about a sandbox that this host cannot reach.
///
/// # Errors
/// [`ErrorKind::Ownership`] with reason `fingerprint` where it is not found.
pub(super) async fn seen_from_here(
    home: &Home,
    mut record: Record,
    lease: &Lease,
    operation: &'static str,
) -> Result<Record> {
    let here = home.provider.fingerprint();
    if let Some(id) = record.id.as_ref().filter(|_| record.fingerprint != here) {
        if within(home, &record.key, lease, "find", home.provider.find_id(id)).await?.is_none() {
            home.check_absence(&record, operation)?;
        }
        record.fingerprint = here;
    }
    Ok(record)
}

/// Writes the destroy down before it is sent, so that whoever comes next finishes it; returns what is left of the record.
pub(crate) async fn destroy_recorded(
    home: &Home,
    record: Record,
    lease: &Lease,
) -> Result<(DestroyOutcome, Option<Record>)> {
    let mut record = seen_from_here(home, record, lease, "destroy").await?;
    record.enter(Phase::Destroying);
    record.replaces = None;
    let record = home.registry.store(record, lease).await?;
    finish_destroy(home, record, lease).await
}

/// Takes the provider's present credentials and endpoint for those of a key's record; `false` where they are, or where there
/// is no record.
pub(crate) async fn confirm_move(home: &Home, key: &Key) -> Result<bool> {
    let held = Held::take(home, key, &Weak::new(), "confirm_move").await?;
    let here = home.provider.fingerprint();
    let Some(record) = home.load(key).await?.filter(|record| record.fingerprint != here) else {
        return Ok(false);
    };
    let moved = Record { fingerprint: here, ..record };
    home.registry.store(moved, &*held.lease(home, key).await?).await.map(|_| true)
}

/// Finishes a destroy that was written down; returns what is left of the record.
///
/// # Errors
/// [`ErrorKind::Ownership`] with reason `fingerprint`, and the record stays, where it may still exist elsewhere.
pub(crate) async fn finish_destroy(
    home: &Home,
    record: Record,
    lease: &Lease,
) -> Result<(DestroyOutcome, Option<Record>)> {
    let Some(id) = &record.id else { return Ok((DestroyOutcome::AlreadyGone, Some(record))) };
    let outcome = within(home, &record.key, lease, "destroy", home.provider.destroy(id)).await?;
    if outcome == DestroyOutcome::AlreadyGone {
        home.check_absence(&record, "destroy")?;
    }
    Ok((outcome, forget(&*home.registry, record, lease).await?))
}

/// Forgets a sandbox that is gone, but not what must outlive it; returns what is left.
pub(crate) async fn forget(registry: &dyn Registry, record: Record, lease: &Lease) -> Result<Option<Record>> {
    match record.clone().into_tombstone() {
        Some(tombstone) => registry.store(tombstone, lease).await.map(Some),
        None => registry.remove(&record, lease).await.map(|()| None),
    }
}
