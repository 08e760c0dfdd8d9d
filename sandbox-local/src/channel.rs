//! The line between a monitor and the PID 1 it starts: whole messages, with descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// Most descriptors in one message: those of the root view, and of every directory that sandboxes share.
const MOST_FDS: usize = 4 + crate::record::MOST_SHARED;

/// One end of the line.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

impl Channel {
    /// Returns both ends.
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(a), Self(b)))
    }

    /// Sends one message.
    pub(crate) fn send(&self, message: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        send_with_fds(self.0.as_fd(), message, fds).map(drop)
    }

    /// Waits for one message; `None` once the other end is closed.
    pub(crate) fn receive(&self) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        let mut bytes = vec![0; 16 * 1024];
        let (length, fds) = receive_with_fds(self.0.as_fd(), &mut bytes)?;
        if length == 0 {
            return Ok(None);
        }
        bytes.truncate(length);
        Ok(Some((bytes, fds)))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sends bytes with descriptors over a Unix socket and returns how many bytes went.
pub(crate) fn send_with_fds(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors in one message"));
    }
    Ok(sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
}

/// Receives bytes and the descriptors that came with them; length 0 is the end.
pub(crate) fn receive_with_fds(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            Err(rustix::io::Errno::INTR) => {}
            // A process that was killed with unread messages resets the line.
            Err(rustix::io::Errno::CONNRESET) => return Ok((0, Vec::new())),
            other => break other?,
        }
    };
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    Ok((received.bytes, fds))
}
