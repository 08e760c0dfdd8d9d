//! Commands inside a sandbox whose input and output are streams of bytes.

use std::sync::Arc;

use bytes::Bytes;
use sandhold_core::{
    ByteStream, Error, ErrorKind, OutputStream, ProcessControl, ProcessEvent, ProcessSpec, Result,
    SandboxHandle, Signal, Stdin,
};
use tokio::sync::mpsc;

/// How much of what a command complains is kept.
const SAID: usize = 2000;
/// How much is sent at a time.
const PIECE: usize = 256 << 10;

/// What a command reads.
pub(super) enum Input {
    None,
    Bytes(Vec<u8>),
    Stream(ByteStream),
}

/// How a command ended.
pub(super) struct Ended {
    pub(super) code: Option<i32>,
    /// The end of what it complained.
    pub(super) said: String,
}

impl Ended {
    pub(super) fn failed(&self, what: &str) -> Error {
        let code = self.code.map_or_else(|| "a signal".to_owned(), |code| format!("exit code {code}"));
        let kind = match self.said.contains("No space left on device") {
            true => ErrorKind::StorageFull,
            false => ErrorKind::Unexpected,
        };
        Error::new(kind, format!("could not {what} in the sandbox: {code}: {}", self.said))
    }
}

/// Runs POSIX shell text with arguments to its end and returns what it wrote.
pub(super) async fn collect(
    handle: &dyn SandboxHandle,
    script: &str,
    arguments: &[&str],
    input: Input,
) -> Result<(Ended, Vec<u8>)> {
    let (output, mut pieces) = mpsc::channel::<Bytes>(16);
    let gather = async {
        let mut all = Vec::new();
        while let Some(piece) = pieces.recv().await {
            all.extend_from_slice(&piece);
        }
        Ok(all)
    };
    futures_util::future::try_join(run(handle, script, arguments, input, output), gather).await
}

/// Runs POSIX shell text with arguments to its end, sends `input` meanwhile, and hands its output on as it comes.
pub(super) async fn run(
    handle: &dyn SandboxHandle,
    script: &str,
    arguments: &[&str],
    input: Input,
    output: mpsc::Sender<Bytes>,
) -> Result<Ended> {
    let fixed = ["-c", script, "sandhold"].into_iter().chain(arguments.iter().copied());
    let mut spec = ProcessSpec::argv("/bin/sh", fixed).with_env("LC_ALL", "C");
    if !matches!(input, Input::None) {
        spec = spec.with_stdin(Stdin::Open);
    }
    let mut process = handle.start(spec).await?;
    let (control, process_control) = (process.control(), process.control());
    let feed = async {
        let mut stream = match input {
            Input::None => return Ok(()),
            Input::Bytes(bytes) => {
                let pieces = bytes.chunks(PIECE).map(Bytes::copy_from_slice).collect();
                ByteStream::from_items(pieces)
            }
            Input::Stream(stream) => stream,
        };
        while let Some(piece) = stream.next().await {
            match control.write(piece?).await {
                // It may end without reading all, and its exit says why.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidState) => break,
                answer => answer?,
            }
        }
        match control.close_stdin().await {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidState) => Ok(()),
            answer => answer,
        }
    };
    let follow = async move {
        let mut said = Vec::new();
        while let Some(event) = process.next_event().await? {
            match event {
                ProcessEvent::Output { stream: OutputStream::Stderr, data, .. } => {
                    said.extend_from_slice(&data);
                    let excess = said.len().saturating_sub(SAID);
                    said.drain(..excess);
                }
                ProcessEvent::Output { data, .. } => output.send(data).await.map_err(|_| {
                    Error::new(ErrorKind::Cancelled, "nobody takes what the command writes any more")
                })?,
                ProcessEvent::Exit(status) => {
                    let said: String = String::from_utf8_lossy(&said)
                        .chars()
                        .map(|letter| if letter.is_control() { ' ' } else { letter })
                        .collect();
                    return Ok(Ended { code: status.code, said: said.trim().to_owned() });
                }
                _ => {}
            }
        }
        Err(Error::new(ErrorKind::OutcomeUnknown, "a command of the sandbox reported no end"))
    };
    let mut guard = KillOnDrop(Some(process_control));
    let (ended, ()) = futures_util::future::try_join(follow, feed).await?;
    guard.0 = None;
    Ok(ended)
}

/// Kills a command that nobody waits for any more, from a task of its own.
struct KillOnDrop(Option<Arc<dyn ProcessControl>>);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let (Some(control), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) else {
            return;
        };
        runtime.spawn(async move {
            if let Err(failure) = control.signal(Signal::KILL).await {
                tracing::debug!(%failure, "a command that was given up could not be killed");
            }
        });
    }
}
