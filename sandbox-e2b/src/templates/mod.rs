//! Templates: what sandboxes are made from, how it is built, and what it is called.

mod build;
mod catalog;
mod context;
mod default;
mod dockerfile;
mod recipe;

pub use build::{BuildOptions, TemplateBuild};
pub use catalog::Templates;
pub use default::DefaultTemplate;
pub use recipe::{CopyOptions, Recipe};

pub(crate) use default::{Builds, Resolved};
