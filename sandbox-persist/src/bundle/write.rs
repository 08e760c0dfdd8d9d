use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use sandhold_core::{Error, ErrorKind, Result};
use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::header::BundleHeader;
use super::options::{Bundle, BundleOptions};
use crate::cancel::{Cancel, run_blocking};
use crate::snapshot::{SnapId, Snapshot};
use crate::vault::{Closure, Inner, Vault};
use crate::{beneath, error, failpoint};

/// What prerequisites are called in a bundle, for people.
const COMMENT: &str = "a snapshot that must be there already";

impl Vault {
    /// Writes a snapshot with all that it refers to as one file, a git bundle.
    ///
    /// Whoever has the file and git needs nothing else:
    /// `git init x && git -C x fetch file 'refs/sandbox/*:refs/sandbox/*'`, and after that the snapshot is checked out as
    /// any commit. `git clone` works where a branch was named ([`BundleOptions::with_branch`]).
    ///
    /// Objects go over as they are stored, and the sum of each is compared on the way; whether all are there is found
    /// out before the first byte is written.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] where `path` is there, [`ErrorKind::NotFound`] where the vault has no such snapshot,
    /// with reason `snapshot_gone` where its objects are not here, and with reason `missing_objects` where some are not.
    /// [`ErrorKind::Unexpected`] with reason `damaged`.
    ///
    /// # Cancellation
    /// Dropping the future stops the work. Either the whole bundle is there, or no file.
    pub async fn write_bundle(
        &self,
        id: &SnapId,
        path: impl AsRef<Path>,
        options: BundleOptions,
    ) -> Result<Bundle> {
        let (inner, id, path) = (Arc::clone(&self.0), id.clone(), path.as_ref().to_owned());
        run_blocking(options.budget, move |cancel| inner.write_bundle(&id, &path, &options, cancel)).await
    }
}

impl Inner {
    /// As [`Vault::write_bundle`], on this thread.
    pub(crate) fn write_bundle(
        &self,
        id: &SnapId,
        path: &Path,
        options: &BundleOptions,
        cancel: &Cancel,
    ) -> Result<Bundle> {
        let _held = self.hold(cancel)?;
        let snapshot = self.held(id)?;
        let mut target = Target::create(path)?;
        let written = self.bundle_to(&mut target.file, &snapshot, options, cancel)?;
        failpoint::pass("bundle.written");
        target.publish(path)?;
        failpoint::pass("bundle.published");
        Ok(Bundle { path: path.to_owned(), ..written })
    }

    /// Finds a snapshot whose objects are here.
    pub(crate) fn held(&self, id: &SnapId) -> Result<Snapshot> {
        let snapshot = self.find(id.as_str())?;
        match self.refs.read(&id.ref_name())? {
            Some(_) => Ok(snapshot),
            None => Err(Error::new(
                ErrorKind::NotFound,
                format!("the objects of {id} are not in this vault any more"),
            )
            .with_reason("snapshot_gone")),
        }
    }

    fn bundle_to(
        &self,
        file: &mut File,
        snapshot: &Snapshot,
        options: &BundleOptions,
        cancel: &Cancel,
    ) -> Result<Bundle> {
        let mut header =
            BundleHeader { refs: vec![(snapshot.id.ref_name(), snapshot.commit)], prerequisites: Vec::new() };
        if let Some(branch) = &options.branch {
            let name = format!("refs/heads/{branch}");
            header.refs.splice(0..0, [("HEAD".to_owned(), snapshot.commit), (name, snapshot.commit)]);
        }
        let store = self.objects.store()?;
        let mut closure = Closure::default();
        for id in &options.since {
            let before = self.held(id)?;
            closure.reach(&store, before.commit, cancel)?;
            header.prerequisites.push(before.commit);
        }
        let found = closure.reach(&store, snapshot.commit, cancel)?;
        if found.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidState,
                format!("{} has nothing that the snapshots before it have not", snapshot.id),
            )
            .with_reason("nothing_to_bundle"));
        }
        let count = u32::try_from(found.len())
            .map_err(|_| Error::new(ErrorKind::Unsupported, "a pack holds less than 2^32 objects"))?;
        let text = header.encode(COMMENT);
        // What was written is refused by nobody else either.
        BundleHeader::read(&text[..])?;

        let mut out = Sink { file: BufWriter::with_capacity(1 << 18, file), whole: Sha256::new(), bytes: 0 };
        out.write(&text)?;
        let mut pack = Sha1::new();
        let head = [&b"PACK\0\0\0\x02"[..], &count.to_be_bytes()].concat();
        pack.update(&head);
        out.write(&head)?;
        for id in store.in_order(found.iter().map(|(_, id)| *id)) {
            cancel.check()?;
            store.stream(id, |part| {
                pack.update(part);
                out.write(part)
            })?;
        }
        out.write(&pack.finalize())?;
        let (bytes, sha256) = out.finish()?;
        Ok(Bundle {
            id: snapshot.id.clone(),
            commit: snapshot.commit,
            path: PathBuf::new(),
            bytes,
            sha256,
            objects: found.len() as u64,
            prerequisites: header.prerequisites,
        })
    }
}

struct Sink<'a> {
    file: BufWriter<&'a mut File>,
    whole: Sha256,
    bytes: u64,
}

impl Sink<'_> {
    fn write(&mut self, part: &[u8]) -> Result<()> {
        self.whole.update(part);
        self.bytes += part.len() as u64;
        self.file.write_all(part).map_err(|failure| error::io("write", Path::new("the bundle"), failure))
    }

    fn finish(mut self) -> Result<(u64, String)> {
        let failed = |failure| error::io("write", Path::new("the bundle"), failure);
        self.file.flush().map_err(failed)?;
        self.file.get_ref().sync_all().map_err(failed)?;
        let sum = self.whole.finalize();
        Ok((self.bytes, sum.iter().map(|byte| format!("{byte:02x}")).collect()))
    }
}

/// A file without a name, which a crash takes with it; where the file system has none, one with a name of its own.
struct Target {
    file: File,
    named: Option<PathBuf>,
}

impl Target {
    fn create(path: &Path) -> Result<Self> {
        let dir = match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        if path.symlink_metadata().is_ok() {
            return Err(exists(path));
        }
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::open(dir, flags, Mode::from_raw_mode(0o600)) {
            Ok(file) => Ok(Self { file: file.into(), named: None }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => {
                let mut random = [0; 8];
                getrandom::fill(&mut random).map_err(|failure| {
                    Error::new(ErrorKind::Unexpected, "the system gave no random bytes")
                        .with_source(failure.to_string())
                })?;
                let named = dir.join(format!(".{:016x}.bundle-part", u64::from_le_bytes(random)));
                Ok(Self { file: crate::durable::create_file(&named)?, named: Some(named) })
            }
            Err(errno) => Err(error::io("make a file in", dir, errno)),
        }
    }

    fn publish(mut self, path: &Path) -> Result<()> {
        use std::os::fd::AsRawFd;
        let linked = match self.named.take() {
            None => {
                let file = format!("/proc/self/fd/{}", self.file.as_fd().as_raw_fd());
                rustix::fs::linkat(CWD, file, CWD, path, AtFlags::SYMLINK_FOLLOW)
            }
            Some(named) => {
                let linked = rustix::fs::linkat(CWD, &named, CWD, path, AtFlags::empty());
                self.named = Some(named);
                linked
            }
        };
        match linked {
            Ok(()) => {}
            Err(Errno::EXIST) => return Err(exists(path)),
            Err(errno) => return Err(error::io("publish", path, errno)),
        }
        match path.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => beneath::sync_dir(dir),
            _ => beneath::sync_dir(Path::new(".")),
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(named) = &self.named {
            let _ = fs::remove_file(named);
        }
    }
}

fn exists(path: &Path) -> Error {
    Error::new(ErrorKind::AlreadyExists, format!("{} is there already; choose another name", path.display()))
}
