//! The repository of a workspace, read as files that anybody may have written: never opened with its configuration,
//! never written, and nothing of it followed out of the workspace.

mod dir;
mod head_tree;
mod history;
mod object;
mod root;

pub(crate) use dir::{GitDir, Head, is_ref_name};
pub(crate) use head_tree::HeadTree;
pub(crate) use history::{History, copy};
pub(crate) use object::{ForeignStore, TreeEntry, references};
pub(crate) use root::smallest_root;
