//! Files by name: what is there, make, move, list, remove.

mod actor;
mod entry;
mod metadata;
mod mode;
mod ops;
mod path;
mod remove;
mod service;

pub(crate) use self::actor::Actor;
pub(crate) use self::entry::describe;
pub(crate) use self::metadata::{
    Metadata, from_headers as metadata_from_headers, replace as replace_metadata,
};
pub(crate) use self::ops::missing_or_internal;
pub(crate) use self::path::{PathError, base_name, clean};
pub use self::remove::remove_tree;
pub(crate) use self::service::register;
