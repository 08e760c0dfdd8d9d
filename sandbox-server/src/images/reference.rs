//! Names of images, as `docker pull` takes them.

use std::fmt;

/// The registry that a name without one means.
const DEFAULT_REGISTRY: &str = "docker.io";
/// The tag that a name without one means.
const DEFAULT_TAG: &str = "latest";

/// A name of an image in its full form, so that two spellings of one image compare equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Reference {
    registry: String,
    repository: String,
    tag: String,
    digest: Option<String>,
}

impl Reference {
    /// Reads a name such as `ubuntu:22.04` or `ghcr.io/owner/name@sha256:…`; `None` if it is none.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.is_empty() || text.len() > 512 || !text.bytes().all(is_name_byte) {
            return None;
        }
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest.to_owned())),
            None => (text, None),
        };
        // A colon after the last slash begins a tag; one before it is a port.
        let slash = name.rfind('/').map_or(0, |at| at + 1);
        let (name, tag) = match name.get(slash..)?.find(':') {
            Some(colon) => (name.get(..slash + colon)?, name.get(slash + colon + 1..)?),
            None => (name, DEFAULT_TAG),
        };
        let (registry, repository) = match name.split_once('/') {
            Some((first, rest)) if first.trim_matches('.').contains(['.', ':']) || first == "localhost" => {
                (first, rest.to_owned())
            }
            Some(_) => (DEFAULT_REGISTRY, name.to_owned()),
            None => (DEFAULT_REGISTRY, format!("library/{name}")),
        };
        let registry = if registry == "index.docker.io" { DEFAULT_REGISTRY } else { registry };
        let whole = !tag.is_empty()
            && !tag.contains('/')
            && repository.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
        whole.then(|| Self { registry: registry.to_owned(), repository, tag: tag.to_owned(), digest })
    }

    /// The digest that the name asks for.
    pub(crate) fn digest(&self) -> Option<&str> {
        self.digest.as_deref()
    }

    /// Says whether an image that is called so is the one that was asked for.
    pub(crate) fn names(&self, asked: &Self) -> bool {
        self.registry == asked.registry && self.repository == asked.repository && self.tag == asked.tag
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.registry != DEFAULT_REGISTRY {
            write!(f, "{}/", self.registry)?;
        }
        let repository = match self.repository.strip_prefix("library/") {
            Some(short) if self.registry == DEFAULT_REGISTRY => short,
            _ => &self.repository,
        };
        write!(f, "{repository}:{}", self.tag)?;
        match &self.digest {
            Some(digest) => write!(f, "@{digest}"),
            None => Ok(()),
        }
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"._-/:@+".contains(&byte)
}

/// A name that stands for images: a reference, or one with `*` for any tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern {
    reference: Reference,
    any_tag: bool,
}

impl Pattern {
    /// Reads `name`, `name:tag` or `name:*`; a name without a tag stands for every tag.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (name, any_tag) = match text.strip_suffix(":*") {
            Some(name) => (name, true),
            None => (text, !text.rsplit('/').next().unwrap_or(text).contains(':')),
        };
        Some(Self { reference: Reference::parse(name)?, any_tag })
    }

    /// Says whether the pattern stands for this image.
    pub(crate) fn matches(&self, asked: &Reference) -> bool {
        self.reference.registry == asked.registry
            && self.reference.repository == asked.repository
            && (self.any_tag || self.reference.tag == asked.tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_image_are_one_name() {
        let plain = Reference::parse("ubuntu").expect("a name");
        for spelling in [
            "ubuntu:latest",
            "library/ubuntu",
            "docker.io/library/ubuntu:latest",
            "index.docker.io/library/ubuntu",
        ] {
            assert_eq!(Reference::parse(spelling).as_ref(), Some(&plain), "{spelling}");
        }
        assert_eq!(plain.to_string(), "ubuntu:latest");
        assert_ne!(Reference::parse("ubuntu:22.04"), Some(plain));
    }

    #[test]
    fn a_port_is_no_tag_and_a_digest_is_kept() {
        let local = Reference::parse("localhost:5000/team/app:v1").expect("a name");
        assert_eq!(local.to_string(), "localhost:5000/team/app:v1");
        assert_eq!(
            Reference::parse("localhost:5000/app").expect("a name").to_string(),
            "localhost:5000/app:latest"
        );
        let pinned = Reference::parse("app@sha256:00ff").expect("a name");
        assert_eq!(pinned.digest(), Some("sha256:00ff"));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for bad in ["", "a b", "../x", "a//b", "a/../b", "a:", "ü", "a:b/c:d:e/", "x\0"] {
            assert_eq!(Reference::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_pattern_without_a_tag_stands_for_every_tag() {
        let asked = Reference::parse("ubuntu:22.04").expect("a name");
        for (pattern, matches) in [
            ("ubuntu", true),
            ("ubuntu:*", true),
            ("ubuntu:22.04", true),
            ("ubuntu:24.04", false),
            ("me/ubuntu", false),
        ] {
            assert_eq!(Pattern::parse(pattern).expect("a pattern").matches(&asked), matches, "{pattern}");
        }
    }
}
