//! Templates: what sandboxes are made from, built here step by step.

mod build;
mod catalog;
mod ids;
mod importer;
mod layers;
mod log;
mod names;
mod record;
pub(crate) mod resolve;
pub(crate) mod routes;
mod session;
pub(crate) mod start;
mod steps;
mod uploads;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandhold_core::{
    Error, ListFilter, Network, Owner, Result, SandboxProvider, SandboxProviderExt, SnapshotFilter,
    SnapshotId,
};
use sandhold_e2b::wire::{Build, LogEntry, LogLevel};
use tokio::sync::{RwLock, Semaphore, watch};

use crate::app::blocking;
use crate::config::{Egress, ServerConfig};
use crate::images::{ImageLibrary, Limits};
use crate::rooted;
use crate::store::Store;

use build::Base;
use catalog::Catalog;
use layers::Layers;
use log::BuildLog;
use record::Reason;
use session::{OWNER, Session};
use uploads::Uploads;

pub(crate) use catalog::{BASE, not_found};
pub use importer::RootImporter;

pub(crate) use ids::{build as uuid, template as short_id};
pub(crate) use names::{DEFAULT_TAG, NAMESPACE, TemplateName};
pub(crate) use record::{Context, StartCommands};
pub(crate) use session::{OWNER as BUILDERS, SNAPSHOT_PREFIX};

/// So many builds run at once; more wait.
const MAX_BUILDS: usize = 4;

/// The templates of a server, and the builds that run.
#[derive(Debug)]
pub(crate) struct Templates {
    pub(crate) catalog: Catalog,
    pub(crate) uploads: Uploads,
    layers: Layers,
    library: Arc<ImageLibrary>,
    importer: Option<Arc<dyn RootImporter>>,
    importing: tokio::sync::Mutex<()>,
    provider: Arc<dyn SandboxProvider>,
    network: Network,
    build_limit: Duration,
    image_limits: Limits,
    logs: PathBuf,
    scratch: PathBuf,
    running: Mutex<HashMap<String, Running>>,
    permits: Semaphore,
    /// Builds hold it to read, what deletes unused snapshots holds it alone.
    unused: RwLock<()>,
}

#[derive(Debug)]
struct Running {
    log: Arc<BuildLog>,
    cancel: watch::Sender<bool>,
}

impl Templates {
    /// Reads what is kept; builds that a dead server left are ended.
    pub(crate) async fn open(
        provider: Arc<dyn SandboxProvider>,
        store: Arc<Store>,
        config: &ServerConfig,
    ) -> Result<Arc<Self>> {
        let library = ImageLibrary::new(config.images.clone(), &config.image_aliases)
            .map_err(|error| Error::invalid_argument(error.to_string()))?;
        let opened = blocking(move || {
            let (logs, scratch) = (store.make_dir("logs")?, store.make_dir("scratch")?);
            for left in std::fs::read_dir(&scratch).into_iter().flatten().flatten() {
                if let Err(error) = rooted::remove_tree(&left.path()) {
                    tracing::warn!(%error, path = %left.path().display(), "an unpacked image is left behind");
                }
            }
            let uploads = Uploads::open(&store)?;
            Ok((Catalog::open(Arc::clone(&store))?, Layers::open(store)?, uploads, logs, scratch))
        });
        let (catalog, layers, uploads, logs, scratch) = opened.await?;
        let network = match config.egress {
            Egress::Host => Network::Host,
            Egress::Loopback => Network::Loopback,
        };
        let templates = Arc::new(Self {
            catalog,
            uploads,
            layers,
            library: Arc::new(library),
            importer: config.importer.clone(),
            importing: tokio::sync::Mutex::new(()),
            provider,
            network,
            build_limit: config.build_limit,
            image_limits: Limits::default(),
            logs,
            scratch,
            running: Mutex::new(HashMap::new()),
            permits: Semaphore::new(MAX_BUILDS),
            unused: RwLock::new(()),
        });
        templates.end_left_sandboxes().await;
        let cleaning = Arc::clone(&templates);
        // Nobody waits for it: what a dead server left disturbs nobody.
        tokio::spawn(async move { cleaning.sweep().await });
        Ok(templates)
    }

    async fn end_left_sandboxes(&self) {
        let ended: Result<()> = async {
            let filter = ListFilter::default().with_owner(Owner::new(OWNER)?);
            for info in self.provider.list_all(filter).await? {
                self.provider.destroy(&info.id).await?;
            }
            Ok(())
        }
        .await;
        if let Err(error) = ended {
            tracing::warn!(%error, "sandboxes of builds of an earlier run may be left to their leases");
        }
    }

    /// Deletes snapshots that no layer and no template stands on any more; later, if builds run.
    pub(crate) async fn sweep(&self) {
        // What a template that could not be read stands on is not known.
        if !self.catalog.is_whole() {
            return;
        }
        // A build has snapshots that nothing stands on yet.
        let Ok(_alone) = self.unused.try_write() else { return };
        let swept: Result<()> = async {
            let all = self.provider.list_snapshots(SnapshotFilter::default()).await?.collect().await?;
            let ids: Vec<_> = all.iter().map(|info| info.id.as_str().to_owned()).collect();
            self.layers.trim(&ids).await?;
            let mut needed = self.layers.snapshots().await;
            needed.extend(self.catalog.snapshots().await);
            for info in all {
                let ours = info.names.iter().any(|name| name.starts_with(SNAPSHOT_PREFIX));
                if ours && !needed.iter().any(|id| id == info.id.as_str()) {
                    // Refused while a sandbox stands on it: the next time, then.
                    let _ = self.provider.delete_snapshot(&SnapshotId::new(info.id.as_str())).await;
                }
            }
            Ok(())
        }
        .await;
        if let Err(error) = swept {
            tracing::debug!(%error, "unused snapshots were not looked for");
        }
    }

    /// Runs a build that was marked as running, on a task of its own.
    fn spawn(self: &Arc<Self>, template: String, build: String, base: Base, request: Build) {
        let (cancel, cancelled) = watch::channel(false);
        let log = BuildLog::create(&self.logs, &build);
        let running = Running { log: Arc::clone(&log), cancel };
        self.running.lock().unwrap_or_else(PoisonError::into_inner).insert(build.clone(), running);
        let this = Arc::clone(self);
        tokio::spawn(async move {
            let outcome = this.run(&build, &base, &request, &log, cancelled).await;
            match &outcome {
                Ok(_) => log.say(LogLevel::Info, "finalize", "Build finished"),
                Err(reason) => {
                    let step = reason.step.as_deref().unwrap_or("base");
                    log.say(LogLevel::Error, step, format!("Build failed: {}", reason.message));
                }
            }
            let ready = outcome.is_ok();
            // A template that was deleted meanwhile has nobody to tell.
            if let Err(error) = this.catalog.finish(&template, &build, outcome).await {
                tracing::warn!(?error, template, build, "the outcome of a build is lost");
            }
            this.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&build);
            tracing::info!(template, build, ready, "build ended");
            this.sweep().await;
        });
    }

    async fn run(
        &self,
        build: &str,
        base: &Base,
        request: &Build,
        log: &BuildLog,
        mut cancelled: watch::Receiver<bool>,
    ) -> Result<record::Built, Reason> {
        // Longer than the build, so that its own limit is what ends it.
        let lease = self.build_limit + Duration::from_secs(60);
        let session = Session::new(Arc::clone(&self.provider), build, self.network, lease);
        let work = async {
            let (Ok(_turn), _used) = (self.permits.acquire().await, self.unused.read().await) else {
                return Err(Reason { message: "the server takes no builds".to_owned(), step: None });
            };
            let limited =
                tokio::time::timeout(self.build_limit, self.make(base, request, &session, log)).await;
            limited.unwrap_or_else(|_| {
                let message = format!("the build took longer than {} s", self.build_limit.as_secs());
                Err(Reason { message, step: None })
            })
        };
        let outcome = tokio::select! {
            outcome = work => outcome,
            _ = cancelled.wait_for(|cancelled| *cancelled) => {
                Err(Reason { message: "the build was cancelled".to_owned(), step: None })
            }
        };
        session.close().await;
        outcome
    }

    /// Tells a running build to end.
    fn cancel(&self, build: &str) {
        if let Some(running) = self.running.lock().unwrap_or_else(PoisonError::into_inner).get(build) {
            running.cancel.send_replace(true);
        }
    }

    /// Returns lines of the log of a build.
    async fn log(&self, build: &str, offset: usize, limit: usize) -> Result<Vec<LogEntry>> {
        let running = self
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(build)
            .map(|running| Arc::clone(&running.log));
        match running {
            Some(log) => Ok(log.page(offset, limit)),
            None => {
                let (directory, build) = (self.logs.clone(), build.to_owned());
                let all = blocking(move || Ok(log::read(&directory, &build))).await?;
                Ok(all.into_iter().skip(offset).take(limit).collect())
            }
        }
    }
}
