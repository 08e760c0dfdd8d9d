//! The Python face of Sandhold: it converts, and nothing else.

mod convert;
mod errors;
mod hooks;
mod host;
mod options;
mod persist;
mod process;
mod provider;
mod runtime;
mod sandbox;
mod source;
mod stream;
mod twins;
mod values;

/// What the package `sandhold` is made of.
#[pyo3::pymodule(gil_used = true)]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::runtime::close_at_exit(module)
    }

    #[pymodule_export]
    use crate::errors::error_kinds;
    #[pymodule_export]
    use crate::hooks::Start;
    #[pymodule_export]
    use crate::host::{AsyncSandboxes, Sandboxes};
    #[pymodule_export]
    use crate::options::{Kind, Mount};
    #[pymodule_export]
    use crate::persist::VaultHook;
    #[pymodule_export]
    use crate::process::{AsyncProcess, Process};
    #[pymodule_export]
    use crate::provider::{E2bProvider, LocalProvider};
    #[pymodule_export]
    use crate::sandbox::{AsyncSandbox, Sandbox};
    #[pymodule_export]
    use crate::stream::{AsyncDownload, AsyncEvents, AsyncWatch, Download, Events, Watch};
    #[pymodule_export]
    use crate::values::{
        Captured, EntryInfo, Event, ExecOutput, ExitStatus, Facts, FreshFile, Isolation, Output, ProcessInfo,
        SandboxInfo, WatchEvent,
    };
}
