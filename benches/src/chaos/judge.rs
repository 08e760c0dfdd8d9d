//! Counting, at the server's side and in the databases.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use fastrand::Rng;
use sandhold_core::{
    Acquired, ErrorKind, ListFilter, Owner, Sandbox, SandboxHandleExt as _, SandboxInfo,
    SandboxProvider as _, SandboxProviderExt as _, Sandboxes,
};

use crate::Outcome;
use crate::host::{Host, check_set_up};
use crate::run::{Run, Shared, locked, tell};
use crate::stage::Stage;
use crate::store::{Place, Removal};
use crate::words::{LOG, Line};

/// What is counted; all but `acquisitions`, and `sandboxes` beside `keys`, must be zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Acquires that were answered.
    pub(crate) acquisitions: u64,
    /// Keys, at every quiet point.
    pub(crate) keys: u64,
    /// Sandboxes that the server listed for them, and one more for each time that two of a key were there at once which
    /// were both handed out.
    pub(crate) sandboxes: u64,
    /// Sandboxes that the server listed and no record or tag explains.
    pub(crate) unmanaged: u64,
    /// Sandboxes that were handed out and had not been set up.
    pub(crate) lost_setups: u64,
    /// Writes of overtaken hosts that were accepted, by the registry or inside a sandbox.
    pub(crate) stale_writes: u64,
    /// Sandboxes that two acquires, neither joined to the other, said to have created.
    pub(crate) created_twice: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, more: Self) {
        self.acquisitions += more.acquisitions;
        self.keys += more.keys;
        self.sandboxes += more.sandboxes;
        self.unmanaged += more.unmanaged;
        self.lost_setups += more.lost_setups;
        self.stale_writes += more.stale_writes;
        self.created_twice += more.created_twice;
    }
}

impl Counts {
    /// Says whether everything is as promised.
    pub(crate) fn are_right(&self) -> bool {
        let wrong = [self.unmanaged, self.lost_setups, self.stale_writes, self.created_twice];
        self.sandboxes == self.keys && wrong == [0; 4]
    }
}

/// Lists the sandboxes of a run past the proxy.
async fn listed(stage: &Stage, run: &Run) -> Outcome<Vec<SandboxInfo>> {
    let host = run.host(stage.direct(), &mut Rng::new());
    Ok(host.provider()?.list_all(ListFilter::default()).await?)
}

/// What was seen while hosts were at work: keys of which two sandboxes were there that callers had.
#[derive(Debug, Default)]
pub(crate) struct Seen(HashSet<(String, Vec<String>)>);

impl Seen {
    /// Looks twice in a row: a sandbox that both looks show was there in between. One that nobody had been handed by then
    /// does not count: it may be what a contender left that was killed, and be handed out when the other one has ended.
    pub(crate) async fn look(&mut self, stage: &Stage, run: &Run, tally: &Shared) -> Outcome<()> {
        let handed_out: HashSet<String> = locked(tally).handed_out.clone();
        let (first, second) = (by_key(listed(stage, run).await?), by_key(listed(stage, run).await?));
        for (key, ids) in first {
            let there = |id: &String| second.get(&key).is_some_and(|second| second.contains(id));
            let had: Vec<_> = ids.into_iter().filter(|id| there(id) && handed_out.contains(id)).collect();
            if had.len() > 1 && self.0.insert((key.clone(), had.clone())) {
                eprintln!("double: {key} has {had:?}, and callers have each of them");
            }
        }
        Ok(())
    }

    pub(crate) fn doubles(&self) -> u64 {
        self.0.len() as u64
    }
}

fn by_key(listed: Vec<SandboxInfo>) -> BTreeMap<String, BTreeSet<String>> {
    let mut by_key: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for info in listed {
        if let Some(tags) = info.tags {
            by_key.entry(tags.key.to_string()).or_default().insert(info.id.to_string());
        }
    }
    by_key
}

/// A quiet point: nobody is at work, nothing breaks, and every key is acquired once from a host that knows nothing.
pub(crate) async fn quiet(stage: &Stage, run: &Run, tally: &Shared) -> Outcome<Counts> {
    let mut counts = Counts::default();
    let host = run.host(stage.proxy.url(), &mut Rng::new());
    if run.place == Place::None {
        // A create of a host that was killed may still be under way, and nothing but time tells that it is not.
        let settle = host.provider()?.capabilities().create_settle.unwrap_or_default();
        tokio::time::sleep(settle + Duration::from_millis(500)).await;
    }
    let sandboxes = host.open(&tell(tally)).await?;
    let registry = run.place.open().await?;
    let owner = Owner::new(&run.owner)?;
    let mut held: BTreeMap<String, Sandbox> = BTreeMap::new();
    for number in 0..run.keys {
        let key = Host::key(number);
        let acquired = acquire(&sandboxes, &host, &key).await?;
        counts.acquisitions += 1;
        locked(tally).duplicates += acquired.facts.duplicates.len() as u64;
        check_set_up(&key, &acquired.sandbox, &tell(tally)).await;
        held.insert(key, acquired.sandbox);
    }
    counts.keys = run.keys as u64;
    for info in listed(stage, run).await? {
        let Some(tags) = info.tags.as_ref().filter(|tags| tags.owner == owner) else {
            // Those of earlier runs are ended with their run.
            eprintln!("unmanaged: {} carries no tags of this run", info.id);
            counts.unmanaged += 1;
            continue;
        };
        counts.sandboxes += 1;
        let is_held = held.get(tags.key.as_str()).is_some_and(|held| held.provider_id() == Some(&info.id));
        let record = registry.load(&owner, &tags.key).await?;
        let is_explained = match &record {
            Some(record) => record.id.as_ref() == Some(&info.id) || record.has_abandoned(&tags.attempt),
            None => is_held && run.place == Place::None,
        };
        if !is_held {
            eprintln!(
                "one more: {} of {}, {:?}; held {:?}; record {record:?}",
                info.id,
                tags.key,
                tags,
                held.get(tags.key.as_str())
            );
        }
        if !is_explained {
            counts.unmanaged += 1;
        }
    }
    for (key, sandbox) in &held {
        counts.stale_writes += stale_lines(key, sandbox, tally).await?;
    }
    Ok(counts)
}

/// Nothing is broken any more, so that an acquire may only fail for what is left of the hosts, and not for long.
async fn acquire(sandboxes: &Sandboxes, host: &Host, key: &str) -> Outcome<Acquired> {
    const TRIES: u32 = 5;
    let mut tries = 0;
    loop {
        match sandboxes.acquire(key, host.options()).await {
            Ok(acquired) => return Ok(acquired),
            Err(error) if error.is_retryable() && tries < TRIES => tries += 1,
            Err(error) => return Err(format!("{key} cannot be acquired at a quiet point: {error:?}").into()),
        }
    }
}

/// Counts the lines in a sandbox that were sent by somebody when another one had the lease already.
async fn stale_lines(key: &str, sandbox: &Sandbox, tally: &Shared) -> Outcome<u64> {
    let log = match sandbox.read_text(LOG).await {
        Ok(log) => log,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error.into()),
    };
    let mut tally = locked(tally);
    let leased = tally.leased.entry(key.to_owned()).or_default();
    let lines: Vec<_> = log.lines().filter_map(Line::parse).collect();
    // A host that was killed may have said nothing; what it wrote into the sandbox tells as much.
    leased.extend(lines.iter().map(|line| (line.fence, line.leased)));
    let is_stale = |line: &&Line| {
        let later = leased.range(line.fence + 1..).find(|(_, at)| **at < line.sent);
        if let Some((fence, at)) = later {
            eprintln!("stale: {key}: {line:?} was sent after {fence} was given at {at}");
        }
        later.is_some()
    };
    Ok(lines.iter().filter(is_stale).count() as u64)
}

/// What is known at the end of a run only; then its sandboxes are ended.
pub(crate) async fn close(stage: &Stage, run: &Run, tally: &Shared, counts: &mut Counts) -> Outcome<()> {
    let noted = run.place.noted().await?;
    counts.stale_writes += noted.stale_writes;
    {
        let tally = locked(tally);
        counts.acquisitions += tally.acquired;
        counts.lost_setups += tally.lost_setups;
        let overtaken = |(removal, fence): &&(Removal, u64)| {
            noted.removals.get(removal).is_some_and(|given| given > fence)
        };
        counts.stale_writes += tally.removed.iter().filter(overtaken).count() as u64;
        if run.place != Place::None {
            // Leases exclude hosts from each other there.
            counts.created_twice += tally.created.values().filter(|times| **times > 1).count() as u64;
        }
    }
    let provider = run.host(stage.direct(), &mut Rng::new()).provider()?;
    for info in listed(stage, run).await? {
        provider.destroy(&info.id).await?;
    }
    Ok(())
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "acquisitions={} keys={} sandboxes={} unmanaged={} lost_setups={} stale_writes={}",
            self.acquisitions, self.keys, self.sandboxes, self.unmanaged, self.lost_setups, self.stale_writes
        )
    }
}
