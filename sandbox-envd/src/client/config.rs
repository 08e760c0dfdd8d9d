use std::fmt;
use std::time::Duration;

/// Which envd answers, and so what may be asked of it.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// This crate's daemon, with its own fields and routes. The default.
    #[default]
    Sandhold,
    /// E2B's envd: no kept output, no signals to a whole tree; ports are reached by a program inside that relays.
    E2b,
}

/// Configures a client.
#[non_exhaustive]
#[derive(Clone)]
pub struct EnvdConfig {
    /// Id that routes requests to a sandbox behind a shared host (`E2b-Sandbox-Id`). Default none.
    pub sandbox_id: Option<String>,
    /// Port of envd behind a shared host (`E2b-Sandbox-Port`). Default 49983.
    pub port: u16,
    /// Token of the sandbox (`X-Access-Token`). Default none.
    pub access_token: Option<String>,
    /// User of calls that name none. Default none: the daemon's own default.
    pub user: Option<String>,
    /// Which envd answers. Default [`Dialect::Sandhold`].
    pub dialect: Dialect,
    /// Longest time to open a connection, TLS included. Default 10 s.
    pub connect_timeout: Duration,
    /// Longest time without a byte from the daemon while an answer is due. Default 60 s.
    pub answer_timeout: Duration,
    /// Whether a token may travel in the clear to another machine. Default no.
    pub allow_plaintext: bool,
}

impl Default for EnvdConfig {
    fn default() -> Self {
        Self {
            sandbox_id: None,
            port: 49983,
            access_token: None,
            user: None,
            dialect: Dialect::default(),
            connect_timeout: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(60),
            allow_plaintext: false,
        }
    }
}

impl EnvdConfig {
    /// Returns the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Routes requests to this sandbox behind a shared host.
    #[must_use]
    pub fn with_sandbox_id(mut self, id: impl Into<String>) -> Self {
        self.sandbox_id = Some(id.into());
        self
    }

    /// Sets the token of the sandbox.
    #[must_use]
    pub fn with_access_token(mut self, token: impl Into<String>) -> Self {
        self.access_token = Some(token.into());
        self
    }

    /// Sets the user of calls that name none.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Says which envd answers.
    #[must_use]
    pub fn with_dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// Sets the longest time to open a connection.
    #[must_use]
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the longest time without a byte while an answer is due.
    #[must_use]
    pub fn with_answer_timeout(mut self, timeout: Duration) -> Self {
        self.answer_timeout = timeout;
        self
    }

    /// Lets a token travel in the clear to another machine.
    #[must_use]
    pub fn with_plaintext_allowed(mut self) -> Self {
        self.allow_plaintext = true;
        self
    }
}

impl fmt::Debug for EnvdConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EnvdConfig")
            .field("sandbox_id", &self.sandbox_id)
            .field("port", &self.port)
            .field("access_token", &self.access_token.as_ref().map(|_| "<secret>"))
            .field("user", &self.user)
            .field("dialect", &self.dialect)
            .field("connect_timeout", &self.connect_timeout)
            .field("answer_timeout", &self.answer_timeout)
            .field("allow_plaintext", &self.allow_plaintext)
            .finish()
    }
}
