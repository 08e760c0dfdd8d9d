//! The fate of each sandbox that this host has values of: what one of them learns or does, all of them know.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use tokio::sync::{MutexGuard, OwnedMutexGuard};

use crate::acquire::Home;
use crate::sandbox::Saves;
use crate::{Error, ErrorKind, Generation, Key, Memory, SandboxHandle, SandboxId};

/// Why no call is admitted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Gone,
    Destroyed,
    /// Another generation has taken its place.
    Replaced,
    Detached,
    LeaseLost,
}

impl End {
    /// What a call is answered after this end.
    pub(crate) fn error(self) -> Error {
        let (kind, message, reason) = match self {
            Self::Gone => (ErrorKind::Gone, "the sandbox does not exist any more", "gone"),
            Self::Destroyed => (ErrorKind::Gone, "the sandbox was destroyed", "destroyed"),
            Self::Replaced => (
                ErrorKind::Stale,
                "another sandbox has taken the place of this one; acquire the key again",
                REASON_REPLACED,
            ),
            Self::Detached => {
                (ErrorKind::InvalidState, "this value was detached; acquire the key again", "detached")
            }
            Self::LeaseLost => (ErrorKind::Stale, "another host has taken this key over", "lease_lost"),
        };
        Error::new(kind, message).with_reason(reason)
    }
}

/// The reason of the [`ErrorKind::Stale`] of a value whose sandbox was replaced; nothing was sent.
pub const REASON_REPLACED: &str = "replaced";

/// One sandbox of one generation, as this host knows it: what all its values of it share.
pub(crate) struct Fate {
    /// The host at the provider where it is.
    pub(crate) home: Arc<Home>,
    pub(crate) id: SandboxId,
    pub(crate) generation: Generation,
    handle: RwLock<Arc<dyn SandboxHandle>>,
    /// Held by the one call that takes the record's lease to pause or resume it: the others wait here, not for the lease.
    turn: tokio::sync::Mutex<()>,
    /// Held by whoever pauses or resumes it, under the lease: every call waits until that is over.
    gate: Arc<tokio::sync::Mutex<Resumes>>,
    end: Mutex<Option<End>>,
    pub(crate) saves: Saves,
}

/// The resumes of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Resumes {
    pub(crate) done: u64,
    /// The provider has resumed it, and the hook has not ended well since: nothing is let through before it has.
    pub(crate) hook_due: Option<Memory>,
}

/// The gate of a sandbox, closed to its calls.
pub(crate) type Closed = OwnedMutexGuard<Resumes>;

impl Fate {
    /// The provider's handle, of the last connect.
    pub(crate) fn handle(&self) -> Arc<dyn SandboxHandle> {
        Arc::clone(&self.handle.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn connected(&self, handle: Arc<dyn SandboxHandle>) {
        *self.handle.write().unwrap_or_else(PoisonError::into_inner) = handle;
    }

    pub(crate) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Waits until nobody pauses or resumes it, and keeps calls out as long as what is returned lives.
    pub(crate) async fn close(&self) -> Closed {
        Arc::clone(&self.gate).lock_owned().await
    }

    pub(crate) fn end(&self) -> Option<End> {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it; `false` when it had ended before. Who destroys what is gone wants no value to go on with the next one.
    pub(crate) fn finish(&self, end: End) -> bool {
        let mut known = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let first = known.is_none();
        if first || (*known, end) == (Some(End::Gone), End::Destroyed) {
            *known = Some(end);
        }
        first
    }
}

/// The fates that anybody still holds, by key.
#[derive(Debug, Default)]
pub(crate) struct Fates(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    fates: HashMap<Key, Weak<Fate>>,
    /// At so many entries the ones that nobody holds are let go.
    sweep_at: usize,
}

impl Fates {
    /// Returns the fate that the values of a key in this host have now, if anybody holds one.
    pub(crate) fn of(&self, key: &Key) -> Option<Arc<Fate>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fates.get(key).and_then(Weak::upgrade)
    }

    /// Returns the fate of the sandbox that a key has now, as it was just connected to. The values of the one before it
    /// are stale from here on; its id is returned where any are left and it was not destroyed through them.
    pub(crate) fn enter(
        &self,
        home: &Arc<Home>,
        key: &Key,
        handle: Arc<dyn SandboxHandle>,
        generation: &Generation,
    ) -> (Arc<Fate>, Option<SandboxId>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = None;
        if let Some(fate) = known.fates.get(key).and_then(Weak::upgrade) {
            let same = fate.id == *handle.id() && fate.generation == *generation;
            if same && fate.end().is_none() {
                fate.connected(handle);
                return (fate, None);
            }
            if !same && fate.end() != Some(End::Destroyed) {
                fate.finish(End::Replaced);
                before = Some(fate.id.clone());
            }
        }
        if known.fates.len() >= known.sweep_at {
            known.fates.retain(|_, fate| fate.strong_count() > 0);
            known.sweep_at = (known.fates.len() * 2).max(64);
        }
        let fate = Arc::new(Fate {
            home: Arc::clone(home),
            id: handle.id().clone(),
            generation: generation.clone(),
            handle: RwLock::new(handle),
            turn: tokio::sync::Mutex::default(),
            gate: Arc::default(),
            end: Mutex::new(None),
            saves: Saves::default(),
        });
        known.fates.insert(key.clone(), Arc::downgrade(&fate));
        (fate, before)
    }
}
