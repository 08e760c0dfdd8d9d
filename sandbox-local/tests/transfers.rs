//! Large, slow and stalled transfers: memory stays small, slowness is no fault, and silence is one.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a broken rule panics, and what is skipped is said"
)]

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use sandhold_core::{
    ByteStream, ErrorKind, ExecOptions, Outcome, ProcessSpec, ReadOptions, SandboxHandleExt as _,
    WriteOptions,
};
use tokio::time::Instant;

#[path = "support/reality.rs"]
mod reality;
#[path = "support/rig.rs"]
mod rig;

use reality::peak_kib;
use rig::{Rig, alone};

/// Asks for the tests that take minutes; the change that lands has them run once.
const LONG_TESTS: &str = "SANDHOLD_LONG_TESTS";

fn long_tests_are_wanted() -> bool {
    let wanted = std::env::var_os(LONG_TESTS).is_some_and(|value| value == "1");
    if !wanted {
        println!("skipped: needs {LONG_TESTS}=1, as it takes minutes");
    }
    wanted
}

const BLOCK: usize = 256 * 1024;

/// Blocks of a gibibyte.
const GIBIBYTE: u64 = 4096;

/// How many gibibytes the test in a process of its own moves.
const GIBIBYTES: &str = "SANDHOLD_TEST_GIBIBYTES";

/// One block of a large file; each is another.
fn block(number: u64) -> Vec<u8> {
    let pattern: Vec<u8> = (0..4096_u64)
        .flat_map(|at| (at ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .collect();
    pattern.repeat(BLOCK / pattern.len())
}

/// The hash of what is written to it, by the host's program: many times faster than one built for tests.
struct Sum(std::process::Child);

impl Sum {
    fn new() -> Self {
        Self(Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap())
    }

    fn push(&mut self, bytes: &[u8]) {
        self.0.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    fn end(self) -> String {
        let output = self.0.wait_with_output().unwrap();
        String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned()
    }
}

#[test]
fn a_file_of_one_gibibyte_goes_up_and_down_without_filling_memory() {
    alone("alone_a_large_file", &[(GIBIBYTES, "1")]);
}

#[test]
fn a_file_of_four_gibibytes_goes_up_and_down_without_filling_memory() {
    if long_tests_are_wanted() {
        alone("alone_a_large_file", &[(GIBIBYTES, "4")]);
    }
}

#[tokio::test]
#[ignore = "run by another test, in a process of its own: it measures memory"]
async fn alone_a_large_file() {
    let blocks = std::env::var(GIBIBYTES).unwrap().parse::<u64>().unwrap() * GIBIBYTE;
    let rig = Rig::new().await;
    let (me, daemon) = (i32::try_from(std::process::id()).unwrap(), rig.daemon());
    rig.handle.write_bytes("small", block(0)).await.unwrap();
    rig.handle.read_bytes("small").await.unwrap();
    let before = (peak_kib(me), peak_kib(daemon));
    let body = ByteStream::unfold(0, move |number| async move {
        (number < blocks).then(|| (Ok(block(number).into()), number + 1))
    });
    let entry = rig.handle.write("large", body, WriteOptions::default()).await.unwrap();
    assert_eq!(entry.size, blocks * BLOCK as u64);
    let mut sent = Sum::new();
    (0..blocks).for_each(|number| sent.push(&block(number)));
    let sent = sent.end();
    let options = ExecOptions::default().with_timeout(Duration::from_secs(600));
    let inside = rig.handle.exec_opts(ProcessSpec::argv("sha256sum", ["large"]), options).await.unwrap();
    assert!(inside.exit.success(), "sha256sum: {}", inside.exit);
    assert_eq!(inside.stdout.text().split(' ').next().unwrap(), sent);

    let mut download = rig.handle.read("large", ReadOptions::default()).await.unwrap();
    assert_eq!(download.size, Some(blocks * BLOCK as u64));
    let mut received = Sum::new();
    while let Some(chunk) = download.body.next().await {
        received.push(&chunk.unwrap());
    }
    assert_eq!(received.end(), sent);
    let after = (peak_kib(me), peak_kib(daemon));
    println!("measured host: peak of {} KiB, then {} KiB", before.0, after.0);
    println!("measured daemon: peak of {} KiB, then {} KiB", before.1, after.1);
    assert!(after.0 - before.0 <= 64 * 1024, "the host grew by {} KiB", after.0 - before.0);
    assert!(after.1 - before.1 <= 64 * 1024, "the daemon grew by {} KiB", after.1 - before.1);
    rig.end().await;
}

// ---- slowness and silence ----

/// How long a slow transfer lasts: longer than any limit on silence.
const SLOWLY: Duration = Duration::from_secs(90);

/// How long the other side may be silent, by default of daemon and client.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn ninety_seconds_at_a_slow_steady_rate_succeed_up_and_down() {
    if !long_tests_are_wanted() {
        return;
    }
    let rig = Rig::new().await;
    let fast: Vec<u8> = (0..64).flat_map(block).collect();
    rig.handle.write_bytes("whole", fast.clone()).await.unwrap();

    let begin = Instant::now();
    let step = Duration::from_millis(500);
    let steps = u32::try_from(SLOWLY.as_millis() / step.as_millis()).unwrap();
    let upload = async {
        let body = ByteStream::unfold(0, move |number: u32| async move {
            tokio::time::sleep_until(begin + step * (number + 1)).await;
            (number < steps).then(|| (Ok(block(number.into())[..4096].to_vec().into()), number + 1))
        });
        rig.handle.write("slow", body, WriteOptions::default()).await.unwrap();
        begin.elapsed()
    };
    let download = async {
        let mut body = rig.handle.read("whole", ReadOptions::default()).await.unwrap().body;
        let mut received = Vec::new();
        while let Some(chunk) = body.next().await {
            received.extend_from_slice(&chunk.unwrap());
            tokio::time::sleep_until(begin + SLOWLY.mul_f64(received.len() as f64 / fast.len() as f64)).await;
        }
        assert!(received == fast, "{} bytes arrived of {}", received.len(), fast.len());
        begin.elapsed()
    };
    let (up, down) = tokio::join!(upload, download);
    assert!(up >= SLOWLY && down >= SLOWLY, "{up:?} up, {down:?} down: not slow at all");
    let sent: Vec<u8> = (0..steps).flat_map(|number| block(number.into())[..4096].to_vec()).collect();
    assert!(rig.handle.read_bytes("slow").await.unwrap() == sent);
    rig.end().await;
}

#[tokio::test]
async fn a_stalled_peer_fails_the_transfer_at_the_idle_limit() {
    if !long_tests_are_wanted() {
        return;
    }
    // The sender stops in the middle.
    let silent_sender = async {
        let rig = Rig::new().await;
        let body = ByteStream::unfold(0, async |number: u64| match number {
            0 => Some((Ok(block(0).into()), 1)),
            _ => std::future::pending().await,
        });
        let begin = Instant::now();
        let error = rig.handle.write("stalled", body, WriteOptions::default()).await.unwrap_err();
        assert!(begin.elapsed() >= IDLE_LIMIT, "after {:?}", begin.elapsed());
        assert_eq!((error.kind(), error.outcome()), (ErrorKind::Timeout, Outcome::Unknown), "{error}");
        // Nothing is wrong with the sandbox.
        rig.ok("true").await;
        rig.end().await;
    };
    // The daemon stops in the middle of an answer, and before one.
    let silent_daemon = async {
        let rig = Rig::new().await;
        rig.handle.write_bytes("whole", vec![7; 64 << 20]).await.unwrap();
        let mut body = rig.handle.read("whole", ReadOptions::default()).await.unwrap().body;
        body.next().await.unwrap().unwrap();
        let daemon = rustix::process::Pid::from_raw(rig.daemon()).unwrap();
        rustix::process::kill_process(daemon, rustix::process::Signal::STOP).unwrap();
        let begin = Instant::now();
        let download = async {
            loop {
                match body.next().await.unwrap() {
                    Ok(_) => {}
                    Err(error) => break error,
                }
            }
        };
        let upload = rig.handle.write_bytes("never", vec![7; 64 << 20]);
        let (down, up) = tokio::join!(download, upload);
        assert!(begin.elapsed() >= IDLE_LIMIT, "after {:?}", begin.elapsed());
        let up = up.unwrap_err();
        for error in [&down, &up] {
            assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
        }
        assert_eq!(up.outcome(), Outcome::Unknown, "part of it was sent: {up}");
        rustix::process::kill_process(daemon, rustix::process::Signal::CONT).unwrap();
        rig.end().await;
    };
    tokio::join!(silent_sender, silent_daemon);
}
