//! The default template: built when a create says that it is not there, once, by whoever comes first.

use std::path::PathBuf;

use sandhold_core::{Error, ErrorKind, Result};
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

use super::build::{BuildOptions, Prepared, TemplateBuild};
use super::catalog::Templates;
use super::recipe::Recipe;
use crate::control::SharedControl;
use crate::error::NAME;

/// The template that stands behind [`sandhold_core::SandboxSpec`]'s own default, `base`.
///
/// It is called by what it is: a hash of the recipe and of the files that it copies is a tag, beside `default`. A create
/// names that tag and asks nothing before; only when the server says that it is not there is it built, and the create is
/// tried once more. Nothing about a failed build is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultTemplate {
    pub(crate) recipe: Recipe,
    pub(crate) options: BuildOptions,
}

impl DefaultTemplate {
    /// Builds the default template by this recipe, under the name in the options.
    #[must_use]
    pub fn new(recipe: Recipe, options: BuildOptions) -> Self {
        Self { recipe, options }
    }
}

/// The builds of one provider value: one at a time.
#[derive(Debug, Default)]
pub(crate) struct Builds(Mutex<()>);

/// A default template with its files read.
#[derive(Debug)]
pub(crate) struct Resolved {
    prepared: Prepared,
    options: BuildOptions,
    tag: String,
}

impl Resolved {
    /// Reads the files, which says what the template is called now.
    pub(crate) async fn of(template: &DefaultTemplate) -> Result<Self> {
        let prepared = Prepared::of(&template.recipe).await?;
        let options = template.options.clone();
        let identity = format!("{}\0{:?}\0{:?}", prepared.identity(), options.cpu_count, options.memory_mb);
        let hash = Sha256::digest(identity);
        let short: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        Ok(Self { prepared, options, tag: format!("sha-{short}") })
    }

    /// Returns what a create names.
    pub(crate) fn reference(&self) -> String {
        format!("{}:{}", self.options.name, self.tag)
    }

    /// Builds it, unless somebody else has meanwhile. One build runs at a time, in this process and on this machine.
    pub(crate) async fn build(self, control: &SharedControl, builds: &Builds) -> Result<()> {
        let _turn = builds.0.lock().await;
        let _lock = lock(&self.reference()).await?;
        let tags = match Templates::of(control).tags(&self.options.name).await {
            Ok(tags) => tags,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        };
        if tags.iter().any(|known| known.tag == self.tag) {
            return Ok(());
        }
        tracing::info!(template = %self.reference(), "the default template is not there and is built");
        let mut options = self.options;
        for tag in [self.tag, "default".to_owned()] {
            if !options.tags.contains(&tag) {
                options.tags.push(tag);
            }
        }
        TemplateBuild::start(control, self.prepared, &options).await?.wait().await
    }
}

/// Waits for the lock of one template between the processes of this machine; it ends with the process that holds it.
async fn lock(reference: &str) -> Result<std::fs::File> {
    let hash = Sha256::digest(reference);
    let short: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    // A place of the user's own: in a shared one others could hold the lock, or put a link in its place.
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let directory = state.or_else(home).unwrap_or_else(std::env::temp_dir).join("sandhold/e2b");
    let path = directory.join(format!("build-{short}.lock"));
    let locked = tokio::task::spawn_blocking(move || {
        std::fs::create_dir_all(&directory)?;
        let file = std::fs::File::options().create(true).truncate(false).write(true).open(&path)?;
        file.lock()?;
        Ok::<_, std::io::Error>(file)
    });
    locked.await.map_err(std::io::Error::other).and_then(|file| file).map_err(|error| {
        Error::new(ErrorKind::Unavailable, "the lock of the template's build cannot be taken")
            .at(NAME, "build")
            .with_source(error)
    })
}
