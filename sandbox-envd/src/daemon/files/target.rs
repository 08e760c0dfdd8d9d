//! The file an upload goes to.
//!
//! E2B's envd truncates the file and writes into it as the body arrives. This keeps what clients rely on (the
//! same inode with its links and watches, a CREATE event for a new file and a WRITE event for its content),
//! but a body that breaks off leaves no half file, and bodies that arrive at once do not mix:
//!
//! * A short body is written only once it is complete.
//! * Until then, a longer one is a nameless file in the same directory. It gets its name if there is no such
//!   file yet; else, or where a nameless file cannot get one, it is copied into the file of that name.
//! * The content of an existing file is replaced by one upload at a time.
//! * A pipe or a device gets the body as it arrives, as far as somebody takes it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::daemon::files::failure::Failure;
use crate::daemon::fs::{self as files, Actor, Metadata};
use crate::daemon::state::State;

/// A body up to this many bytes waits in memory until it is complete.
const SHORT: usize = 256 * 1024;
/// Bytes copied at once where the kernel cannot copy between two files by itself.
const COPY: usize = 256 * 1024;

/// One file being uploaded. Dropped without [`commit`](Self::commit), it leaves the file as it was.
pub(super) struct Target {
    path: PathBuf,
    actor: Actor,
    state: Arc<State>,
    content: Content,
}

enum Content {
    /// Still short.
    Held(Vec<u8>),
    /// A device or a pipe.
    Device(File),
    /// In a nameless file, to become the one of that name or its content.
    Staged(File),
}

impl Target {
    /// Begins an upload to `path`. Nothing is touched yet.
    pub(super) fn open(path: PathBuf, actor: Actor, state: Arc<State>) -> Result<Self, Failure> {
        match fs::metadata(&path) {
            Ok(stat) if stat.is_dir() => Err(Failure::directory(&path)),
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Failure::io("write", &path, &error)),
            _ => Ok(Self { path, actor, state, content: Content::Held(Vec::new()) }),
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
            self.content = self.begin_long().map_err(|error| self.failed(&error))?;
            self.write_through(&held)?;
        }
        self.write_through(data)
    }

    fn write_through(&mut self, data: &[u8]) -> Result<(), Failure> {
        let written = match &mut self.content {
            Content::Staged(file) => file.write_all(data),
            Content::Device(file) => self.state.turns.pour(file, data, self.state.config.upload_idle),
            Content::Held(held) => {
                held.extend_from_slice(data);
                Ok(())
            }
        };
        written.map_err(|error| self.failed(&error))
    }

    /// Makes the new content that of the file, owned by the user, with `metadata` as its metadata.
    pub(super) fn commit(mut self, metadata: &Metadata) -> Result<(), Failure> {
        let done = match std::mem::replace(&mut self.content, Content::Held(Vec::new())) {
            Content::Device(file) => files::replace_metadata(&file, metadata),
            Content::Held(held) => {
                // To a regular file this just writes.
                self.replace(held.len() as u64, metadata, |file| self.pour(file, &held))
            }
            Content::Staged(mut staged) => self.name(&staged, metadata).and_then(|named| {
                if named {
                    return Ok(());
                }
                let length = staged.stream_position()?;
                self.replace(length, metadata, |file| copy(&mut staged, file, length))
            }),
        };
        done.map_err(|error| self.failed(&error))
    }

    /// Decides how a body that is not short is kept while it arrives.
    fn begin_long(&self) -> io::Result<Content> {
        match fs::metadata(&self.path) {
            Ok(stat) if !stat.is_file() => self.open_existing_or_new().map(|(file, _)| Content::Device(file)),
            _ => self.stage().map(Content::Staged),
        }
    }

    /// Gives a nameless file the name of this upload; false when that is taken, or cannot be done here.
    fn name(&self, staged: &File, metadata: &Metadata) -> io::Result<bool> {
        let nameless = format!("/proc/self/fd/{}", staged.as_raw_fd());
        if rustix::fs::linkat(CWD, &nameless, CWD, &self.path, AtFlags::SYMLINK_FOLLOW).is_err() {
            return Ok(false);
        }
        let done = self.state.turns.at(&staged.metadata()?, || self.finish(staged, metadata));
        if done.is_err() {
            self.forget(staged);
        }
        done.map(|()| true)
    }

    /// Does what is to be done to a file that was nameless until now.
    fn finish(&self, staged: &File, metadata: &Metadata) -> io::Result<()> {
        self.actor.own(staged)?;
        files::replace_metadata(staged, metadata)?;
        // Those who watch are to hear of the content too, not of the name alone; the kernel tells of it under the name
        // by which the file was opened.
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let named = match rustix::fs::open(&self.path, flags, Mode::empty()) {
            Ok(named) => File::from(named),
            // Renamed or removed since: it is not ours any more.
            Err(_) => return Ok(()),
        };
        let stat = named.metadata()?;
        if same_file(&stat, &staged.metadata()?) { named.set_len(stat.len()) } else { Ok(()) }
    }

    /// Makes `length` bytes that `write` writes the content of the file, which may be new.
    fn replace(
        &self,
        length: u64,
        metadata: &Metadata,
        mut write: impl FnMut(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut tries = 0..8;
        loop {
            let (mut file, new) = self.open_existing_or_new()?;
            let stat = file.metadata()?;
            if !stat.is_file() {
                return write(&mut file).and_then(|()| files::replace_metadata(&file, metadata));
            }
            let done = self.state.turns.at(&stat, || {
                // Another upload that failed may have removed what it made. Somewhere a path may never lead to the same
                // file twice.
                let there = fs::metadata(&self.path).is_ok_and(|there| same_file(&there, &stat));
                if !there && tries.next().is_some() {
                    return Ok(false);
                }
                let untouched = new && file.metadata()?.len() == 0;
                // What is removed when it fails has no content to keep; and taking room is a change that watchers hear of.
                let reserved = if untouched { 0 } else { length };
                let done = replace_content(&mut file, reserved, &mut write)
                    .and_then(|()| files::replace_metadata(&file, metadata));
                if untouched && done.is_err() {
                    self.forget(&file);
                }
                done.map(|()| true)
            });
            if done? {
                return Ok(());
            }
        }
    }

    fn pour(&self, into: &File, data: &[u8]) -> io::Result<()> {
        self.state.turns.pour(into, data, self.state.config.upload_idle)
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
        // A device stays whose it is: what is written to it is not kept there.
        let owned = made.0.metadata().and_then(|stat| match stat.is_file() || stat.file_type().is_fifo() {
            true => self.actor.own(&made.0),
            false => Ok(()),
        });
        if let Err(error) = owned {
            if made.1 {
                self.forget(&made.0);
            }
            return Err(error);
        }
        Ok(made)
    }

    /// Opens a nameless file beside the target, whose parents are made.
    fn stage(&self) -> io::Result<File> {
        let there = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let parent = there.parent().unwrap_or(Path::new("/"));
        self.actor.make_dirs(parent)?;
        match rustix::fs::open(parent, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, 0o666.into()) {
            Ok(file) => return Ok(file.into()),
            // Not every file system (or kernel) can make a file without a name.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let (name, file) = named_temporary(parent)?;
        fs::remove_file(name)?;
        Ok(file)
    }

    /// Removes a file that this upload made, unless someone put another one there meanwhile.
    fn forget(&self, file: &File) {
        if let (Ok(ours), Ok(there)) = (file.metadata(), fs::symlink_metadata(&self.path))
            && same_file(&ours, &there)
        {
            let _ = fs::remove_file(&self.path);
        }
    }

    fn failed(&self, error: &io::Error) -> Failure {
        match Errno::from_io_error(error) {
            Some(Errno::ISDIR) => Failure::directory(&self.path),
            Some(Errno::NXIO) => Failure::unread(&self.path, "nobody reads it"),
            None if error.kind() == ErrorKind::WouldBlock => {
                Failure::unread(&self.path, "nobody takes what is in it, and too many uploads wait already")
            }
            None if error.kind() == ErrorKind::TimedOut => Failure::stalled(&self.path),
            _ => Failure::io("write", &self.path, error),
        }
    }
}

pub(super) fn same_file(a: &fs::Metadata, b: &fs::Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Replaces the content of an open regular file by what `write` writes.
///
/// Room for `reserved` bytes is taken first, so that a full disk leaves the old content.
fn replace_content(
    file: &mut File,
    reserved: u64,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let stat = file.metadata()?;
    if reserved > stat.len() {
        let taken = rustix::fs::fallocate(&*file, FallocateFlags::KEEP_SIZE, 0, reserved);
        // Any other error means that this file system cannot reserve room.
        if let Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) = taken {
            return Err(error.into());
        }
    }
    if stat.len() > 0 {
        file.set_len(0)?;
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
