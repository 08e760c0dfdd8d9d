//! One run: so many hosts over so many keys, until so many acquires were answered.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::Outcome;
use crate::host::Host;
use crate::judge::{self, Counts};
use crate::stage::{self, Stage};
use crate::store::{Place, Removal};
use crate::words::{Said, Tell};

/// Says to this program that it is a host, and how.
pub(crate) const HOST_VARIABLE: &str = "SANDHOLD_CHAOS_HOST";

/// No run may stand still for so long.
const PATIENCE: Duration = Duration::from_secs(120);

/// The leases of hosts: short, as nobody sees the death of a holder in Postgres before its end.
const LEASE: Duration = Duration::from_secs(3);

/// How long one request may last; those that hang by a fault do so for that long.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(800);

/// How many acquires are answered between two kills.
const SPARED: u64 = 4;

/// The shape of one run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) place: Place,
    pub(crate) owner: String,
    pub(crate) processes: usize,
    pub(crate) keys: usize,
    pub(crate) acquisitions: u64,
    pub(crate) seed: u64,
}

/// All that hosts said since the run began.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) acquired: u64,
    /// Every sandbox that was handed out.
    pub(crate) handed_out: HashSet<String>,
    /// How often a sandbox was said to be created, by the caller that had the work done.
    pub(crate) created: HashMap<String, u64>,
    pub(crate) lost_setups: u64,
    /// When each lease was given, by key and number.
    pub(crate) leased: HashMap<String, BTreeMap<u64, u64>>,
    pub(crate) removed: Vec<(Removal, u64)>,
    pub(crate) duplicates: u64,
    pub(crate) failed: BTreeMap<String, u64>,
    pub(crate) slowest: u64,
}

impl Tally {
    fn hear(&mut self, said: Said) {
        match said {
            Said::Acquired { id, created, joined, duplicates, ms, .. } => {
                self.acquired += 1;
                self.duplicates += duplicates as u64;
                self.slowest = self.slowest.max(ms);
                if created && !joined {
                    *self.created.entry(id.clone()).or_default() += 1;
                }
                self.handed_out.insert(id);
            }
            Said::NotSetUp { key, id, found } => {
                eprintln!("lost setup: {key} was handed {id} with {found:?}");
                self.lost_setups += 1;
            }
            Said::Failed { verb, why, .. } => *self.failed.entry(format!("{verb}: {why}")).or_default() += 1,
            Said::Leased { key, fence, at } => {
                self.leased.entry(key).or_default().insert(fence, at);
            }
            Said::Removed { generation, version, fence } => {
                self.removed.push((Removal { generation, version }, fence));
            }
        }
    }
}

pub(crate) type Shared = Arc<Mutex<Tally>>;

/// What is told goes to the tally.
pub(crate) fn tell(tally: &Shared) -> Tell {
    let tally = Arc::clone(tally);
    Arc::new(move |said| locked(&tally).hear(said))
}

pub(crate) fn locked(tally: &Shared) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A host that runs.
struct Running {
    child: Child,
    heard: JoinHandle<()>,
    /// Stopped by a signal until then.
    frozen: Option<Instant>,
}

impl Running {
    fn start(host: &Host, tally: &Shared) -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(HOST_VARIABLE, serde_json::to_string(host)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let output = child.stdout.take().ok_or("a host has no output")?;
        let tally = Arc::clone(tally);
        let heard = tokio::spawn(async move {
            let mut lines = BufReader::new(output).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                // The last line of a host that was killed may be torn.
                if let Ok(said) = serde_json::from_str(&line) {
                    locked(&tally).hear(said);
                }
            }
        });
        Ok(Self { child, heard, frozen: None })
    }

    fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        if let Some(pid) = pid {
            // One that has just ended needs none.
            let _ = kill_process(pid, signal);
        }
    }

    async fn kill(mut self) -> Outcome<()> {
        self.child.kill().await?;
        self.heard.await?;
        Ok(())
    }

    /// Has it finish what it does and begin nothing more.
    fn ask_to_stop(&mut self) {
        self.signal(Signal::CONT);
        drop(self.child.stdin.take());
    }

    /// Waits until it has stopped; one that does not come to its end is an error.
    async fn stopped(mut self) -> Outcome<()> {
        tokio::time::timeout(PATIENCE, self.child.wait()).await.map_err(|_| "a host did not stop")??;
        self.heard.await?;
        Ok(())
    }
}

/// What was done to the hosts and the server.
#[derive(Debug, Default)]
pub(crate) struct Blows {
    pub(crate) kills: u64,
    pub(crate) freezes: u64,
    pub(crate) server_kills: u64,
    pub(crate) faults: u64,
}

/// Makes one run, and counts at the server's side.
pub(crate) async fn run(stage: &mut Stage, run: &Run, rounds: u64) -> Outcome<Counts> {
    run.place.prepare().await?;
    let mut rng = Rng::with_seed(run.seed);
    let tally = Shared::default();
    let mut counts = Counts::default();
    let mut blows = Blows::default();
    let begun = Instant::now();
    // One for all of the run: what is made at one endpoint is not taken for gone at another.
    stage.renew_line().await?;
    for round in 1..=rounds {
        let until = run.acquisitions * round / rounds;
        let doubles = disturb(stage, run, &tally, &mut blows, &mut rng, until).await?;
        counts.sandboxes += doubles;
        counts += judge::quiet(stage, run, &tally).await?;
    }
    judge::close(stage, run, &tally, &mut counts).await?;
    report(run, &tally, &blows, &counts, begun.elapsed());
    Ok(counts)
}

impl Run {
    /// A host of this run.
    pub(crate) fn host(&self, url: String, rng: &mut Rng) -> Host {
        // Right, a little off, and set to another day. Without a common registry hosts compare the age of sandboxes with
        // their own clocks: only what is behind by less than a create may take is promised to do no harm.
        let skews =
            if self.place == Place::None { [0, 0, 0, -1, -1, -2] } else { [0, 0, 2, -2, 3600, -86_400] };
        Host {
            url,
            place: self.place.clone(),
            owner: self.owner.clone(),
            keys: self.keys,
            seed: rng.u64(..),
            skew_seconds: skews[rng.usize(..skews.len())],
            lease: LEASE,
            request_timeout: REQUEST_TIMEOUT,
            // A create that the server has begun is listed when it is done, and one that takes longer than a request
            // may last does not win.
            list_visibility: if self.place == Place::None { REQUEST_TIMEOUT } else { Duration::ZERO },
        }
    }
}

/// Runs hosts, kills and freezes them, kills the server and breaks the line, until so many acquires were answered; then
/// everybody is gone. Returns how many keys had two sandboxes at the same time that were both handed out.
async fn disturb(
    stage: &mut Stage,
    run: &Run,
    tally: &Shared,
    blows: &mut Blows,
    rng: &mut Rng,
    until: u64,
) -> Outcome<u64> {
    let start = |stage: &Stage, rng: &mut Rng| Running::start(&run.host(stage.proxy.url(), rng), tally);
    let mut hosts = Vec::new();
    for _ in 0..run.processes {
        hosts.push(start(stage, rng)?);
    }
    let mut seen = judge::Seen::default();
    let (mut progress, mut last) = (Instant::now(), locked(tally).acquired);
    // A host that is killed at work keeps others from a key for a while: each is left some work.
    let mut next_blow = last + SPARED;
    loop {
        tokio::time::sleep(Duration::from_millis(rng.u64(2..30))).await;
        let acquired = locked(tally).acquired;
        if acquired >= until {
            break;
        }
        if acquired > last {
            (progress, last) = (Instant::now(), acquired);
        } else if progress.elapsed() > PATIENCE {
            return Err(format!("nothing was acquired for {PATIENCE:?}: {:?}", locked(tally).failed).into());
        }
        for host in &mut hosts {
            if host.frozen.is_some_and(|until| until < Instant::now()) {
                host.signal(Signal::CONT);
                host.frozen = None;
            }
        }
        // What was not met by then would be in the way of nobody.
        stage.proxy.clear_rules();
        for _ in 0..rng.u32(..4) {
            stage.proxy.add(stage::fault(rng));
            blows.faults += 1;
        }
        let at = rng.usize(..hosts.len());
        match rng.u32(..100) {
            0..16 if acquired >= next_blow => {
                next_blow = acquired + SPARED;
                blows.kills += 1;
                hosts.swap_remove(at).kill().await?;
                hosts.push(start(stage, rng)?);
            }
            16..20 if hosts[at].frozen.is_none() && hosts.len() > 1 => {
                blows.freezes += 1;
                hosts[at].signal(Signal::STOP);
                // Some wake before their lease has ended, some long after.
                hosts[at].frozen = Some(Instant::now() + LEASE.mul_f64(0.5 + rng.f64()));
            }
            20 => {
                blows.server_kills += 1;
                stage.kill_server().await?;
            }
            21..26 => stage.proxy.cut_connections(),
            26..36 => seen.look(stage, run, tally).await?,
            _ => {}
        }
    }
    // Half of them end in the middle of something, and nobody begins anything any more.
    let mut ending = Vec::new();
    for mut host in hosts {
        if rng.bool() {
            host.kill().await?;
        } else {
            host.ask_to_stop();
            ending.push(host);
        }
    }
    // What hangs by a fault would do so for ever: streams into sandboxes have no limit.
    stage.proxy.clear_rules();
    stage.proxy.cut_connections();
    for host in ending {
        host.stopped().await?;
    }
    Ok(seen.doubles())
}

fn report(run: &Run, tally: &Shared, blows: &Blows, counts: &Counts, took: Duration) {
    let tally = locked(tally);
    eprintln!(
        "registry {} processes {} keys {}: {} acquired in {:.1} s, slowest {} ms; {} sandboxes handed out; killed {}, \
         frozen {}, server killed {}, faults {}; duplicates found {}; {counts:?}",
        run.place,
        run.processes,
        run.keys,
        tally.acquired,
        took.as_secs_f64(),
        tally.slowest,
        tally.handed_out.len(),
        blows.kills,
        blows.freezes,
        blows.server_kills,
        blows.faults,
        tally.duplicates,
    );
    for (what, count) in &tally.failed {
        eprintln!("    {count} times {what}");
    }
}
