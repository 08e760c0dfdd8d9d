//! Watches over one process from its start to its last byte.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::daemon::process::outputs::Outputs;
use crate::daemon::process::reaper::Exit;
use crate::daemon::process::running::Process;

/// How long late writers are waited for after the process itself ended.
const LATE_WRITERS: Duration = Duration::from_millis(100);

/// The most that is taken of them in that time: nobody slows them down any more.
const LATE_BYTES: usize = 8 << 20;

/// When a process is to end at the latest.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Deadline {
    /// `Connect-Timeout-Ms`: killed at once, as E2B's envd does.
    Kill(Instant),
    /// Our own: `SIGTERM` first, then `SIGKILL` after the grace.
    Terminate(Instant, Duration),
}

/// Forwards output, tells the end once it is complete, and drains whatever comes later.
pub(crate) async fn supervise(
    process: Arc<Process>,
    mut outputs: Outputs,
    mut exit: oneshot::Receiver<Exit>,
) {
    let ended = loop {
        tokio::select! {
            biased;
            ended = &mut exit => break ended,
            output = outputs.next() => match output {
                Some((stream, bytes)) => {
                    if let Some(ended) = process.publish(stream, bytes, &mut exit).await {
                        break ended;
                    }
                }
                None => break (&mut exit).await,
            },
        }
    };
    process.collected();
    process.release_all_followers();
    drain(&process, &mut outputs).await;
    process.finish(ended.ok()).await;
    // A grandchild that still writes must not be ended by SIGPIPE.
    while let Some((stream, bytes)) = outputs.next().await {
        process.publish(stream, bytes, pending()).await;
    }
    process.close_log();
}

/// Reads everything the process itself wrote, then waits a moment for its children.
async fn drain(process: &Process, outputs: &mut Outputs) {
    // Bounded by what was there at the end: a grandchild may write for ever.
    let mut left = outputs.buffered();
    while let Some((stream, bytes)) = outputs.next_buffered() {
        left = left.saturating_sub(bytes.len() as u64);
        process.publish(stream, bytes, pending()).await;
        if left == 0 {
            break;
        }
    }
    let late = Instant::now() + LATE_WRITERS;
    let mut room = LATE_BYTES;
    while room > 0 && Instant::now() < late {
        match tokio::time::timeout_at(late, outputs.next()).await {
            Ok(Some((stream, bytes))) => {
                room = room.saturating_sub(bytes.len());
                process.publish(stream, bytes, pending()).await;
            }
            Ok(None) | Err(_) => return,
        }
    }
}

/// Ends the process and everything it started at its deadline; returns when the process has ended.
pub(crate) async fn enforce(process: Arc<Process>, deadline: Deadline) {
    let at = match deadline {
        Deadline::Kill(at) | Deadline::Terminate(at, _) => at,
    };
    tokio::select! {
        biased;
        () = process.wait() => return,
        () = tokio::time::sleep_until(at) => {}
    }
    process.time_out();
    if let Deadline::Terminate(_, grace) = deadline {
        if let Err(error) = process.signal_tree(Signal::TERM).await {
            tracing::warn!(%error, pid = process.pid, "a timed out process could not be asked to end");
        }
        // Whatever outlives the process itself has nobody to work for: it does not get the rest of the grace.
        let _ = tokio::time::timeout(grace, process.wait()).await;
    }
    if let Err(error) = process.signal_tree(Signal::KILL).await {
        tracing::warn!(%error, pid = process.pid, "a timed out process is not gone");
    }
}
