//! Kills a host, a daemon, a monitor or a copier at random moments of a sandbox's life, and compares what the provider then says
//! with what is really there.
//!
//! The host is a real process: this very program, run again. A program that uses this calls [`host`] when
//! [`HOST_VARIABLE`] is set, and [`run`] otherwise. It needs `reality` and `verdict` beside it, as modules of the same parent.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stdout,
    reason = "broken rules panic, and each moment is said"
)]
#![allow(dead_code, reason = "each program uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use sandhold_core::{
    Attempt, ConnectOptions, CreateOptions, Error, ErrorKind, ForkOptions, Generation, Key, Owner, Result,
    SandboxHandle, SandboxHandleExt as _, SandboxProvider as _, SandboxProviderExt as _, SandboxSpec,
    SnapshotOptions, Tags,
};
use sandhold_local::{LocalConfig, LocalProvider};

use super::reality::{Part, Reality, eventually, kill, nothing_is_left, parts};
use super::verdict;

/// Set, to the state directory, for a process that is to be a host.
pub(crate) const HOST_VARIABLE: &str = "SANDHOLD_CHAOS_HOST";

/// How long anything may take on a busy machine before it counts as hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// How a run is made.
#[derive(Clone, Debug)]
pub(crate) struct Chaos {
    /// How many times something is killed.
    pub(crate) moments: u32,
    /// Decides every moment, together with the machine's own timing.
    pub(crate) seed: u64,
    /// The helper program.
    pub(crate) helper: PathBuf,
    /// How this program is started again as a host: arguments only.
    pub(crate) host_args: Vec<String>,
    /// Says each moment on standard output.
    pub(crate) verbose: bool,
}

/// Who is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Victim {
    Host,
    Daemon,
    Monitor,
    /// The helper that copies files for a snapshot or a fork.
    Copier,
}

/// What was done, and in the middle of what.
#[derive(Clone, Debug, Default)]
pub(crate) struct Report {
    /// How often each victim was killed while the host did each step.
    pub(crate) kills: BTreeMap<(Victim, String), u32>,
    /// How often the victim was not there any more, or not yet; these count for no moment.
    pub(crate) missed: u32,
    /// Sandboxes that were listed afterwards, all of which were connected to.
    pub(crate) reconnected: u32,
    /// Of them, those that had lost their memory.
    pub(crate) restarted: u32,
    /// Sandboxes that the pause of a dead host reached after they were connected to.
    pub(crate) late_pauses: u32,
    /// Acknowledged writes that were compared.
    pub(crate) writes: u32,
    /// Sandboxes that were gone, as acknowledged or begun.
    pub(crate) gone: u32,
    /// Snapshots and forks that were there afterwards, and held what was acknowledged before them.
    pub(crate) copies: u32,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for ((victim, step), count) in &self.kills {
            writeln!(f, "{victim:?} killed in {step}: {count}")?;
        }
        write!(
            f,
            "missed {}; connected again {}, {} of them restarted, {} paused late; {} acknowledged writes compared; \
             gone {}; {} whole copies",
            self.missed,
            self.reconnected,
            self.restarted,
            self.late_pauses,
            self.writes,
            self.gone,
            self.copies
        )
    }
}

/// Bytes that a path and a number stand for.
pub(crate) fn content(path: &str, salt: u64) -> Vec<u8> {
    let mut state = path
        .bytes()
        .fold(salt | 1, |state, byte| state.wrapping_mul(0x0100_0000_01b3).wrapping_add(u64::from(byte)) | 1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let length = 1 + next() % 60_000;
    (0..length).map(|_| next() as u8).collect()
}

// ---- the host that is killed ----

/// The life of a host: makes a sandbox, works in it, and destroys it, saying each step before and after.
///
/// Ends when a step fails because somebody killed a part of the sandbox.
pub(crate) async fn host() {
    let say = |words: &str| {
        let mut out = std::io::stdout();
        let _ = writeln!(out, "chaos {words}").and_then(|()| out.flush());
    };
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let salt: u64 = variable("SANDHOLD_CHAOS_SALT").parse().unwrap_or_default();
    let config =
        LocalConfig::new().with_home(variable(HOST_VARIABLE)).with_helper(variable("SANDHOLD_CHAOS_HELPER"));
    if let Err(error) = live(config, salt, Attempt::new(variable("SANDHOLD_CHAOS_ATTEMPT")), &say).await {
        say(&format!("failed {} {error}", error.kind()));
    }
    say("over");
}

async fn live(config: LocalConfig, salt: u64, attempt: Attempt, say: &impl Fn(&str)) -> Result<()> {
    let provider = LocalProvider::new(config)?;
    let tags = Tags {
        owner: Owner::new("chaos")?,
        key: Key::new(format!("key-{attempt}"))?,
        generation: Generation::random()?,
        attempt,
    };
    say("begin create");
    let mut handle = provider.create_opts(CreateOptions::new(SandboxSpec::default(), tags.clone())).await?;
    let id = handle.id().clone();
    say("done create");
    for round in 0..3_u8 {
        for file in 0..3 {
            let path = format!("w{round}-{file}");
            say(&format!("begin write {path}"));
            handle.write_bytes(&path, content(&path, salt)).await?;
            say(&format!("done write {path}"));
        }
        let path = format!("x{round}");
        say(&format!("begin exec {path}"));
        let line = format!("cat w{round}-0 w{round}-1 > {path}; sleep 12345 >/dev/null 2>&1 &");
        let output = handle.shell(&line).await?;
        if output.exit.code != Some(0) {
            return Err(Error::new(ErrorKind::Unexpected, format!("exec ended with {:?}", output.exit)));
        }
        say(&format!("done exec {path}"));
        say("begin pause");
        provider.pause(&id).await?;
        say("done pause");
        say("begin resume");
        handle = provider.connect_opts(&id, ConnectOptions::default()).await?.handle;
        say("done resume");
        if round == COPIED {
            copies(&provider, &*handle, &tags, say).await?;
        }
    }
    say("begin destroy");
    provider.destroy(&id).await?;
    say("done destroy");
    Ok(())
}

/// The copies of a sandbox that a host makes in the middle of its life, and gives up again.
async fn copies(
    provider: &LocalProvider,
    handle: &dyn SandboxHandle,
    tags: &Tags,
    say: &impl Fn(&str),
) -> Result<()> {
    say("begin snapshot");
    let snapshot = provider.snapshot(handle.id(), SnapshotOptions::default()).await?;
    say("done snapshot");
    let tags = Tags { attempt: fork_of(&tags.attempt), key: Key::new("fork")?, ..tags.clone() };
    say("begin fork");
    let fork = provider.fork(handle.id(), ForkOptions::new(tags)).await?;
    say("done fork");
    say("begin unfork");
    provider.destroy(fork.id()).await?;
    say("done unfork");
    say("begin forget");
    provider.delete_snapshot(&snapshot.id).await?;
    say("done forget");
    Ok(())
}

/// The attempt of the fork that the host makes which makes its sandbox by `attempt`.
pub(crate) fn fork_of(attempt: &Attempt) -> Attempt {
    Attempt::new(format!("{attempt}-fork"))
}

// ---- the one that kills and compares ----

/// The steps of a host, as often as it takes them.
const STEPS: [(&str, usize); 10] = [
    ("create", 1),
    ("write", 9),
    ("exec", 3),
    ("pause", 3),
    ("resume", 3),
    ("snapshot", 1),
    ("fork", 1),
    ("unfork", 1),
    ("forget", 1),
    ("destroy", 1),
];

/// After which round of writes a host makes copies.
pub(crate) const COPIED: u8 = 1;

pub(crate) struct Host {
    child: Child,
    lines: Receiver<String>,
    /// Steps that were begun, and those of them that were done.
    pub(crate) begun: Vec<String>,
    pub(crate) done: Vec<String>,
    failed: Option<String>,
    over: bool,
}

impl Host {
    fn start(chaos: &Chaos, home: &Path, salt: u64, attempt: &Attempt) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program has a path"))
            .args(&chaos.host_args)
            .env(HOST_VARIABLE, home)
            .env("SANDHOLD_CHAOS_HELPER", &chaos.helper)
            .env("SANDHOLD_CHAOS_SALT", salt.to_string())
            .env("SANDHOLD_CHAOS_ATTEMPT", attempt.as_str())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a host starts");
        let stdout = child.stdout.take().expect("a host has an output");
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(std::result::Result::ok) {
                // Before its first line a test program says other things on the same one.
                if let Some((_, words)) = line.split_once("chaos ")
                    && send.send(words.to_owned()).is_err()
                {
                    return;
                }
            }
        });
        Self { child, lines, begun: Vec::new(), done: Vec::new(), failed: None, over: false }
    }

    /// Takes in one line; false once there are no more.
    fn hear(&mut self, patience: Duration) -> bool {
        match self.lines.recv_timeout(patience) {
            Ok(line) => {
                match line.split_once(' ') {
                    Some(("begin", step)) => self.begun.push(step.to_owned()),
                    Some(("done", step)) => self.done.push(step.to_owned()),
                    Some(("failed", why)) => self.failed = Some(why.to_owned()),
                    _ => self.over = true,
                }
                true
            }
            Err(RecvTimeoutError::Timeout) => panic!("the host hangs after {:?}", self.begun),
            Err(RecvTimeoutError::Disconnected) => false,
        }
    }

    /// Waits for the `number`th time that a kind of step is begun; false when the host ended before.
    fn wait_for(&mut self, kind: &str, number: usize) -> bool {
        let is_kind = |step: &&String| step.split(' ').next() == Some(kind);
        while self.begun.iter().filter(is_kind).count() < number {
            if !self.hear(PATIENCE) {
                return false;
            }
        }
        true
    }

    /// Takes in all that it says until it is no more.
    fn end(&mut self) {
        while self.hear(PATIENCE) {}
        let _ = self.child.wait();
    }
}

fn find_part(home: &Path, wanted: Part) -> Option<i32> {
    parts(home).into_iter().find(|(_, part)| *part == wanted).map(|(pid, _)| pid)
}

/// Runs all moments in one state directory. Panics, with the seed and the moment, when a rule is broken.
pub(crate) fn run(chaos: &Chaos) -> Report {
    println!("chaos: {} moments, seed {}", chaos.moments, chaos.seed);
    let directory =
        tempfile::Builder::new().prefix("sandhold-chaos-").tempdir().expect("a directory is made");
    let home = directory.path().join("state");
    let _end = End { home: home.clone(), helper: chaos.helper.clone() };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let mut random = fastrand::Rng::with_seed(chaos.seed);
    let mut report = Report::default();
    let mut known = BTreeSet::new();
    // What every sandbox shares is made before, so that the first moment is like the others.
    let config = LocalConfig::new().with_home(&home).with_helper(&chaos.helper);
    known.insert(runtime.block_on(make_and_destroy(&config)));

    let mut moment = 0;
    while report.kills.values().sum::<u32>() < chaos.moments {
        moment += 1;
        assert!(report.missed <= chaos.moments, "the victims are nearly never there: {report}");
        let salt = random.u64(..);
        // Not from the seed: what a run that failed left must not be taken for what this one left.
        let attempt = Attempt::random().expect("random bytes");
        known.insert(format!("sb-{attempt}"));
        known.insert(format!("sb-{}", fork_of(&attempt)));
        let victim = [Victim::Host, Victim::Daemon, Victim::Monitor, Victim::Copier][random.usize(..4)];
        // A create is the step with most to leave half-made: half of all kills of what it makes fall into it.
        let (step, times) = match victim {
            Victim::Copier => (["snapshot", "fork"][random.usize(..2)], 1),
            Victim::Daemon | Victim::Monitor if random.bool() => STEPS[0],
            _ => STEPS[random.usize(..STEPS.len())],
        };
        let number = 1 + random.usize(..times);
        // Some steps take less than a millisecond and some more than ten; of a create only some are left by the time that
        // what it makes is seen.
        let longest = match (victim, step) {
            (Victim::Daemon | Victim::Monitor, "create") | (Victim::Copier, _) => [50, 500, 3_000],
            _ => [300, 3_000, 20_000],
        }[random.usize(..3)];
        let delay = Duration::from_micros(random.u64(..longest));

        let mut host = Host::start(chaos, &home, salt, &attempt);
        let there = host.wait_for(step, number);
        let wanted = match victim {
            Victim::Host => None,
            Victim::Daemon => Some(Part::Daemon),
            Victim::Monitor => Some(Part::Monitor),
            Victim::Copier => Some(Part::Helper),
        };
        if let Some(wanted) = wanted.filter(|wanted| step == "create" || *wanted == Part::Helper) {
            // It comes to be in the middle of this step.
            eventually(Duration::from_secs(5), || find_part(&home, wanted).is_some());
        }
        let begun = Instant::now();
        while begun.elapsed() < delay {
            std::hint::spin_loop();
        }
        let pid = match wanted {
            None => i32::try_from(host.child.id()).ok(),
            Some(wanted) => find_part(&home, wanted),
        };
        let pid = pid.filter(|_| there);
        match pid {
            Some(pid) => kill(pid),
            None => report.missed += 1,
        }
        host.end();
        if pid.is_some() {
            // Where it really was: a step may have ended in the meantime.
            let late = step == "create" && host.done.iter().any(|done| done == "create");
            let step = if late { "what follows create" } else { step };
            *report.kills.entry((victim, step.to_owned())).or_default() += 1;
        }
        if chaos.verbose {
            println!(
                "{moment}: {victim:?} in {step} {number} after {delay:?}: {} steps done{}",
                host.done.len(),
                host.failed.as_ref().map(|why| format!(", then {why}")).unwrap_or_default()
            );
        }
        let scene = format!("seed {}, moment {moment}: {victim:?} killed in {step} {number}", chaos.seed);
        if let Some(why) = &host.failed {
            assert!(pid.is_some(), "{scene}: nothing was killed, and the host failed: {why}");
            let lost = why.starts_with("gone ") && !host.begun.iter().any(|step| step == "destroy");
            assert!(!lost, "{scene}: the host took a kept sandbox for gone: {why}");
        }
        // What it ordered goes on without it, and nobody else removes what that left.
        let rest = || parts(&home).iter().all(|(_, part)| *part != Part::Helper);
        let check = verdict::reach(&config, &home, &attempt, salt, &host, &mut report);
        let checked = runtime.block_on(check);
        match checked
            .and_then(|made| eventually(PATIENCE, rest).then_some(made).ok_or("a helper hangs".into()))
        {
            Ok(made) => known.extend(made),
            Err(broken) => {
                panic!("{scene}: {broken}\nbegun {:?}\ndone {:?}\n{:?}", host.begun, host.done, host.failed)
            }
        }
        known.insert(runtime.block_on(make_and_destroy(&config)));
        let left = Reality::of(&home, &known);
        assert!(left.staged.is_empty(), "{scene}: {left:#?}");
        nothing_is_left(&home, &known);
    }
    report
}

/// Destroys what a run that failed leaves.
struct End {
    home: PathBuf,
    helper: PathBuf,
}

impl Drop for End {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(self.home.join("sandboxes")).into_iter().flatten().flatten() {
            let mut destroy = Command::new(&self.helper);
            let _ =
                destroy.args(["local", "destroy", "--dir"]).arg(entry.path()).stdout(Stdio::null()).status();
        }
    }
}

async fn make_and_destroy(config: &LocalConfig) -> String {
    let provider = LocalProvider::new(config.clone()).expect("the state directory is good");
    let tags = Tags {
        owner: Owner::new("chaos").expect("a good name"),
        key: Key::new("between").expect("a good name"),
        generation: Generation::random().expect("random bytes"),
        attempt: Attempt::random().expect("random bytes"),
    };
    let handle =
        provider.create_opts(CreateOptions::new(SandboxSpec::default(), tags)).await.expect("a create");
    provider.destroy(handle.id()).await.expect("a destroy");
    handle.id().to_string()
}
