//! What creates under way stand on: nobody deletes it before their sandbox is listed as its user.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The templates and volumes that are held, by id.
#[derive(Debug, Default)]
pub(crate) struct Holds(Mutex<HashMap<String, Weak<()>>>);

/// Keeps one from being deleted until it is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Hold(#[expect(dead_code, reason = "being there is what it is for")] Arc<()>);

impl Holds {
    /// Holds what has this id. It may be gone already: whoever holds it looks for it then, not before.
    pub(crate) fn hold(&self, id: &str) -> Hold {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.retain(|_, hold| hold.strong_count() > 0);
        if let Some(hold) = held.get(id).and_then(Weak::upgrade) {
            return Hold(hold);
        }
        let hold = Arc::new(());
        held.insert(id.to_owned(), Arc::downgrade(&hold));
        Hold(hold)
    }

    /// Tells whether somebody holds it. Whoever deletes asks while nobody can find it, and before looking for users.
    pub(crate) fn is_held(&self, id: &str) -> bool {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.get(id).is_some_and(|hold| hold.strong_count() > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_twice_is_free_when_both_have_let_go() {
        let holds = Holds::default();
        let (one, two) = (holds.hold("a"), holds.hold("a"));
        drop(one);
        assert_eq!((holds.is_held("a"), holds.is_held("b")), (true, false));
        drop(two);
        assert!(!holds.is_held("a"));
    }
}
