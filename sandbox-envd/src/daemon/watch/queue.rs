//! What one watcher has not been told yet.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::messages::filesystem::FilesystemEvent;

/// Most events that wait for a slow watcher: as many as the kernel itself keeps by default.
const CAPACITY: usize = 16_384;

/// A bounded queue of events. When it is full, what it holds is replaced by one marker that says so.
#[derive(Default)]
pub(super) struct Queue {
    events: Mutex<VecDeque<FilesystemEvent>>,
    filled: Notify,
}

impl Queue {
    /// Adds an event.
    pub(super) fn push(&self, event: FilesystemEvent) {
        let mut events = self.lock();
        if events.len() >= CAPACITY {
            mark_lost(&mut events);
        }
        events.push_back(event);
        drop(events);
        self.filled.notify_one();
    }

    /// Says that events were lost: whoever watches has to look again, so what waited is of no more use.
    pub(super) fn lose(&self) {
        mark_lost(&mut self.lock());
        self.filled.notify_one();
    }

    /// Takes all that waits.
    pub(super) fn drain(&self) -> Vec<FilesystemEvent> {
        self.lock().drain(..).collect()
    }

    /// Waits for the next event. Cancelling loses none.
    pub(super) async fn next(&self) -> FilesystemEvent {
        loop {
            let filled = self.filled.notified();
            if let Some(event) = self.lock().pop_front() {
                return event;
            }
            filled.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<FilesystemEvent>> {
        // Nothing in here can panic half way.
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn mark_lost(events: &mut VecDeque<FilesystemEvent>) {
    events.clear();
    events.push_back(FilesystemEvent { overflow: true, ..Default::default() });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: usize) -> FilesystemEvent {
        FilesystemEvent { name: name.to_string(), ..Default::default() }
    }

    #[test]
    fn a_full_queue_becomes_one_marker_and_goes_on() {
        let queue = Queue::default();
        for name in 0..CAPACITY {
            queue.push(event(name));
        }
        assert_eq!(queue.lock().len(), CAPACITY);
        queue.push(event(CAPACITY));
        let left = queue.drain();
        assert_eq!(left.len(), 2);
        assert!(left[0].overflow);
        assert_eq!(left[1], event(CAPACITY));
    }

    #[tokio::test]
    async fn events_come_in_order_and_a_cancelled_wait_loses_none() {
        let queue = Queue::default();
        {
            let waiting = queue.next();
            tokio::pin!(waiting);
            tokio::select! {
                biased;
                _ = &mut waiting => panic!("nothing was pushed"),
                () = std::future::ready(()) => queue.push(event(1)),
            }
        }
        queue.push(event(2));
        assert_eq!(queue.next().await, event(1));
        assert_eq!(queue.next().await, event(2));
    }
}
