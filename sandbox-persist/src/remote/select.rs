//! What of a listing is worth fetching. The walk over what was fetched decides again, and for good.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::listing::{Found, Listing};
use crate::capture::Rules;
use crate::ignore::Patterns;
use crate::path;

/// How a name of the sandbox is to be here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Want {
    /// With its content.
    Content,
    /// As something that the walk will say it left out, with its size and without its content.
    Stand,
    /// As it was here before, and nothing where it was not: it may not be read now.
    Kept,
    Dir,
    Symlink,
}

/// `.gitignore` files above a directory, the nearest last.
type Above = Vec<(usize, Arc<Patterns>)>;

struct DirState {
    above: Arc<Above>,
    is_ignored: bool,
}

/// Chooses by the rules of the host, by the `.gitignore` files, which `text` reads, and by what git tracks all the same.
pub(super) fn select(
    listing: &Listing,
    rules: &Rules,
    tracked: &HashSet<Vec<u8>>,
    text: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> BTreeMap<Box<[u8]>, Want> {
    let mut wanted = BTreeMap::new();
    let mut states: HashMap<&[u8], DirState> = HashMap::new();
    let state_of = |dir: &[u8], above: Arc<Above>, is_ignored| {
        let file = path::join(dir, b".gitignore");
        let has = listing.entries.get(&*file).is_some_and(|found| found.kind == 'f');
        let patterns = has.then(|| text(&file)).flatten().map(|text| Patterns::parse(&text));
        match patterns.filter(|patterns| !patterns.is_empty()) {
            Some(patterns) => {
                let base = if dir.is_empty() { 0 } else { dir.len() + 1 };
                let mut above = (*above).clone();
                above.push((base, Arc::new(patterns)));
                DirState { above: Arc::new(above), is_ignored }
            }
            None => DirState { above, is_ignored },
        }
    };
    states.insert(b"", state_of(b"", Arc::default(), false));
    let tracked_dirs: HashSet<&[u8]> = tracked
        .iter()
        .flat_map(|path| {
            std::iter::successors(Some(path::split(path).0), |dir| Some(path::split(dir).0))
                .take_while(|dir| !dir.is_empty())
        })
        .collect();
    // A directory comes before what is in it.
    for (at, found) in &listing.entries {
        let (dir, name) = path::split(at);
        if **at == *b".git" || at.starts_with(b".git/") {
            if let Some(want) = of_history(at, found) {
                wanted.insert(at.clone(), want);
            }
            continue;
        }
        let Some(state) = states.get(dir) else { continue };
        if name == b".git" {
            wanted.insert(at.clone(), Want::Stand);
            continue;
        }
        let is_dir = matches!(found.kind, 'd' | 'U');
        let verdict =
            state.above.iter().rev().find_map(|(base, patterns)| patterns.verdict(&at[*base..], is_dir));
        let is_ignored = state.is_ignored || verdict == Some(true);
        if is_ignored && !(if is_dir { tracked_dirs.contains(&**at) } else { tracked.contains(&**at) }) {
            continue;
        }
        let is_refused = path::is_forbidden_name(name) || rules.refuses(at, name, is_dir).is_some();
        let want = match found.kind {
            _ if is_refused => Want::Stand,
            'd' => {
                let above = Arc::clone(&state.above);
                let state = state_of(at, above, is_ignored);
                states.insert(at, state);
                Want::Dir
            }
            'u' | 'U' => Want::Kept,
            'l' => Want::Symlink,
            'f' if rules.is_too_large(found.size) => Want::Stand,
            'f' => Want::Content,
            _ => Want::Stand,
        };
        wanted.insert(at.clone(), want);
    }
    wanted
}

/// What commits are made of. Nothing that would lead elsewhere: neither alternates nor a `commondir`, nor any symlink.
fn of_history(at: &[u8], found: &Found) -> Option<Want> {
    if found.kind == 'd' {
        let is_part = matches!(at, b".git" | b".git/refs" | b".git/objects") || at.starts_with(b".git/refs/");
        return (is_part || is_object_dir(at)).then_some(Want::Dir);
    }
    let is_small = found.size <= 64 << 20;
    let is_part = match at.strip_prefix(b".git/")? {
        b"HEAD" | b"packed-refs" | b"config" | b"shallow" | b"index" => is_small,
        rest if rest.starts_with(b"refs/") => found.size <= 4096,
        _ => {
            let (dir, name) = path::split(at);
            let is_hex = |text: &[u8]| text.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            match dir {
                b".git/objects/pack" => {
                    let stem = name.strip_suffix(b".pack").or(name.strip_suffix(b".idx"));
                    stem.and_then(|stem| stem.strip_prefix(b"pack-")).is_some_and(is_hex)
                }
                _ => is_object_dir(dir) && name.len() == 38 && is_hex(name),
            }
        }
    };
    (found.kind == 'f' && is_part).then_some(Want::Content)
}

fn is_object_dir(at: &[u8]) -> bool {
    let Some(name) = at.strip_prefix(b".git/objects/") else { return false };
    name == b"pack" || name.len() == 2 && name.iter().all(u8::is_ascii_hexdigit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::CaptureRules;

    fn found(kind: char, size: u64) -> Found {
        let time = "1.0".to_owned();
        Found { kind, mode: 0o644, size, modified: time.clone(), changed: time, inode: 1, target: None }
    }

    #[test]
    fn nothing_that_leads_out_of_a_repository_is_fetched() {
        let mut listing = Listing::default();
        for (path, kind) in [
            (".git", 'd'),
            (".git/HEAD", 'f'),
            (".git/commondir", 'f'),
            (".git/objects", 'd'),
            (".git/objects/info", 'd'),
            (".git/objects/info/alternates", 'f'),
            (".git/objects/ab", 'd'),
            (".git/objects/ab/0123456789abcdef0123456789abcdef012345", 'f'),
            (".git/objects/pack", 'd'),
            (".git/objects/pack/pack-00ff.pack", 'l'),
            (".git/hooks", 'd'),
            ("sub", 'd'),
            ("sub/.git", 'f'),
        ] {
            listing.entries.insert(path.as_bytes().into(), found(kind, 1));
        }
        let rules = Rules::new(&CaptureRules::default()).unwrap();
        let wanted = select(&listing, &rules, &HashSet::new(), |_| None);
        let names: Vec<_> =
            wanted.iter().map(|(path, want)| (std::str::from_utf8(path).unwrap(), *want)).collect();
        assert_eq!(
            names,
            [
                (".git", Want::Dir),
                (".git/HEAD", Want::Content),
                (".git/objects", Want::Dir),
                (".git/objects/ab", Want::Dir),
                (".git/objects/ab/0123456789abcdef0123456789abcdef012345", Want::Content),
                (".git/objects/pack", Want::Dir),
                ("sub", Want::Dir),
                ("sub/.git", Want::Stand),
            ]
        );
    }

    #[test]
    fn what_is_ignored_stays_there_unless_git_tracks_it() {
        let mut listing = Listing::default();
        for (path, kind, size) in [
            (".gitignore", 'f', 9),
            ("build", 'd', 0),
            ("build/big", 'f', 1),
            ("build/kept", 'd', 0),
            ("build/kept/x", 'f', 1),
            (".env", 'f', 5),
            ("huge", 'f', 11 << 20),
            ("pipe", 'p', 0),
        ] {
            listing.entries.insert(path.as_bytes().into(), found(kind, size));
        }
        let rules = Rules::new(&CaptureRules::default()).unwrap();
        let tracked = HashSet::from([b"build/kept/x".to_vec()]);
        let wanted = select(&listing, &rules, &tracked, |_| Some(b"build/\n".to_vec()));
        let names: Vec<_> =
            wanted.iter().map(|(path, want)| (std::str::from_utf8(path).unwrap(), *want)).collect();
        assert_eq!(
            names,
            [
                (".env", Want::Stand),
                (".gitignore", Want::Content),
                ("build", Want::Dir),
                ("build/kept", Want::Dir),
                ("build/kept/x", Want::Content),
                ("huge", Want::Stand),
                ("pipe", Want::Stand),
            ]
        );
    }
}
