//! Layers that builds made before, found by what made them.

use std::collections::BTreeMap;
use std::sync::Arc;

use sandhold_core::Result;
use sandhold_e2b::wire::{Step, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

use crate::app::blocking;
use crate::store::{Durability, Store};

use super::catalog::now;
use super::record::Layer;

const LAYERS: &str = "layers";
/// So many layers are kept; those that were not used for longest go first.
const MAX_LAYERS: usize = 500;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct LayerRecord {
    layer: Layer,
    used_at: Timestamp,
}

/// What made a layer: the hash of its base and of every step up to it.
#[derive(Clone, Debug)]
pub(crate) struct Chain(String);

impl Chain {
    /// A chain that begins with a base.
    pub(crate) fn new(base: &str) -> Self {
        Self(digest([base].into_iter()))
    }

    /// The chain on what only exists once.
    pub(crate) fn on(&self, what: &str) -> Self {
        Self(digest([self.0.as_str(), what].into_iter()))
    }

    /// The chain after one more step.
    pub(crate) fn then(&self, step: &Step) -> Self {
        let kind = format!("{:?}", step.kind);
        let files = step.files_hash.as_deref().unwrap_or_default();
        let parts = [self.0.as_str(), &kind, files].into_iter();
        Self(digest(parts.chain(step.args.iter().map(String::as_str))))
    }
}

fn digest<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        // With its length, so that no two lists of parts are the same bytes.
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    format!("{:x}", hash.finalize())
}

/// The layers of this server.
#[derive(Debug)]
pub(crate) struct Layers {
    store: Arc<Store>,
    records: Mutex<BTreeMap<String, LayerRecord>>,
}

impl Layers {
    /// Reads all layers; one that cannot be read is made again when it is needed. Blocks.
    pub(crate) fn open(store: Arc<Store>) -> Result<Self> {
        store.make_dir(LAYERS)?;
        let mut records = BTreeMap::new();
        for name in store.names(LAYERS)? {
            if let Ok(Some(record)) = store.read::<LayerRecord>(&format!("{LAYERS}/{name}")) {
                records.insert(name, record);
            }
        }
        Ok(Self { store, records: Mutex::new(records) })
    }

    /// Returns the layer that a chain made before.
    pub(crate) async fn get(&self, chain: &Chain) -> Result<Option<Layer>> {
        let mut records = self.records.lock().await;
        let Some(record) = records.get_mut(&chain.0) else { return Ok(None) };
        record.used_at = now();
        let record = record.clone();
        // When it was used is worth no wait for the disk.
        self.write(chain, &record, Durability::Process).await?;
        Ok(Some(record.layer))
    }

    /// Remembers a layer.
    pub(crate) async fn put(&self, chain: &Chain, layer: &Layer) -> Result<()> {
        let record = LayerRecord { layer: layer.clone(), used_at: now() };
        let mut records = self.records.lock().await;
        self.write(chain, &record, Durability::Machine).await?;
        records.insert(chain.0.clone(), record);
        Ok(())
    }

    async fn write(&self, chain: &Chain, record: &LayerRecord, durability: Durability) -> Result<()> {
        let (store, name, record) =
            (Arc::clone(&self.store), format!("{LAYERS}/{}", chain.0), record.clone());
        blocking(move || store.write(&name, &record, durability)).await
    }

    /// Forgets layers whose snapshot is gone, and those beyond the limit.
    pub(crate) async fn trim(&self, snapshots: &[String]) -> Result<()> {
        let mut records = self.records.lock().await;
        let is_gone =
            |record: &LayerRecord| record.layer.snapshot.as_ref().is_some_and(|id| !snapshots.contains(id));
        let mut gone: Vec<_> =
            records.iter().filter(|(_, record)| is_gone(record)).map(|(name, _)| name.clone()).collect();
        let mut by_age: Vec<_> = records.iter().filter(|(name, _)| !gone.contains(name)).collect();
        by_age.sort_by_key(|(_, record)| record.used_at);
        let surplus = by_age.len().saturating_sub(MAX_LAYERS);
        gone.extend(by_age.into_iter().take(surplus).map(|(name, _)| name.clone()));
        for name in gone {
            let (store, document) = (Arc::clone(&self.store), format!("{LAYERS}/{name}"));
            blocking(move || store.remove(&document)).await?;
            records.remove(&name);
        }
        Ok(())
    }

    /// Returns every snapshot that a layer stands on.
    pub(crate) async fn snapshots(&self) -> Vec<String> {
        self.records.lock().await.values().filter_map(|record| record.layer.snapshot.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use sandhold_e2b::wire::StepKind;

    use super::*;

    fn step(kind: StepKind, args: &[&str]) -> Step {
        Step { kind, args: args.iter().map(|arg| (*arg).to_owned()).collect(), ..Step::default() }
    }

    #[test]
    fn another_step_or_base_or_order_is_another_layer() {
        let run = step(StepKind::Run, &["a", "b"]);
        let base = Chain::new("base");
        let one = base.then(&run).0;
        assert_eq!(one, Chain::new("base").then(&run.clone()).0);
        let files = Step { files_hash: Some("f".to_owned()), ..run.clone() };
        for other in [
            Chain::new("image").then(&run),
            base.then(&step(StepKind::Env, &["a", "b"])),
            base.then(&step(StepKind::Run, &["ab"])),
            base.then(&step(StepKind::Run, &["a", "b", ""])),
            base.then(&files),
            base.then(&run).then(&run),
        ] {
            assert_ne!(one, other.0);
        }
    }
}
