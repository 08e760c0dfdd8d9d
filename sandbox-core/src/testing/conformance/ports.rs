//! Rules about ports inside a sandbox.

use std::sync::Arc;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt, split};

use super::{Stage, within};
use crate::{ErrorKind, Process, ProcessEvent, SandboxHandle};

const PORT: u16 = 18_431;

/// Starts the echo server and waits until it says that it listens; `None` where the sandbox has none.
async fn echo(stage: &Stage, handle: &Arc<dyn SandboxHandle>) -> Option<Process> {
    let spec = stage.echo_server(PORT);
    let program = spec.program.clone();
    let mut process = match handle.start(spec).await {
        Ok(process) => process,
        Err(error) if error.kind() == ErrorKind::InvalidArgument => {
            let _ = stage.needs(false, &format!("{program} in the sandbox"));
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    within("the echo server listens", async {
        match process.next_event().await.unwrap() {
            Some(ProcessEvent::Output { .. }) => {}
            other => panic!("the echo server did not say that it listens: {other:?}"),
        }
    })
    .await;
    Some(process)
}

/// Bytes go both ways to whatever listens inside, on several connections, and the end of one side is told.
pub async fn a_port_inside_is_reached_from_outside(stage: &Stage) {
    if !stage.needs(stage.capabilities().dial, "dial") {
        return;
    }
    let handle = stage.create("one").await;
    let Some(_server) = echo(stage, &handle).await else { return };
    let (mut first, mut second) = (handle.dial(PORT).await.unwrap(), handle.dial(PORT).await.unwrap());
    for text in [b"first", b"again"] {
        for stream in [&mut first, &mut second] {
            stream.write_all(text).await.unwrap();
            let mut back = [0; 5];
            within("the echo comes back", stream.read_exact(&mut back)).await.unwrap();
            assert_eq!(&back, text);
        }
    }
    let sent: Bytes = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
    let (mut read, mut write) = split(second);
    let feed = sent.clone();
    let writer = tokio::spawn(async move {
        write.write_all(&feed).await.unwrap();
        write.shutdown().await.unwrap();
        write
    });
    let mut back = Vec::new();
    within("everything comes back, then the end", read.read_to_end(&mut back)).await.unwrap();
    writer.await.unwrap();
    assert!(back == sent, "{} bytes came back, not the same ones", back.len());
}

/// A port on which nothing listens is told apart from a sandbox that is not there.
pub async fn a_closed_port_is_not_found_with_a_reason(stage: &Stage) {
    if !stage.needs(stage.capabilities().dial, "dial") {
        return;
    }
    let handle = stage.create("one").await;
    let error = handle.dial(PORT).await.unwrap_err();
    assert_eq!((error.kind(), error.reason()), (ErrorKind::NotFound, Some("port_closed")), "{error}");
    stage.provider().destroy(handle.id()).await.unwrap();
    let error = handle.dial(PORT).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
}

/// A provider that cannot dial says so.
pub async fn dial_without_the_capability_is_unsupported(stage: &Stage) {
    if !stage.needs(!stage.capabilities().dial, "a provider without dial") {
        return;
    }
    let handle = stage.create("one").await;
    assert_eq!(handle.dial(PORT).await.unwrap_err().kind(), ErrorKind::Unsupported);
}
