//! The Python face of Sandhold: it converts, and nothing else.

mod convert;
mod e2b;
mod errors;
mod facts;
mod hooks;
mod host;
mod json;
mod mirror;
mod options;
mod persist;
mod process;
mod provider;
mod providers;
mod reconcile;
mod registry;
mod runtime;
mod sandbox;
mod settings;
mod snapshots;
mod source;
mod stream;
mod templates;
mod twins;
mod values;
mod vault;

/// What the package `sandhold` is made of.
#[pyo3::pymodule(gil_used = true)]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::runtime::close_at_exit(module)
    }

    #[pymodule_export]
    use crate::e2b::{
        AsyncSecrets, AsyncVolumeContent, AsyncVolumes, PortAccess, SandboxAccess, SecretInfo, Secrets,
        Volume, VolumeContent, VolumeEntry, Volumes,
    };
    #[pymodule_export]
    use crate::errors::error_kinds;
    #[pymodule_export]
    use crate::facts::{Capabilities, LogLine, Metrics, SnapshotInfo};
    #[pymodule_export]
    use crate::hooks::Start;
    #[pymodule_export]
    use crate::host::{AsyncSandboxes, Sandboxes};
    #[pymodule_export]
    use crate::mirror::{
        AsyncMirror, Fetched, Mirror, MirrorConfig, MirroredRepo, MirroredSnapshot, MirroredSnapshots,
        Orphan, Resumed, Verified,
    };
    #[pymodule_export]
    use crate::options::{Kind, Mount};
    #[pymodule_export]
    use crate::persist::{RestoreReport, VaultHook};
    #[pymodule_export]
    use crate::process::{AsyncProcess, Process};
    #[pymodule_export]
    use crate::provider::{
        AsyncE2bProvider, AsyncLocalProvider, AsyncProvider, E2bProvider, LocalProvider, Provider,
    };
    #[pymodule_export]
    use crate::providers::Providers;
    #[pymodule_export]
    use crate::reconcile::{
        AsyncReconciler, Finding, Kept, OrphanReport, ReconcilePlan, Reconciler, Step, StepOutcome,
    };
    #[pymodule_export]
    use crate::registry::{Abandoned, AsyncRegistry, Record, Registry};
    #[pymodule_export]
    use crate::sandbox::{AsyncSandbox, Sandbox};
    #[pymodule_export]
    use crate::settings::{PersistConfig, PersistSettings, SettingsChange};
    #[pymodule_export]
    use crate::snapshots::{
        Bundle, BundleHeader, Collected, Examined, Flaw, Imported, Missing, Promise, Pruned, Receipt,
        RemoteCopy, Repaired, RepositoryRepaired, Restored, RestoredBranch, Snapshot, Unfinished,
    };
    #[pymodule_export]
    use crate::stream::{AsyncDownload, AsyncEvents, AsyncItems, AsyncWatch, Download, Events, Items, Watch};
    #[pymodule_export]
    use crate::templates::{
        AssignedTags, AsyncTemplateBuild, AsyncTemplates, BuildAnswer, BuildInfo, DefaultTemplate, Recipe,
        Tag, Template, TemplateBuild, Templates,
    };
    #[pymodule_export]
    use crate::values::{
        Captured, EntryInfo, Event, ExecOutput, ExitStatus, Facts, FreshFile, Isolation, Output, ProcessInfo,
        SandboxInfo, WatchEvent,
    };
    #[pymodule_export]
    use crate::vault::{AsyncSession, AsyncVault, Session, Vault};
}
