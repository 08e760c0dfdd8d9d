//! Saves by the persist hook while a sandbox is in use: on an interval, and on demand.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::resume::is_paused;
use super::{Sandbox, Shared};
use crate::acquire::{inside_save, refuse_inside_save};
use crate::events::EventKind;
use crate::fate::Fate;
use crate::hooks::{PersistHook, bounded};
use crate::{Error, ErrorKind, Result, SandboxState};

/// The saves of one sandbox, whichever of its values asks for them.
#[derive(Debug)]
pub(crate) struct Saves {
    /// When the last one began; held while one goes on, and while it is paused.
    last: Mutex<Instant>,
    /// How many pauses and destroys are about to begin: they save the work themselves.
    rests: watch::Sender<usize>,
}

impl Default for Saves {
    fn default() -> Self {
        Self { last: Mutex::new(Instant::now()), rests: watch::Sender::default() }
    }
}

impl Saves {
    /// Cuts off a save of the interval and waits for one that was asked for. None begins until the guard is dropped.
    pub(super) async fn rest(&self) -> MutexGuard<'_, Instant> {
        struct Wanted<'a>(&'a watch::Sender<usize>);
        impl Drop for Wanted<'_> {
            fn drop(&mut self) {
                self.0.send_modify(|rests| *rests -= 1);
            }
        }
        self.rests.send_modify(|rests| *rests += 1);
        let _wanted = Wanted(&self.rests);
        self.last.lock().await
    }
}

/// The task that saves on an interval. It belongs to a value and its clones, and ends with the last of them.
#[derive(Debug, Default)]
pub(super) struct Saver(OnceLock<AbortHandle>);

impl Drop for Saver {
    fn drop(&mut self) {
        if let Some(task) = self.0.get() {
            task.abort();
        }
    }
}

impl Sandbox {
    /// Saves the work now, by the persist hook. A paused sandbox is resumed for it, as by any call.
    ///
    /// # Errors
    /// What the persist hook answered, or [`ErrorKind::Timeout`] when it overran its deadline;
    /// [`ErrorKind::InvalidState`] with reason `no_persist` where the host has none, and with reason
    /// [`crate::REASON_UNSTARTED`] for a value that has no sandbox.
    ///
    /// # Cancellation
    /// Dropping the future ends the save. What was saved before stays.
    pub async fn save(&self) -> Result<()> {
        self.refuse_within_transition("save")?;
        let home = &self.shared.home;
        let Some(persist) = &home.persist else {
            return Err(Error::new(
                ErrorKind::InvalidState,
                "nothing keeps the work of this host's sandboxes; give it a hook by `Sandboxes::with_persist`",
            )
            .with_reason("no_persist")
            .at(home.provider.name(), "save")
            .with_context("key", &self.shared.key));
        };
        let Some(fate) = self.in_hand("save").await? else { return Err(self.without_sandbox("save")) };
        refuse_inside_save(&fate.home, &self.shared.key, "save")?;
        let mut last = fate.saves.last.lock().await;
        let begun = Instant::now();
        let tick = bounded("tick", home.hook_deadline, persist.tick(self));
        inside_save(&fate.home, &self.shared.key, tick).await?;
        *last = begun;
        Ok(())
    }

    /// Begins to save on the interval of the persist hook, where it has one.
    pub(crate) fn keep_saved(&self) {
        let Some(persist) = &self.shared.home.persist else { return };
        let Some(interval) = interval_of(&**persist) else { return };
        self.saver.0.get_or_init(|| {
            let saving = save_on_interval(Arc::downgrade(&self.shared), Arc::clone(persist), interval);
            tokio::spawn(saving).abort_handle()
        });
    }

    /// Saves unless that was done within the interval, it is paused, or it is about to be; returns since when the next
    /// interval counts.
    async fn save_if_due(&self, fate: &Fate, persist: &dyn PersistHook, interval: Duration) -> Instant {
        let begun = Instant::now();
        let saves = &fate.saves;
        let mut rests = saves.rests.subscribe();
        // Somebody else saves, or it is being paused.
        let Ok(mut last) = saves.last.try_lock() else { return begun };
        if begun < *last + interval {
            return *last;
        }
        let saving = async {
            let info = self.seen(fate, fate.handle().info().await).await?;
            match info.state {
                SandboxState::Running => inside_save(&fate.home, &self.shared.key, persist.tick(self)).await,
                _ => Ok(()),
            }
        };
        let saved = tokio::select! {
            biased;
            _ = rests.wait_for(|rests| *rests > 0) => return begun,
            saved = bounded("tick", self.shared.home.hook_deadline, saving) => saved,
        };
        match saved {
            Ok(()) => *last = begun,
            // By another host, and the loss of the sandbox is told of by itself.
            Err(error) if is_paused(&error) || error.kind() == ErrorKind::Gone => {}
            Err(error) => self.tell(EventKind::SaveFailed { kind: error.kind(), reason: error.reason() }),
        }
        begun
    }
}

/// The interval of a hook, where it has one; a year at most, so that times can be reckoned with.
fn interval_of(persist: &dyn PersistHook) -> Option<Duration> {
    const LONGEST: Duration = Duration::from_secs(365 * 86_400);
    persist.interval().filter(|interval| !interval.is_zero()).map(|interval| interval.min(LONGEST))
}

/// Runs until the value is dropped, or has come to its end.
async fn save_on_interval(value: Weak<Shared>, persist: Arc<dyn PersistHook>, mut interval: Duration) {
    let saving = Arc::new(());
    let transition = Arc::downgrade(&saving);
    let mut since = Instant::now();
    loop {
        tokio::time::sleep_until(since + interval).await;
        since = Instant::now();
        let Some(shared) = value.upgrade() else { return };
        // The hook may have settled another one meanwhile; where it wants none, it is asked again later.
        match interval_of(&*persist) {
            Some(wanted) => interval = wanted,
            None => continue,
        }
        // A save wakes nothing and waits for no transition.
        let sandbox =
            Sandbox { shared, transition: transition.clone(), lent: Weak::new(), saver: Arc::default() };
        match sandbox.usable() {
            Ok(Some(fate)) => since = sandbox.save_if_due(&fate, &*persist, interval).await,
            Ok(None) => {}
            Err(_) if sandbox.may_begin_again() => {}
            Err(_) => return,
        }
    }
}
