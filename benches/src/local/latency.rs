//! How long single calls take.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandhold_core::{
    AcquireOptions, ConnectOptions, Memory, PauseOutcome, ProcessSpec, SandboxHandleExt as _,
    SandboxProvider as _, SandboxProviderExt as _, Sandboxes,
};
use sandhold_local::{Record, Spec, choose_ids};
use sandhold_registry::SqliteRegistry;

use crate::Result;
use crate::report::{Bound, Report, Times};
use crate::stage::{self, Made, Stage};

/// The program of round trips: it does nothing.
const TRUE: &str = "/bin/true";

/// The obvious alternative: the same kinds of namespaces around the host's own files.
const BWRAP: [&str; 11] =
    ["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "true"];

/// Processes that are frozen together.
const CROWD: usize = 50;

/// The first argument of this program as the new process of [`connect`].
pub(crate) const CONNECT_CHILD: &str = "--connect-child";

async fn run_true(made: &Made) -> Result<()> {
    let output = made.exec(ProcessSpec::argv(TRUE, [] as [&str; 0])).await?;
    if !output.exit.success() {
        return Err(format!("{TRUE} ended with {}", output.exit).into());
    }
    Ok(())
}

/// Starts a program as a host would without any sandbox, and waits for it.
fn spawn(program: &str, args: &[&str]) -> Result<Duration> {
    let start = Instant::now();
    let status = Command::new(program).args(args).stdin(Stdio::null()).stdout(Stdio::null()).status()?;
    let time = start.elapsed();
    if !status.success() {
        return Err(format!("{program} ended with {status}").into());
    }
    Ok(time)
}

pub(crate) async fn create(stage: &Stage, report: &mut Report) -> Result<()> {
    let [mut whole, mut made_in, mut first, mut second, mut peer, mut record, mut start] =
        std::array::from_fn(|_| Times::default());
    let bwrap = spawn("bwrap", &BWRAP);
    for run in 0..stage.runs {
        let begin = Instant::now();
        let made = stage.create().await?;
        let created = begin.elapsed();
        run_true(&made).await?;
        let done = begin.elapsed();
        run_true(&made).await?;
        second.push(begin.elapsed() - done);
        whole.push(done);
        made_in.push(created);
        first.push(done - created);
        made.destroy().await?;
        if bwrap.is_ok() {
            peer.push(spawn("bwrap", &BWRAP)?);
        }
        let (recorded, started) = parts(stage, &format!("part-{run}"))?;
        record.push(recorded);
        start.push(started);
    }
    report.add_time("create to the first command's result", &whole, Some(15.0));
    match bwrap {
        Ok(_) => {
            report.add_time("  bwrap --unshare-all ... true", &peer, None);
            let ratio = whole.median() / peer.median();
            report.add("  create to first result / bwrap", ratio, "x", Some(Bound::AtMost(1.3)), "");
        }
        Err(error) => report.add("  bwrap", 0.0, "ms", None, format!("skipped: needs bwrap: {error}")),
    }
    report.add_time("  of it: create", &made_in, None);
    report.add_time("  of it: first command", &first, None);
    report.add_time("  second command", &second, None);
    report.add_time("  part: record on disk", &record, None);
    report.add_time("  part: helper started to ready", &start, None);
    Ok(())
}

/// Does the two parts of a create by hand: a record that survives a crash of the machine, and the helper.
fn parts(stage: &Stage, id: &str) -> Result<(Duration, Duration)> {
    let ids = choose_ids(stage.home(), id)?;
    let record = Record::new(Spec::new(id, ids));
    let (staged, parent) = (stage.home().join("staging").join(id), stage.home().join("sandboxes"));
    let directory = parent.join(id);
    let begin = Instant::now();
    fs::create_dir(&staged)?;
    record.save(&staged)?;
    fs::rename(&staged, &directory)?;
    File::open(&parent)?.sync_all()?;
    let recorded = begin.elapsed();
    let begin = Instant::now();
    let answer = helper(stage, "run", &directory)?;
    let started = begin.elapsed();
    if answer.trim() != "ready" {
        return Err(format!("the helper said {answer:?}").into());
    }
    helper(stage, "destroy", &directory)?;
    Ok((recorded, started))
}

fn helper(stage: &Stage, verb: &str, directory: &Path) -> Result<String> {
    let mut command = Command::new(&stage.helper);
    command.args(["local", verb, "--dir"]).arg(directory).stdin(Stdio::null()).stderr(Stdio::null());
    Ok(String::from_utf8(command.output()?.stdout)?)
}

pub(crate) async fn exec(stage: &Stage, report: &mut Report) -> Result<()> {
    let made = stage.create().await?;
    let (mut inside, mut bare) = (Times::default(), Times::default());
    run_true(&made).await?;
    for _ in 0..stage.runs {
        let begin = Instant::now();
        run_true(&made).await?;
        inside.push(begin.elapsed());
        bare.push(spawn(TRUE, &[])?);
    }
    made.destroy().await?;
    report.add_time("exec round trip", &inside, None);
    report.add_time("  bare fork and exec", &bare, None);
    let over = inside.median() - bare.median();
    report.add("  exec over bare fork and exec", over, "ms", Some(Bound::AtMost(2.0)), "");
    Ok(())
}

pub(crate) async fn connect(stage: &Stage, report: &mut Report) -> Result<()> {
    let made = stage.create().await?;
    let mut times = Times::default();
    for _ in 0..stage.runs {
        let output = Command::new(std::env::current_exe()?)
            .arg(CONNECT_CHILD)
            .args([stage.home(), Path::new(made.id().as_str()), &stage.helper])
            .output()?;
        let said = String::from_utf8(output.stdout)?;
        let nanos = said.trim().parse().map_err(|_| format!("the new process said {said:?}"))?;
        times.push(Duration::from_nanos(nanos));
    }
    made.destroy().await?;
    report.add_time("connect by id from a new process", &times, Some(5.0));
    Ok(())
}

/// The new process: says how many nanoseconds it took from the start of `main` to a connected handle.
pub(crate) fn connect_child(args: &[String]) -> Result<()> {
    let begin = Instant::now();
    let [home, id, helper] = args else { return Err("give a state directory, an id and a helper".into()) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let connected = runtime.block_on(async {
        let provider = stage::provider(Path::new(home), Path::new(helper))?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(
            provider.connect_opts(&stage::id(id), ConnectOptions::default()).await?,
        )
    })?;
    let time = begin.elapsed();
    drop(connected);
    println!("{}", time.as_nanos());
    Ok(())
}

pub(crate) async fn pause(stage: &Stage, report: &mut Report) -> Result<()> {
    let made = stage.create().await?;
    // The shell is one of them.
    let line = format!("for i in $(seq {}); do sleep 1000 & done; echo up; wait", CROWD - 1);
    let mut crowd = made.start(ProcessSpec::argv("/bin/sh", ["-c", &line])).await?;
    crowd.next_event().await?;
    let (mut pause, mut resume) = (Times::default(), Times::default());
    for _ in 0..stage.runs {
        let begin = Instant::now();
        let paused = stage.provider.pause(made.id()).await?;
        pause.push(begin.elapsed());
        let begin = Instant::now();
        let connection = stage.provider.connect_opts(made.id(), ConnectOptions::default()).await?;
        resume.push(begin.elapsed());
        if paused != PauseOutcome::Paused || connection.resumed != Some(Memory::Kept) {
            return Err(format!("pause said {paused:?}, resume {:?}", connection.resumed).into());
        }
    }
    drop(crowd);
    made.destroy().await?;
    report.add_time("pause of 50 processes", &pause, Some(5.0));
    report.add_time("resume of 50 processes", &resume, Some(5.0));
    Ok(())
}

pub(crate) async fn acquire(stage: &Stage, report: &mut Report) -> Result<()> {
    let registry = SqliteRegistry::open(stage.scratch("registry.sqlite")).await?;
    let sandboxes = Sandboxes::new(Arc::new(stage.provider.clone())).with_registry(Arc::new(registry));
    sandboxes.acquire("bench", AcquireOptions::default()).await?;
    let (mut times, mut cpu) = (Times::default(), Times::default());
    for _ in 0..stage.runs {
        let (begin, used) = (Instant::now(), own_cpu()?);
        sandboxes.acquire("bench", AcquireOptions::default()).await?;
        times.push(begin.elapsed());
        cpu.push(own_cpu()? - used);
    }
    sandboxes.destroy("bench").await?;
    report.add_time("acquire of a key that is there", &times, None);
    report.add_time("  of it: own CPU", &cpu, None);
    Ok(())
}

/// CPU time of all threads of this process.
fn own_cpu() -> Result<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Ok(Duration::new(u64::try_from(time.tv_sec)?, u32::try_from(time.tv_nsec)?))
}
