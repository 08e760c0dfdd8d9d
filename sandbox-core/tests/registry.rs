//! The rules of every registry over the one in memory.

use std::sync::Arc;

use async_trait::async_trait;
use sandhold_core::testing::registry::RegistryFixture;
use sandhold_core::{MemoryRegistry, Registry};

struct Memory(MemoryRegistry);

#[async_trait]
impl RegistryFixture for Memory {
    fn registry(&self) -> Arc<dyn Registry> {
        Arc::new(self.0.clone())
    }

    async fn reopened(&self) -> Arc<dyn Registry> {
        self.registry()
    }
}

async fn memory() -> Result<Memory, String> {
    Ok(Memory(MemoryRegistry::new()))
}

sandhold_core::registry_conformance!(memory);
