use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind as IoErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use sandhold_core::{
    Error, ErrorKind, Key, Lease, Owner, Record, RecordFilter, Registry, RegistryScope, Result, ResultStream,
};

/// Keeps each record as a plain JSON file, for the processes of one machine.
///
/// A lease is a lock on an open file: the system gives it back when its holder dies, so no clock is involved. A holder
/// that hangs keeps it; others then end at their own deadlines. The directory must be on a local file system.
#[derive(Clone, Debug)]
pub struct FileRegistry {
    root: PathBuf,
}

/// The files of one key.
#[derive(Clone, Debug)]
struct Slot {
    directory: PathBuf,
    record: PathBuf,
    fence: PathBuf,
    lease: PathBuf,
    swap: PathBuf,
}

impl FileRegistry {
    /// Keeps records below this directory, which is made on first use, readable by its owner only.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    fn slot(&self, owner: &Owner, key: &Key) -> Slot {
        // Names are cut into parts that every file system takes; the suffixes keep owner, key and their prefixes apart.
        let mut directory = self.root.join("records");
        for (text, suffix) in [(owner.as_str(), "@"), (key.as_str(), "#")] {
            let encoded = encode(text);
            let mut parts = encoded.as_bytes().chunks(180).peekable();
            while let Some(part) = parts.next() {
                let mut name = String::from_utf8_lossy(part).into_owned();
                name.push_str(if parts.peek().is_some() { "+" } else { suffix });
                directory.push(name);
            }
        }
        Slot {
            record: directory.join("record.json"),
            fence: directory.join("fence"),
            lease: directory.join("lease.lock"),
            swap: directory.join("swap.lock"),
            directory,
        }
    }

    async fn blocking<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let root = self.root.clone();
        let done = tokio::task::spawn_blocking(work).await.map_err(|error| {
            Error::new(ErrorKind::Unexpected, "the file work was ended").with_source(error)
        })?;
        done.map_err(|error| error.at("file", operation).with_context("registry", root.display()))
    }
}

/// Keeps letters, digits, `-` and `_`, and writes every other byte as `%XX`.
fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

fn failed(what: &'static str, path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        IoErrorKind::StorageFull | IoErrorKind::QuotaExceeded => ErrorKind::StorageFull,
        IoErrorKind::PermissionDenied | IoErrorKind::ReadOnlyFilesystem => ErrorKind::PermissionDenied,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, what).with_context("path", path.display()).with_source(error)
}

/// Makes a directory below `root` and sees to it that a crash of the machine does not take it away again.
fn make_directory(root: &Path, path: &Path) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    #[cfg(unix)]
    let made = {
        use std::os::unix::fs::DirBuilderExt as _;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
    };
    #[cfg(not(unix))]
    let made = fs::create_dir_all(path);
    let synced = made.and_then(|()| {
        let below_root = path.ancestors().skip(1).take_while(|above| above.starts_with(root));
        below_root.chain(root.parent()).try_for_each(|above| match above.as_os_str().is_empty() {
            true => Ok(()),
            false => File::open(above)?.sync_all(),
        })
    });
    synced.map_err(|error| failed("the registry's directory cannot be made", path, error))
}

fn open_lock(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(|error| failed("the lock file cannot be opened", path, error))
}

impl Slot {
    fn read(&self) -> Result<Option<Record>> {
        read_record(&self.record)
    }

    /// The number of the last lease given; 0 before the first.
    fn last_fence(&self) -> Result<u64> {
        match fs::read_to_string(&self.fence) {
            Ok(text) => text.trim().parse().map_err(|error| {
                Error::new(ErrorKind::Unexpected, "the fencing number cannot be understood")
                    .with_context("path", self.fence.display())
                    .with_source(error)
            }),
            Err(error) if error.kind() == IoErrorKind::NotFound => Ok(0),
            Err(error) => Err(failed("the fencing number cannot be read", &self.fence, error)),
        }
    }

    fn next_fence(&self) -> Result<u64> {
        let fence = self.last_fence()? + 1;
        self.replace(&self.fence, fence.to_string().as_bytes())?;
        Ok(fence)
    }

    /// Runs a compare-and-swap that no other process can interleave with.
    fn swap<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let lock = open_lock(&self.swap)?;
        lock.lock().map_err(|error| failed("the record cannot be locked", &self.swap, error))?;
        work()
    }

    fn check(&self, record: &Record, fence: u64) -> Result<()> {
        if self.last_fence()? != fence {
            return Err(Lease::lost(&record.owner, &record.key));
        }
        let stored = self.read()?.map(|stored| stored.version);
        if stored.unwrap_or(0) != record.version {
            return Err(record.changed(stored));
        }
        Ok(())
    }

    /// Replaces a file so that a crash leaves the old content or the new, and the new one is on disk on return.
    fn replace(&self, target: &Path, content: &[u8]) -> Result<()> {
        let mut name = OsString::from(target.file_name().unwrap_or_default());
        name.push(".new");
        let staged = self.directory.join(name);
        let write = || -> io::Result<()> {
            let mut file = File::create(&staged)?;
            file.write_all(content)?;
            file.sync_all()?;
            fs::rename(&staged, target)?;
            File::open(&self.directory)?.sync_all()
        };
        write().map_err(|error| failed("the record cannot be written", target, error))
    }
}

fn read_record(path: &Path) -> Result<Option<Record>> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            Error::new(ErrorKind::Unexpected, "the record cannot be understood")
                .with_context("path", path.display())
                .with_source(error)
        }),
        Err(error) if error.kind() == IoErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("the record cannot be read", path, error)),
    }
}

fn collect(directory: &Path, records: &mut Vec<Record>) -> Result<()> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == IoErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("the registry cannot be listed", directory, error)),
    };
    for entry in entries {
        let entry = entry.map_err(|error| failed("the registry cannot be listed", directory, error))?;
        let path = entry.path();
        if path.is_dir() {
            collect(&path, records)?;
        } else if entry.file_name() == "record.json" {
            // It may have been removed since the listing, which is no error.
            records.extend(read_record(&path)?);
        }
    }
    Ok(())
}

#[async_trait]
impl Registry for FileRegistry {
    fn scope(&self) -> RegistryScope {
        RegistryScope::Machine
    }

    async fn load(&self, owner: &Owner, key: &Key) -> Result<Option<Record>> {
        let slot = self.slot(owner, key);
        self.blocking("load", move || slot.read()).await
    }

    async fn store(&self, mut record: Record, lease: &Lease) -> Result<Record> {
        let slot = self.slot(&record.owner, &record.key);
        let fence = lease.fence;
        self.blocking("store", move || {
            slot.swap(|| {
                slot.check(&record, fence)?;
                record.version += 1;
                record.fence = fence;
                let text = serde_json::to_vec_pretty(&record).map_err(|error| {
                    Error::new(ErrorKind::Unexpected, "the record cannot be written as JSON")
                        .with_source(error)
                })?;
                slot.replace(&slot.record, &text)?;
                Ok(record)
            })
        })
        .await
    }

    async fn remove(&self, record: &Record, lease: &Lease) -> Result<()> {
        let slot = self.slot(&record.owner, &record.key);
        let (record, fence) = (record.clone(), lease.fence);
        self.blocking("remove", move || {
            slot.swap(|| {
                slot.check(&record, fence)?;
                let removed = fs::remove_file(&slot.record)
                    .and_then(|()| File::open(&slot.directory))
                    .and_then(|directory| directory.sync_all());
                removed.map_err(|error| failed("the record cannot be removed", &slot.record, error))
            })
        })
        .await
    }

    async fn try_lease(&self, owner: &Owner, key: &Key, _ttl: Duration) -> Result<Option<Lease>> {
        let (slot, root) = (self.slot(owner, key), self.root.clone());
        self.blocking("lease", move || {
            make_directory(&root, &slot.directory)?;
            let lock = open_lock(&slot.lease)?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => {
                    return Err(failed("the lease cannot be taken", &slot.lease, error));
                }
            }
            // The lease holder alone raises the number; stores compare it under the swap lock.
            let fence = slot.swap(|| slot.next_fence())?;
            Ok(Some(Lease::new(fence, None, Box::new(lock))))
        })
        .await
    }

    async fn renew(&self, owner: &Owner, key: &Key, lease: &mut Lease, _ttl: Duration) -> Result<()> {
        let slot = self.slot(owner, key);
        let (owner, key, fence) = (owner.clone(), key.clone(), lease.fence);
        self.blocking("renew", move || match slot.last_fence()? {
            last if last == fence => Ok(()),
            _ => Err(Lease::lost(&owner, &key)),
        })
        .await
    }

    async fn list(&self, filter: RecordFilter) -> Result<ResultStream<Record>> {
        let directory = self.root.join("records");
        let records = self.blocking("list", move || {
            let mut records = Vec::new();
            collect(&directory, &mut records)?;
            records.retain(|record| filter.matches(record));
            records.sort_by(|a, b| (&a.owner, &a.key).cmp(&(&b.owner, &b.key)));
            Ok(records)
        });
        Ok(ResultStream::from_items(records.await?))
    }
}
