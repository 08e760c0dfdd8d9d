//! What all routes share.

use std::sync::Arc;

use sandhold_core::{Error, ErrorKind, Result, SandboxProvider};

use crate::config::ServerConfig;
use crate::guard::Guard;
use crate::holds::Holds;
use crate::machine::Machine;
use crate::proxy::Tls;
use crate::samples;
use crate::sandboxes::{self, Flights, Index};
use crate::secrets::Secrets;
use crate::snapshots::Snapshots;
use crate::store::Store;
use crate::templates::Templates;
use crate::tokens::Tokens;
use crate::volumes::Volumes;

/// The state of the server; one a server, behind an `Arc`.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) config: ServerConfig,
    pub(crate) provider: Arc<dyn SandboxProvider>,
    pub(crate) guard: Guard,
    pub(crate) store: Arc<Store>,
    pub(crate) tokens: Tokens,
    pub(crate) machine: Machine,
    pub(crate) sandboxes: Index,
    pub(crate) flights: Flights,
    pub(crate) holds: Holds,
    pub(crate) templates: Arc<Templates>,
    pub(crate) snapshots: Snapshots,
    pub(crate) volumes: Volumes,
    pub(crate) secrets: Secrets,
    pub(crate) tls: Tls,
}

impl App {
    pub(crate) async fn open(provider: Arc<dyn SandboxProvider>, config: ServerConfig) -> Result<Arc<Self>> {
        let home = config.home.clone();
        let (store, secret, machine) = blocking(move || {
            let store = Store::open(&home)?;
            let secret = store.secret()?;
            sandboxes::forget_old(&store)?;
            Ok((store, secret, Machine::look(&home)))
        })
        .await?;
        let guard = Guard::new(&config.allowed_hosts);
        let store = Arc::new(store);
        let templates = Templates::open(Arc::clone(&provider), Arc::clone(&store), &config).await?;
        let snapshots = Snapshots::open(Arc::clone(&provider), Arc::clone(&store)).await?;
        let volumes = Volumes::open(Arc::clone(&store)).await?;
        let secrets = Secrets::open(Arc::clone(&store)).await?;
        let app = Arc::new(Self {
            config,
            provider,
            guard,
            store,
            tokens: Tokens::new(&secret),
            machine,
            sandboxes: Index::default(),
            flights: Flights::default(),
            holds: Holds::default(),
            templates,
            snapshots,
            volumes,
            secrets,
            tls: Tls::new()?,
        });
        if let Err(error) = app.all_sandboxes().await {
            // Each is still found by its id, and lists try again.
            tracing::error!(%error, "the sandboxes that are there could not be listed");
        }
        if app.provider.capabilities().metrics {
            tokio::spawn(samples::measure(Arc::downgrade(&app)));
        }
        Ok(app)
    }
}

/// Runs file work off the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| Error::new(ErrorKind::Unexpected, "the file work was ended").with_source(error))?
}
