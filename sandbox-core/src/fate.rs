//! The fate of each sandbox that this host has values of: what one of them learns, all of them know.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::{Error, ErrorKind, Generation, Key, SandboxId};

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

/// One sandbox of one generation, as this host knows it.
#[derive(Debug)]
pub(crate) struct Fate {
    pub(crate) id: SandboxId,
    pub(crate) generation: Generation,
    end: Mutex<Option<End>>,
}

impl Fate {
    pub(crate) fn end(&self) -> Option<End> {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it; `false` when it had ended before.
    pub(crate) fn finish(&self, end: End) -> bool {
        let mut known = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let first = known.is_none();
        known.get_or_insert(end);
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

    /// Returns the fate of the sandbox that a key has now. The values of the one before it are stale from here on; its id
    /// is returned where any are left and it was not destroyed through them.
    pub(crate) fn enter(
        &self,
        key: &Key,
        id: &SandboxId,
        generation: &Generation,
    ) -> (Arc<Fate>, Option<SandboxId>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut before = None;
        if let Some(fate) = known.fates.get(key).and_then(Weak::upgrade) {
            let same = fate.id == *id && fate.generation == *generation;
            if same && fate.end().is_none() {
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
        let fate = Arc::new(Fate { id: id.clone(), generation: generation.clone(), end: Mutex::new(None) });
        known.fates.insert(key.clone(), Arc::downgrade(&fate));
        (fate, before)
    }
}
