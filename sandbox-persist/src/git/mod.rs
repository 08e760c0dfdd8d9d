//! The repository of a workspace, read as files that anybody may have written: never opened with its configuration,
//! written only where a host asks for its repair, and nothing of it followed out of the workspace.

mod dir;
mod head_tree;
mod history;
mod object;
mod repair;
mod root;

pub(crate) use dir::{GitDir, Head, is_ref_name};
pub(crate) use head_tree::HeadTree;
pub(crate) use history::{History, copy};
pub(crate) use object::{ForeignStore, TreeEntry, references};
pub use repair::{DEFAULT_LOCK_AGE, InProgress, RepositoryRepairOptions, RepositoryRepaired};
pub(crate) use root::smallest_root;
