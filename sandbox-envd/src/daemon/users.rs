//! The users of the sandbox, read from `/etc/passwd` and `/etc/group`.
//!
//! libc's name service is never asked: in a static binary it crashes, in a dynamic one it would load the
//! workload's own modules into the daemon. The files are read again when they changed.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::daemon::state::{ChildUser, UserMode};

/// The user database: two files and what was last read from them.
#[derive(Debug)]
pub(crate) struct Users {
    mode: UserMode,
    passwd: PathBuf,
    group: PathBuf,
    cache: Mutex<Option<Cached>>,
}

#[derive(Debug)]
struct Cached {
    stamps: [Option<Stamp>; 2],
    database: Arc<Database>,
}

/// What changes when a file is edited in place or replaced; `None` for a file that is not there.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

#[derive(Debug, Default)]
struct Database {
    users: Vec<ChildUser>,
    groups: Vec<(String, u32)>,
}

impl Users {
    pub(crate) fn new(mode: UserMode) -> Self {
        Self::from_files(mode, "/etc/passwd", "/etc/group")
    }

    fn from_files(mode: UserMode, passwd: impl Into<PathBuf>, group: impl Into<PathBuf>) -> Self {
        Self { mode, passwd: passwd.into(), group: group.into(), cache: Mutex::new(None) }
    }

    /// Returns the user that a call runs as: the one it names, else the default one; `None` if there is none.
    ///
    /// A daemon that cannot become anybody else runs as itself whatever the default is, and knows no other.
    pub(crate) fn resolve(&self, named: Option<&str>, default: &str) -> io::Result<Option<ChildUser>> {
        if self.mode != UserMode::OwnUser {
            return self.by_name(named.unwrap_or(default));
        }
        let own = self.own()?;
        let is_own = named.is_none_or(|name| name == own.name || name.parse() == Ok(own.uid));
        Ok(is_own.then_some(own))
    }

    /// Returns the user of that name, or of that number if the name is one and no user is called so.
    ///
    /// `root` always exists: an image without `/etc/passwd` still runs commands.
    pub(crate) fn by_name(&self, name: &str) -> io::Result<Option<ChildUser>> {
        let database = self.database()?;
        if let Some(user) = database.users.iter().find(|user| user.name == name) {
            return Ok(Some(user.clone()));
        }
        if let Ok(uid) = name.parse::<u32>()
            && let Some(user) = database.users.iter().find(|user| user.uid == uid)
        {
            return Ok(Some(user.clone()));
        }
        Ok((name == "root").then(root))
    }

    /// Returns the first user with that id; the kernel's files name owners by number only.
    pub(crate) fn by_uid(&self, uid: u32) -> io::Result<Option<ChildUser>> {
        let database = self.database()?;
        let listed = database.users.iter().find(|user| user.uid == uid).cloned();
        Ok(listed.or_else(|| (uid == 0).then(root)))
    }

    /// Returns the user this process runs as, also when no file lists it.
    pub(crate) fn own(&self) -> io::Result<ChildUser> {
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        if let Some(user) = self.by_uid(uid)? {
            return Ok(user);
        }
        Ok(ChildUser {
            name: uid.to_string(),
            uid,
            gid,
            groups: vec![gid],
            home: std::env::var_os("HOME").map_or_else(|| PathBuf::from("/"), PathBuf::from),
        })
    }

    /// Returns the name of a user id, or the number as text.
    pub(crate) fn user_name(&self, uid: u32) -> String {
        match self.by_uid(uid) {
            Ok(Some(user)) => user.name,
            _ => uid.to_string(),
        }
    }

    /// Returns the name of a group id, or the number as text.
    pub(crate) fn group_name(&self, gid: u32) -> String {
        let listed = self.database().ok().and_then(|database| {
            database.groups.iter().find(|(_, id)| *id == gid).map(|(name, _)| name.clone())
        });
        listed.unwrap_or_else(|| if gid == 0 { "root".into() } else { gid.to_string() })
    }

    fn database(&self) -> io::Result<Arc<Database>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        // Stamped before reading: a change in between is then seen by the next call, never missed.
        let stamps = [stamp(&self.passwd)?, stamp(&self.group)?];
        if let Some(cached) = &*cache
            && cached.stamps == stamps
        {
            return Ok(Arc::clone(&cached.database));
        }
        let database = Arc::new(parse(&read(&self.passwd)?, &read(&self.group)?));
        *cache = Some(Cached { stamps, database: Arc::clone(&database) });
        Ok(database)
    }
}

fn root() -> ChildUser {
    ChildUser { name: "root".into(), uid: 0, gid: 0, groups: vec![0], home: "/root".into() }
}

fn stamp(path: &Path) -> io::Result<Option<Stamp>> {
    match fs::metadata(path) {
        Ok(meta) => Ok(Some(Stamp {
            inode: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
        })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn read(path: &Path) -> io::Result<String> {
    match fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

/// Parses the two files as passwd(5) and group(5) describe them; a line that does not fit is skipped.
fn parse(passwd: &str, group: &str) -> Database {
    let groups: Vec<(&str, u32, Vec<&str>)> = lines(group)
        .filter_map(|line| {
            let mut fields = line.split(':');
            let (name, _password, gid) = (fields.next()?, fields.next()?, fields.next()?.parse().ok()?);
            let members = fields.next().unwrap_or("").split(',').filter(|member| !member.is_empty());
            Some((name, gid, members.collect()))
        })
        .collect();
    let users = lines(passwd)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            let [name, _password, uid, gid, _comment, home, ..] = fields.as_slice() else { return None };
            let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
            let more = groups.iter().filter(|(.., members)| members.contains(name)).map(|(_, gid, _)| *gid);
            let groups: BTreeSet<u32> = more.chain([gid]).collect();
            Some(ChildUser {
                name: (*name).into(),
                uid,
                gid,
                groups: groups.into_iter().collect(),
                home: if home.is_empty() { "/".into() } else { home.into() },
            })
        })
        .collect();
    Database { users, groups: groups.iter().map(|(name, gid, _)| ((*name).into(), *gid)).collect() }
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.is_empty() && !line.starts_with(['#', '+', '-', ':']))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n# a comment\nbroken line\nuser:x:1000:1000::/home/user:\nhigh:x:4294967295999:1::/:/bin/sh\n+::::::\n";
    const GROUP: &str = "root:x:0:\nuser:x:1000:\nsudo:x:27:user,other\ndocker:x:999:other,user\n";

    fn written(passwd: &str, group: &str) -> (tempfile::TempDir, Users) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("passwd"), passwd).unwrap();
        fs::write(dir.path().join("group"), group).unwrap();
        let users = Users::from_files(UserMode::SetId, dir.path().join("passwd"), dir.path().join("group"));
        (dir, users)
    }

    #[test]
    fn a_user_has_its_ids_home_and_every_group_that_lists_it() {
        let (_dir, users) = written(PASSWD, GROUP);
        let user = users.by_name("user").unwrap().unwrap();
        assert_eq!((user.uid, user.gid, user.groups.as_slice()), (1000, 1000, &[27, 999, 1000][..]));
        assert_eq!(user.home, Path::new("/home/user"));
    }

    #[test]
    fn lines_that_do_not_fit_the_format_are_no_users() {
        let (_dir, users) = written(PASSWD, GROUP);
        for name in ["# a comment", "broken line", "high", "+", ""] {
            assert_eq!(users.by_name(name).unwrap(), None, "{name:?}");
        }
    }

    #[test]
    fn ids_without_a_name_are_shown_as_numbers() {
        let (_dir, users) = written(PASSWD, GROUP);
        assert_eq!((users.user_name(1000), users.user_name(4242)), ("user".into(), "4242".into()));
        assert_eq!((users.group_name(27), users.group_name(4242)), ("sudo".into(), "4242".into()));
    }

    #[test]
    fn a_user_added_later_is_found_without_a_restart() {
        let (dir, users) = written(PASSWD, GROUP);
        assert_eq!(users.by_name("late").unwrap(), None);
        fs::write(dir.path().join("passwd"), format!("{PASSWD}late:x:7:7::/:/bin/sh\n")).unwrap();
        assert_eq!(users.by_name("late").unwrap().unwrap().uid, 7);
    }

    #[test]
    fn root_exists_where_no_file_does() {
        let dir = tempfile::tempdir().unwrap();
        let users = Users::from_files(UserMode::SetId, dir.path().join("none"), dir.path().join("none"));
        assert_eq!(users.by_name("root").unwrap(), Some(root()));
        assert_eq!(users.by_name("user").unwrap(), None);
    }

    #[test]
    fn a_daemon_that_cannot_change_users_knows_itself_alone() {
        let users = Users::new(UserMode::OwnUser);
        let own = users.own().unwrap();
        assert_eq!(users.resolve(None, "somebody-else").unwrap().as_ref(), Some(&own));
        assert_eq!(users.resolve(Some(&own.name), "x").unwrap().as_ref(), Some(&own));
        assert_eq!(users.resolve(Some("somebody-else"), "x").unwrap(), None);
    }
}
