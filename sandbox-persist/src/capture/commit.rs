//! The commits of a snapshot, written by hand: nobody's identity, signing or template has a say.

use sandhold_core::{Error, ErrorKind, Result};
use serde::Serialize;

use super::side::{RECEIPT, SIDE};
use crate::oid::ObjectId;
use crate::side::SideManifest;
use crate::snapshot::Snapshot;
use crate::vault::{self, Deflater, ObjectKind, PackWriter};

const IDENTITY: &str = "Sandhold <sandhold@localhost>";

/// Adds the commit of a snapshot, and the side commit that is its last parent, to the pack.
///
/// The parents are the state before of the same session, the commit that the workspace is at where its history is in
/// the vault, and the side commit: all that they reach stays as long as the snapshot does.
pub(crate) fn write(
    pack: &mut PackWriter,
    snapshot: &mut Snapshot,
    side: &SideManifest,
    tip: Option<ObjectId>,
) -> Result<()> {
    let mut deflater = Deflater::new();
    let mut add = |kind: ObjectKind, content: &[u8]| -> Result<ObjectId> {
        let id = ObjectId::of(kind.name(), content);
        pack.add(kind, id, content.len() as u64, deflater.deflate(content)?)?;
        Ok(id)
    };
    let plain = SideManifest { version: side.version, ..SideManifest::default() };
    if *side != plain || snapshot.receipt.is_some() {
        let mut files = Vec::new();
        // In the order of their names, as a tree has them.
        if let Some(receipt) = &snapshot.receipt {
            files.push((RECEIPT, add(ObjectKind::Blob, &json(receipt)?)?));
        }
        files.push((SIDE, add(ObjectKind::Blob, &json(side)?)?));
        let tree: Vec<u8> = files
            .iter()
            .flat_map(|(name, id)| [format!("100644 {name}\0").as_bytes(), id.as_bytes()].concat())
            .collect();
        let tree = add(ObjectKind::Tree, &tree)?;
        let message = format!("what git cannot hold of sandbox snapshot {}\n", snapshot.id);
        let text = commit(tree, &[], snapshot.captured_at_ms, &message);
        snapshot.side = Some(add(ObjectKind::Commit, text.as_bytes())?);
    }
    let head = snapshot.head.filter(|_| snapshot.has_history);
    let parents: Vec<ObjectId> = tip.into_iter().chain(head).chain(snapshot.side).collect();
    let text = commit(snapshot.tree, &parents, snapshot.captured_at_ms, &vault::message(snapshot)?);
    snapshot.commit = add(ObjectKind::Commit, text.as_bytes())?;
    Ok(())
}

fn commit(tree: ObjectId, parents: &[ObjectId], at_ms: u64, message: &str) -> String {
    use std::fmt::Write;
    let mut text = format!("tree {tree}\n");
    for parent in parents {
        // Writing to a string does not fail.
        let _ = writeln!(text, "parent {parent}");
    }
    let at = at_ms / 1000;
    let _ = write!(text, "author {IDENTITY} {at} +0000\ncommitter {IDENTITY} {at} +0000\n\n{message}");
    text
}

fn json(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value)
        .map_err(|failure| Error::new(ErrorKind::Unexpected, format!("a manifest is no JSON: {failure}")))
}
