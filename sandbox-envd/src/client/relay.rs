//! Byte streams to ports where the daemon has no tunnel: a program inside connects, and its input and output are the
//! stream.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::{io, time::Duration};

use bytes::Bytes;
use sandhold_core::{
    ErrorKind, OutputStream, PortStream, Process, ProcessEvent, ProcessSpec, Result, SandboxHandle, Stdin,
};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, ReadHalf, WriteHalf,
};
use tokio::sync::oneshot;

use crate::client::fault::Effect;
use crate::client::handle::EnvdHandle;

/// How much waits between the stream and the program in each direction.
const BUFFER: usize = 256 * 1024;

/// What the program says once it is connected.
const CONNECTED: u8 = b'+';

/// How the program ends when nothing listens.
const REFUSED: i32 = 111;

/// How long connecting inside may take: all of it happens on one machine.
const CONNECT_TIME: Duration = Duration::from_secs(20);

/// Relays by Python where it is there: it alone can close one direction and keep the other.
const PYTHON: &str = r#"
import os, socket, sys, threading
port, sock = int(sys.argv[1]), None
for host in ("127.0.0.1", "::1"):
    try:
        sock = socket.create_connection((host, port))
        break
    except OSError:
        pass
if sock is None:
    sys.exit(111)
def put(data):
    while data:
        data = data[os.write(1, data):]
def up():
    try:
        while data := os.read(0, 65536):
            sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        pass
put(b"+")
threading.Thread(target=up, daemon=True).start()
try:
    while data := sock.recv(65536):
        put(data)
except OSError:
    os._exit(1)
os._exit(0)
"#;

/// Chooses the relay. Bash has connections of its own, which close as a whole.
const CHOOSE: &str = r#"
command -v python3 >/dev/null 2>&1 && exec python3 -c "$2" "$1"
exec 3<>"/dev/tcp/127.0.0.1/$1" || exit 111
printf +
cat <&3 & reader=$!
cat >&3
wait "$reader"
"#;

impl EnvdHandle {
    pub(crate) async fn relay_to_port(&self, port: u16) -> Result<Box<dyn PortStream>> {
        let arguments =
            ["-c".to_owned(), CHOOSE.to_owned(), "relay".to_owned(), port.to_string(), PYTHON.to_owned()];
        let spec = ProcessSpec::argv("/bin/bash", arguments).with_stdin(Stdin::Open);
        let call = self.call("dial", Effect::None);
        let mut process = match self.start(spec).await {
            Ok(process) => process,
            Err(error) if error.kind() == ErrorKind::InvalidArgument => {
                return Err(self.unsupported("dial without bash in the sandbox").with_source(error));
            }
            Err(error) => return Err(error),
        };
        let rest = match tokio::time::timeout(CONNECT_TIME, connected(&mut process)).await {
            Ok(Ok(Some(rest))) => rest,
            Ok(Ok(None)) => {
                return Err(call
                    .error(ErrorKind::Unavailable, "nothing listens on the port")
                    .with_reason("port_closed")
                    .retryable(None));
            }
            Ok(Err(error)) => return Err(error),
            Err(elapsed) => {
                let _ = process.kill().await;
                return Err(call
                    .error(ErrorKind::Timeout, "the sandbox did not connect to its own port")
                    .with_source(elapsed)
                    .retryable(None));
            }
        };
        let (near, far) = tokio::io::duplex(BUFFER);
        let (left, dropped) = oneshot::channel();
        tokio::spawn(relay(process, far, rest, dropped));
        Ok(Box::new(Relayed { near, _left: left }))
    }
}

/// Waits until the program is connected and returns what came with the word; `None` when nothing listens.
async fn connected(process: &mut Process) -> Result<Option<Bytes>> {
    loop {
        match process.next_event().await? {
            Some(ProcessEvent::Output { data, .. }) if data.first() == Some(&CONNECTED) => {
                return Ok(Some(data.slice(1..)));
            }
            Some(ProcessEvent::Output { .. }) => {}
            Some(ProcessEvent::Exit(exit)) if exit.code == Some(REFUSED) => return Ok(None),
            Some(ProcessEvent::Exit(exit)) => {
                return Err(sandhold_core::Error::new(
                    ErrorKind::Unexpected,
                    format!("the program that connects inside ended with {exit}"),
                ));
            }
            Some(_) => {}
            None => return Ok(None),
        }
    }
}

async fn relay(mut process: Process, far: DuplexStream, first: Bytes, dropped: oneshot::Receiver<()>) {
    let control = process.control();
    let (from_caller, to_caller) = tokio::io::split(far);
    let up = send_up(&process, from_caller);
    let up = tokio::spawn(up);
    // Whoever lets go of the stream wants nothing more of it: the program is ended then.
    let told_all = tokio::select! {
        told = bring_down(&mut process, to_caller, first) => told,
        _ = dropped => false,
    };
    up.abort();
    if !told_all {
        let _ = control.signal(sandhold_core::Signal::KILL).await;
    }
}

fn send_up(process: &Process, mut from: ReadHalf<DuplexStream>) -> impl Future<Output = ()> + Send + use<> {
    let control = process.control();
    async move {
        let mut buffer = bytes::BytesMut::with_capacity(BUFFER);
        loop {
            buffer.reserve(BUFFER / 4);
            match from.read_buf(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(_) => {}
            }
            if control.write(buffer.split().freeze()).await.is_err() {
                return;
            }
        }
        let _ = control.close_stdin().await;
    }
}

/// Returns whether the other end closed of its own accord.
async fn bring_down(process: &mut Process, mut to: WriteHalf<DuplexStream>, first: Bytes) -> bool {
    if to.write_all(&first).await.is_err() {
        return false;
    }
    loop {
        match process.next_event().await {
            Ok(Some(ProcessEvent::Output { data, stream: OutputStream::Stdout, .. })) => {
                if to.write_all(&data).await.is_err() {
                    return false;
                }
            }
            Ok(Some(ProcessEvent::Exit(_)) | None) => {
                let _ = to.shutdown().await;
                return true;
            }
            Ok(Some(_)) => {}
            Err(_) => return false,
        }
    }
}

/// The caller's end.
struct Relayed {
    near: DuplexStream,
    /// Its drop tells that nobody wants the stream any more.
    _left: oneshot::Sender<()>,
}

impl AsyncRead for Relayed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.near).poll_read(cx, buf)
    }
}

impl AsyncWrite for Relayed {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.near).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.near).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.near).poll_shutdown(cx)
    }
}
