use std::collections::BTreeMap;
use std::time::SystemTime;

use crate::stream::ByteStream;

/// What a directory entry is; for a symbolic link, what it leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link whose target the provider did not look at.
    Symlink,
    /// Something else: a device, a socket, a broken link.
    Other,
}

/// Facts about one file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EntryInfo {
    /// The last part of the path.
    pub name: String,
    /// The absolute path.
    pub path: String,
    /// What it is.
    pub file_type: FileType,
    /// Its size in bytes; of the link itself for a symbolic link.
    pub size: u64,
    /// The permission bits, such as `0o644`.
    pub mode: u32,
    /// The owner's name, or the number as text.
    pub owner: String,
    /// The group's name, or the number as text.
    pub group: String,
    /// When the content was last modified.
    pub modified_at: Option<SystemTime>,
    /// Where a symbolic link leads, resolved; `None` for anything else.
    pub symlink_target: Option<String>,
    /// The pairs that were given at the upload.
    pub metadata: BTreeMap<String, String>,
}

impl EntryInfo {
    /// Facts with nothing optional set.
    pub fn new(path: impl Into<String>, file_type: FileType) -> Self {
        let path = path.into();
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        Self {
            name,
            path,
            file_type,
            size: 0,
            mode: 0,
            owner: String::new(),
            group: String::new(),
            modified_at: None,
            symlink_target: None,
            metadata: BTreeMap::new(),
        }
    }
}

/// Shapes one file call. Paths: `~` and relative ones start at the user's home; absolute ones are used as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileOptions {
    /// As whom; default the sandbox's user.
    pub user: Option<String>,
}

impl FileOptions {
    /// Runs the call as this user.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }
}

/// Shapes one read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadOptions {
    /// As whom; default the sandbox's user.
    pub user: Option<String>,
    /// The first byte; default 0.
    pub offset: u64,
    /// How many bytes at most; default all.
    pub length: Option<u64>,
}

impl ReadOptions {
    /// Reads as this user.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Begins at this byte.
    #[must_use]
    pub fn with_offset(mut self, offset: u64) -> Self {
        self.offset = offset;
        self
    }

    /// Reads so many bytes at most.
    #[must_use]
    pub fn with_length(mut self, length: u64) -> Self {
        self.length = Some(length);
        self
    }
}

/// Shapes one write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriteOptions {
    /// As whom; default the sandbox's user.
    pub user: Option<String>,
    /// Pairs kept with the file; names and values of printable ASCII; default none, which clears earlier ones.
    pub metadata: BTreeMap<String, String>,
    /// The size of the body where it is known; default unknown.
    pub size: Option<u64>,
}

impl WriteOptions {
    /// Writes as this user.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Keeps a pair with the file.
    #[must_use]
    pub fn with_metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.metadata.insert(name.into(), value.into());
        self
    }

    /// Says how large the body is, in bytes.
    #[must_use]
    pub fn with_size(mut self, bytes: u64) -> Self {
        self.size = Some(bytes);
        self
    }
}

/// Shapes one listing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListOptions {
    /// As whom; default the sandbox's user.
    pub user: Option<String>,
    /// How many levels down; default 1, the directory's own entries.
    pub depth: u32,
}

impl Default for ListOptions {
    fn default() -> Self {
        Self { user: None, depth: 1 }
    }
}

impl ListOptions {
    /// Lists as this user.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Lists so many levels down.
    #[must_use]
    pub fn with_depth(mut self, depth: u32) -> Self {
        self.depth = depth;
        self
    }
}

/// The content of a file on its way out of the sandbox.
#[derive(Debug)]
#[non_exhaustive]
pub struct Download {
    /// How many bytes will come, where the sender said so.
    pub size: Option<u64>,
    /// The bytes. A transfer that breaks ends with an error, never with a short file.
    pub body: ByteStream,
}

impl Download {
    /// Pairs a body with its size.
    #[must_use]
    pub fn new(size: Option<u64>, body: ByteStream) -> Self {
        Self { size, body }
    }
}

/// Shapes one watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchOptions {
    /// As whom; default the sandbox's user.
    pub user: Option<String>,
    /// Whether directories below are watched too, also later ones; default no.
    pub recursive: bool,
    /// Whether events carry the facts of their entry; default no.
    pub include_entry: bool,
}

impl WatchOptions {
    /// Watches as this user.
    #[must_use]
    pub fn with_user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// Watches the directories below too, also later ones.
    #[must_use]
    pub fn recursive(mut self) -> Self {
        self.recursive = true;
        self
    }

    /// Has events carry the facts of their entry.
    #[must_use]
    pub fn with_entries(mut self) -> Self {
        self.include_entry = true;
        self
    }
}

/// What happened to a watched file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WatchEventKind {
    /// It appeared.
    Create,
    /// Its content was written.
    Write,
    /// It was removed.
    Remove,
    /// It was renamed away; its arrival is a [`WatchEventKind::Create`].
    Rename,
    /// Its permissions or owner changed.
    Chmod,
    /// Events were lost: look at the whole directory again. The name is empty.
    Overflow,
}

/// One event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchEvent {
    /// The path relative to the watched directory.
    pub name: String,
    /// What happened.
    pub kind: WatchEventKind,
    /// Facts of the entry, best effort, where asked for.
    pub entry: Option<EntryInfo>,
}

impl WatchEvent {
    /// An event without facts of its entry.
    pub fn new(name: impl Into<String>, kind: WatchEventKind) -> Self {
        Self { name: name.into(), kind, entry: None }
    }
}
