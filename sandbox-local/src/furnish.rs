//! What a root view needs that was not made by the builder of base trees: the user, and a few files.
//!
//! Runs inside, after the change of the root: links lead nowhere but into the sandbox's own files.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::base;
use crate::failure::{Doing, Failure};
use crate::record::{IdMap, Spec};

/// Completes a root view whose lowest tree was imported.
pub(crate) fn complete(spec: &Spec, resolv: &[u8]) -> Result<(), Failure> {
    for (dir, mode) in [("/tmp", 0o1777), ("/var/tmp", 0o1777), ("/etc", 0o755), ("/root", 0o700)] {
        directory(Path::new(dir), mode).doing(format_args!("make {dir}"))?;
    }
    add_user(spec)?;
    let hosts =
        format!("127.0.0.1 localhost {0}\n::1 localhost ip6-localhost ip6-loopback\n", base::hostname(spec));
    fill("/etc/hosts", hosts.as_bytes()).doing("write /etc/hosts")?;
    fill("/etc/resolv.conf", resolv).doing("write /etc/resolv.conf")?;
    // apt drops to `_apt` to download; with one mapped id there is nobody to drop to.
    if matches!(spec.ids, IdMap::Single) && Path::new("/etc/apt/apt.conf.d").is_dir() {
        fill("/etc/apt/apt.conf.d/90sandhold", b"APT::Sandbox::User \"root\";\n").doing("set apt up")?;
    }
    Ok(())
}

fn directory(path: &Path, mode: u32) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

/// Writes a file that is not there, or empty.
fn fill(path: &str, content: &[u8]) -> io::Result<()> {
    let wanted = match fs::metadata(path) {
        Ok(meta) => meta.is_file() && meta.len() == 0,
        Err(_) => true,
    };
    if !wanted || content.is_empty() {
        return Ok(());
    }
    fs::write(path, content)
}

/// Adds the ordinary user where the tree has no user of this name, and its places where they are missing: who made a
/// snapshot may have had another one.
pub(crate) fn add_user(spec: &Spec) -> Result<(), Failure> {
    add_user_and_places(spec).doing(format_args!("make the user {}", spec.user.name))
}

fn add_user_and_places(spec: &Spec) -> io::Result<()> {
    let (user, id, home) = (&spec.user.name, spec.user.id, &spec.user.home);
    let shell = if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
    line("/etc/passwd", "root", &format!("root:x:0:0:root:/root:{shell}"))?;
    line("/etc/group", "root", "root:x:0:")?;
    line("/etc/passwd", user, &format!("{user}:x:{id}:{id}::{}:{shell}", home.display()))?;
    line("/etc/group", user, &format!("{user}:x:{id}:"))?;
    for place in [Some(home), spec.workspace.as_ref(), spec.workdir.as_ref()].into_iter().flatten() {
        if place.is_dir() {
            continue;
        }
        directory(place, 0o755)?;
        if !matches!(spec.ids, IdMap::Single) {
            std::os::unix::fs::chown(place, Some(id), Some(id))?;
        }
    }
    Ok(())
}

/// Adds a line to a file of users or groups, unless it has one of that name.
fn line(path: &str, name: &str, line: &str) -> io::Result<()> {
    let text = match fs::metadata(path) {
        Ok(meta) if meta.is_file() => fs::read_to_string(path)?,
        Ok(_) => return Err(io::Error::other(format!("{path} is no file"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    if text.lines().any(|line| line.split(':').next() == Some(name)) {
        return Ok(());
    }
    let separator = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    let mut file = fs::OpenOptions::new().append(true).create(true).open(path)?;
    file.write_all(format!("{separator}{line}\n").as_bytes())
}
