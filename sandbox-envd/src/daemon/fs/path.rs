//! Turns a path of a request into the absolute path it stands for.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Why a path of a request stands for nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PathError {
    #[error(
        "path {0:?} names another user's home: only `~` and `~/…` are expanded, so pass an absolute path instead"
    )]
    OtherHome(String),
    #[error("path {0:?} contains a NUL byte, which no file name can hold")]
    Nul(String),
}

/// Resolves `path` for a user: `~` is the home, an empty path the default working directory (or else
/// the home), a relative path is taken from the home, and an absolute one is used as it is.
///
/// Paths are not confined: the sandbox is the border, and its caller may name any file in it.
pub(crate) fn resolve(path: &str, home: &Path, workdir: Option<&str>) -> Result<PathBuf, PathError> {
    let path = if path.is_empty() { workdir.unwrap_or_default() } else { path };
    if path.contains('\0') {
        return Err(PathError::Nul(path.to_owned()));
    }
    if let Some(rest) = path.strip_prefix('~') {
        return match rest.strip_prefix('/') {
            Some(rest) => Ok(clean(&home.join(rest.trim_start_matches('/')))),
            None if rest.is_empty() => Ok(home.to_owned()),
            None => Err(PathError::OtherHome(path.to_owned())),
        };
    }
    if path.starts_with('/') { Ok(PathBuf::from(path)) } else { Ok(clean(&home.join(path))) }
}

/// Removes `.`, `..` and doubled separators by text alone, as Go's `filepath.Clean` does. The name stays
/// what the caller wrote even where a component is a link.
pub(crate) fn clean(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir if out.parent().is_some() => {
                out.pop();
            }
            Component::ParentDir | Component::CurDir | Component::Prefix(_) => {}
            Component::RootDir | Component::Normal(_) => out.push(part),
        }
    }
    out
}

/// The last component of a path, `/` for the root: what an entry is called.
pub(crate) fn base_name(path: &Path) -> &OsStr {
    let bytes = path.as_os_str().as_bytes();
    let end = bytes.iter().rposition(|b| *b != b'/').map_or(0, |i| i + 1);
    let start = bytes[..end].iter().rposition(|b| *b == b'/').map_or(0, |i| i + 1);
    if end == 0 { OsStr::new("/") } else { OsStr::from_bytes(&bytes[start..end]) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(path: &str, workdir: Option<&str>) -> Result<PathBuf, PathError> {
        resolve(path, Path::new("/home/user"), workdir)
    }

    #[test]
    fn a_tilde_is_the_home_and_another_users_home_is_refused() {
        assert_eq!(at("~", None), Ok("/home/user".into()));
        assert_eq!(at("~/a/../b", None), Ok("/home/user/b".into()));
        assert_eq!(at("~//b", None), Ok("/home/user/b".into()));
        assert_eq!(at("~root/x", None), Err(PathError::OtherHome("~root/x".into())));
    }

    #[test]
    fn an_empty_path_is_the_working_directory_or_else_the_home() {
        assert_eq!(at("", Some("/srv/app")), Ok("/srv/app".into()));
        assert_eq!(at("", Some("app")), Ok("/home/user/app".into()));
        assert_eq!(at("", None), Ok("/home/user".into()));
    }

    #[test]
    fn a_relative_path_starts_at_the_home_and_an_absolute_one_is_used_as_it_is() {
        assert_eq!(at("a//b/./c", Some("/srv")), Ok("/home/user/a/b/c".into()));
        assert_eq!(at("../../../../etc", None), Ok("/etc".into()));
        let kept = at("/a/../b/", None);
        assert_eq!(kept.as_deref().map(Path::as_os_str), Ok(OsStr::new("/a/../b/")));
    }

    #[test]
    fn base_names_are_those_of_go() {
        for (path, name) in [("/", "/"), ("/a", "a"), ("/a/b/", "b"), ("/a/b//", "b"), ("/a/..", "..")] {
            assert_eq!(base_name(Path::new(path)), name);
        }
    }

    proptest! {
        #[test]
        fn a_resolved_relative_path_is_absolute_and_has_no_dots(path in "[^\0~/][^\0]{0,40}") {
            let found = at(&path, None);
            prop_assert!(found.is_ok());
            let found = found.unwrap_or_default();
            prop_assert!(found.is_absolute());
            prop_assert!(found.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_))));
        }

        #[test]
        fn no_path_panics_and_a_nul_is_always_refused(path in "\\PC{0,20}", tail in "\\PC{0,20}") {
            let _ = at(&path, None);
            let with_nul = format!("{path}\0{tail}");
            prop_assert_eq!(at(&with_nul, None), Err(PathError::Nul(with_nul.clone())));
        }
    }
}
