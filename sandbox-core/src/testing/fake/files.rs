//! The file tree of a fake sandbox.

use std::collections::BTreeMap;
use std::time::SystemTime;

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::{EntryInfo, Error, ErrorKind, FileType, Result, WatchEvent, WatchEventKind};

/// The parts of an absolute path. Ordered by parts, so that a directory comes right before what is in it.
pub(super) type Path = Vec<String>;

#[derive(Clone, Debug)]
struct Node {
    /// `None` for a directory.
    content: Option<Bytes>,
    metadata: BTreeMap<String, String>,
    modified: SystemTime,
}

#[derive(Debug)]
struct Watcher {
    root: Path,
    recursive: bool,
    include_entry: bool,
    events: mpsc::UnboundedSender<WatchEvent>,
}

#[derive(Debug)]
pub(super) struct Tree {
    owner: String,
    nodes: BTreeMap<Path, Node>,
    watchers: Vec<Watcher>,
}

/// Cuts a path into its parts; relative ones start at `base`.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for a NUL byte.
pub(super) fn parse(path: &str, base: &str) -> Result<Path> {
    if path.contains('\0') {
        return Err(Error::invalid_argument(format!("the path {path:?} contains a NUL byte")));
    }
    let whole = match path.strip_prefix('~') {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{base}{rest}"),
        _ if path.starts_with('/') => path.to_owned(),
        _ => format!("{base}/{path}"),
    };
    let mut parts = Path::new();
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part.to_owned()),
        }
    }
    Ok(parts)
}

fn show(path: &[String]) -> String {
    format!("/{}", path.join("/"))
}

fn not_found(path: &[String]) -> Error {
    Error::new(ErrorKind::NotFound, format!("{:?} does not exist", show(path)))
}

fn wrong_type(path: &[String], what: &str) -> Error {
    Error::invalid_argument(format!("{:?} is {what}", show(path)))
}

impl Tree {
    pub(super) fn new(owner: &str) -> Self {
        let mut tree = Self { owner: owner.to_owned(), nodes: BTreeMap::new(), watchers: Vec::new() };
        tree.put(Path::new(), None, BTreeMap::new());
        tree
    }

    /// Copies what is there, without those who watch it.
    pub(super) fn copy(&self) -> Self {
        Self { owner: self.owner.clone(), nodes: self.nodes.clone(), watchers: Vec::new() }
    }

    fn put(&mut self, path: Path, content: Option<Bytes>, metadata: BTreeMap<String, String>) {
        self.nodes.insert(path, Node { content, metadata, modified: SystemTime::now() });
    }

    /// Makes the directory and its parents where they are missing.
    pub(super) fn ensure_dirs(&mut self, path: &str) {
        // Paths of a spec have no NUL; a strange one merely lacks its directory.
        if let Ok(path) = parse(path, "/") {
            let _ = self.ensure(&path);
        }
    }

    fn ensure(&mut self, path: &[String]) -> Result<()> {
        for end in 1..=path.len() {
            let part = &path[..end];
            match self.nodes.get(part) {
                Some(node) if node.content.is_some() => {
                    return Err(wrong_type(part, "a file, not a directory"));
                }
                Some(_) => {}
                None => {
                    self.put(part.to_vec(), None, BTreeMap::new());
                    self.tell(part, WatchEventKind::Create);
                }
            }
        }
        Ok(())
    }

    fn node(&self, path: &[String]) -> Result<&Node> {
        self.nodes.get(path).ok_or_else(|| not_found(path))
    }

    pub(super) fn total_size(&self) -> u64 {
        self.nodes.values().filter_map(|node| node.content.as_ref()).map(|content| content.len() as u64).sum()
    }

    pub(super) fn is_dir(&self, path: &[String]) -> bool {
        self.nodes.get(path).is_some_and(|node| node.content.is_none())
    }

    pub(super) fn stat(&self, path: &[String]) -> Result<EntryInfo> {
        let node = self.node(path)?;
        let kind = if node.content.is_some() { FileType::File } else { FileType::Directory };
        let mut entry = EntryInfo::new(show(path), kind);
        entry.size = node.content.as_ref().map_or(0, |content| content.len() as u64);
        entry.mode = if node.content.is_some() { 0o644 } else { 0o755 };
        entry.owner.clone_from(&self.owner);
        entry.group.clone_from(&self.owner);
        entry.modified_at = Some(node.modified);
        entry.metadata.clone_from(&node.metadata);
        Ok(entry)
    }

    pub(super) fn read(&self, path: &[String]) -> Result<Bytes> {
        self.node(path)?.content.clone().ok_or_else(|| wrong_type(path, "a directory"))
    }

    pub(super) fn write(
        &mut self,
        path: Path,
        content: Bytes,
        metadata: BTreeMap<String, String>,
    ) -> Result<EntryInfo> {
        if self.is_dir(&path) {
            return Err(wrong_type(&path, "a directory"));
        }
        self.ensure(&path[..path.len().saturating_sub(1)])?;
        let is_new = !self.nodes.contains_key(&path);
        self.put(path.clone(), Some(content), metadata);
        if is_new {
            self.tell(&path, WatchEventKind::Create);
        }
        self.tell(&path, WatchEventKind::Write);
        self.stat(&path)
    }

    pub(super) fn append(&mut self, path: Path, more: &[u8]) -> Result<()> {
        let mut content = self.read(&path).map_or_else(|_| Vec::new(), |content| content.to_vec());
        content.extend_from_slice(more);
        self.write(path, content.into(), BTreeMap::new()).map(drop)
    }

    pub(super) fn list(&self, path: &[String], depth: u32) -> Result<Vec<EntryInfo>> {
        if self.node(path)?.content.is_some() {
            return Err(wrong_type(path, "a file, not a directory"));
        }
        let deepest = path.len().saturating_add(depth as usize);
        self.below(path).filter(|below| below.len() <= deepest).map(|below| self.stat(below)).collect()
    }

    fn below(&self, path: &[String]) -> impl Iterator<Item = &Path> {
        self.nodes
            .range(path.to_vec()..)
            .map(|(below, _)| below)
            .take_while(move |below| below.starts_with(path))
            .filter(move |below| below.len() > path.len())
    }

    pub(super) fn make_dir(&mut self, path: &[String]) -> Result<EntryInfo> {
        match self.nodes.get(path) {
            Some(node) if node.content.is_none() => Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("the directory {:?} is there already", show(path)),
            )),
            Some(_) => Err(wrong_type(path, "a file")),
            None => self.ensure(path).and_then(|()| self.stat(path)),
        }
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> Result<EntryInfo> {
        self.node(from)?;
        if from == to {
            return self.stat(to);
        }
        if to.starts_with(from) {
            return Err(wrong_type(to, "inside the directory that is to be renamed"));
        }
        if self.is_dir(to) {
            return Err(wrong_type(to, "a directory"));
        }
        self.ensure(&to[..to.len().saturating_sub(1)])?;
        let moved: Vec<Path> = std::iter::once(from.clone()).chain(self.below(from).cloned()).collect();
        for old in moved {
            if let Some(node) = self.nodes.remove(&old) {
                self.nodes.insert([to.as_slice(), &old[from.len()..]].concat(), node);
            }
        }
        self.tell(from, WatchEventKind::Rename);
        self.tell(to, WatchEventKind::Create);
        self.stat(to)
    }

    pub(super) fn remove(&mut self, path: &[String]) -> Result<()> {
        if path.is_empty() {
            return Err(Error::invalid_argument("the root directory cannot be removed"));
        }
        if !self.nodes.contains_key(path) {
            return Ok(());
        }
        let mut removed: Vec<Path> = self.below(path).cloned().collect();
        removed.insert(0, path.to_vec());
        // Children first, as a real removal reports them.
        for path in removed.iter().rev() {
            self.nodes.remove(path);
            self.tell(path, WatchEventKind::Remove);
        }
        Ok(())
    }

    pub(super) fn watch(
        &mut self,
        path: Path,
        recursive: bool,
        include_entry: bool,
    ) -> Result<mpsc::UnboundedReceiver<WatchEvent>> {
        if self.node(&path)?.content.is_some() {
            return Err(wrong_type(&path, "a file, not a directory"));
        }
        let (events, receiver) = mpsc::unbounded_channel();
        self.watchers.push(Watcher { root: path, recursive, include_entry, events });
        Ok(receiver)
    }

    fn tell(&mut self, path: &[String], kind: WatchEventKind) {
        let entry = self.stat(path).ok();
        self.watchers.retain(|watcher| {
            let Some(name) = path.strip_prefix(watcher.root.as_slice()).filter(|name| !name.is_empty())
            else {
                return !watcher.events.is_closed();
            };
            if name.len() > 1 && !watcher.recursive {
                return !watcher.events.is_closed();
            }
            let mut event = WatchEvent::new(name.join("/"), kind);
            event.entry = entry.clone().filter(|_| watcher.include_entry);
            watcher.events.send(event).is_ok()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cut_without_leaving_the_root() {
        for (path, parts) in [
            ("/a//b/./c", "a b c"),
            ("x", "home u x"),
            ("~/x", "home u x"),
            ("~", "home u"),
            ("~x", "home u ~x"),
            ("/../../etc", "etc"),
        ] {
            assert_eq!(parse(path, "/home/u").unwrap().join(" "), parts, "{path}");
        }
        assert_eq!(parse("a\0b", "/").unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}
