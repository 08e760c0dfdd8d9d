//! On whose behalf a file operation runs.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Gid, Uid};

use crate::daemon::fs::path::{self, PathError};
use crate::daemon::state::{ChildUser, State, UserMode};

/// The user of a request: whose home `~` is, and who owns what the request makes.
///
/// Operations themselves run with the rights of the daemon, as they do in E2B's envd.
#[derive(Clone)]
pub(crate) struct Actor {
    state: Arc<State>,
    user: ChildUser,
}

impl Actor {
    /// Returns the user of that name (or else the default one), or the name when there is no such user.
    ///
    /// Reads the user database, so it belongs on a blocking thread.
    pub(crate) fn named(state: &Arc<State>, name: Option<&str>) -> Result<Self, String> {
        let default = state.session(|session| session.default_user.clone());
        let name = name.filter(|name| !name.is_empty());
        match state.users.resolve(name, &default) {
            Ok(Some(user)) => Ok(Self { state: Arc::clone(state), user }),
            _ => Err(name.map_or(default, str::to_owned)),
        }
    }

    /// Resolves a path of a request for this user.
    pub(crate) fn resolve(&self, path: &str) -> Result<PathBuf, PathError> {
        let workdir = self.state.default_workdir();
        path::resolve(path, &self.user.home, workdir.as_deref().and_then(Path::to_str))
    }

    /// Whether new files are given to the user: with one mapped id (or no rights) there is no other owner.
    fn gives_ownership(&self) -> bool {
        self.state.config.user_mode == UserMode::SetId
    }

    /// Makes the user own an open file. One that is the user's already is not touched: who watches it is told of what
    /// happens to it, and by E2B's envd of the content first.
    pub(crate) fn own(&self, file: impl AsFd) -> io::Result<()> {
        if !self.gives_ownership() {
            return Ok(());
        }
        let (uid, gid) = (self.user.uid, self.user.gid);
        let stat = rustix::fs::fstat(&file)?;
        if (stat.st_uid, stat.st_gid) != (uid, gid) {
            rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        Ok(())
    }

    /// Makes the missing directories of `path`, mode 0755, owned by the user. What exists is left alone.
    pub(crate) fn make_dirs(&self, path: &Path) -> io::Result<()> {
        let missing: Vec<&Path> = path.ancestors().take_while(|dir| !dir.is_dir()).collect();
        for dir in missing.into_iter().rev().filter(|dir| !dir.as_os_str().is_empty()) {
            match rustix::fs::mkdir(dir, 0o755.into()) {
                // Someone else may have made it in the meantime.
                Err(rustix::io::Errno::EXIST) if dir.is_dir() => continue,
                made => made?,
            }
            if self.gives_ownership() {
                // Never through a link that took the place of the new directory.
                std::os::unix::fs::lchown(dir, Some(self.user.uid), Some(self.user.gid))?;
            }
        }
        Ok(())
    }

    /// Names of an entry's owner and group, or the numbers as text where they have no name.
    pub(crate) fn owner_names(&self, uid: u32, gid: u32) -> (String, String) {
        let users = &self.state.users;
        let single = self.state.config.user_mode == UserMode::SingleId;
        let shown = |id: u32, own: u32| if single && id == 0 { own } else { id };
        let (uid, gid) = (shown(uid, self.user.uid), shown(gid, self.user.gid));
        (users.user_name(uid), users.group_name(gid))
    }
}
