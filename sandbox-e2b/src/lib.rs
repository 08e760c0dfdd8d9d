//! E2B's control plane as a sandbox provider.
//!
//! [`wire`] holds the messages of the control plane, in both directions: a client and a server use the same types.

pub mod wire;
