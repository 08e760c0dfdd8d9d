//! A scriptable fake provider, and the conformance suites that every provider and every registry passes.
//!
//! Behind the feature `testing`; not covered by semver. Unlike the rest of the crate, the rules of [`conformance`] and [`registry`] panic:
//! they are the bodies of tests.

pub mod conformance;
mod fake;
pub mod registry;

pub use fake::{Counts, FakeOptions, FakeProvider, Fault, Gate, Reply, Verb};
