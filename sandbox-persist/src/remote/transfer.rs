//! Bringing the copy in line with a sandbox, and a sandbox with the copy.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use rustix::fs::FileType;
use sandhold_core::{ByteStream, Error, ErrorKind, Outcome, Result, SandboxHandle};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::command::{self, Input};
use super::listing::{Found, Listing};
use super::select::{Want, select};
use super::shadow::{Shadow, State};
use crate::cancel::{Cancel, run_blocking};
use crate::capture::{CaptureRules, Rules};
use crate::path::{self, WorkPath};
use crate::side::{SkipReason, Skipped};

/// How often what changes while it is fetched is fetched again.
const ROUNDS: u32 = 3;

const FETCH: &str = r#"cd -- "$1" && exec tar -c -z -f - --null --verbatim-files-from --no-recursion --hard-dereference \
  --ignore-failed-read --warning=no-file-changed -T -"#;
const REMOVE: &str = r#"cd -- "$1" && exec xargs -0 -r rm -f --"#;
const REMOVE_DIRS: &str = r#"cd -- "$1" && { xargs -0 -r rmdir -- 2>/dev/null || true; }"#;
const UNPACK: &str = r#"cd -- "$1" && exec tar -x -p -z -f - --no-same-owner --no-overwrite-dir"#;
const SUMS: &str = r#"cd -- "$1" && exec xargs -0 -r sha256sum -b --"#;

/// What a look at a sandbox came to.
pub(super) struct Pulled {
    pub(super) listing: Listing,
    /// What is here as it was before, or not at all, and why.
    pub(super) older: Vec<Skipped>,
}

/// Makes the copy what the sandbox is now, by one listing and what has changed since the last.
pub(super) async fn pull(
    handle: &dyn SandboxHandle,
    dir: &str,
    mut shadow: Shadow,
    rules: &CaptureRules,
) -> Result<(Shadow, Pulled)> {
    let mut round = 0;
    loop {
        let listing = Arc::new(Listing::take(handle, dir).await?);
        // By these files it is decided what else is fetched.
        let first = by_name(&listing, |at| {
            at == b".git/index" || at.ends_with(b"/.gitignore") || at == b".gitignore"
        });
        let stale: BTreeMap<_, _> = first
            .into_iter()
            .filter(|(at, found)| shadow.held.files.get(&WorkPath::new(&**at)) != Some(found))
            .collect();
        let (rules, seen) = (rules.clone(), Arc::clone(&listing));
        // Their directories have to be there.
        let dirs: BTreeMap<Box<[u8]>, Want> = ancestors(stale.keys());
        if !stale.is_empty() {
            shadow = run_blocking(None, move |_| {
                shadow.make_dirs(&dirs)?;
                Ok(shadow)
            })
            .await?;
            shadow = fetch(handle, dir, shadow, stale).await?;
        }
        let (back, missing, mut older) = run_blocking(None, move |_| {
            let rules = Rules::new(&rules)?;
            let wanted = select(&seen, &rules, &shadow.tracked(), |at| shadow.text(at));
            let missing = shadow.shape(&seen, &wanted)?;
            let kept = wanted.into_iter().filter(|(_, want)| *want == Want::Kept);
            let older = kept.map(|(at, _)| Skipped::new(at, SkipReason::Unreadable)).collect::<Vec<_>>();
            Ok((shadow, missing, older))
        })
        .await?;
        shadow = back;
        round += 1;
        if missing.is_empty() || round > ROUNDS {
            let at = listing.at;
            shadow = run_blocking(None, move |_| {
                shadow.save(at)?;
                Ok(shadow)
            })
            .await?;
            older.extend(missing.into_iter().map(|at| Skipped::new(at, SkipReason::Unstable)));
            return Ok((shadow, Pulled { listing: Arc::unwrap_or_clone(listing), older }));
        }
        let asked = missing
            .into_iter()
            .filter_map(|at| Some((at.clone(), listing.entries.get(&at)?.clone())))
            .collect();
        shadow = fetch(handle, dir, shadow, asked).await?;
    }
}

fn by_name(listing: &Listing, chosen: impl Fn(&[u8]) -> bool) -> BTreeMap<Box<[u8]>, Found> {
    let files = listing.entries.iter().filter(|(at, found)| {
        found.kind == 'f'
            && found.size <= 64 << 20
            && chosen(at)
            && !(at.starts_with(b".git/") && &***at != b".git/index")
    });
    files.map(|(at, found)| (at.clone(), found.clone())).collect()
}

fn ancestors<'a>(paths: impl Iterator<Item = &'a Box<[u8]>>) -> BTreeMap<Box<[u8]>, Want> {
    let mut dirs = BTreeMap::new();
    for path in paths {
        let mut dir = path::split(path).0;
        while !dir.is_empty() && dirs.insert(dir.into(), Want::Dir).is_none() {
            dir = path::split(dir).0;
        }
    }
    dirs
}

/// Fetches contents as one compressed stream.
async fn fetch(
    handle: &dyn SandboxHandle,
    dir: &str,
    mut shadow: Shadow,
    asked: BTreeMap<Box<[u8]>, Found>,
) -> Result<Shadow> {
    let names = names(asked.keys().map(|at| &**at));
    let (output, pieces) = mpsc::channel(16);
    let unpack = run_blocking(None, move |cancel: &Cancel| {
        shadow.unpack(Pieces::new(pieces), &asked, cancel)?;
        Ok(shadow)
    });
    let arguments = [dir];
    let run = command::run(handle, FETCH, &arguments, Input::Bytes(names), output);
    let (ended, shadow) = futures_util::future::try_join(run, unpack).await?;
    // 1 says that something changed or vanished meanwhile, which the next listing says better.
    match ended.code {
        Some(0 | 1) => Ok(shadow),
        // A file that may not be read is none that is captured.
        Some(2) => {
            tracing::warn!(said = %ended.said, "some files of the sandbox could not be read");
            Ok(shadow)
        }
        _ => Err(ended.failed("read the workspace")),
    }
}

/// Names with `./` before them, so that none is taken for an option, each ended by a NUL.
fn names<'a>(paths: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut names = Vec::new();
    for path in paths {
        names.extend_from_slice(b"./");
        names.extend_from_slice(path);
        names.push(0);
    }
    names
}

/// Brings the sandbox in line with what became of the copy since `before`.
pub(super) async fn push(
    handle: &dyn SandboxHandle,
    dir: &str,
    mut shadow: Shadow,
    before: &BTreeMap<Box<[u8]>, State>,
    present: &Listing,
) -> Result<Shadow> {
    let (back, after) = run_blocking(None, move |_| {
        let after = shadow.state()?;
        Ok((shadow, after))
    })
    .await?;
    shadow = back;
    let writes: Vec<(Box<[u8]>, State)> = after
        .iter()
        .filter(|(at, state)| before.get(*at) != Some(state))
        .map(|(at, state)| (at.clone(), state.clone()))
        .collect();
    let deletes: Vec<&[u8]> = before.keys().filter(|at| !after.contains_key(*at)).map(|at| &**at).collect();
    let blocked: Vec<String> = writes
        .iter()
        .filter(|(at, state)| {
            let is_dir = state.file_type() == FileType::Directory;
            let there = present.entries.get(at).filter(|found| !(is_dir && found.kind == 'd'));
            // What was not fetched is not captured, and is not replaced either.
            !before.contains_key(at) && there.is_some()
        })
        .map(|(at, _)| WorkPath::new(&**at).to_string())
        .collect();
    if !blocked.is_empty() {
        return Err(Error::new(
            ErrorKind::InvalidState,
            format!(
                "{} things that are never captured have the place of files of the snapshot in the sandbox; move them away",
                blocked.len()
            ),
        )
        .with_reason("in_the_way")
        .with_context("paths", blocked.iter().take(20).cloned().collect::<Vec<_>>().join(" ")));
    }

    let was_dir = |at: &[u8]| before.get(at).is_some_and(|state| state.file_type() == FileType::Directory);
    let becomes_dir = writes.iter().filter(|(at, state)| {
        state.file_type() == FileType::Directory && before.contains_key(at) && !was_dir(at)
    });
    let files = deletes.iter().copied().filter(|at| !was_dir(at)).chain(becomes_dir.map(|(at, _)| &**at));
    feed(handle, REMOVE, dir, names(files), "remove files").await?;
    // The deepest first; one that holds what is never captured stays.
    let becomes_file = writes
        .iter()
        .filter(|(at, state)| state.file_type() != FileType::Directory && was_dir(at))
        .map(|(at, _)| &**at);
    let dirs = deletes.iter().copied().filter(|at| was_dir(at)).chain(becomes_file);
    let mut dirs: Vec<&[u8]> = dirs.collect();
    dirs.sort_unstable_by(|one, other| other.cmp(one));
    feed(handle, REMOVE_DIRS, dir, names(dirs.into_iter()), "remove directories").await?;

    if !writes.is_empty() {
        let (output, pieces) = mpsc::channel::<Bytes>(16);
        let (tree, packed) = (shadow.tree(), writes.clone());
        let pack = run_blocking(None, move |cancel: &Cancel| pack(&tree, &packed, output, cancel));
        let stream = ByteStream::unfold(pieces, |mut pieces| async move {
            pieces.recv().await.map(|piece| (Ok(piece), pieces))
        });
        let unpack = feed_stream(handle, UNPACK, dir, stream);
        let (ended, ()) = futures_util::future::try_join(unpack, pack).await?;
        if ended.code != Some(0) {
            return Err(ended.failed("write the workspace"));
        }
    }
    check(handle, dir, shadow, &writes, &deletes).await
}

async fn feed(handle: &dyn SandboxHandle, script: &str, dir: &str, input: Vec<u8>, what: &str) -> Result<()> {
    if input.is_empty() {
        return Ok(());
    }
    let (ended, _) = command::collect(handle, script, &[dir], Input::Bytes(input)).await?;
    match ended.code {
        Some(0) => Ok(()),
        _ => Err(ended.failed(what)),
    }
}

async fn feed_stream(
    handle: &dyn SandboxHandle,
    script: &str,
    dir: &str,
    stream: ByteStream,
) -> Result<command::Ended> {
    let (ended, _) = command::collect(handle, script, &[dir], Input::Stream(stream)).await?;
    Ok(ended)
}

/// Writes what changed as a compressed archive.
fn pack(
    tree: &Path,
    writes: &[(Box<[u8]>, State)],
    output: mpsc::Sender<Bytes>,
    cancel: &Cancel,
) -> Result<()> {
    let failed = |failure| crate::error::io("send", tree, failure);
    let mut archive = tar::Builder::new(GzEncoder::new(Sender(output), Compression::fast()));
    for (at, state) in writes {
        cancel.check()?;
        let path = Path::new(std::ffi::OsStr::from_bytes(at));
        let full = tree.join(path);
        let mut header = tar::Header::new_gnu();
        header.set_mtime(u64::try_from(state.modified_seconds()).unwrap_or(0));
        header.set_size(0);
        match state.file_type() {
            FileType::Directory => {
                header.set_entry_type(tar::EntryType::Directory);
                header.set_mode(0o755);
                archive.append_data(&mut header, path, std::io::empty()).map_err(failed)?;
            }
            FileType::Symlink => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_mode(0o777);
                let target = std::fs::read_link(&full).map_err(failed)?;
                archive.append_link(&mut header, path, target).map_err(failed)?;
            }
            _ => {
                let file = std::fs::File::open(&full).map_err(failed)?;
                header.set_entry_type(tar::EntryType::Regular);
                header.set_mode(if state.mode & 0o100 != 0 { 0o755 } else { 0o644 });
                header.set_size(state.size);
                archive.append_data(&mut header, path, file.take(state.size)).map_err(failed)?;
            }
        }
    }
    archive.into_inner().and_then(GzEncoder::finish).map(drop).map_err(failed)
}

/// Looks at the sandbox once more, and holds it to every byte that was sent.
async fn check(
    handle: &dyn SandboxHandle,
    dir: &str,
    mut shadow: Shadow,
    writes: &[(Box<[u8]>, State)],
    deletes: &[&[u8]],
) -> Result<Shadow> {
    let listing = Listing::take(handle, dir).await?;
    let mut wrong = Vec::new();
    let mut files = Vec::new();
    for (at, state) in writes {
        let found = listing.entries.get(at);
        let is_so = found.is_some_and(|found| {
            found.file_type() == state.file_type()
                && match state.file_type() {
                    FileType::RegularFile => {
                        found.size == state.size && found.is_executable() == (state.mode & 0o100 != 0)
                    }
                    FileType::Symlink => {
                        let target = std::fs::read_link(
                            shadow.tree().join(Path::new(std::ffi::OsStr::from_bytes(at))),
                        );
                        target.is_ok_and(|target| {
                            found
                                .target
                                .as_ref()
                                .is_some_and(|found| found.as_bytes() == target.as_os_str().as_bytes())
                        })
                    }
                    _ => true,
                }
        });
        match is_so {
            false => wrong.push(WorkPath::new(&**at).to_string()),
            true if state.file_type() == FileType::RegularFile => files.push(at.clone()),
            true => {}
        }
    }
    for at in deletes {
        if listing.entries.get(*at).is_some_and(|found| found.kind != 'd') {
            wrong.push(format!("{} (still there)", WorkPath::new(*at)));
        }
    }
    let asked = names(files.iter().map(|at| &**at));
    let (ended, said) = match asked.is_empty() {
        true => (None, Vec::new()),
        false => {
            let (ended, said) = command::collect(handle, SUMS, &[dir], Input::Bytes(asked)).await?;
            (Some(ended), said)
        }
    };
    let (tree, paths) = (shadow.tree(), files.clone());
    let own = run_blocking(None, move |cancel: &Cancel| sums(&tree, &paths, cancel)).await?;
    // One line for each, in the order of the names; one with a strange name begins with a backslash.
    let theirs: Vec<&[u8]> = said
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| line.strip_prefix(b"\\").unwrap_or(line))
        .map(|line| &line[..line.len().min(64)])
        .collect();
    if theirs.len() != own.len() {
        let said = ended.map(|ended| ended.said).unwrap_or_default();
        wrong.push(format!("{} of {} files could be read: {said}", theirs.len(), own.len()));
    }
    for ((at, own), theirs) in files.iter().zip(&own).zip(&theirs) {
        if own.as_bytes() != *theirs {
            wrong.push(format!("{} (another content)", WorkPath::new(&**at)));
        }
    }
    if !wrong.is_empty() {
        return Err(Error::new(
            ErrorKind::InvalidState,
            format!(
                "{} things of the snapshot are not in the sandbox as they should be: {}",
                wrong.len(),
                wrong.iter().take(20).cloned().collect::<Vec<_>>().join(", ")
            ),
        )
        .with_reason("restore_incomplete")
        .with_outcome(Outcome::Done));
    }
    for at in deletes {
        shadow.held.files.remove(&WorkPath::new(*at));
    }
    for at in files {
        if let Some(found) = listing.entries.get(&at) {
            shadow.held.files.insert(WorkPath::new(at), found.clone());
        }
    }
    run_blocking(None, move |_| {
        shadow.save(listing.at)?;
        Ok(shadow)
    })
    .await
}

fn sums(tree: &Path, paths: &[Box<[u8]>], cancel: &Cancel) -> Result<Vec<String>> {
    let mut buffer = vec![0; 1 << 18];
    let mut sums = Vec::with_capacity(paths.len());
    for at in paths {
        cancel.check()?;
        let path: PathBuf = tree.join(Path::new(std::ffi::OsStr::from_bytes(at)));
        let failed = |failure| crate::error::io("read", &path, failure);
        let mut file = std::fs::File::open(&path).map_err(failed)?;
        let mut hash = Sha256::new();
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => hash.update(&buffer[..count]),
                Err(failure) if failure.kind() == std::io::ErrorKind::Interrupted => {}
                Err(failure) => return Err(failed(failure)),
            }
        }
        sums.push(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
    }
    Ok(sums)
}

/// The output of a command as a reader on a thread of its own.
struct Pieces {
    pieces: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

impl Pieces {
    fn new(pieces: mpsc::Receiver<Bytes>) -> Self {
        Self { pieces, piece: Bytes::new() }
    }
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        while self.piece.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let count = self.piece.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.piece.split_to(count));
        Ok(count)
    }
}

struct Sender(mpsc::Sender<Bytes>);

impl Write for Sender {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        // Where nobody takes it any more, the exit of the command says why.
        let _ = self.0.blocking_send(Bytes::copy_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
