//! The images that builds may start from: archives in one directory, and names that others stand in for.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::ImageError;
use super::archive::{Archive, Image};
use super::reference::{Pattern, Reference};

/// Names for which the local base stands in unless told otherwise: E2B's own base image, and the plain distributions
/// that builds start from only to have an ordinary Linux.
const STAND_INS: [&str; 3] = ["e2bdev/base", "ubuntu", "debian"];

/// What stands in for an image.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Alias {
    /// The base of this machine.
    Base,
    /// Another image of the directory.
    Image(String),
    /// Nothing: the image must be there.
    Nothing,
}

/// Finds images by name.
#[derive(Clone, Debug)]
pub(crate) struct ImageLibrary {
    directory: Option<PathBuf>,
    aliases: Vec<(Pattern, Alias)>,
}

/// What a build starts from.
#[derive(Debug)]
pub(crate) enum Found {
    /// The base of this machine, which stands in for what was asked for.
    Base,
    /// An image.
    Image(Box<Image>),
    /// A directory that holds a whole root.
    Directory(PathBuf),
}

impl ImageLibrary {
    /// A library over a directory; later aliases win over earlier ones.
    pub(crate) fn new(directory: Option<PathBuf>, aliases: &[(String, Alias)]) -> Result<Self, ImageError> {
        let defaults = STAND_INS.iter().map(|name| ((*name).to_owned(), Alias::Base));
        let aliases =
            defaults.chain(aliases.iter().cloned()).map(|(name, alias)| match Pattern::parse(&name) {
                Some(pattern) => Ok((pattern, alias)),
                None => Err(ImageError::invalid(format!(
                    "{name:?} is no name of an image; write NAME, NAME:TAG or NAME:*"
                ))),
            });
        Ok(Self { directory, aliases: aliases.collect::<Result<_, _>>()? })
    }

    /// Finds an image: in the directory, else by what stands in for it.
    pub(crate) fn find(&self, name: &str) -> Result<Found, ImageError> {
        let asked = Reference::parse(name)
            .ok_or_else(|| ImageError::invalid(format!("{name:?} is no name of an image")))?;
        let mut unread = Vec::new();
        if let Some(found) = self.in_directory(&asked, &mut unread)? {
            return Ok(found);
        }
        match self.aliases.iter().rev().find(|(pattern, _)| pattern.matches(&asked)) {
            Some((_, Alias::Base)) => return Ok(Found::Base),
            Some((_, Alias::Image(other))) => {
                let other_name = Reference::parse(other);
                let found = other_name.map(|other| self.in_directory(&other, &mut unread));
                if let Some(found) = found.transpose()?.flatten() {
                    return Ok(found);
                }
                return Err(self.missing(&format!("{asked} (by its alias {other})"), other, &unread));
            }
            Some((_, Alias::Nothing)) | None => {}
        }
        Err(self.missing(&asked.to_string(), &asked.to_string(), &unread))
    }

    fn missing(&self, what: &str, name: &str, unread: &[String]) -> ImageError {
        let place = match &self.directory {
            Some(directory) => format!(
                "this server pulls no images: save it with `docker save {name} -o {}/NAME.tar` on the server's machine",
                directory.display()
            ),
            None => format!(
                "this server pulls no images and has no directory of them: start it with `--images DIR` and save the \
                 image there with `docker save {name} -o DIR/NAME.tar`"
            ),
        };
        let unread = match unread {
            [] => String::new(),
            some => format!(" (not read: {})", some.join("; ")),
        };
        ImageError::invalid(format!(
            "image {what} is not here; {place}, or let the local base stand in with `--image-alias {name}=base`{unread}"
        ))
    }

    fn in_directory(&self, asked: &Reference, unread: &mut Vec<String>) -> Result<Option<Found>, ImageError> {
        let Some(directory) = &self.directory else { return Ok(None) };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(directory)? {
            paths.push(entry?.path());
        }
        paths.sort();
        for path in paths {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if name.starts_with('.') {
                continue;
            }
            // Whoever opens a pipe waits for its writer.
            if !path.is_dir() && !path.is_file() {
                continue;
            }
            if is_compressed(&path) {
                unread.push(format!("{name} is compressed as a whole, decompress it"));
                continue;
            }
            // One file that is damaged does not hide the others.
            match Archive::open(&path) {
                Ok(Some(mut archive)) => {
                    archive.call(name.strip_suffix(".tar").unwrap_or(&name));
                    if let Some(position) = archive.position(asked) {
                        return Ok(Some(Found::Image(Box::new(archive.image(position)?))));
                    }
                }
                Ok(None) => {
                    let is_root = path.join("etc").is_dir() || path.join("usr").is_dir();
                    if is_root && Reference::parse(&name).is_some_and(|name| name.names(asked)) {
                        return Ok(Some(Found::Directory(path)));
                    }
                }
                Err(error) => unread.push(format!("{name}: {error}")),
            }
        }
        Ok(None)
    }
}

/// Says whether a file is a whole archive in gzip or zstd, which cannot be read at random.
fn is_compressed(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && (magic.starts_with(&[0x1f, 0x8b]) || magic == [0x28, 0xb5, 0x2f, 0xfd])
}
