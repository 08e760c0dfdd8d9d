use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::images::Alias;
use crate::templates::RootImporter;

/// What network the sandboxes get whose creator did not forbid it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Egress {
    /// Each sandbox has a loopback of its own and reaches nothing else. The default: sandboxes never share ports.
    #[default]
    Loopback,
    /// Sandboxes use the network of the host, and share its ports.
    Host,
}

/// Configures the server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerConfig {
    /// Where to listen; port 0 picks one. Default 127.0.0.1:3000.
    pub listen: SocketAddr,
    /// Where the server keeps its own state. Default `server` in the working directory.
    pub home: PathBuf,
    /// The only API key that is accepted. Default any that is not empty; needed where others than this machine's
    /// programs can connect.
    pub api_key: Option<String>,
    /// Names that clients may call this server by, beside those of loopback and of its addresses. Default none.
    pub allowed_hosts: Vec<String>,
    /// The network of sandboxes. Default [`Egress::Loopback`].
    pub egress: Egress,
    /// How long a sandbox may run without a pause. Default 24 h, as E2B's larger plan has.
    pub max_run: Duration,
    /// A directory of images that templates may start from, as `docker save` writes them or in the OCI layout. Default
    /// none.
    pub images: Option<PathBuf>,
    /// What stands in for images that are not there, by name; later ones win. Default none beyond the local base for
    /// `e2bdev/base`, `ubuntu` and `debian`.
    pub image_aliases: Vec<(String, Alias)>,
    /// What makes templates of images. Default none: images cannot be used.
    pub importer: Option<Arc<dyn RootImporter>>,
    /// How long one build may take. Default one hour.
    pub build_limit: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 3000)),
            home: PathBuf::from("server"),
            api_key: None,
            allowed_hosts: Vec::new(),
            egress: Egress::default(),
            max_run: Duration::from_secs(24 * 3600),
            images: None,
            image_aliases: Vec::new(),
            importer: None,
            build_limit: Duration::from_secs(3600),
        }
    }
}

impl ServerConfig {
    /// Every default.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Listens there.
    #[must_use]
    pub fn with_listen(mut self, listen: SocketAddr) -> Self {
        self.listen = listen;
        self
    }

    /// Keeps the server's state there.
    #[must_use]
    pub fn with_home(mut self, home: impl Into<PathBuf>) -> Self {
        self.home = home.into();
        self
    }

    /// Accepts this API key alone.
    #[must_use]
    pub fn with_api_key(mut self, key: impl Into<String>) -> Self {
        self.api_key = Some(key.into());
        self
    }

    /// Lets clients call the server by this name too.
    #[must_use]
    pub fn with_allowed_host(mut self, name: impl Into<String>) -> Self {
        self.allowed_hosts.push(name.into());
        self
    }

    /// Sets the network of sandboxes.
    #[must_use]
    pub fn with_egress(mut self, egress: Egress) -> Self {
        self.egress = egress;
        self
    }

    /// Limits how long a sandbox may run without a pause.
    #[must_use]
    pub fn with_max_run(mut self, max_run: Duration) -> Self {
        self.max_run = max_run;
        self
    }

    /// Finds images there.
    #[must_use]
    pub fn with_images(mut self, directory: impl Into<PathBuf>) -> Self {
        self.images = Some(directory.into());
        self
    }

    /// Lets something stand in for an image: `NAME`, `NAME:TAG` or `NAME:*`.
    #[must_use]
    pub fn with_image_alias(mut self, name: impl Into<String>, alias: Alias) -> Self {
        self.image_aliases.push((name.into(), alias));
        self
    }

    /// Makes templates of images by this.
    #[must_use]
    pub fn with_importer(mut self, importer: Arc<dyn RootImporter>) -> Self {
        self.importer = Some(importer);
        self
    }

    /// Limits how long one build may take.
    #[must_use]
    pub fn with_build_limit(mut self, limit: Duration) -> Self {
        self.build_limit = limit;
        self
    }
}
