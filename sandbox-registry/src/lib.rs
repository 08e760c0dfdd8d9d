//! Records and leases on disk: where a key's sandbox is remembered, and who may change it.
//!
//! | registry | for | its lease |
//! |---|---|---|
//! | [`FileRegistry`] | one machine, a few keys, files that a person can read | a lock, until its holder dies |

mod file;

pub use file::FileRegistry;
