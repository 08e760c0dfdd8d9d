//! Terminals: a master the daemon keeps and a slave that becomes the child's controlling terminal.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::Mode;
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

/// Opens a terminal of that size; returns its master (non-blocking) and its slave.
///
/// The slave belongs to `owner` where the daemon may give it away, so that programs can open `/dev/tty` and
/// the terminal's own path again.
pub(crate) fn open(cols: u16, rows: u16, owner: Option<u32>) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags)?;
    rustix::pty::grantpt(&master)?;
    rustix::pty::unlockpt(&master)?;
    // By ioctl and not by path: it also works where another devpts is mounted at /dev/pts.
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    if let Some(uid) = owner {
        // Both are refused where one id is mapped or the daemon is not root: the terminal then is its own.
        let _ = rustix::fs::fchown(&slave, Some(rustix::fs::Uid::from_raw(uid)), None);
        let _ = rustix::fs::fchmod(&slave, Mode::RUSR | Mode::WUSR | Mode::WGRP);
    }
    resize(&master, cols, rows)?;
    rustix::io::ioctl_fionbio(&master, true)?;
    Ok((master, slave))
}

/// Sets the window size; the foreground process group gets `SIGWINCH` if it changed.
pub(crate) fn resize(master: &OwnedFd, cols: u16, rows: u16) -> io::Result<()> {
    let size = Winsize { ws_col: cols, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(master, size)?)
}
