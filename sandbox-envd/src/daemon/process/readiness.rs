//! Descriptors that the runtime watches.
#![expect(unsafe_code, reason = "the runtime cannot check that a descriptor stays the same one")]

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Watches a non-blocking descriptor on the current runtime.
pub(crate) fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` names one open descriptor from here until the `AsyncFd` that owns it drops it, and
    // nothing in this crate takes it out or closes it earlier.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}
