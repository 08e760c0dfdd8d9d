//! E2B's control plane as a sandbox provider.
//!
//! [`wire`] holds the messages of the control plane, in both directions: a client and a server use the same types.
//!
//! | feature | what it adds |
//! |---|---|
//! | `testing` | a recording proxy with scripted faults, for tests of any client or server of this API |

#[cfg(feature = "testing")]
pub mod testing;
pub mod wire;
