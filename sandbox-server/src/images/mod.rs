//! Images: found in a directory of archives, and laid down as a root directory.

mod archive;
mod layer;
mod library;
mod provision;
mod reference;
#[cfg(test)]
mod tests;

use std::io;
use std::path::Path;

use crate::rooted::Root;

pub(crate) use archive::Image;
pub(crate) use layer::{Limits, Unpacked, by_owner};
pub use library::Alias;
pub(crate) use library::{Found, ImageLibrary};

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    /// What is wrong with it, for whoever builds from it.
    #[error("{0}")]
    Invalid(String),
    /// It could not be read, or its files not be written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Nobody waits for it any more.
    #[error("it was cancelled")]
    Stopped,
}

impl ImageError {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }
}

/// Lays an image down in a directory, which must not be there yet, with the user that sandboxes need.
pub(crate) fn unpack(
    image: &Image,
    directory: &Path,
    limits: Limits,
    stop: &dyn Fn() -> bool,
) -> Result<Unpacked, ImageError> {
    std::fs::create_dir(directory)?;
    let root = Root::open(directory)?;
    let mut unpacked = layer::Unpacker::new(&root, limits).unpack(image, stop)?;
    provision::provision(&root, &mut unpacked)?;
    // A template is made of it only after it is on disk.
    rustix::fs::syncfs(root.as_fd()).map_err(io::Error::from)?;
    Ok(unpacked)
}
