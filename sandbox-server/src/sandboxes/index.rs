//! All sandboxes of this server, by id.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use sandhold_core::{
    Attempt, Error, ErrorKind, FindQuery, Key, ListFilter, Result, SandboxInfo, SandboxProviderExt,
};

use super::create::owner;
use super::expiry;
use super::made::Made;
use super::notes::{self, NOTES, Notes};
use super::sandbox::{Phase, Sandbox};
use tokio::sync::OnceCell;

use crate::app::{App, blocking};
use crate::error::{ApiError, ApiResult};
use crate::store::Durability;

/// The sandboxes that this server has seen. The provider has the last word on which there are.
#[derive(Debug, Default)]
pub(crate) struct Index {
    known: RwLock<HashMap<String, Arc<Sandbox>>>,
    /// Set once those that an earlier server left were found.
    complete: OnceCell<()>,
}

impl Index {
    pub(crate) fn get(&self, id: &str) -> Option<Arc<Sandbox>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Sandbox>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Adds a sandbox unless one of its id is there; returns the one that is.
    fn add(&self, sandbox: Sandbox) -> (Arc<Sandbox>, bool) {
        let mut all = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(&sandbox.id) {
            return (Arc::clone(known), false);
        }
        let sandbox = Arc::new(sandbox);
        all.insert(sandbox.id.clone(), Arc::clone(&sandbox));
        (sandbox, true)
    }

    /// Forgets this very sandbox, not a later one of its id.
    fn remove(&self, sandbox: &Arc<Sandbox>) {
        let mut all = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if all.get(&sandbox.id).is_some_and(|known| Arc::ptr_eq(known, sandbox)) {
            all.remove(&sandbox.id);
        }
    }
}

impl App {
    /// Returns all sandboxes. Those that an earlier server left are found first: half a list would be a lie.
    pub(crate) async fn all_sandboxes(self: &Arc<Self>) -> Result<Vec<Arc<Sandbox>>> {
        self.sandboxes.complete.get_or_try_init(|| self.find_sandboxes()).await?;
        Ok(self.sandboxes.all())
    }

    /// Finds all sandboxes that an earlier server left, and goes on with their leases.
    async fn find_sandboxes(self: &Arc<Self>) -> Result<()> {
        let listed = self.provider.list_all(ListFilter::default().with_owner(owner()?)).await?;
        for info in &listed {
            match self.adopt(info).await {
                Ok(_) => {}
                // One that cannot be understood must not take the others away.
                Err(error) => tracing::error!(%error, id = %info.id, "a sandbox cannot be served"),
            }
        }
        let store = Arc::clone(&self.store);
        let known: Vec<_> =
            listed.iter().filter_map(|info| info.tags.as_ref()).map(|tags| tags.key.to_string()).collect();
        blocking(move || {
            store.make_dir(NOTES)?;
            for id in store.names(NOTES)?.iter().filter(|id| !known.contains(id)) {
                store.remove(&notes::name(id))?;
            }
            Ok(())
        })
        .await?;
        tracing::info!(sandboxes = self.sandboxes.all().len(), "the sandboxes that are there were found");
        Ok(())
    }

    /// Takes a sandbox of the provider into the index.
    pub(crate) async fn adopt(self: &Arc<Self>, info: &SandboxInfo) -> Result<Arc<Sandbox>> {
        let mut metadata = info.metadata.clone();
        let made = Made::take(&mut metadata)?;
        let id = info.tags.as_ref().map(|tags| tags.key.to_string()).unwrap_or_default();
        let store = Arc::clone(&self.store);
        let noted = blocking(move || store.read::<Notes>(&notes::name(&id))).await;
        let notes = match noted {
            Ok(notes) => notes.unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Unexpected => {
                tracing::warn!(%error, "notes about a sandbox are left out");
                Notes::default()
            }
            Err(error) => return Err(error),
        };
        Ok(self.admit(Sandbox::new(info, made, metadata, notes, &self.tokens)))
    }

    /// Takes a sandbox into the index and watches over its end.
    pub(crate) fn admit(self: &Arc<Self>, sandbox: Sandbox) -> Arc<Sandbox> {
        let (sandbox, new) = self.sandboxes.add(sandbox);
        if new {
            tokio::spawn(expiry::watch(Arc::downgrade(self), Arc::downgrade(&sandbox)));
        }
        sandbox
    }

    /// Finds a sandbox by the id that clients use, with the provider if need be; 404 when there is none.
    pub(crate) async fn sandbox(self: &Arc<Self>, id: &str) -> ApiResult<Arc<Sandbox>> {
        match self.find_sandbox(id).await? {
            Some(sandbox) if sandbox.phase() != Phase::Killing => Ok(sandbox),
            _ => Err(not_found(id)),
        }
    }

    pub(crate) async fn find_sandbox(self: &Arc<Self>, id: &str) -> Result<Option<Arc<Sandbox>>> {
        if let Some(known) = self.sandboxes.get(id) {
            return Ok(Some(known));
        }
        let (Ok(owner), Ok(key)) = (owner(), Key::new(id)) else { return Ok(None) };
        let query = FindQuery::Key { owner, key, attempt: Some(Attempt::new(id)) };
        let mut found = self.provider.find(query).await?;
        match found.len() {
            0 => Ok(None),
            1 => self.adopt(&found.remove(0)).await.map(Some),
            several => Err(Error::new(
                ErrorKind::Unexpected,
                format!("the provider found {several} sandboxes of one create"),
            )),
        }
    }

    /// Forgets a sandbox that is no more, and what was kept about it.
    pub(crate) async fn forget(&self, sandbox: &Arc<Sandbox>) {
        sandbox.set_phase(Phase::Killing);
        self.sandboxes.remove(sandbox);
        sandbox.rescheduled.notify_one();
        let (store, name) = (Arc::clone(&self.store), notes::name(&sandbox.id));
        if let Err(error) = blocking(move || store.remove(&name)).await {
            // They are removed at the next start.
            tracing::warn!(%error, "notes about a sandbox that is gone are left");
        }
    }

    /// Keeps what changed about a sandbox.
    pub(crate) async fn note(&self, sandbox: &Sandbox, durability: Durability) -> Result<()> {
        let (store, name, notes) = (Arc::clone(&self.store), notes::name(&sandbox.id), sandbox.notes());
        blocking(move || store.write(&name, &notes, durability)).await
    }
}

pub(crate) fn not_found(id: &str) -> ApiError {
    ApiError::not_found(format!("Sandbox \"{id}\" not found"))
}
