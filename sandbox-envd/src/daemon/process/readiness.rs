//! Descriptors that the runtime watches, and the size of the pipes among them.
#![expect(unsafe_code, reason = "the runtime cannot check that a descriptor stays the same one")]

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Asked for first, and what a user over the kernel's pipe quota falls back to.
const PIPE_SIZES: [usize; 2] = [1 << 20, 256 << 10];

/// Makes the pipe behind a descriptor as large as it may be; a terminal stays as it is.
///
/// Only pipes that carry much are enlarged: the quota is per user, and whoever is over it gets tiny new pipes. Returns
/// whether it was: a pipe of the default size works too, only slower.
pub(crate) fn enlarge(fd: &OwnedFd) -> bool {
    PIPE_SIZES.iter().any(|size| rustix::pipe::fcntl_setpipe_size(fd, *size).is_ok())
}

/// Watches a non-blocking descriptor on the current runtime.
pub(crate) fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` names one open descriptor from here until the `AsyncFd` that owns it drops it, and
    // nothing in this crate takes it out or closes it earlier.
    Ok(unsafe { AsyncFd::register_with_interest(fd, interest) }?)
}
