//! The files that copies bring: chosen, hashed, and packed. All of it blocks.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use sandhold_core::{Error, Result};
use sha2::{Digest, Sha256};

/// The file that names what stays out, beside the Dockerfile.
const IGNORE_FILE: &str = ".dockerignore";

/// One file, directory or link of the context.
#[derive(Clone, Debug)]
struct Entry {
    /// Where it is in the context, with slashes.
    name: String,
    path: PathBuf,
    metadata: Metadata,
}

/// What one copy brings.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    /// The path in the context: no pattern any more.
    pub(crate) source: String,
    pub(crate) hash: String,
    entries: Vec<Entry>,
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::invalid_argument(format!("{} of the build context cannot be read", path.display()))
        .with_source(error)
}

/// Chooses what a copy brings: one selection for each match of its source.
///
/// The hash is of the step and of each file's name, mode, size and content, so that the same files are uploaded once.
pub(crate) fn select(context: &Path, source: &str, target: &str) -> Result<Vec<Selection>> {
    let inside = Path::new(source.trim_start_matches('/'));
    if inside.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err(Error::invalid_argument(format!(
            "the source {source:?} leaves the build context; copy from inside of it"
        )));
    }
    let ignored = Ignored::read(context)?;
    let mut found = vec![PathBuf::new()];
    for part in inside.components() {
        let Component::Normal(part) = part else { continue };
        let part = part.to_string_lossy();
        let mut next = Vec::new();
        for directory in found {
            if !part.contains(['*', '?']) {
                next.push(directory.join(&*part));
                continue;
            }
            let absolute = context.join(&directory);
            for name in names(&absolute)? {
                if matches_part(&part, &name) {
                    next.push(directory.join(name));
                }
            }
        }
        found = next;
    }
    let mut selections = Vec::new();
    for path in found {
        let mut entries = Vec::new();
        collect(context, &path, &ignored, &mut entries)?;
        if entries.is_empty() {
            continue;
        }
        let source = slashed(&path);
        let hash = hash(&source, target, &entries)?;
        let source = if source.is_empty() { ".".to_owned() } else { source };
        selections.push(Selection { source, hash, entries });
    }
    if selections.is_empty() {
        return Err(Error::invalid_argument(format!(
            "nothing in {} matches the source {source:?}",
            context.display()
        )));
    }
    Ok(selections)
}

/// Adds what is at a path and below it, sorted by name. Links are taken as links, and lead nowhere here.
fn collect(context: &Path, path: &Path, ignored: &Ignored, entries: &mut Vec<Entry>) -> Result<()> {
    let mut open = vec![path.to_owned()];
    while let Some(path) = open.pop() {
        let absolute = context.join(&path);
        let metadata = match std::fs::symlink_metadata(&absolute) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(&absolute, error)),
        };
        let name = slashed(&path);
        let is_dir = metadata.is_dir();
        if !is_dir && !metadata.is_file() && !metadata.is_symlink() {
            return Err(Error::invalid_argument(format!(
                "{} is neither file, directory nor link; take it out of the build context",
                absolute.display()
            )));
        }
        if !ignored.hides(&name) && !name.is_empty() {
            entries.push(Entry { name, path: absolute.clone(), metadata });
        }
        if is_dir {
            open.extend(names(&absolute)?.into_iter().map(|name| path.join(name)));
        }
    }
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(())
}

fn names(directory: &Path) -> Result<Vec<String>> {
    let read = || -> io::Result<Vec<String>> {
        std::fs::read_dir(directory)?
            .map(|entry| {
                let name = entry?.file_name();
                name.into_string().map_err(|name| io::Error::other(format!("the name {name:?} is not UTF-8")))
            })
            .collect()
    };
    match read() {
        Ok(names) => Ok(names),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(Vec::new())
        }
        Err(error) => Err(failed(directory, error)),
    }
}

fn slashed(path: &Path) -> String {
    let parts: Vec<_> = path.components().map(|part| part.as_os_str().to_string_lossy()).collect();
    parts.join("/")
}

fn hash(source: &str, target: &str, entries: &[Entry]) -> Result<String> {
    let mut hasher = Sha256::new();
    hasher.update(format!("COPY {source} {target}"));
    for entry in entries {
        let mode = entry.metadata.permissions().mode();
        let size = if entry.metadata.is_file() { entry.metadata.len() } else { 0 };
        hasher.update(format!("\0{}\0{mode:o}\0{size}\0", entry.name));
        if entry.metadata.is_symlink() {
            let target = std::fs::read_link(&entry.path).map_err(|error| failed(&entry.path, error))?;
            hasher.update(target.as_os_str().as_encoded_bytes());
        } else if entry.metadata.is_file() {
            let mut file = File::open(&entry.path).map_err(|error| failed(&entry.path, error))?;
            let mut buffer = vec![0; 256 * 1024];
            loop {
                match file.read(&mut buffer).map_err(|error| failed(&entry.path, error))? {
                    0 => break,
                    read => hasher.update(&buffer[..read]),
                }
            }
        }
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

impl Selection {
    /// Packs the files into a temporary file and returns it with its exact length. Owners and times stay out of it:
    /// the same files make the same archive.
    pub(crate) fn pack(&self) -> Result<(File, u64)> {
        let packed = || -> io::Result<(File, u64)> {
            let file = tempfile::tempfile()?;
            let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
            archive.mode(tar::HeaderMode::Deterministic);
            archive.follow_symlinks(false);
            for entry in &self.entries {
                let mut header = tar::Header::new_gnu();
                header.set_mtime(0);
                header.set_uid(0);
                header.set_gid(0);
                header.set_mode(entry.metadata.permissions().mode() & 0o7777);
                header.set_size(0);
                if entry.metadata.is_dir() {
                    header.set_entry_type(tar::EntryType::Directory);
                    archive.append_data(&mut header, format!("{}/", entry.name), io::empty())?;
                } else if entry.metadata.is_symlink() {
                    header.set_entry_type(tar::EntryType::Symlink);
                    archive.append_link(&mut header, &entry.name, std::fs::read_link(&entry.path)?)?;
                } else {
                    header.set_size(entry.metadata.len());
                    // A file that changes under the copy is cut or refused here, as its hash is of what it was.
                    let content = File::open(&entry.path)?.take(entry.metadata.len());
                    archive.append_data(&mut header, &entry.name, content)?;
                }
            }
            let mut file = archive.into_inner()?.finish()?;
            file.flush()?;
            let length = file.stream_position()?;
            file.seek(SeekFrom::Start(0))?;
            Ok((file, length))
        };
        packed().map_err(|error| {
            Error::invalid_argument(format!("the files of {:?} cannot be packed", self.source))
                .with_source(error)
        })
    }
}

/// The rules of an ignore file: later ones win, `!` takes back.
struct Ignored(Vec<(bool, Vec<String>)>);

impl Ignored {
    fn read(context: &Path) -> Result<Self> {
        let path = context.join(IGNORE_FILE);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Self::parse(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self(Vec::new())),
            Err(error) => Err(failed(&path, error)),
        }
    }

    fn parse(text: &str) -> Self {
        let rules = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let rule = |line: &str| {
            let (hides, pattern) = match line.strip_prefix('!') {
                Some(pattern) => (false, pattern.trim()),
                None => (true, line),
            };
            let parts = pattern.split('/').filter(|part| !part.is_empty() && *part != ".");
            (hides, parts.map(str::to_owned).collect())
        };
        Self(rules.map(rule).collect())
    }

    /// Tells whether a name, or a directory that it is in, is ignored.
    fn hides(&self, name: &str) -> bool {
        let parts: Vec<_> = name.split('/').collect();
        let fits = |pattern: &[String]| (1..=parts.len()).any(|end| matches_path(pattern, &parts[..end]));
        self.0.iter().rev().find(|(_, pattern)| fits(pattern)).is_some_and(|(hides, _)| *hides)
    }
}

/// Matches a path against a pattern in which `**` stands for any number of directories.
fn matches_path(pattern: &[String], path: &[&str]) -> bool {
    match pattern.split_first() {
        None => path.is_empty(),
        Some((first, rest)) if first == "**" => {
            (0..=path.len()).any(|skip| matches_path(rest, &path[skip..]))
        }
        Some((first, rest)) => path
            .split_first()
            .is_some_and(|(part, after)| matches_part(first, part) && matches_path(rest, after)),
    }
}

/// Matches one name against a pattern in which `*` stands for any text and `?` for one character.
fn matches_part(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<_>, Vec<_>) = (pattern.chars().collect(), name.chars().collect());
    // Where the last star was, and how much of the name it takes so far: it is enough to go back to that one.
    let (mut at, mut seen, mut star) = (0, 0, None);
    while seen < name.len() {
        match pattern.get(at) {
            Some('*') => {
                star = Some((at, seen));
                at += 1;
            }
            Some(c) if *c == '?' || *c == name[seen] => {
                at += 1;
                seen += 1;
            }
            _ => match star {
                Some((star_at, taken)) => {
                    star = Some((star_at, taken + 1));
                    at = star_at + 1;
                    seen = taken + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn context() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir_all(at("app/deep")).unwrap();
        for (name, text) in
            [("app/a.txt", "a"), ("app/deep/b.txt", "bb"), ("one.conf", "1"), ("two.conf", "2")]
        {
            std::fs::write(at(name), text).unwrap();
        }
        symlink("/etc/passwd", at("app/link")).unwrap();
        directory
    }

    fn listed(selection: &Selection) -> Vec<(String, u32)> {
        let (file, length) = selection.pack().unwrap();
        assert_eq!(file.metadata().unwrap().len(), length);
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
        let shown = |entry: io::Result<tar::Entry<'_, _>>| {
            let entry = entry.unwrap();
            (entry.path().unwrap().to_string_lossy().into_owned(), entry.header().mode().unwrap())
        };
        archive.entries().unwrap().map(shown).collect()
    }

    #[test]
    fn a_directory_is_packed_with_its_links_as_links() {
        let context = context();
        let found = select(context.path(), "app", "/srv").unwrap();
        let names: Vec<_> = listed(&found[0]).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["app/", "app/a.txt", "app/deep/", "app/deep/b.txt", "app/link"]);
        assert_eq!((found.len(), found[0].source.as_str(), found[0].hash.len()), (1, "app", 64));
        let all = select(context.path(), ".", "/srv").unwrap();
        assert_eq!((all[0].source.as_str(), listed(&all[0]).len()), (".", 7));
    }

    #[test]
    fn a_hash_changes_with_anything_that_is_copied() {
        let context = context();
        let hash = |target| select(context.path(), "app", target).unwrap().remove(0).hash;
        let first = hash("/srv");
        assert_eq!(first, hash("/srv"));
        assert_ne!(first, hash("/opt"));
        let file = context.path().join("app/a.txt");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let second = hash("/srv");
        assert_ne!(first, second);
        std::fs::write(&file, "b").unwrap();
        assert_ne!(second, hash("/srv"));
    }

    #[test]
    fn patterns_match_names_and_never_leave_the_context() {
        let context = context();
        let sources = |source| -> Vec<String> {
            select(context.path(), source, "/x/").unwrap().into_iter().map(|found| found.source).collect()
        };
        let mut conf = sources("*.conf");
        conf.sort();
        assert_eq!(conf, ["one.conf", "two.conf"]);
        assert_eq!(sources("/app/?.txt"), ["app/a.txt"]);
        for outside in ["../x", "app/../../x", "a/.."] {
            assert!(
                select(context.path(), outside, "/x").unwrap_err().message().contains("leaves"),
                "{outside}"
            );
        }
        assert!(select(context.path(), "none*", "/x").unwrap_err().message().contains("matches"));
    }

    #[test]
    fn ignored_files_stay_out_unless_taken_back() {
        let context = context();
        std::fs::write(context.path().join(IGNORE_FILE), "# no\n**/*.txt\napp/link\n!app/deep/b.txt\n")
            .unwrap();
        let found = select(context.path(), "app", "/srv").unwrap();
        let names: Vec<_> = listed(&found[0]).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["app/", "app/deep/", "app/deep/b.txt"]);
        let rules = Ignored::parse("/node_modules\nlogs/**/old\n");
        for (name, hidden) in [
            ("node_modules", true),
            ("node_modules/x/y", true),
            ("sub/node_modules", false),
            ("logs/old", true),
            ("logs/a/b/old/c", true),
            ("logs/new", false),
        ] {
            assert_eq!(rules.hides(name), hidden, "{name}");
        }
    }
}
