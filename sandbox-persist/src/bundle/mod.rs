//! Snapshots as one file that git alone can read: bundles of version 2, written and read by ourselves.

mod adopt;
mod header;
mod options;
mod read;
mod write;

pub use header::BundleHeader;
pub use options::{AdoptOptions, Bundle, BundleLimits, BundleOptions, ImportOptions, Imported, Provenance};
