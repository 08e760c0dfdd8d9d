//! Replacing the sandbox of a key that was made from another spec.

use super::Acquired;
use super::steps::Acquisition;
use crate::Result;
use crate::lifecycle::finish_destroy;
use crate::registry::{Lease, Phase, Record};

impl Acquisition {
    /// Destroys the sandbox of another spec and creates one of the wanted spec.
    pub(super) async fn replace(&self, mut record: Record, lease: Lease) -> Result<Acquired> {
        let old = record.id.clone();
        if record.phase == Phase::Creating {
            // Its create is open: a sandbox of it that comes late must be known.
            record.abandon();
        }
        record.enter(Phase::Destroying);
        let record = self.home.registry.store(record, &lease).await?;
        let (_, left) = finish_destroy(&self.home, record, &lease).await?;
        self.create(left, old, lease).await
    }
}
