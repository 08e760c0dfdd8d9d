//! How fast much data moves.

use std::fs::{self, File};
use std::io::{Read, Write as _};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_core::Stream;
use sandhold_core::{
    FileOptions, OutputStream, ProcessEvent, ProcessSpec, ReadOptions, ResultStream, WriteOptions,
};

use crate::Result;
use crate::memory::Peak;
use crate::report::{Bound, Report, Times};
use crate::stage::{Made, Stage};

const GIBIBYTE: u64 = 1 << 30;

/// Bytes written or read at once.
const PIECE: usize = 1 << 20;

/// What the daemon makes the pipe of a process that writes much, and reads from it at once; the alternative gets the same.
const PIPE_SIZE: usize = 1 << 20;
const PIPE_READ: usize = 256 << 10;

/// Writes a gibibyte to standard output, inside and outside.
const WRITER: (&str, [&str; 3]) = ("head", ["-c", "1G", "/dev/zero"]);

fn shell(line: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line]).stdin(Stdio::null());
    command
}

fn ended(mut child: Child) -> Result<()> {
    let status = child.wait()?;
    if status.success() { Ok(()) } else { Err(format!("a command ended with {status}").into()) }
}

/// Runs a command and reads its output to the end, as a program without a sandbox would.
fn read_output(mut command: Command) -> Result<Duration> {
    let begin = Instant::now();
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    let received = child.stdout.take().map_or(Ok(0), |output| drain(output, PIECE))?;
    ended(child)?;
    let time = begin.elapsed();
    same_size("the output", received)?;
    Ok(time)
}

fn drain(mut output: impl Read, piece: usize) -> Result<u64> {
    let (mut buffer, mut received) = (vec![0; piece], 0);
    loop {
        match output.read(&mut buffer)? {
            0 => return Ok(received),
            count => received += count as u64,
        }
    }
}

/// `cmd | cat`, read by this program, with pipes as large as the daemon's.
fn read_through_cat() -> Result<Duration> {
    let begin = Instant::now();
    let mut writer =
        Command::new(WRITER.0).args(WRITER.1).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let between = writer.stdout.take().ok_or("the writer has no output")?;
    rustix::pipe::fcntl_setpipe_size(&between, PIPE_SIZE)?;
    let mut cat = Command::new("cat").stdin(between).stdout(Stdio::piped()).spawn()?;
    let output = cat.stdout.take().ok_or("cat has no output")?;
    rustix::pipe::fcntl_setpipe_size(&output, PIPE_SIZE)?;
    let received = drain(output, PIPE_READ)?;
    ended(writer)?;
    ended(cat)?;
    let time = begin.elapsed();
    same_size("the output", received)?;
    Ok(time)
}

/// The same output as events of a process in the sandbox.
async fn read_events(made: &Made) -> Result<Duration> {
    let begin = Instant::now();
    let mut process = made.start(ProcessSpec::argv(WRITER.0, WRITER.1)).await?;
    let mut received = 0;
    while let Some(event) = process.next_event().await? {
        if let ProcessEvent::Output { stream: OutputStream::Stdout, data, .. } = event {
            received += data.len() as u64;
        }
    }
    let time = begin.elapsed();
    same_size("the output", received)?;
    Ok(time)
}

/// Feeds a gibibyte to a command.
fn write_input(mut command: Command, piece: &[u8]) -> Result<Duration> {
    let begin = Instant::now();
    let mut child = command.stdin(Stdio::piped()).spawn()?;
    if let Some(mut input) = child.stdin.take() {
        for _ in 0..GIBIBYTE / PIECE as u64 {
            input.write_all(piece)?;
        }
    }
    ended(child)?;
    Ok(begin.elapsed())
}

pub(crate) async fn stdout(stage: &Stage, report: &mut Report) -> Result<()> {
    let made = stage.create().await?;
    let [mut through, mut piped, mut dropped, mut ratios, mut dropped_ratios] =
        std::array::from_fn(|_| Times::default());
    for run in 0..stage.long_runs {
        // Neighbours in time are compared, and either is first as often: what else the machine does hits both.
        let (events, pipe) = if run % 2 == 0 {
            let events = read_events(&made).await?;
            (events, read_through_cat()?)
        } else {
            let pipe = read_through_cat()?;
            (read_events(&made).await?, pipe)
        };
        let begin = Instant::now();
        ended(shell("head -c 1G /dev/zero | cat > /dev/null").spawn()?)?;
        let nobody = begin.elapsed();
        ratios.push_ratio(pipe, events);
        dropped_ratios.push_ratio(nobody, events);
        through.push(events);
        piped.push(pipe);
        dropped.push(nobody);
    }
    made.destroy().await?;
    report.add_rate("1 GiB of stdout", through.rate(GIBIBYTE));
    report.add_rate("  cmd | cat, read by this program", piped.rate(GIBIBYTE));
    report.add_rate("  cmd | cat > /dev/null", dropped.rate(GIBIBYTE));
    report.add_ratio("  stdout / (cmd | cat)", &ratios, Some(Bound::AtLeast(0.7)));
    report.add_ratio("  stdout / (cmd | cat > /dev/null)", &dropped_ratios, None);
    Ok(())
}

fn same_size(what: &str, bytes: u64) -> Result<()> {
    if bytes == GIBIBYTE { Ok(()) } else { Err(format!("{what} has {bytes} bytes instead of 1 GiB").into()) }
}

pub(crate) async fn files(stage: &Stage, report: &mut Report) -> Result<()> {
    let made = stage.create().await?;
    let piece = Bytes::from(vec![0x5a; PIECE]);
    let [mut up, mut down, mut plain_up, mut plain_down] = std::array::from_fn(|_| Times::default());
    let mut growth = Growth::default();
    let plain = stage.scratch("plain");
    for _ in 0..stage.long_runs {
        let peaks = Peaks::begin(&made)?;
        up.push(upload(&made, &piece).await?);
        growth.up = growth.up.max(peaks.growth()?);
        let peaks = Peaks::begin(&made)?;
        down.push(download(&made).await?);
        growth.down = growth.down.max(peaks.growth()?);
        made.remove("big", FileOptions::default()).await?;
        let mut cat = Command::new("cat");
        cat.stdout(File::create(&plain)?);
        plain_up.push(write_input(cat, &piece)?);
        let mut cat = Command::new("cat");
        cat.arg(&plain);
        plain_down.push(read_output(cat)?);
        fs::remove_file(&plain)?;
    }
    made.destroy().await?;
    report.add_rate("1 GiB file up", up.rate(GIBIBYTE));
    report.add_rate("1 GiB file down", down.rate(GIBIBYTE));
    report.add_rate("  cat > file, fed by this program", plain_up.rate(GIBIBYTE));
    report.add_rate("  cat file, read by this program", plain_down.rate(GIBIBYTE));
    let bound = Some(Bound::AtLeast(0.7));
    report.add("  up / (cat > file)", plain_up.median() / up.median(), "x", bound, "");
    report.add("  down / (cat > file)", plain_up.median() / down.median(), "x", bound, "");
    report.add("  down / (cat file)", plain_down.median() / down.median(), "x", None, "");
    for (name, bytes) in [
        ("  memory growth of this process, up", growth.up.host),
        ("  memory growth of the daemon, up", growth.up.daemon),
        ("  memory growth of this process, down", growth.down.host),
        ("  memory growth of the daemon, down", growth.down.daemon),
    ] {
        report.add(name, bytes as f64 / (1 << 20) as f64, "MiB", Some(Bound::AtMost(64.0)), "the largest");
    }
    Ok(())
}

async fn upload(made: &Made, piece: &Bytes) -> Result<Duration> {
    struct Pieces(Bytes, u64);
    impl Stream for Pieces {
        type Item = sandhold_core::Result<Bytes>;
        fn poll_next(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            let left = self.1.checked_sub(1);
            self.1 = left.unwrap_or_default();
            Poll::Ready(left.map(|_| Ok(self.0.clone())))
        }
    }
    let begin = Instant::now();
    let body = ResultStream::new(Pieces(piece.clone(), GIBIBYTE / PIECE as u64));
    let entry = made.write("big", body, WriteOptions::default().with_size(GIBIBYTE)).await?;
    let time = begin.elapsed();
    same_size("the uploaded file", entry.size)?;
    Ok(time)
}

async fn download(made: &Made) -> Result<Duration> {
    let begin = Instant::now();
    let mut content = made.read("big", ReadOptions::default()).await?.body;
    let mut received = 0;
    while let Some(data) = content.next().await {
        received += data?.len() as u64;
    }
    let time = begin.elapsed();
    same_size("the downloaded file", received)?;
    Ok(time)
}

#[derive(Clone, Copy, Default)]
struct Sizes {
    host: u64,
    daemon: u64,
}

impl Sizes {
    fn max(self, other: Self) -> Self {
        Self { host: self.host.max(other.host), daemon: self.daemon.max(other.daemon) }
    }
}

#[derive(Default)]
struct Growth {
    up: Sizes,
    down: Sizes,
}

/// Watches how much the host process and the daemon grow.
struct Peaks {
    host: Peak,
    helper: Vec<Peak>,
}

impl Peaks {
    fn begin(made: &Made) -> Result<Self> {
        let helper = made.processes()?.into_iter().map(Peak::begin).collect::<Result<_>>()?;
        Ok(Self { host: Peak::begin(std::process::id())?, helper })
    }

    fn growth(&self) -> Result<Sizes> {
        let helper = self.helper.iter().map(Peak::growth).collect::<Result<Vec<_>>>()?;
        Ok(Sizes { host: self.host.growth()?, daemon: helper.into_iter().sum() })
    }
}
