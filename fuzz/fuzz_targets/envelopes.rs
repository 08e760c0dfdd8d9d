//! Bodies of calls and streams, in both codecs, given to a daemon that then must still answer.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use sandhold_envd::{Daemon, DaemonConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;

/// Calls that start no process and change no file.
const CALLS: [&str; 9] = [
    "process.Process/List",
    "process.Process/Connect",
    "process.Process/Update",
    "process.Process/StreamInput",
    "process.Process/SendInput",
    "process.Process/CloseStdin",
    "filesystem.Filesystem/Stat",
    "filesystem.Filesystem/GetWatcherEvents",
    "filesystem.Filesystem/RemoveWatcher",
];
const CODECS: [&str; 4] =
    ["application/json", "application/proto", "application/connect+json", "application/connect+proto"];

struct Stage {
    runtime: Runtime,
    socket: PathBuf,
}

fn stage() -> &'static Stage {
    static STAGE: OnceLock<Stage> = OnceLock::new();
    STAGE.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let directory = tempfile::tempdir().expect("a directory").keep();
        let socket = directory.join("envd.sock");
        let daemon = Daemon::new(DaemonConfig::new().with_retain_dir(directory)).expect("a daemon");
        runtime.block_on(async {
            let listener = UnixListener::bind(&socket).expect("a socket");
            tokio::spawn(async move { daemon.serve(listener).await });
        });
        Stage { runtime, socket }
    })
}

async fn ask(head: String, body: &[u8]) -> Vec<u8> {
    let mut line = UnixStream::connect(&stage().socket).await.expect("the daemon listens");
    line.write_all(head.as_bytes()).await.expect("the daemon reads the head");
    // It may have answered and hung up before the body was written.
    let _ = line.write_all(body).await;
    let mut answer = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(20), line.read_to_end(&mut answer))
        .await
        .expect("the daemon answers");
    answer
}

fuzz_target!(|input: (u8, u8, Vec<u8>)| {
    let (call, codec, body) = input;
    let (call, codec) = (CALLS[usize::from(call) % CALLS.len()], CODECS[usize::from(codec) % CODECS.len()]);
    stage().runtime.block_on(async {
        let head = format!(
            "POST /{call} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nConnect-Protocol-Version: 1\r\n\
             Connect-Timeout-Ms: 200\r\nContent-Type: {codec}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let answer = ask(head, &body).await;
        assert!(answer.starts_with(b"HTTP/1.1 "), "{call} as {codec}: {:?}", String::from_utf8_lossy(&answer));
        let health = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_owned();
        assert!(ask(health, b"").await.starts_with(b"HTTP/1.1 204 "), "after {call} as {codec}");
    });
});
