//! Idempotency keys whose sandbox was made: a copy of the create that comes late, after the end of the sandbox, must not
//! make another one.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use sandhold_core::{ErrorKind, Result};
use sandhold_e2b::wire::Timestamp;
use serde::{Deserialize, Serialize};

use crate::app::{App, blocking};
use crate::store::{Durability, Store};

const SPENT: &str = "spent";

/// How long a key is remembered: longer than any client sends one create again.
const KEPT: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, Serialize, Deserialize)]
struct Spent {
    made_at: Timestamp,
}

fn name(id: &str) -> String {
    format!("{SPENT}/{id}")
}

/// Forgets the keys that are old enough.
pub(crate) fn forget_old(store: &Store) -> Result<()> {
    store.make_dir(SPENT)?;
    // One that cannot be understood stays: its key has made a sandbox, whenever that was.
    for (id, spent) in store.read_all::<Spent>(SPENT)?.0 {
        let age = SystemTime::now().duration_since(spent.made_at.0).ok();
        if age.is_some_and(|age| age > KEPT) {
            store.remove(&name(&id))?;
        }
    }
    Ok(())
}

impl App {
    /// Notes that the key of this id has made its sandbox; durable when it returns.
    pub(super) async fn spend(&self, id: &str) -> Result<()> {
        let (store, name) = (Arc::clone(&self.store), name(id));
        let spent = Spent { made_at: Timestamp(SystemTime::now()) };
        blocking(move || store.write(&name, &spent, Durability::Machine)).await
    }

    pub(super) async fn is_spent(&self, id: &str) -> Result<bool> {
        let (store, name) = (Arc::clone(&self.store), name(id));
        match blocking(move || store.read::<Spent>(&name)).await {
            // It is there, whatever it says.
            Err(error) if error.kind() == ErrorKind::Unexpected => Ok(true),
            spent => Ok(spent?.is_some()),
        }
    }
}
