//! What is where in a mirror, and the manifest that makes a bundle there complete.
//!
//! ```text
//! [prefix/]snapshots/<repository key>/<id>.<commit>.<sum>.bundle   a git bundle, never replaced
//! [prefix/]snapshots/<repository key>/<id>.json                    the manifest, which names one of them; put last
//! ```
//!
//! A later state of the same session is another bundle, and then the manifest is replaced at once: at any moment it names
//! a bundle that is whole.

use sandhold_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::oid::ObjectId;
use crate::snapshot::{SnapId, Snapshot};
use crate::vault::RepoKey;

/// A manifest above this size is none of ours.
pub(super) const MAX_MANIFEST: u64 = 64 << 20;

/// The file `<id>.json` of a mirror.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Manifest {
    /// The version of this format: 1.
    pub(super) version: u32,
    pub(super) bundle: Bundle,
    pub(super) uploaded_at_ms: u64,
    /// The snapshot, without the copy that this is.
    pub(super) snapshot: Snapshot,
}

/// What the bundle is, by which a copy is judged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bundle {
    /// The name beside the manifest, and no path.
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

impl Manifest {
    pub(super) fn encode(&self) -> Result<Vec<u8>> {
        serde_json::to_vec_pretty(self).map_err(|failure| {
            Error::new(ErrorKind::InvalidArgument, format!("the manifest of {} is no JSON", self.snapshot.id))
                .with_source(failure)
        })
    }

    /// Reads what a bucket holds under the key of `id`, and believes it no more than it must.
    pub(super) fn decode(text: &[u8], id: &SnapId) -> Result<Self> {
        let refused = |why: String| {
            Error::new(ErrorKind::InvalidArgument, format!("the manifest of {id} in the mirror {why}"))
                .with_reason("mirror_manifest")
        };
        let manifest: Self =
            serde_json::from_slice(text).map_err(|failure| refused(format!("cannot be read: {failure}")))?;
        if manifest.version != 1 {
            return Err(refused(format!("has the version {}, and 1 is known", manifest.version)));
        }
        if manifest.snapshot.id != *id {
            return Err(refused(format!("speaks of {}", manifest.snapshot.id)));
        }
        let sum = &manifest.bundle.sha256;
        if sum.len() != 64 || !sum.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(refused("has no SHA-256 of its bundle".to_owned()));
        }
        if manifest.bundle.name != bundle_name(id, manifest.snapshot.commit, sum) {
            return Err(refused(format!("names {:?} as the bundle of its commit", manifest.bundle.name)));
        }
        Ok(manifest)
    }
}

/// The keys below one prefix.
#[derive(Clone, Debug)]
pub(super) struct Keys(String);

impl Keys {
    /// Takes a prefix as people write it.
    pub(super) fn new(prefix: &str) -> Result<Self> {
        let prefix = prefix.trim_matches('/');
        let fits = |part: &str| {
            let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'=');
            !part.is_empty() && part != "." && part != ".." && part.bytes().all(known)
        };
        if prefix.is_empty() {
            return Ok(Self("snapshots".to_owned()));
        }
        match prefix.len() <= 512 && prefix.split('/').all(fits) {
            true => Ok(Self(format!("{prefix}/snapshots"))),
            false => Err(Error::invalid_argument(format!(
                "the prefix {prefix:?} is not parts of letters, digits, `.`, `_`, `-` and `=` with `/` between them"
            ))),
        }
    }

    /// What all repositories are below.
    pub(super) fn root(&self) -> &str {
        &self.0
    }

    pub(super) fn repo(&self, repo: &RepoKey) -> String {
        format!("{}/{repo}", self.0)
    }

    pub(super) fn manifest(&self, repo: &RepoKey, id: &SnapId) -> String {
        format!("{}/{repo}/{id}.json", self.0)
    }

    /// The key of a bundle by the name that its manifest has for it.
    pub(super) fn bundle(&self, repo: &RepoKey, name: &str) -> String {
        format!("{}/{repo}/{name}", self.0)
    }

    /// Reads a key back; `None` for what is none of ours.
    ///
    /// The prefix is taken off as it is, so that one with `snapshots/` within it makes no repository up.
    pub(super) fn parse(&self, key: &str) -> Option<(RepoKey, Kind)> {
        let (repo, name) = key.strip_prefix(&self.0)?.strip_prefix('/')?.split_once('/')?;
        let repo = RepoKey::new(repo).ok()?;
        let kind = if let Some(id) = name.strip_suffix(".json") {
            Kind::Manifest(id.parse().ok()?)
        } else {
            let mut parts = name.strip_suffix(".bundle")?.split('.');
            let (id, commit) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            let is_sum = parts.next()?.bytes().all(|byte| byte.is_ascii_hexdigit());
            (is_sum && parts.next().is_none()).then_some(Kind::Bundle(id, commit))?
        };
        Some((repo, kind))
    }
}

/// What a key is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Manifest(SnapId),
    Bundle(SnapId, ObjectId),
}

/// The name of a bundle, which no other content can have.
pub(super) fn bundle_name(id: &SnapId, commit: ObjectId, sha256: &str) -> String {
    format!("{id}.{commit}.{}.bundle", sha256.get(..16).unwrap_or(sha256))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_read_back_and_strangers_are_none_of_ours() {
        let repo = RepoKey::new("app-0a1b").unwrap();
        let id: SnapId = "20260131-235959-0a1b2c".parse().unwrap();
        let commit = ObjectId::of("commit", b"x");
        for prefix in ["", "/team/snapshots/", "a/snapshots/snapshots"] {
            let keys = Keys::new(prefix).unwrap();
            let manifest = keys.parse(&keys.manifest(&repo, &id));
            assert_eq!(manifest, Some((repo.clone(), Kind::Manifest(id.clone()))));
            let bundle = keys.parse(&keys.bundle(&repo, &bundle_name(&id, commit, &"ab".repeat(32))));
            assert_eq!(bundle, Some((repo.clone(), Kind::Bundle(id.clone(), commit))));
            for stranger in [
                "x",
                "snapshots/x.json",
                "snapshots/app/y.json",
                "snapshots/.git/20260131-235959-0a1b2c.json",
            ] {
                assert_eq!(keys.parse(stranger), None, "{prefix} {stranger}");
            }
        }
        for bad in ["../x", "a//b", "a b", "é"] {
            assert!(Keys::new(bad).is_err(), "{bad}");
        }
    }
}
