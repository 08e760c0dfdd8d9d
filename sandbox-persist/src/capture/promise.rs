use std::collections::HashMap;

use super::scan::{Content, Entry, Kind, Scan};
use crate::ignore::Patterns;
use crate::oid::ObjectId;
use crate::path::{self, WorkPath};
use crate::receipt::{Missing, Promise, Receipt, Survive};
use crate::side::{SideManifest, SkipReason};

/// Answers what of a declaration is in a scan. `head` is the commit whose history is in the vault.
pub(super) fn receipt(
    scan: &Scan,
    side: &SideManifest,
    survive: &Survive,
    head: Option<ObjectId>,
) -> Receipt {
    let mut receipt = Receipt::default();
    let older = side.skipped.iter().map(|skipped| (&skipped.path, skipped.reason)).collect();
    for path in &survive.paths {
        match scan.entry(path.as_bytes()) {
            Some(entry) => {
                promise(&mut receipt, &older, path.clone(), entry);
                if entry.kind == Kind::Dir {
                    receipt.missing.extend(left_out_below(side, path));
                }
            }
            None => receipt.missing.push(missing(path.to_string(), why_absent(side, path))),
        }
    }
    for glob in &survive.globs {
        let patterns = Patterns::parse(glob.as_bytes());
        let mut matched = false;
        for (at, dir) in &scan.dirs {
            for entry in dir.entries.iter().filter(|entry| entry.kind != Kind::Dir) {
                let path = path::join(at, &entry.name);
                if patterns.verdict(&path, false) == Some(true) {
                    matched = true;
                    promise(&mut receipt, &older, WorkPath::new(path), entry);
                }
            }
        }
        if !matched {
            receipt.missing.push(missing(glob.clone(), "nothing_matches"));
        }
    }
    match head {
        Some(_) => receipt.head = head,
        None if survive.git => receipt.missing.push(missing("git", "history_not_in_vault")),
        None => {}
    }
    receipt.promised.sort_by(|a, b| a.path.cmp(&b.path));
    receipt.promised.dedup();
    receipt
}

fn promise(receipt: &mut Receipt, older: &HashMap<&WorkPath, SkipReason>, path: WorkPath, entry: &Entry) {
    let told = older.get(&path).map(|reason| reason.as_str());
    let why = match (entry.kind, entry.content, told) {
        (Kind::Skipped(reason), ..) => reason.as_str(),
        (_, Content::Unstable, _) => "unstable",
        (_, Content::Kept, _) => "only_as_it_was_before",
        // It could not be fetched of its sandbox.
        (.., Some(reason)) => reason,
        _ => {
            let mode = entry.git_mode().unwrap_or(0o040_000);
            // What is in a directory is promised by what the tree of it is.
            receipt.promised.push(Promise { path, mode, id: entry.id });
            return;
        }
    };
    receipt.missing.push(missing(path.to_string(), why));
}

/// What of a directory is not in the snapshot, or not as it is: all but what no snapshot could have, and what is gone.
fn left_out_below<'a>(side: &'a SideManifest, dir: &'a WorkPath) -> impl Iterator<Item = Missing> + 'a {
    let below = |path: &WorkPath| {
        path.as_bytes().strip_prefix(dir.as_bytes()).is_some_and(|rest| rest.starts_with(b"/"))
    };
    side.skipped
        .iter()
        .filter(move |skipped| below(&skipped.path))
        .filter(|skipped| !matches!(skipped.reason, SkipReason::Special | SkipReason::Vanished))
        .map(|skipped| missing(skipped.path.to_string(), skipped.reason.as_str()))
}

/// A path that the scan does not have may be below one that was left out.
fn why_absent(side: &SideManifest, path: &WorkPath) -> &'static str {
    let above = |left_out: &WorkPath| {
        path.as_bytes().strip_prefix(left_out.as_bytes()).is_some_and(|rest| rest.starts_with(b"/"))
    };
    side.skipped
        .iter()
        .find(|skipped| above(&skipped.path))
        .map_or("not_found_or_ignored", |skipped| skipped.reason.as_str())
}

fn missing(what: impl Into<String>, why: &str) -> Missing {
    Missing { what: what.into(), why: why.to_owned() }
}
