//! What an image must have, and the ordinary user that it may lack.

use std::io::{self, Read, Write};
use std::path::Path;

use rustix::fs::FileType;

use super::ImageError;
use super::layer::Unpacked;
use crate::rooted::Root;

/// The ordinary user of every sandbox, as E2B's templates have it.
const USER: &str = "user";
const USER_ID: u32 = 1000;
const HOME: &str = "home/user";

/// Account files are small; a larger one is not read.
const MAX_FILE: u64 = 4 << 20;

/// Adds what is missing.
pub(super) fn provision(root: &Root, unpacked: &mut Unpacked) -> Result<(), ImageError> {
    // What the official clients run commands with.
    let bash = ["bin/bash", "usr/bin/bash"].iter().any(|path| root.read(Path::new(path)).is_ok());
    if !bash {
        return Err(ImageError::invalid(
            "the image has no /bin/bash, with which commands are run; add it to the image (for Alpine: `apk add bash`)",
        ));
    }
    let passwd = read(root, "etc/passwd")?;
    if field(&passwd, USER, 2).is_none() {
        let with_root =
            if field(&passwd, "root", 2).is_some() { "" } else { "root:x:0:0:root:/root:/bin/bash\n" };
        let line = format!("{USER}:x:{USER_ID}:{USER_ID}::/{HOME}:/bin/bash");
        write(root, unpacked, "etc/passwd", &format!("{with_root}{}", insert(&passwd, &line, USER_ID)))?;
    }
    let group = read(root, "etc/group")?;
    let mut groups = group.clone();
    if field(&groups, "root", 2).is_none() {
        groups.insert_str(0, "root:x:0:\n");
    }
    if field(&groups, USER, 2).is_none() {
        groups = insert(&groups, &format!("{USER}:x:{USER_ID}:"), USER_ID);
    }
    groups = match field(&groups, "sudo", 2) {
        Some(_) => with_member(&groups, "sudo", USER),
        None => insert(&groups, &format!("sudo:x:27:{USER}"), 27),
    };
    if groups != group {
        write(root, unpacked, "etc/group", &groups)?;
    }
    Ok(())
}

fn read(root: &Root, path: &str) -> Result<String, ImageError> {
    let file = match root.read(Path::new(path)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) => return Err(error.into()),
    };
    let mut text = String::new();
    file.take(MAX_FILE)
        .read_to_string(&mut text)
        .map_err(|error| ImageError::invalid(format!("/{path} of the image cannot be read: {error}")))?;
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

fn write(root: &Root, unpacked: &mut Unpacked, path: &str, text: &str) -> Result<(), ImageError> {
    let path = Path::new(path);
    let place = root.make_place(path)?;
    let mode = match place.stat()? {
        // A link would be replaced by the file that it leads to, which is as good.
        Some(stat) if FileType::from_raw_mode(stat.st_mode).is_file() => stat.st_mode & 0o777,
        _ => 0o644,
    };
    place.remove()?;
    unpacked.owners.remove(path);
    place.create(mode | 0o200)?.write_all(text.as_bytes())?;
    Ok(place.chmod(mode)?)
}

/// Returns a field of the line that begins with a name.
fn field<'a>(text: &'a str, name: &str, index: usize) -> Option<&'a str> {
    text.lines().find(|line| line.split(':').next() == Some(name))?.split(':').nth(index)
}

/// Adds a line, before the first one that has the same id, so that the id is shown by the new name.
fn insert(text: &str, line: &str, id: u32) -> String {
    let id = id.to_string();
    let mut out = String::with_capacity(text.len() + line.len() + 1);
    let mut added = false;
    for old in text.lines() {
        if !added && old.split(':').nth(2) == Some(&id) {
            out.push_str(line);
            out.push('\n');
            added = true;
        }
        out.push_str(old);
        out.push('\n');
    }
    if !added {
        out.push_str(line);
        out.push('\n');
    }
    out
}

fn with_member(text: &str, group: &str, member: &str) -> String {
    let mut out = String::with_capacity(text.len() + member.len() + 1);
    for line in text.lines() {
        out.push_str(line);
        let mut fields = line.split(':');
        if fields.next() == Some(group) {
            let members = fields.nth(2).unwrap_or_default();
            if !members.split(',').any(|name| name == member) {
                out.push_str(if members.is_empty() { "" } else { "," });
                out.push_str(member);
            }
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_an_image_gives_to_somebody_else_is_shown_by_our_name() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nnode:x:1000:1000::/home/node:/bin/bash\n";
        let with = insert(passwd, "user:x:1000:1000::/home/user:/bin/bash", 1000);
        let names: Vec<_> = with.lines().filter_map(|line| line.split(':').next()).collect();
        assert_eq!(names, ["root", "user", "node"]);
    }

    #[test]
    fn a_member_is_added_once() {
        for (line, expected) in
            [("sudo:x:27:", "user"), ("sudo:x:27:me", "me,user"), ("sudo:x:27:user", "user")]
        {
            let with = with_member(&format!("root:x:0:\n{line}\n"), "sudo", "user");
            assert_eq!(field(&with, "sudo", 3), Some(expected), "{line}");
            assert_eq!(field(&with, "root", 3), Some(""));
        }
    }
}
