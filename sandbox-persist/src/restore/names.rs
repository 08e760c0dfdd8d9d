//! Whether the file system of a target can hold the names of a snapshot, asked before anything is written.
//!
//! Which names are one and the same, and which cannot be at all, is the file system's own matter: it may know no upper
//! and lower case, compose accents, or keep names of devices for itself. So every name that is a matter anywhere is tried
//! out: made as an empty file in a directory that goes away.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use sandhold_core::{Error, ErrorKind, Result};
use sha1::{Digest, Sha1};

use super::options::OnUnfit;
use super::plan::Wanted;
use crate::beneath;
use crate::capture::Workspace;
use crate::error;
use crate::path::{self, WorkPath};

/// Where names are tried out. It is empty but for that moment.
const SCRATCH: &str = ".sandhold-restore-names";

/// What a file system makes of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Fits,
    /// It is the same as the one at this place.
    Same(Option<usize>),
    Not(Errno),
}

/// A name that cannot be there as it is, and the one that it would be taken for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unfit {
    path: WorkPath,
    same_as: Option<WorkPath>,
    errno: Errno,
}

/// Refuses what the file system cannot hold, or gives it other names. Returns what got another name.
pub(super) fn settle(
    workspace: &Workspace,
    wanted: &mut Wanted,
    on_unfit: OnUnfit,
) -> Result<Vec<(WorkPath, WorkPath)>> {
    let root = workspace.root.as_fd();
    let failed = |errno| error::io("try names out in", &workspace.path, errno);
    let suspects = suspects(wanted);
    if suspects.is_empty() {
        return Ok(Vec::new());
    }
    rustix::fs::mkdirat(root, SCRATCH, Mode::RWXU).map_err(failed)?;
    let settled = beneath::open_dir(root, SCRATCH.as_bytes()).map_err(failed).and_then(|scratch| {
        settle_by(wanted, suspects, on_unfit, &mut |names| try_out(scratch.as_fd(), names).map_err(failed))
    });
    sweep(workspace)?;
    settled.map_err(|failure| failure.with_context("target", workspace.path.display()))
}

/// Removes what a restore that was killed was trying out.
pub(super) fn sweep(workspace: &Workspace) -> Result<()> {
    let root = workspace.root.as_fd();
    let sweep = || -> Result<(), Errno> {
        let scratch = match beneath::open_dir(root, SCRATCH.as_bytes()) {
            Err(Errno::NOENT) => return Ok(()),
            opened => opened?,
        };
        for entry in rustix::fs::Dir::read_from(&scratch)? {
            let entry = entry?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                rustix::fs::unlinkat(&scratch, entry.file_name(), AtFlags::empty())?;
            }
        }
        rustix::fs::unlinkat(root, SCRATCH, AtFlags::REMOVEDIR)
    };
    sweep().map_err(|errno| error::io("remove", &workspace.path.join(SCRATCH), errno))
}

type TryOut<'a> = dyn FnMut(&[&[u8]]) -> Result<Vec<Outcome>> + 'a;

fn settle_by(
    wanted: &mut Wanted,
    suspects: Suspects,
    on_unfit: OnUnfit,
    try_out: &mut TryOut<'_>,
) -> Result<Vec<(WorkPath, WorkPath)>> {
    let unfit = unfit(&suspects, try_out)?;
    let (Some(first), OnUnfit::Rename) = (unfit.first(), on_unfit) else {
        return unfit.first().map_or(Ok(Vec::new()), |first| Err(refusal(first, &unfit)));
    };
    let renames: BTreeMap<Box<[u8]>, Vec<u8>> =
        unfit.iter().map(|unfit| (unfit.path.as_bytes().into(), other_name(unfit.path.as_bytes()))).collect();
    let before: Vec<_> = wanted.items.keys().chain(&wanted.dirs).cloned().collect();
    let renamed = |path: &[u8]| renamed(path, &renames);
    wanted.items =
        std::mem::take(&mut wanted.items).into_iter().map(|(path, item)| (renamed(&path), item)).collect();
    wanted.dirs = wanted.dirs.iter().map(|path| renamed(path)).collect();
    // The new names are names too.
    if wanted.items.len() + wanted.dirs.len() != before.len()
        || !self::unfit(&self::suspects(wanted), try_out)?.is_empty()
    {
        return Err(refusal(first, &unfit));
    }
    let moved = before.iter().map(|path| (path, renamed(path))).filter(|(path, to)| *path != to);
    Ok(moved.map(|(path, to)| (WorkPath::new(&**path), WorkPath::new(&*to))).collect())
}

/// Names that may not do somewhere, by their directories.
type Suspects = BTreeMap<Box<[u8]>, BTreeSet<Box<[u8]>>>;

fn suspects(wanted: &Wanted) -> Suspects {
    let mut found = Suspects::new();
    let mut add = |path: &[u8]| {
        let (dir, name) = path::split(path);
        found.entry(dir.into()).or_default().insert(name.into());
    };
    for (one, other) in wanted.collisions() {
        add(one.as_bytes());
        add(other.as_bytes());
    }
    for path in wanted.items.keys().chain(&wanted.dirs) {
        if is_odd(path::split(path).1) {
            add(path);
        }
    }
    found
}

/// Whether some file system would not have a name, or have another name for the same: all that is not plain.
fn is_odd(name: &[u8]) -> bool {
    let is_plain = |byte: &u8| matches!(byte, b' ' | b'!' | b'#'..=b')' | b'+'..=b'.' | b'0'..=b'9' | b';' | b'=' | b'@'..=b'[' | b']'..=b'{' | b'}' | b'~');
    // The shortest names that a file system of today holds are of 143 bytes.
    name.len() > 143
        || !name.iter().all(is_plain)
        || matches!(name.last(), Some(b'.' | b' '))
        || is_device(name)
}

/// A name that DOS keeps for a device, whatever follows its first dot.
fn is_device(name: &[u8]) -> bool {
    let stem = name.split(|byte| *byte == b'.').next().unwrap_or_default().trim_ascii_end();
    let stem = stem.to_ascii_lowercase();
    match stem.as_slice() {
        b"con" | b"prn" | b"aux" | b"nul" => true,
        [b'c', b'o', b'm', digit] | [b'l', b'p', b't', digit] => digit.is_ascii_digit(),
        _ => false,
    }
}

fn unfit(suspects: &Suspects, try_out: &mut TryOut<'_>) -> Result<Vec<Unfit>> {
    let mut found = Vec::new();
    for (dir, names) in suspects {
        let names: Vec<&[u8]> = names.iter().map(|name| &**name).collect();
        let path = |name: &[u8]| WorkPath::new(path::join(dir, name));
        for (name, outcome) in names.iter().zip(try_out(&names)?) {
            let (same_as, errno) = match outcome {
                Outcome::Fits => continue,
                Outcome::Same(at) => (at.and_then(|at| names.get(at)).map(|other| path(other)), Errno::EXIST),
                Outcome::Not(errno) => (None, errno),
            };
            found.push(Unfit { path: path(name), same_as, errno });
        }
    }
    Ok(found)
}

/// Makes names of one directory, as empty files, and removes them again.
fn try_out(scratch: BorrowedFd<'_>, names: &[&[u8]]) -> Result<Vec<Outcome>, Errno> {
    let mut made: Vec<(u64, usize)> = Vec::new();
    let mut outcomes = Vec::with_capacity(names.len());
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for (at, name) in names.iter().enumerate() {
        let own = OsStr::from_bytes(name);
        outcomes.push(match rustix::fs::openat(scratch, own, flags, Mode::RUSR | Mode::WUSR) {
            Ok(file) => {
                made.push((rustix::fs::fstat(&file)?.st_ino, at));
                Outcome::Fits
            }
            Err(Errno::EXIST) => {
                let stat = rustix::fs::statat(scratch, own, AtFlags::SYMLINK_NOFOLLOW)?;
                let same = made.iter().find(|(inode, _)| *inode == stat.st_ino);
                Outcome::Same(same.map(|(_, at)| *at))
            }
            Err(
                errno @ (Errno::INVAL
                | Errno::ILSEQ
                | Errno::NAMETOOLONG
                | Errno::NOENT
                | Errno::NOTDIR
                | Errno::OPNOTSUPP),
            ) => Outcome::Not(errno),
            Err(errno) => return Err(errno),
        });
    }
    for (_, at) in made {
        rustix::fs::unlinkat(scratch, OsStr::from_bytes(names[at]), AtFlags::empty())?;
    }
    Ok(outcomes)
}

fn refusal(first: &Unfit, all: &[Unfit]) -> Error {
    let (reason, what) = match &first.same_as {
        Some(other) => {
            ("case_collision", format!("{other:?} and {:?} are one name on the file system", first.path))
        }
        None if first.errno == Errno::EXIST => {
            ("case_collision", format!("{:?} is the same as another name on the file system", first.path))
        }
        None => ("unfit_name", format!("{:?} is no name on the file system ({})", first.path, first.errno)),
    };
    let shown = all.iter().take(20).map(|unfit| unfit.path.to_string()).collect::<Vec<_>>();
    Error::new(
        ErrorKind::InvalidState,
        format!("{what} of the target; restore to another one, or with `OnUnfit::Rename`"),
    )
    .with_reason(reason)
    .with_context("unfit", all.len())
    .with_context("paths", shown.join(" "))
}

/// A name that every file system has, and that is the same at every restore.
fn other_name(path: &[u8]) -> Vec<u8> {
    let name = path::split(path).1;
    let digest: [u8; 20] = Sha1::digest(path).into();
    let mut other: Vec<u8> = name
        .iter()
        .take(64)
        .map(|byte| match byte {
            b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'.' | b'-' | b'_' => *byte,
            _ => b'_',
        })
        .collect();
    // Not behind a dot, which would make a device of it again.
    let tail: String = digest[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    let stem = if is_device(name) { b"_".as_slice() } else { b"" };
    other.splice(0..0, stem.iter().copied());
    other.extend_from_slice(b"~");
    other.extend_from_slice(tail.as_bytes());
    other
}

/// The path with the new names of whatever got one.
fn renamed(path: &[u8], renames: &BTreeMap<Box<[u8]>, Vec<u8>>) -> Box<[u8]> {
    let mut to = Vec::with_capacity(path.len());
    let mut from = 0;
    for name in path.split(|byte| *byte == b'/') {
        from += name.len();
        let name = renames.get(&path[..from]).map_or(name, |other| other);
        to = path::join(&to, name);
        from += 1;
    }
    to.into()
}

#[cfg(test)]
mod tests {
    use super::super::plan::{FILE, Item};
    use super::*;
    use crate::oid::ObjectId;

    fn wanted(files: &[&[u8]], dirs: &[&[u8]]) -> Wanted {
        let mut wanted = Wanted::default();
        for file in files {
            wanted.items.insert((*file).into(), Item { mode: FILE, id: ObjectId::of("blob", file) });
        }
        wanted.dirs.extend(dirs.iter().map(|dir| Box::from(*dir)));
        wanted
    }

    /// A file system without upper and lower case, with the names of DOS.
    fn dos(names: &[&[u8]]) -> Result<Vec<Outcome>> {
        let folded = |name: &[u8]| String::from_utf8_lossy(name).to_lowercase();
        let outcome = |(at, name): (usize, &&[u8])| {
            let is_refused = name.iter().any(|byte| b"\\:*?<>|\"\n".contains(byte))
                || std::str::from_utf8(name).is_err()
                || is_device(name)
                || name.ends_with(b".");
            let same = names[..at].iter().position(|other| folded(other) == folded(name));
            match (is_refused, same) {
                (true, _) => Outcome::Not(Errno::INVAL),
                (false, Some(at)) => Outcome::Same(Some(at)),
                (false, None) => Outcome::Fits,
            }
        };
        Ok(names.iter().enumerate().map(outcome).collect())
    }

    fn settled(wanted: &mut Wanted, on_unfit: OnUnfit) -> Result<Vec<(WorkPath, WorkPath)>> {
        let suspects = suspects(wanted);
        settle_by(wanted, suspects, on_unfit, &mut dos)
    }

    #[test]
    fn a_file_system_says_of_each_name_what_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let fd = beneath::open_root(dir.path()).unwrap();
        let long = [b'x'; 256];
        let names: [&[u8]; 4] = [b"one", b"caf\xe9\n*", b"one", &long];
        let told = try_out(fd.as_fd(), &names).unwrap();
        use Outcome::{Fits, Not, Same};
        assert_eq!(told, [Fits, Fits, Same(Some(0)), Not(Errno::NAMETOOLONG)]);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn names_that_are_one_on_the_target_are_refused_with_both() {
        let mut both = wanted(&[b"docs/README", b"docs/Readme", b"x"], &[b"docs"]);
        let refused = settled(&mut both, OnUnfit::Refuse).unwrap_err();
        assert_eq!(refused.reason(), Some("case_collision"));
        assert!(refused.message().contains(r#""docs/README" and "docs/Readme""#), "{refused}");
        // A directory and what is below another one of that name.
        let refused = settled(&mut wanted(&[b"Dir/a", b"dir/a"], &[b"Dir", b"dir"]), OnUnfit::Refuse);
        assert_eq!(refused.unwrap_err().reason(), Some("case_collision"));
        assert!(settled(&mut wanted(&[b"a/x", b"b/X"], &[b"a", b"b"]), OnUnfit::Refuse).unwrap().is_empty());
    }

    #[test]
    fn names_that_the_target_has_not_are_refused_by_name() {
        for name in [
            &b"aux.txt"[..],
            b"CON",
            b"com1.tar.gz",
            b"a\\b",
            b"new\nline",
            b"caf\xe9",
            b"end.",
            b"*",
            b"a:b",
        ] {
            let refused = settled(&mut wanted(&[name, b"fine"], &[]), OnUnfit::Refuse).unwrap_err();
            assert_eq!(refused.reason(), Some("unfit_name"), "{refused}");
            let told = format!("{:?}", WorkPath::new(name));
            assert!(refused.message().contains(&told), "{refused}");
        }
        for fine in [&b"console"[..], b"com", b"aux2", b".gitignore", b"a b (1).txt"] {
            assert!(suspects(&wanted(&[fine], &[])).is_empty(), "{:?}", WorkPath::new(fine));
        }
    }

    #[test]
    fn another_name_is_given_where_that_is_asked_for_and_it_is_the_same_every_time() {
        let files: &[&[u8]] =
            &[b"README", b"Readme", b"dir/x", b"Dir/x", b"Dir/sub/CON", b"con", b"caf\xe9", b"plain"];
        let make = || wanted(files, &[b"dir", b"Dir", b"Dir/sub"]);
        let (mut one, mut other) = (make(), make());
        let renamed = settled(&mut one, OnUnfit::Rename).unwrap();
        assert_eq!(settled(&mut other, OnUnfit::Rename).unwrap(), renamed);
        assert_eq!(one, other);
        assert_eq!((one.items.len(), one.dirs.len()), (files.len(), 3));
        // Nothing is lost, what was fine has its name, and all names do.
        let ids = |wanted: &Wanted| wanted.items.values().map(|item| item.id).collect::<BTreeSet<_>>();
        assert_eq!(ids(&one), ids(&make()));
        for kept in [&b"README"[..], b"plain", b"Dir/x"] {
            assert!(one.items.contains_key(kept), "{renamed:?}");
        }
        assert_eq!(settled(&mut one.clone(), OnUnfit::Refuse).unwrap(), []);
        let moved: Vec<String> = renamed.iter().map(|(from, _)| from.to_string()).collect();
        assert_eq!(moved.len(), 6, "{renamed:?}");
    }
}
