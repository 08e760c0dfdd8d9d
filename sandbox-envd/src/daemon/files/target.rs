//! The file an upload goes to.
//!
//! E2B's envd truncates the file and writes into it as the body arrives. This keeps what clients rely on (the
//! same inode with its links and watches, a CREATE event for a new file and a WRITE event for its content),
//! but a body that breaks off leaves no half file:
//!
//! * A short body is written only once it is complete.
//! * A new file is written as it arrives, and removed if the body breaks off.
//! * The content of an existing file is replaced only once the new one is complete: until then that is a
//!   nameless file in the same directory. It costs the room, and another copy, of the new content.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::daemon::files::failure::Failure;
use crate::daemon::fs::{self as files, Actor, Metadata};

/// A body up to this many bytes waits in memory until it is complete.
const SHORT: usize = 256 * 1024;
/// Bytes copied at once where the kernel cannot copy between two files by itself.
const COPY: usize = 256 * 1024;

/// One file being uploaded. Dropped without [`commit`](Self::commit), it leaves the file as it was.
pub(super) struct Target {
    path: PathBuf,
    actor: Actor,
    content: Content,
}

enum Content {
    /// Still short.
    Held(Vec<u8>),
    /// In place: a new file (removed if it does not become complete), a device, a pipe.
    InPlace { file: File, new: bool },
    /// In a nameless file, to replace the content of the existing one.
    Staged(File),
}

impl Target {
    /// Begins an upload to `path`. Nothing is touched yet.
    pub(super) fn open(path: PathBuf, actor: Actor) -> Result<Self, Failure> {
        match fs::metadata(&path) {
            Ok(stat) if stat.is_dir() => Err(Failure::directory(&path)),
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Failure::io("write", &path, &error)),
            _ => Ok(Self { path, actor, content: Content::Held(Vec::new()) }),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Appends to the new content.
    pub(super) fn write(&mut self, data: &[u8]) -> Result<(), Failure> {
        if let Content::Held(held) = &mut self.content {
            if held.len() + data.len() <= SHORT {
                held.extend_from_slice(data);
                return Ok(());
            }
            let held = std::mem::take(held);
            self.content = self.begin_long()?;
            self.write_through(&held)?;
        }
        self.write_through(data)
    }

    fn write_through(&mut self, data: &[u8]) -> Result<(), Failure> {
        let written = match &mut self.content {
            Content::InPlace { file, .. } | Content::Staged(file) => file.write_all(data),
            Content::Held(held) => {
                held.extend_from_slice(data);
                Ok(())
            }
        };
        written.map_err(|error| self.failed(&error))
    }

    /// Makes the new content that of the file, owned by the user, with `metadata` as its metadata.
    pub(super) fn commit(mut self, metadata: &Metadata) -> Result<(), Failure> {
        let content = std::mem::replace(&mut self.content, Content::Held(Vec::new()));
        let (file, new, written) = match content {
            Content::InPlace { file, new } => (file, new, Ok(())),
            Content::Held(held) => {
                let (mut file, new) = self.open_existing_or_new().map_err(|error| self.failed(&error))?;
                let length = held.len() as u64;
                let written = replace_content(&mut file, length, |file| file.write_all(&held));
                (file, new, written)
            }
            Content::Staged(mut staged) => {
                let (mut file, new) = self.open_existing_or_new().map_err(|error| self.failed(&error))?;
                let written = staged.stream_position().and_then(|length| {
                    replace_content(&mut file, length, |file| copy(&mut staged, file, length))
                });
                (file, new, written)
            }
        };
        let done = written.and_then(|()| files::replace_metadata(&file, metadata));
        // A new file that failed is removed when this is dropped.
        self.content = Content::InPlace { file, new: new && done.is_err() };
        done.map_err(|error| self.failed(&error))
    }

    /// Decides how a body that is not short is kept while it arrives.
    fn begin_long(&self) -> Result<Content, Failure> {
        let begin = || match fs::metadata(&self.path) {
            Ok(stat) if stat.is_file() => self.stage().map(Content::Staged),
            _ => self.open_existing_or_new().map(|(file, new)| Content::InPlace { file, new }),
        };
        begin().map_err(|error| self.failed(&error))
    }

    /// Opens the file for writing as it is, or makes it and its parents; says whether it is new.
    fn open_existing_or_new(&self) -> io::Result<(File, bool)> {
        if let Some(parent) = self.path.parent() {
            self.actor.make_dirs(parent)?;
        }
        let mut options = OpenOptions::new();
        // Not to wait for a reader that a named pipe may never get.
        options.write(true).mode(0o666).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let made = match options.clone().create_new(true).open(&self.path) {
            Ok(file) => (file, true),
            // There, or a link to something that is not.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                (options.create(true).open(&self.path)?, false)
            }
            Err(error) => return Err(error),
        };
        let flags = rustix::fs::fcntl_getfl(&made.0)?;
        rustix::fs::fcntl_setfl(&made.0, flags - OFlags::NONBLOCK)?;
        if let Err(error) = self.actor.own(&made.0) {
            if made.1 {
                let _ = fs::remove_file(&self.path);
            }
            return Err(error);
        }
        Ok(made)
    }

    /// Opens a nameless file beside the target.
    fn stage(&self) -> io::Result<File> {
        let path = fs::canonicalize(&self.path)?;
        let parent = path.parent().unwrap_or(Path::new("/"));
        match rustix::fs::open(parent, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR) {
            Ok(file) => return Ok(file.into()),
            // Not every file system (or kernel) can make a file without a name.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let (name, file) = named_temporary(parent)?;
        fs::remove_file(name)?;
        Ok(file)
    }

    fn failed(&self, error: &io::Error) -> Failure {
        match Errno::from_io_error(error) {
            Some(Errno::ISDIR) => Failure::directory(&self.path),
            _ => Failure::io("write", &self.path, error),
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let Content::InPlace { file, new: true } = &self.content else { return };
        // Someone may have put another file there meanwhile; that is not ours to remove.
        if let (Ok(ours), Ok(there)) = (file.metadata(), fs::symlink_metadata(&self.path))
            && same_file(&ours, &there)
        {
            let _ = fs::remove_file(&self.path);
        }
    }
}

pub(super) fn same_file(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Replaces the content of an open file by `length` bytes that `write` writes.
///
/// The room is taken first, so that a full disk leaves the old content.
fn replace_content(
    file: &mut File,
    length: u64,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let stat = file.metadata()?;
    if stat.is_file() {
        if length > stat.len() {
            let reserved = rustix::fs::fallocate(&*file, FallocateFlags::KEEP_SIZE, 0, length);
            // Any other error means that this file system cannot reserve room.
            if let Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) = reserved {
                return Err(error.into());
            }
        }
        if stat.len() > 0 {
            file.set_len(0)?;
        }
    }
    write(file)
}

/// Makes a new file with a random hidden name in `dir`.
pub(super) fn named_temporary(dir: &Path) -> io::Result<(PathBuf, File)> {
    loop {
        let name: String = std::iter::repeat_with(fastrand::alphanumeric).take(12).collect();
        let path = dir.join(format!(".upload-{name}"));
        let mut options = OpenOptions::new();
        match options.read(true).write(true).create_new(true).mode(0o666).open(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return Ok((path, made?)),
        }
    }
}

/// Copies `length` bytes from the start of `from` to the end of `to`, inside the kernel where it can.
pub(super) fn copy(from: &mut File, mut to: &File, length: u64) -> io::Result<()> {
    let mut done = 0;
    while done < length {
        let mut offset = done;
        let left = usize::try_from(length - done).unwrap_or(usize::MAX).min(1 << 30);
        match rustix::fs::copy_file_range(&*from, Some(&mut offset), to, None, left) {
            Ok(0) | Err(Errno::INTR) => break,
            Ok(copied) => done += copied as u64,
            Err(error @ (Errno::NOSPC | Errno::DQUOT)) => return Err(error.into()),
            Err(_) => break,
        }
    }
    from.seek(io::SeekFrom::Start(done))?;
    let mut reader = io::BufReader::with_capacity(COPY, from);
    let rest = io::copy(&mut io::Read::take(&mut reader, length - done), &mut to)?;
    if done + rest < length {
        return Err(io::Error::new(ErrorKind::UnexpectedEof, "the file became shorter while it was copied"));
    }
    Ok(())
}
