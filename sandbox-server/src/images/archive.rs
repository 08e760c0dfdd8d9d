//! Archives of images on disk: what `docker save` writes, and the OCI image layout, as a tar or as a directory.
//!
//! Formats: <https://github.com/opencontainers/image-spec> (image-layout, manifest, config, image-index) and the
//! `manifest.json` of `docker save`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::ImageError;
use super::reference::Reference;

/// Manifests and configurations are small; a larger one is not read.
const MAX_JSON: u64 = 8 << 20;
/// An index may point to an index, but not for ever.
const MAX_INDEXES: usize = 4;
/// So many layers are more than any builder makes.
const MAX_LAYERS: usize = 1024;
/// So many files are in no archive of images.
const MAX_MEMBERS: usize = 100_000;

/// An image in an archive.
#[derive(Debug)]
pub(crate) struct Image {
    /// What identifies its content: the digest of its configuration, which names every layer.
    pub(crate) digest: String,
    /// What the image says about its processes.
    pub(crate) config: ImageConfig,
    layers: Vec<Layer>,
    store: Store,
}

/// What an image says about its processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ImageConfig {
    /// Environment, in the image's order.
    pub(crate) env: Vec<(String, String)>,
}

#[derive(Debug)]
struct Layer {
    member: String,
    /// Digest of the uncompressed tar.
    diff_id: String,
}

#[derive(Debug)]
enum Store {
    Directory(PathBuf),
    Tar { path: PathBuf, members: HashMap<String, Member> },
}

#[derive(Debug)]
enum Member {
    Bytes { offset: u64, size: u64 },
    Link(String),
}

#[derive(Deserialize)]
struct SavedImage {
    #[serde(rename = "Config")]
    config: String,
    #[serde(rename = "RepoTags", default)]
    repo_tags: Option<Vec<String>>,
    #[serde(rename = "Layers")]
    layers: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    digest: String,
    #[serde(default)]
    media_type: String,
    #[serde(default)]
    annotations: HashMap<String, String>,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    os: String,
    architecture: String,
}

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Manifest {
    config: Descriptor,
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    os: String,
    rootfs: RootFs,
    #[serde(default)]
    config: Option<ProcessConfig>,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<String>,
}

#[derive(Deserialize, Default)]
struct ProcessConfig {
    #[serde(rename = "Env", default)]
    env: Option<Vec<String>>,
}

/// What this machine is called in manifests.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

/// One image that an archive holds, before its layers are looked at.
#[derive(Debug)]
pub(crate) struct Entry {
    /// What the archive calls it.
    pub(crate) names: Vec<String>,
    at: EntryAt,
}

#[derive(Debug)]
enum EntryAt {
    Saved { config: String, layers: Vec<String> },
    Manifest { digest: String },
}

/// An opened archive.
#[derive(Debug)]
pub(crate) struct Archive {
    store: Store,
    /// The images in it.
    pub(crate) entries: Vec<Entry>,
}

impl Archive {
    /// Opens a tar or a directory; `None` if it is no archive of images.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, ImageError> {
        let store = if path.is_dir() {
            Store::Directory(path.to_owned())
        } else {
            match Store::index_tar(path)? {
                Some(store) => store,
                None => return Ok(None),
            }
        };
        // Newer `docker save` writes both; the OCI one names digests, the other one names tags more plainly.
        let saved: Option<Vec<SavedImage>> = store.json("manifest.json")?;
        if let Some(saved) = saved {
            let entries = saved.into_iter().map(|image| Entry {
                names: image.repo_tags.unwrap_or_default(),
                at: EntryAt::Saved { config: image.config, layers: image.layers },
            });
            let entries = entries.collect();
            return Ok(Some(Self { store, entries }));
        }
        let Some(index) = store.json::<Index>("index.json")? else { return Ok(None) };
        let entries = index.manifests.into_iter().filter(is_for_here).map(|found| {
            let named = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];
            let names = named.iter().filter_map(|key| found.annotations.get(*key).cloned()).collect();
            Entry { names, at: EntryAt::Manifest { digest: found.digest } }
        });
        let entries = entries.collect();
        Ok(Some(Self { store, entries }))
    }

    /// Gives a name to images without one, after the file that they are in; a bare tag becomes that name's tag.
    pub(crate) fn call(&mut self, file_name: &str) {
        let alone = self.entries.len() == 1;
        for entry in &mut self.entries {
            let tags = entry.names.iter().filter(|name| !name.contains(['/', ':']));
            let mut more: Vec<_> = tags.map(|tag| format!("{file_name}:{tag}")).collect();
            if alone && more.is_empty() && entry.names.is_empty() {
                more.push(file_name.to_owned());
            }
            entry.names.extend(more);
        }
    }

    /// Says which entry is the image that was asked for.
    pub(crate) fn position(&self, asked: &Reference) -> Option<usize> {
        let is_asked = |entry: &Entry| match asked.digest() {
            Some(digest) => matches!(&entry.at, EntryAt::Manifest { digest: found } if found == digest),
            None => {
                entry.names.iter().filter_map(|name| Reference::parse(name)).any(|name| name.names(asked))
            }
        };
        self.entries.iter().position(is_asked)
    }

    /// Reads the manifest and the configuration of one of the entries.
    pub(crate) fn image(self, position: usize) -> Result<Image, ImageError> {
        let Self { store, mut entries } = self;
        if position >= entries.len() {
            return Err(ImageError::invalid("the archive holds no such image"));
        }
        let (config_member, config_digest, members) = match entries.swap_remove(position).at {
            EntryAt::Saved { config, layers } => (config, None, layers),
            EntryAt::Manifest { digest } => {
                let manifest = store.manifest(&digest)?;
                let layers =
                    manifest.layers.iter().map(|layer| blob(&layer.digest)).collect::<Result<_, _>>()?;
                (blob(&manifest.config.digest)?, Some(manifest.config.digest), layers)
            }
        };
        let bytes = store.bytes(&config_member)?.ok_or_else(|| {
            ImageError::invalid(format!("the archive lacks the configuration {config_member}"))
        })?;
        let digest = sha256(&bytes);
        if config_digest.is_some_and(|expected| expected != digest) {
            return Err(ImageError::invalid(format!(
                "the configuration {config_member} is damaged: its digest is {digest}"
            )));
        }
        let config: Config = parse(&bytes, &config_member)?;
        let here = architecture();
        if !config.architecture.is_empty() && (config.os != "linux" || config.architecture != here) {
            return Err(ImageError::invalid(format!(
                "the image is for {}/{}, this machine is linux/{here}; save the image for this platform",
                config.os, config.architecture
            )));
        }
        if members.len() != config.rootfs.diff_ids.len() || members.len() > MAX_LAYERS {
            return Err(ImageError::invalid(format!(
                "the image lists {} layers and its configuration {}",
                members.len(),
                config.rootfs.diff_ids.len()
            )));
        }
        let layers = members
            .into_iter()
            .zip(config.rootfs.diff_ids)
            .map(|(member, diff_id)| Layer { member, diff_id })
            .collect();
        let env = config.config.unwrap_or_default().env.unwrap_or_default();
        let env = env.iter().filter_map(|pair| pair.split_once('='));
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Ok(Image { digest, config: ImageConfig { env }, layers, store })
    }
}

impl Image {
    /// Goes through the layers from the lowest up, with the digest that the uncompressed bytes must have.
    pub(crate) fn layers(&self) -> impl Iterator<Item = Result<(Box<dyn Read>, &str), ImageError>> {
        self.layers.iter().map(|layer| {
            let reader = self.store.open(&layer.member)?.ok_or_else(|| {
                ImageError::invalid(format!(
                    "the archive lacks the layer {}; save the image again",
                    layer.member
                ))
            })?;
            Ok((decompressed(reader)?, layer.diff_id.as_str()))
        })
    }

    /// How many layers there are.
    pub(crate) fn layer_count(&self) -> usize {
        self.layers.len()
    }
}

fn is_for_here(found: &Descriptor) -> bool {
    found
        .platform
        .as_ref()
        .is_none_or(|platform| platform.os == "linux" && platform.architecture == architecture())
}

/// Says where the OCI layout keeps the content with this digest.
fn blob(digest: &str) -> Result<String, ImageError> {
    match digest.split_once(':') {
        Some(("sha256", hex)) if hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            Ok(format!("blobs/sha256/{hex}"))
        }
        _ => Err(ImageError::invalid(format!("the digest {digest:?} is no SHA-256; no other is supported"))),
    }
}

/// Writes the digest of some bytes as manifests do.
fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(bytes))
}

fn parse<T: DeserializeOwned>(bytes: &[u8], member: &str) -> Result<T, ImageError> {
    serde_json::from_slice(bytes)
        .map_err(|error| ImageError::invalid(format!("{member} of the archive is not understood: {error}")))
}

/// Undoes gzip or zstd, told by the first bytes: what a manifest says of it is not always true.
fn decompressed(mut reader: Box<dyn Read>) -> Result<Box<dyn Read>, ImageError> {
    let mut magic = Vec::with_capacity(4);
    reader.by_ref().take(4).read_to_end(&mut magic)?;
    let whole = io::Cursor::new(magic.clone()).chain(reader);
    Ok(match magic.as_slice() {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(whole)),
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(
            ruzstd::decoding::StreamingDecoder::new(whole)
                .map_err(|error| ImageError::invalid(format!("a layer is no valid zstd: {error}")))?,
        ),
        _ => Box::new(whole),
    })
}

impl Store {
    /// Notes where each member of a tar is; `None` if the file is no tar.
    fn index_tar(path: &Path) -> Result<Option<Self>, ImageError> {
        let mut archive = tar::Archive::new(File::open(path)?);
        let mut members = HashMap::new();
        for entry in archive.entries_with_seek()? {
            let Ok(entry) = entry else {
                return if members.is_empty() {
                    Ok(None)
                } else {
                    Err(ImageError::invalid(format!("{} is cut short or damaged", path.display())))
                };
            };
            if members.len() > MAX_MEMBERS {
                return Err(ImageError::invalid(format!(
                    "{} has more than {MAX_MEMBERS} members",
                    path.display()
                )));
            }
            let Some(name) = entry.path().ok().and_then(|name| plain(&name)) else { continue };
            match entry.header().entry_type() {
                tar::EntryType::Regular => {
                    members.insert(
                        name,
                        Member::Bytes { offset: entry.raw_file_position(), size: entry.size() },
                    );
                }
                tar::EntryType::Symlink | tar::EntryType::Link => {
                    // Older `docker save` writes a layer once and links to it.
                    let from = match entry.header().entry_type() {
                        tar::EntryType::Symlink => Path::new(&name).parent().unwrap_or(Path::new("")),
                        _ => Path::new(""),
                    };
                    if let Some(target) = entry.link_name()?.and_then(|target| plain(&from.join(target))) {
                        members.insert(name, Member::Link(target));
                    }
                }
                _ => {}
            }
        }
        Ok((!members.is_empty()).then(|| Self::Tar { path: path.to_owned(), members }))
    }

    fn open(&self, name: &str) -> Result<Option<Box<dyn Read>>, ImageError> {
        match self {
            Self::Directory(path) => {
                let Some(name) = plain(Path::new(name)) else { return Ok(None) };
                match crate::rooted::Root::open(path)?.read(Path::new(&name)) {
                    Ok(file) => Ok(Some(Box::new(file))),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                    Err(error) => Err(error.into()),
                }
            }
            Self::Tar { path, members } => {
                let Some(name) = plain(Path::new(name)) else { return Ok(None) };
                let found = match members.get(&name) {
                    Some(Member::Link(target)) => members.get(target),
                    other => other,
                };
                let Some(Member::Bytes { offset, size }) = found else { return Ok(None) };
                let mut file = File::open(path)?;
                file.seek(SeekFrom::Start(*offset))?;
                Ok(Some(Box::new(file.take(*size))))
            }
        }
    }

    fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, ImageError> {
        let Some(reader) = self.open(name)? else { return Ok(None) };
        let mut bytes = Vec::new();
        reader.take(MAX_JSON + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_JSON {
            return Err(ImageError::invalid(format!(
                "{name} of the archive is larger than {MAX_JSON} bytes"
            )));
        }
        Ok(Some(bytes))
    }

    fn json<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ImageError> {
        self.bytes(name)?.map(|bytes| parse(&bytes, name)).transpose()
    }

    /// Reads the content with this digest and checks it.
    fn verified(&self, digest: &str) -> Result<Vec<u8>, ImageError> {
        let member = blob(digest)?;
        let bytes = self.bytes(&member)?.ok_or_else(|| {
            ImageError::invalid(format!("the archive lacks {member}; save the image again"))
        })?;
        if sha256(&bytes) != digest {
            return Err(ImageError::invalid(format!("{member} of the archive is damaged")));
        }
        Ok(bytes)
    }

    /// Follows indexes to the manifest for this machine.
    fn manifest(&self, digest: &str) -> Result<Manifest, ImageError> {
        let mut digest = digest.to_owned();
        for _ in 0..MAX_INDEXES {
            let bytes = self.verified(&digest)?;
            let index: Index = parse(&bytes, &digest)?;
            if index.manifests.is_empty() {
                return parse(&bytes, &digest);
            }
            let usable = |found: &Descriptor| !found.media_type.contains("attestation") && is_for_here(found);
            let found = index.manifests.into_iter().find(usable);
            digest = found
                .ok_or_else(|| {
                    ImageError::invalid(format!("the image has nothing for linux/{}", architecture()))
                })?
                .digest;
        }
        Err(ImageError::invalid("the indexes of the archive are nested too deep"))
    }
}

/// Writes the path of a member in one way, `..` resolved; `None` if it leads out of the archive.
fn plain(path: &Path) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => parts.push(name.to_str()?),
            Component::ParentDir => drop(parts.pop()?),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}
