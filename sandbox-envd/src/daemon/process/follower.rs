//! One reader of a process's output. It slows the process down while that runs; once it has ended, nobody waits for it.

use tokio::sync::mpsc;

use crate::daemon::process::stream::Chunk;

/// Chunks that a follower may lag behind before the process has to wait for it.
const QUEUE: usize = 4;

/// Where a reader's chunks go.
#[derive(Clone, Debug)]
pub(crate) enum Follower {
    /// A short queue: whoever fills it waits.
    Waits(mpsc::Sender<Chunk>),
    /// Everything that was left when the process ended, which is no more than its pipes hold.
    Keeps(mpsc::UnboundedSender<Chunk>),
}

impl Follower {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Chunk>) {
        let (sender, chunks) = mpsc::channel(QUEUE);
        (Self::Waits(sender), chunks)
    }

    /// Hands a chunk over; false when the reader has gone. A call that is given up has handed nothing over.
    pub(crate) async fn send(&self, chunk: Chunk) -> bool {
        match self {
            Self::Waits(sender) => sender.send(chunk).await.is_ok(),
            Self::Keeps(sender) => sender.send(chunk).is_ok(),
        }
    }

    pub(crate) fn has_gone(&self) -> bool {
        match self {
            Self::Waits(sender) => sender.is_closed(),
            Self::Keeps(sender) => sender.is_closed(),
        }
    }

    pub(crate) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Waits(one), Self::Waits(two)) => one.same_channel(two),
            (Self::Keeps(one), Self::Keeps(two)) => one.same_channel(two),
            _ => false,
        }
    }

    /// Lets nobody wait for this reader from now on; what it has not taken yet is carried to it by a task.
    pub(crate) fn release(&mut self) {
        let Self::Waits(sender) = self else { return };
        let sender = sender.clone();
        let (keeps, mut kept) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Some(chunk) = kept.recv().await {
                if sender.send(chunk).await.is_err() {
                    return;
                }
            }
        });
        *self = Self::Keeps(keeps);
    }
}
