//! A scriptable fake provider, and the conformance suite that every provider passes.
//!
//! Behind the feature `testing`; not covered by semver. Unlike the rest of the crate, the rules of [`conformance`] panic:
//! they are the bodies of tests.

pub mod conformance;
mod fake;

pub use fake::{Counts, FakeOptions, FakeProvider, Fault, Gate, Reply, Verb};
