//! File modes as Go prints them, which is what E2B's clients show.

const FILE_TYPE: u32 = 0o170_000;
const SOCKET: u32 = 0o140_000;
const LINK: u32 = 0o120_000;
const REGULAR: u32 = 0o100_000;
const BLOCK: u32 = 0o060_000;
const DIRECTORY: u32 = 0o040_000;
const CHARACTER: u32 = 0o020_000;
const FIFO: u32 = 0o010_000;

/// Prints a `st_mode` the way Go's `os.FileMode.String` does: type letters in Go's fixed order
/// (`d L D p S u g c t`), or `-` when there is none, then nine permission letters.
pub(crate) fn go_mode_string(mode: u32) -> String {
    let kind = mode & FILE_TYPE;
    let letters = [
        (kind == DIRECTORY, 'd'),
        (kind == LINK, 'L'),
        (kind == BLOCK || kind == CHARACTER, 'D'),
        (kind == FIFO, 'p'),
        (kind == SOCKET, 'S'),
        (mode & 0o4000 != 0, 'u'),
        (mode & 0o2000 != 0, 'g'),
        (kind == CHARACTER, 'c'),
        (mode & 0o1000 != 0, 't'),
    ];
    let mut text: String = letters.iter().filter(|(set, _)| *set).map(|(_, letter)| *letter).collect();
    if text.is_empty() {
        text.push('-');
    }
    text.extend((0..9).map(|bit| if mode & (0o400 >> bit) == 0 { '-' } else { ['r', 'w', 'x'][bit % 3] }));
    text
}

/// Whether a `st_mode` is that of a regular file.
pub(crate) fn is_regular(mode: u32) -> bool {
    mode & FILE_TYPE == REGULAR
}

/// Whether a `st_mode` is that of a directory.
pub(crate) fn is_directory(mode: u32) -> bool {
    mode & FILE_TYPE == DIRECTORY
}

/// Whether a `st_mode` is that of a symbolic link.
pub(crate) fn is_link(mode: u32) -> bool {
    mode & FILE_TYPE == LINK
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn mode_strings_are_those_of_go() {
        for (mode, text) in [
            (0o100_644, "-rw-r--r--"),
            (0o040_755, "drwxr-xr-x"),
            (0o120_777, "Lrwxrwxrwx"),
            (0o041_777, "dtrwxrwxrwx"),
            (0o104_755, "urwxr-xr-x"),
            (0o102_755, "grwxr-xr-x"),
            (0o020_666, "Dcrw-rw-rw-"),
            (0o060_660, "Drw-rw----"),
            (0o010_644, "prw-r--r--"),
            (0o140_755, "Srwxr-xr-x"),
            (0o100_000, "----------"),
            (0o107_777, "ugtrwxrwxrwx"),
        ] {
            assert_eq!(go_mode_string(mode), text);
        }
    }

    proptest! {
        #[test]
        fn every_mode_string_ends_in_its_nine_permission_letters(mode in any::<u32>()) {
            let text = go_mode_string(mode);
            let tail = &text[text.len() - 9..];
            let bits = tail.chars().fold(0u32, |bits, c| bits << 1 | u32::from(c != '-'));
            prop_assert_eq!(bits, mode & 0o777);
            prop_assert!(text.len() > 9);
        }
    }
}
