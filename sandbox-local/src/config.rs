use std::path::PathBuf;
use std::time::Duration;

use sandhold_core::{Error, ErrorKind, Result};

/// What must hold on this host before anything is made: found out by starting a sandbox, once a provider.
///
/// A create where one does not hold is [`ErrorKind::Unsupported`] with reason `requirement`; its context `requirement` and
/// its message hold the [`Requirement::name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Requirement {
    /// `several_users`: users inside have ids of their own, so that `chown` works: tier `full` or `ranges`.
    SeveralUsers,
    /// `writable_usr`: files can be added below `/usr` inside.
    WritableUsr,
    /// `seccomp`: a filter of system calls is in force.
    Seccomp,
    /// `limits`: limits of CPU, memory and processes can all be enforced.
    Limits,
    /// `kernel_freezer`: a pause freezes by the kernel, not by signals.
    KernelFreezer,
    /// `no_network`: [`sandhold_core::Network::None`] can be enforced.
    NoNetwork,
}

impl Requirement {
    /// Every requirement.
    pub const ALL: &'static [Self] = &[
        Self::SeveralUsers,
        Self::WritableUsr,
        Self::Seccomp,
        Self::Limits,
        Self::KernelFreezer,
        Self::NoNetwork,
    ];

    /// Returns the name that errors say.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::SeveralUsers => "several_users",
            Self::WritableUsr => "writable_usr",
            Self::Seccomp => "seccomp",
            Self::Limits => "limits",
            Self::KernelFreezer => "kernel_freezer",
            Self::NoNetwork => "no_network",
        }
    }
}

/// Configures the local provider.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LocalConfig {
    /// The state directory. Default `$SANDHOLD_HOME`, else `$XDG_STATE_HOME/sandhold`, else
    /// `$HOME/.local/state/sandhold`.
    pub home: Option<PathBuf>,
    /// The program `sandhold-helper`. Default `$SANDHOLD_HELPER`, else beside this executable, else in `$PATH`.
    pub helper: Option<PathBuf>,
    /// The helper that came with a package, for when neither [`Self::helper`] nor `$SANDHOLD_HELPER` names one. Where it
    /// cannot be executed as it lies there, a copy in the state directory is. Default none.
    pub packaged_helper: Option<PathBuf>,
    /// What must hold on this host. Default nothing beyond what every sandbox has.
    pub requirements: Vec<Requirement>,
    /// Keeps what sandboxes write in memory, so that [`sandhold_core::Resources::disk`] can be enforced; it is lost
    /// when a sandbox stops. Default on disk.
    pub in_memory: bool,
    /// How long a sandbox may take to start. Default 30 s.
    pub start_timeout: Duration,
}

impl Default for LocalConfig {
    fn default() -> Self {
        Self {
            home: None,
            helper: None,
            packaged_helper: None,
            requirements: Vec::new(),
            in_memory: false,
            start_timeout: Duration::from_secs(30),
        }
    }
}

impl LocalConfig {
    /// Every default.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Keeps sandboxes in this state directory.
    #[must_use]
    pub fn with_home(mut self, home: impl Into<PathBuf>) -> Self {
        self.home = Some(home.into());
        self
    }

    /// Uses this helper program.
    #[must_use]
    pub fn with_helper(mut self, helper: impl Into<PathBuf>) -> Self {
        self.helper = Some(helper.into());
        self
    }

    /// Uses this helper program, which came with a package, unless another one is named.
    #[must_use]
    pub fn with_packaged_helper(mut self, helper: impl Into<PathBuf>) -> Self {
        self.packaged_helper = Some(helper.into());
        self
    }

    /// Refuses to make sandboxes where this does not hold.
    #[must_use]
    pub fn with_requirement(mut self, requirement: Requirement) -> Self {
        self.requirements.push(requirement);
        self
    }

    /// Keeps what sandboxes write in memory.
    #[must_use]
    pub fn in_memory(mut self) -> Self {
        self.in_memory = true;
        self
    }

    /// Limits how long a sandbox may take to start.
    #[must_use]
    pub fn with_start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = timeout;
        self
    }

    pub(crate) fn resolve_home(&self) -> Result<PathBuf> {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = self
            .home
            .clone()
            .or_else(|| set("SANDHOLD_HOME"))
            .or_else(|| set("XDG_STATE_HOME").map(|state| state.join("sandhold")))
            .or_else(|| set("HOME").map(|home| home.join(".local/state/sandhold")));
        match home {
            Some(home) if home.is_absolute() => Ok(home),
            Some(home) => Err(Error::invalid_argument(format!(
                "the state directory {} is not absolute; give an absolute path",
                home.display()
            ))),
            None => Err(Error::new(
                ErrorKind::InvalidArgument,
                "no state directory is known: set SANDHOLD_HOME, or name one by LocalConfig::with_home",
            )),
        }
    }
}
