//! A host: a process that acquires, uses, stops and destroys sandboxes until it is killed or told to stop.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use fastrand::Rng;
use sandhold_core::retry::RetryPolicy;
use sandhold_core::{
    AcquireOptions, AcquireOutcome, Acquired, Error, ErrorKind, FileOptions, Hooks, OnDuplicates, Owner,
    ProcessSpec, Result, Sandbox, SandboxHandle as _, SandboxHandleExt as _, Sandboxes, Start,
};
use sandhold_e2b::{E2bConfig, E2bProvider};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;

use crate::clock::{self, since_boot};
use crate::store::{Fences, Place, Witness};
use crate::words::{LOG, Line, MARKER, Said, Tell};

/// The key of the server's only account.
pub(crate) const API_KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";

/// How many acquire at once in each host.
const WORKERS: usize = 2;

/// How one host is to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Host {
    /// Where the server is, or what stands before it.
    pub(crate) url: String,
    pub(crate) place: Place,
    pub(crate) owner: String,
    pub(crate) keys: usize,
    pub(crate) seed: u64,
    pub(crate) skew_seconds: i64,
    pub(crate) lease: Duration,
    pub(crate) request_timeout: Duration,
    /// How long after a create a listing may miss it.
    pub(crate) list_visibility: Duration,
}

impl Host {
    pub(crate) fn key(number: usize) -> String {
        format!("key-{number}")
    }

    pub(crate) fn provider(&self) -> Result<E2bProvider> {
        let retry = RetryPolicy::default()
            .with_initial_backoff(Duration::from_millis(20))
            .with_max_retries(2)
            .with_budget(self.request_timeout * 3);
        let config = E2bConfig::new(API_KEY)
            .with_api_url(&self.url)
            .with_sandbox_url(&self.url)
            .with_lease(Duration::from_secs(24 * 3600))
            .with_list_visibility(self.list_visibility)
            .with_request_timeout(self.request_timeout)
            .with_retry(retry);
        E2bProvider::new(config)
    }

    /// The library as this host uses it.
    pub(crate) async fn open(&self, tell: &Tell) -> Result<Sandboxes> {
        let fences = Arc::new(Fences::default());
        let (inner, tell) = (self.place.open().await?, Arc::clone(tell));
        let registry = Witness { inner, fences: Arc::clone(&fences), tell };
        let hooks = SetUp { fences: Arc::clone(&fences), shared: self.place != Place::None };
        Ok(Sandboxes::new(Arc::new(self.provider()?))
            .with_owner(Owner::new(&self.owner)?)
            .with_registry(Arc::new(registry))
            .with_hooks(Arc::new(hooks))
            .with_record_lease(self.lease)
            .with_wait_limit(self.lease * 4))
    }

    pub(crate) fn options(&self) -> AcquireOptions {
        AcquireOptions::default()
            .with_call_deadline(self.request_timeout * 3)
            .with_deadline(self.lease * 6)
            .with_hook_deadline(self.lease * 3)
            .with_on_duplicates(OnDuplicates::Reap)
    }
}

/// The start hook of every host: it marks the sandbox as set up, and leaves a line before and after.
#[derive(Debug)]
struct SetUp {
    fences: Arc<Fences>,
    /// Whether leases exclude other hosts; only then do their numbers mean anything.
    shared: bool,
}

impl SetUp {
    async fn leave_line(&self, sandbox: &Sandbox) -> Result<()> {
        if !self.shared {
            return Ok(());
        }
        let (fence, leased) = self.fences.of(sandbox.key());
        let line = Line { fence, leased, sent: since_boot() }.to_text();
        let append = ProcessSpec::argv("/bin/sh", ["-c", r#"echo "$1" >> "$2""#, "sh", &line, LOG]);
        let appended = sandbox.exec(append).await?;
        match appended.exit.success() {
            true => Ok(()),
            false => {
                Err(Error::new(ErrorKind::Unexpected, format!("the line ended with {:?}", appended.exit)))
            }
        }
    }
}

#[async_trait]
impl Hooks for SetUp {
    async fn on_start(&self, start: Start) -> Result<()> {
        let sandbox = &start.sandbox;
        self.leave_line(sandbox).await?;
        tokio::time::sleep(Duration::from_millis(fastrand::u64(0..20))).await;
        let generation = sandbox.generation().map(ToString::to_string).unwrap_or_default();
        // Whole or absent: without a registry two hosts may set one sandbox up at the same time.
        let staged = format!("{MARKER}.{:016x}", fastrand::u64(..));
        sandbox.write_bytes(&staged, generation.into_bytes()).await?;
        sandbox.rename(&staged, MARKER, FileOptions::default()).await?;
        self.leave_line(sandbox).await
    }
}

/// Says one thing, whole, also when this process is killed right after.
fn say(said: &Said) {
    if let Ok(mut line) = serde_json::to_vec(said) {
        line.push(b'\n');
        let mut out = std::io::stdout().lock();
        // Whoever does not listen any more has ended this host's work.
        let _ = out.write_all(&line).and_then(|()| out.flush());
    }
}

/// Lives until standard input ends; calls that were begun are brought to their end.
pub(crate) async fn live(host: Host) -> Result<()> {
    clock::set_skew(host.skew_seconds);
    let tell: Tell = Arc::new(|said| say(&said));
    let sandboxes = host.open(&tell).await?;
    let over = Arc::new(AtomicBool::new(false));
    let host = Arc::new(host);
    let workers: Vec<_> = (0..WORKERS as u64)
        .map(|number| {
            let rng = Rng::with_seed(host.seed.wrapping_add(number));
            let worker = Worker {
                host: Arc::clone(&host),
                sandboxes: sandboxes.clone(),
                tell: Arc::clone(&tell),
                rng: Mutex::new(rng),
                kept: Mutex::default(),
            };
            tokio::spawn(worker.work(Arc::clone(&over)))
        })
        .collect();
    let mut ignored = [0; 64];
    let mut input = tokio::io::stdin();
    while input.read(&mut ignored).await.is_ok_and(|count| count > 0) {}
    over.store(true, Ordering::Relaxed);
    for worker in workers {
        let _ = worker.await;
    }
    Ok(())
}

struct Worker {
    host: Arc<Host>,
    sandboxes: Sandboxes,
    tell: Tell,
    rng: Mutex<Rng>,
    /// Handles of earlier acquires, which may be of sandboxes that are gone.
    kept: Mutex<HashMap<String, Sandbox>>,
}

impl Worker {
    fn draw(&self, below: usize) -> usize {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner).usize(..below)
    }

    async fn work(self, over: Arc<AtomicBool>) {
        while !over.load(Ordering::Relaxed) {
            let key = Host::key(self.draw(self.host.keys));
            let begun = Instant::now();
            match self.sandboxes.acquire(key.as_str(), self.host.options()).await {
                Ok(acquired) => {
                    (self.tell)(acquired_after(&key, &acquired, begun.elapsed()));
                    check_set_up(&key, &acquired.sandbox, &self.tell).await;
                    self.use_it(&key, acquired.sandbox).await;
                }
                Err(error) => {
                    (self.tell)(failed(&key, "acquire", &error));
                    // A host that cannot reach anything does not ask as fast as it can.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    async fn use_it(&self, key: &str, sandbox: Sandbox) {
        // Without a common registry, what was resumed is told from what was made by its age alone: a stop within the time
        // that a create may take is not promised to do no harm.
        let may_stop = self.host.place != Place::None;
        let ended = match self.draw(100) {
            0..6 => sandbox.destroy().await.map(drop).map_err(|error| ("destroy", error)),
            6..10 => self.sandboxes.destroy(key).await.map(drop).map_err(|error| ("destroy by key", error)),
            10..14 if may_stop => sandbox.stop().await.map(drop).map_err(|error| ("stop", error)),
            14..16 if may_stop => {
                self.sandboxes.stop(key).await.map(drop).map_err(|error| ("stop by key", error))
            }
            16..26 => {
                // A handle that was kept while others did what they liked.
                let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
                match kept {
                    Some(kept) => kept.write_bytes("/home/user/work", key.to_owned()).await.map(drop),
                    None => Ok(()),
                }
                .map_err(|error| ("write by a kept handle", error))
            }
            26..36 => {
                self.kept.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), sandbox);
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err((verb, error)) = ended {
            (self.tell)(failed(key, verb, &error));
        }
    }
}

fn acquired_after(key: &str, acquired: &Acquired, took: Duration) -> Said {
    Said::Acquired {
        key: key.to_owned(),
        id: id_of(&acquired.sandbox),
        created: acquired.outcome == AcquireOutcome::Created,
        joined: acquired.facts.joined,
        duplicates: acquired.facts.duplicates.len(),
        ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
    }
}

fn failed(key: &str, verb: &str, error: &Error) -> Said {
    let why = format!("{}/{}", error.kind(), error.reason().unwrap_or("-"));
    Said::Failed { key: key.to_owned(), verb: verb.to_owned(), why }
}

/// The id of a sandbox that was acquired.
pub(crate) fn id_of(sandbox: &Sandbox) -> String {
    sandbox.provider_id().map(ToString::to_string).unwrap_or_default()
}

/// Looks whether a sandbox that was handed out had been set up. What cannot be read says nothing.
pub(crate) async fn check_set_up(key: &str, sandbox: &Sandbox, tell: &Tell) {
    let wanted = sandbox.generation().map(ToString::to_string).unwrap_or_default();
    let found = match sandbox.read_text(MARKER).await {
        Ok(found) if found == wanted => return,
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => "nothing".to_owned(),
        Err(error) => return tell(failed(key, "read", &error)),
    };
    tell(Said::NotSetUp { key: key.to_owned(), id: id_of(sandbox), found });
}
