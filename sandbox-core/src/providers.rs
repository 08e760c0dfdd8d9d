use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::{Error, Result, SandboxProvider};

/// The variable that [`Providers::from_env`] reads: `SANDHOLD_PROVIDER`.
pub const PROVIDER_VARIABLE: &str = "SANDHOLD_PROVIDER";

type Factory = Arc<dyn Fn() -> Result<Arc<dyn SandboxProvider>> + Send + Sync>;

/// The providers that a program can use, by name. There is no default: a name is always given.
///
/// # Examples
/// ```
/// # #[cfg(feature = "testing")]
/// # fn main() -> sandhold_core::Result<()> {
/// use std::sync::Arc;
/// use sandhold_core::{Providers, Sandboxes, testing::FakeProvider};
///
/// let providers = Providers::new().with("fake", || Ok(Arc::new(FakeProvider::new())));
/// let sandboxes = Sandboxes::new(providers.from_name("fake")?).with_providers(providers);
/// # drop(sandboxes);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "testing"))]
/// # fn main() {}
/// ```
#[derive(Clone, Default)]
pub struct Providers(BTreeMap<String, Factory>);

impl Providers {
    /// None.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a provider, which is made when it is asked for. The name is the provider's own: what records are stored with.
    #[must_use]
    pub fn with(
        mut self,
        name: impl Into<String>,
        make: impl Fn() -> Result<Arc<dyn SandboxProvider>> + Send + Sync + 'static,
    ) -> Self {
        self.0.insert(name.into(), Arc::new(make));
        self
    }

    /// Returns the names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Makes the provider of this name.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidArgument`] with reason `unknown_provider` for an unknown name; it lists the known ones.
    /// [`crate::ErrorKind::Unexpected`] when the provider calls itself by another name. What making it answered.
    pub fn from_name(&self, name: &str) -> Result<Arc<dyn SandboxProvider>> {
        let Some(make) = self.0.get(name) else {
            return Err(self.refused(format!("there is no provider {name:?}")));
        };
        let provider = make()?;
        if provider.name() != name {
            return Err(Error::new(
                crate::ErrorKind::Unexpected,
                format!("the provider added as {name:?} calls itself {:?}", provider.name()),
            )
            .at("", "provider"));
        }
        Ok(provider)
    }

    /// Makes the provider that `SANDHOLD_PROVIDER` names.
    ///
    /// # Errors
    /// As [`Providers::from_name`]; [`crate::ErrorKind::InvalidArgument`] with the same reason when the variable is
    /// unset, empty or no text.
    pub fn from_env(&self) -> Result<Arc<dyn SandboxProvider>> {
        match std::env::var(PROVIDER_VARIABLE) {
            Ok(name) if !name.is_empty() => self.from_name(&name),
            _ => Err(self.refused(format!("{PROVIDER_VARIABLE} does not name a provider"))),
        }
    }

    fn refused(&self, problem: String) -> Error {
        let names: Vec<_> = self.names().collect();
        Error::invalid_argument(format!("{problem}; the providers are: {}", names.join(", ")))
            .with_reason("unknown_provider")
            .at("", "provider")
    }
}

impl fmt::Debug for Providers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Providers").field(&self.0.keys()).finish()
    }
}
