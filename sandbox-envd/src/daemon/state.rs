//! What the daemon is told at start, and what all its services share.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use crate::daemon::files::Turns;
use crate::daemon::http::ExtraRoutes;
use crate::daemon::process::ProcessTable;
use crate::daemon::users::Users;
use crate::daemon::watch::Watchers;

/// Configures a daemon.
#[non_exhaustive]
#[derive(Clone)]
pub struct DaemonConfig {
    /// User of calls that name none. Default `root`, the fallback of E2B's envd.
    pub default_user: String,
    /// Directory of calls that name none. Default: the user's home.
    pub default_workdir: Option<PathBuf>,
    /// Environment that every process gets, under its own. Default empty.
    pub envs: BTreeMap<String, String>,
    /// Token that requests must carry in `X-Access-Token`. Default: none is asked for.
    pub access_token: Option<String>,
    /// How a process becomes another user. Default [`UserMode::OwnUser`].
    pub user_mode: UserMode,
    /// Where output and exit of retained processes are kept. Default `/var/lib/sandhold/processes`.
    pub retain_dir: PathBuf,
    /// What the embedding program does in every child before it runs. Default nothing.
    pub child_setup: Option<Arc<dyn ChildSetup>>,
    /// The embedding program's own routes under `/sandhold/`, asked before the daemon's. Default none.
    pub routes: Option<Arc<dyn ExtraRoutes>>,
    /// Longest silence of an upload, or any other request that is not a stream of input, before it fails.
    /// Default 60 seconds; the whole has no limit.
    pub upload_idle: Duration,
    /// Whether every orphan is this process' to reap (PID 1 or subreaper). Default false.
    pub init_reaps_all: bool,
}

impl Default for DaemonConfig {
    fn default() -> Self {
        Self {
            default_user: "root".to_owned(),
            default_workdir: None,
            envs: BTreeMap::new(),
            access_token: None,
            user_mode: UserMode::OwnUser,
            retain_dir: PathBuf::from("/var/lib/sandhold/processes"),
            child_setup: None,
            routes: None,
            upload_idle: Duration::from_secs(60),
            init_reaps_all: false,
        }
    }
}

impl DaemonConfig {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the user of calls that name none.
    pub fn with_default_user(mut self, user: impl Into<String>) -> Self {
        self.default_user = user.into();
        self
    }

    /// Sets the directory of calls that name none.
    pub fn with_default_workdir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.default_workdir = Some(dir.into());
        self
    }

    /// Sets the environment that every process gets, under its own.
    pub fn with_envs(mut self, envs: BTreeMap<String, String>) -> Self {
        self.envs = envs;
        self
    }

    /// Sets the token that requests must carry.
    pub fn with_access_token(mut self, token: impl Into<String>) -> Self {
        self.access_token = Some(token.into());
        self
    }

    /// Sets how a process becomes another user.
    pub fn with_user_mode(mut self, mode: UserMode) -> Self {
        self.user_mode = mode;
        self
    }

    /// Sets where output and exit of retained processes are kept.
    pub fn with_retain_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.retain_dir = dir.into();
        self
    }

    /// Sets what is done in every child before it runs.
    pub fn with_child_setup(mut self, setup: Arc<dyn ChildSetup>) -> Self {
        self.child_setup = Some(setup);
        self
    }

    /// Sets the embedding program's own routes.
    pub fn with_routes(mut self, routes: Arc<dyn ExtraRoutes>) -> Self {
        self.routes = Some(routes);
        self
    }

    /// Sets the longest silence of an upload, or of any other request that is not a stream of input.
    pub fn with_upload_idle(mut self, idle: Duration) -> Self {
        self.upload_idle = idle;
        self
    }

    /// Sets whether every orphan is this process' to reap.
    pub fn with_init_reaps_all(mut self, all: bool) -> Self {
        self.init_reaps_all = all;
        self
    }
}

impl Debug for DaemonConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The token and the values of variables are secrets.
        f.debug_struct("DaemonConfig")
            .field("default_user", &self.default_user)
            .field("default_workdir", &self.default_workdir)
            .field("envs", &self.envs.keys())
            .field("access_token", &self.access_token.as_ref().map(|_| "<secret>"))
            .field("user_mode", &self.user_mode)
            .field("retain_dir", &self.retain_dir)
            .field("child_setup", &self.child_setup)
            .field("routes", &self.routes)
            .field("upload_idle", &self.upload_idle)
            .field("init_reaps_all", &self.init_reaps_all)
            .finish()
    }
}

/// How a process becomes the user it is to run as.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserMode {
    /// By `setgroups`, `setgid` and `setuid`: the daemon is root of a full or ranged id map.
    SetId,
    /// One id is mapped: `root` runs as is, and every other user in a nested user namespace that shows its id
    /// for the same one.
    SingleId,
    /// Only the daemon's own user exists; any other is `unauthenticated`.
    OwnUser,
}

/// The user that a child is about to become.
#[non_exhaustive]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildUser {
    /// Login name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Id of the primary group.
    pub gid: u32,
    /// Ids of the supplementary groups.
    pub groups: Vec<u32>,
    /// Home directory.
    pub home: PathBuf,
}

/// What the embedding program does in every child between fork and exec.
///
/// Both methods run after `fork`: they may only make async-signal-safe calls, and must not allocate.
pub trait ChildSetup: Send + Sync + Debug {
    /// Runs while the child still has the daemon's identity.
    ///
    /// # Errors
    ///
    /// An error ends the child, and the start fails with it.
    fn before_identity(&self) -> io::Result<()>;

    /// Runs after the child became `user`, just before `exec`.
    ///
    /// # Errors
    ///
    /// An error ends the child, and the start fails with it.
    fn before_exec(&self, user: &ChildUser) -> io::Result<()>;

    /// Returns how many processes the kernel has killed so far because memory ran out; asked in the daemon, not in a
    /// child. Default 0 throughout: then no exit is said to be one of them.
    fn out_of_memory_kills(&self) -> u64 {
        0
    }
}

/// The part of the configuration that `/init` may change while the daemon runs.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) access_token: Option<String>,
    pub(crate) default_user: String,
    pub(crate) default_workdir: Option<PathBuf>,
    pub(crate) envs: BTreeMap<String, String>,
}

/// What all services share.
pub(crate) struct State {
    pub(crate) config: DaemonConfig,
    pub(crate) users: Users,
    session: RwLock<Session>,
    pub(crate) processes: ProcessTable,
    pub(crate) watchers: Watchers,
    pub(crate) turns: Turns,
}

impl State {
    pub(crate) fn new(config: DaemonConfig) -> io::Result<Arc<Self>> {
        let session = RwLock::new(Session {
            access_token: config.access_token.clone(),
            default_user: config.default_user.clone(),
            default_workdir: config.default_workdir.clone(),
            envs: config.envs.clone(),
        });
        Ok(Arc::new(Self {
            users: Users::new(config.user_mode),
            processes: ProcessTable::new(&config)?,
            watchers: Watchers::new(),
            turns: Turns::default(),
            session,
            config,
        }))
    }

    /// Reads the session; `read` must be short and must not block.
    pub(crate) fn session<T>(&self, read: impl FnOnce(&Session) -> T) -> T {
        // A panic while it was held cannot leave it half written: every write is one assignment.
        read(&self.session.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Changes the session.
    pub(crate) fn update_session(&self, change: impl FnOnce(&mut Session)) {
        change(&mut self.session.write().unwrap_or_else(std::sync::PoisonError::into_inner));
    }

    /// Directory of calls that name none, if one is set.
    pub(crate) fn default_workdir(&self) -> Option<PathBuf> {
        self.session(|session| session.default_workdir.as_deref().map(Path::to_path_buf))
    }
}
