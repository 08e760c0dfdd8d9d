//! This library as a peer: the same orders, by the provider for E2B.

use std::io::{BufRead as _, Write as _};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use futures_core::Stream;
use sandhold_core::{
    ConnectOptions, Connection, ListFilter, OutputStream, ProcessEvent, ProcessSpec, ReadOptions,
    ResultStream, SandboxHandle, SandboxHandleExt as _, SandboxId, SandboxProvider as _, WriteOptions,
};
use sandhold_e2b::{E2bConfig, E2bProvider, PublicTraffic};

use crate::Result;
use crate::peers::{Done, Order};

/// Bytes written at once.
const PIECE: usize = 1 << 20;

/// Carries out orders from standard input until it ends.
pub(crate) async fn serve() -> Result<()> {
    let begun = Instant::now();
    let config = E2bConfig::from_env()?.with_public_traffic(PublicTraffic::Everybody);
    let mut peer = Ours { provider: E2bProvider::new(config)?, sandbox: None, held: Vec::new() };
    let loading = begun.elapsed().as_secs_f64();
    for line in std::io::stdin().lock().lines() {
        let order = serde_json::from_str(&line?)?;
        let begin = Instant::now();
        let done = match peer.carry_out(order).await {
            Ok(()) => Done::Well { seconds: begin.elapsed().as_secs_f64(), loading },
            Err(error) => Done::Badly { failed: error.to_string() },
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", serde_json::to_string(&done)?)?;
    }
    Ok(())
}

struct Ours {
    provider: E2bProvider,
    sandbox: Option<Arc<dyn SandboxHandle>>,
    held: Vec<Connection>,
}

impl Ours {
    async fn connect(&self, id: &str) -> Result<Connection> {
        Ok(self.provider.connect_opts(&SandboxId::new(id), ConnectOptions::default()).await?)
    }

    fn sandbox(&self) -> Result<&Arc<dyn SandboxHandle>> {
        self.sandbox.as_ref().ok_or_else(|| "connect first".into())
    }

    async fn carry_out(&mut self, order: Order) -> Result<()> {
        match order {
            Order::Connect { id } => self.sandbox = Some(self.connect(&id).await?.handle),
            Order::Exec { count } => {
                for _ in 0..count {
                    run_true(self.sandbox()?).await?;
                }
            }
            Order::Write { count } => {
                let content = Bytes::from(vec![b'x'; 1024]);
                for at in 0..count {
                    self.sandbox()?.write_bytes(&format!("small/{at}"), content.clone()).await?;
                }
            }
            Order::Read { count } => {
                for at in 0..count {
                    self.sandbox()?.read_bytes(&format!("small/{at}")).await?;
                }
            }
            Order::Upload { bytes } => {
                let pieces = Pieces(Bytes::from(vec![0x5a; PIECE]), bytes / PIECE as u64);
                let options = WriteOptions::default().with_size(bytes);
                self.sandbox()?.write("big", ResultStream::new(pieces), options).await?;
            }
            Order::Download { bytes } => {
                let mut content = self.sandbox()?.read("noise", ReadOptions::default()).await?.body;
                let mut received = 0;
                while let Some(data) = content.next().await {
                    received += data?.len() as u64;
                }
                exactly(received, bytes)?;
            }
            Order::Stdout { bytes } => {
                let line = format!("dd if=/dev/zero bs=1M count={} status=none", bytes >> 20);
                let spec = ProcessSpec::argv("/bin/bash", ["-l", "-c", &line]);
                let mut process = self.sandbox()?.start(spec).await?;
                let mut received = 0;
                while let Some(event) = process.next_event().await? {
                    if let ProcessEvent::Output { stream: OutputStream::Stdout, data, .. } = event {
                        received += data.len() as u64;
                    }
                }
                exactly(received, bytes)?;
            }
            Order::List { count } => {
                let listed = self.provider.list(ListFilter::default()).await?.collect().await?;
                exactly(listed.len() as u64, count)?;
            }
            Order::Hold { ids } => {
                for id in ids {
                    self.held.push(self.connect(&id).await?);
                }
            }
            Order::Reattach { id } => run_true(&self.connect(&id).await?.handle).await?,
        }
        Ok(())
    }
}

/// Runs what the SDKs run for `true`: a login shell that ends at once.
async fn run_true(sandbox: &Arc<dyn SandboxHandle>) -> Result<()> {
    let output = sandbox.exec(ProcessSpec::argv("/bin/bash", ["-l", "-c", "true"])).await?;
    if output.exit.success() { Ok(()) } else { Err(format!("it ended with {}", output.exit).into()) }
}

fn exactly(received: u64, wanted: u64) -> Result<()> {
    if received == wanted { Ok(()) } else { Err(format!("{received} of {wanted}").into()) }
}

/// The same piece again and again.
struct Pieces(Bytes, u64);

impl Stream for Pieces {
    type Item = sandhold_core::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let left = self.1.checked_sub(1);
        self.1 = left.unwrap_or_default();
        Poll::Ready(left.map(|_| Ok(self.0.clone())))
    }
}
