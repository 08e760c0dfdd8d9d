//! Rules about files.

use bytes::Bytes;

use super::Stage;
use crate::{
    ByteStream, Error, ErrorKind, FileOptions, FileType, ListOptions, ReadOptions, ResultStream,
    SandboxHandleExt, WriteOptions,
};

/// 8 MiB that do not repeat within a chunk, so that a lost or swapped piece shows.
fn large() -> Bytes {
    let mut state = 0x9e37_79b9_u32;
    let mut bytes = Vec::with_capacity(8 << 20);
    while bytes.len() < 8 << 20 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.into()
}

/// What was written is read, byte for byte, whatever the bytes are.
pub async fn a_file_is_read_as_it_was_written(stage: &Stage) {
    let handle = stage.create("one").await;
    let every_byte: Vec<u8> = (0..=255).collect();
    for (path, content) in [
        ("/tmp/text", b"line\r\nline\n".to_vec()),
        ("/tmp/bytes", every_byte),
        ("/tmp/empty", Vec::new()),
        ("/tmp/multibyte", "é漢😀".as_bytes().to_vec()),
    ] {
        let entry = handle.write_bytes(path, content.clone()).await.unwrap();
        assert_eq!((entry.path.as_str(), entry.file_type), (path, FileType::File));
        assert_eq!(handle.read_bytes(path).await.unwrap(), content, "{path}");
    }
}

/// A large file arrives whole, streamed in pieces of unequal size.
pub async fn a_large_file_is_exact(stage: &Stage) {
    let handle = stage.create("one").await;
    let content = large();
    let pieces = ResultStream::unfold((content.clone(), 1usize), |(mut rest, size)| {
        let piece = rest.split_to(size.min(rest.len()));
        std::future::ready((!piece.is_empty()).then(|| (Ok(piece), (rest, size % 100_000 * 3 + 1))))
    });
    handle.write("/tmp/large", pieces, WriteOptions::default()).await.unwrap();
    let stat = handle.stat("/tmp/large", FileOptions::default()).await.unwrap();
    assert_eq!(stat.size, content.len() as u64);
    let download = handle.read("/tmp/large", ReadOptions::default()).await.unwrap();
    assert!(download.size.is_none_or(|size| size == content.len() as u64));
    let read = download.body.into_bytes(16 << 20).await.unwrap();
    assert!(read == content, "{} bytes came back, not the same ones", read.len());
}

/// A range is exactly what was asked for, cut at the end of the file.
pub async fn ranges_are_exact(stage: &Stage) {
    let handle = stage.create("one").await;
    let content: Vec<u8> = (0..1000u32).flat_map(u32::to_le_bytes).collect();
    handle.write_bytes("/tmp/file", content.clone()).await.unwrap();
    let size = content.len() as u64;
    let cases = [
        (0, Some(1)),
        (1, Some(2)),
        (17, None),
        (size - 3, Some(100)),
        (size - 1, None),
        (0, Some(size)),
        (0, None),
    ];
    for (offset, length) in cases {
        let mut options = ReadOptions::default().with_offset(offset);
        options.length = length;
        let read = handle.read("/tmp/file", options).await.unwrap().body.into_bytes(1 << 20).await.unwrap();
        let end = length.map_or(size, |length| (offset + length).min(size));
        assert_eq!(read, content[offset as usize..end as usize], "from {offset}, {length:?} bytes");
    }
}

/// A write makes the directories that are missing.
pub async fn a_write_makes_its_parents(stage: &Stage) {
    let handle = stage.create("one").await;
    handle.write_bytes("/tmp/a/b/c/file", "x").await.unwrap();
    assert_eq!(handle.read_text("/tmp/a/b/c/file").await.unwrap(), "x");
    let parent = handle.stat("/tmp/a/b", FileOptions::default()).await.unwrap();
    assert_eq!(parent.file_type, FileType::Directory);
}

/// A shorter content leaves nothing of a longer one.
pub async fn an_overwrite_leaves_nothing_of_the_old_content(stage: &Stage) {
    let handle = stage.create("one").await;
    handle.write_bytes("/tmp/file", vec![b'x'; 100_000]).await.unwrap();
    handle.write_bytes("/tmp/file", "short").await.unwrap();
    assert_eq!(handle.read_text("/tmp/file").await.unwrap(), "short");
    handle.write_bytes("/tmp/file", "").await.unwrap();
    assert_eq!(handle.read_text("/tmp/file").await.unwrap(), "");
}

/// A body that breaks fails the write with its own error.
pub async fn a_body_that_breaks_fails_the_write_with_its_own_error(stage: &Stage) {
    let handle = stage.create("one").await;
    let broken = Error::new(ErrorKind::Cancelled, "the source went away");
    let body = ByteStream::unfold(Some(Bytes::from_static(b"half")), move |piece| {
        let item = piece.ok_or_else(|| broken.clone());
        std::future::ready(Some((item, None)))
    });
    let error = handle.write("/tmp/file", body, WriteOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
}

/// Relative paths and `~` start at the home directory.
pub async fn relative_paths_start_at_the_home(stage: &Stage) {
    let handle = stage.create("one").await;
    let home = stage.spec().home;
    handle.write_bytes("sub/file", "x").await.unwrap();
    for path in ["sub/file", "~/sub/file", &format!("{home}/sub/file")] {
        assert_eq!(handle.read_text(path).await.unwrap(), "x", "{path}");
        let entry = handle.stat(path, FileOptions::default()).await.unwrap();
        assert_eq!((entry.path, entry.name.as_str()), (format!("{home}/sub/file"), "file"));
    }
}

/// Names are text without rules of their own.
pub async fn strange_names_are_kept(stage: &Stage) {
    let handle = stage.create("one").await;
    let names =
        ["with space", "-n", "quo'te\"", "$(id)", "a\nb", "%2e%2e", "漢😀", "a+b&c=d?e#f", "back\\slash"];
    for name in names {
        let path = format!("/tmp/strange/{name}");
        handle.write_bytes(&path, name).await.unwrap();
        assert_eq!(handle.read_text(&path).await.unwrap(), name);
    }
    let mut listed: Vec<_> =
        handle.list_dir("/tmp/strange").await.unwrap().into_iter().map(|entry| entry.name).collect();
    let mut expected = names.map(String::from);
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
}

/// A path with a NUL byte is refused.
pub async fn a_path_with_a_nul_byte_is_invalid_argument(stage: &Stage) {
    let handle = stage.create("one").await;
    let errors = [
        handle.read_bytes("/tmp/a\0b").await.map(drop).unwrap_err(),
        handle.write_bytes("/tmp/a\0b", "x").await.map(drop).unwrap_err(),
        handle.stat("/tmp/a\0b", FileOptions::default()).await.map(drop).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}

/// A listing is depth first, sorted by name, without the directory itself, and as deep as asked.
pub async fn a_listing_is_depth_first_and_sorted(stage: &Stage) {
    let handle = stage.create("one").await;
    for file in ["b/2", "b/1/x", "a-b", "a/z", "c"] {
        handle.write_bytes(&format!("/tmp/tree/{file}"), "").await.unwrap();
    }
    let deep = ["a", "a/z", "a-b", "b", "b/1", "b/1/x", "b/2", "c"];
    for depth in 1..=4 {
        let options = ListOptions::default().with_depth(depth);
        let listed = handle.list("/tmp/tree", options).await.unwrap();
        let paths: Vec<_> = listed.iter().map(|entry| entry.path.as_str()).collect();
        let expected: Vec<_> = deep
            .iter()
            .filter(|path| path.split('/').count() <= depth as usize)
            .map(|path| format!("/tmp/tree/{path}"))
            .collect();
        assert_eq!(paths, expected, "depth {depth}");
    }
    handle.make_dir("/tmp/hollow", FileOptions::default()).await.unwrap();
    assert_eq!(handle.list_dir("/tmp/hollow").await.unwrap(), []);
}

/// The facts of an entry are right, by `stat` as by `list`.
pub async fn stat_tells_the_facts(stage: &Stage) {
    let handle = stage.create("one").await;
    handle.write_bytes("/tmp/dir/file", "12345").await.unwrap();
    let file = handle.stat("/tmp/dir/file", FileOptions::default()).await.unwrap();
    assert_eq!((file.name.as_str(), file.path.as_str()), ("file", "/tmp/dir/file"));
    assert_eq!((file.file_type, file.size, file.symlink_target.as_ref()), (FileType::File, 5, None));
    assert_eq!(file.owner, stage.spec().user);
    assert!(file.mode & 0o600 == 0o600 && file.mode <= 0o7777, "{:o}", file.mode);
    assert!(file.modified_at.is_some());
    assert_eq!(handle.list_dir("/tmp/dir").await.unwrap(), [file]);
    let dir = handle.stat("/tmp/dir", FileOptions::default()).await.unwrap();
    assert_eq!((dir.name.as_str(), dir.file_type), ("dir", FileType::Directory));
}

/// A rename moves the content, makes the parents of the destination and replaces a file there.
pub async fn a_rename_moves_files_and_directories(stage: &Stage) {
    let handle = stage.create("one").await;
    handle.write_bytes("/tmp/from/file", "x").await.unwrap();
    let moved = handle.rename("/tmp/from/file", "/tmp/to/deep/file", FileOptions::default()).await.unwrap();
    assert_eq!(moved.path, "/tmp/to/deep/file");
    assert_eq!(handle.read_text("/tmp/to/deep/file").await.unwrap(), "x");
    assert!(!handle.exists("/tmp/from/file").await.unwrap());
    handle.rename("/tmp/to", "/tmp/third", FileOptions::default()).await.unwrap();
    assert_eq!(handle.read_text("/tmp/third/deep/file").await.unwrap(), "x");
    assert!(!handle.exists("/tmp/to").await.unwrap());
    handle.write_bytes("/tmp/old", "old").await.unwrap();
    handle.rename("/tmp/third/deep/file", "/tmp/old", FileOptions::default()).await.unwrap();
    assert_eq!(handle.read_text("/tmp/old").await.unwrap(), "x");
}

/// A remove takes a directory with all that is in it; what is missing needs no removal.
pub async fn a_remove_takes_everything_and_a_missing_one_is_fine(stage: &Stage) {
    let handle = stage.create("one").await;
    handle.write_bytes("/tmp/dir/a/b", "x").await.unwrap();
    handle.write_bytes("/tmp/file", "x").await.unwrap();
    for path in ["/tmp/dir", "/tmp/dir", "/tmp/file", "/tmp/never/was"] {
        handle.remove(path, FileOptions::default()).await.unwrap();
        assert!(!handle.exists(path).await.unwrap(), "{path}");
    }
}

/// A directory is made with its parents, once.
pub async fn make_dir_makes_parents_and_says_when_it_is_there(stage: &Stage) {
    let handle = stage.create("one").await;
    let made = handle.make_dir("/tmp/x/y/z", FileOptions::default()).await.unwrap();
    assert_eq!((made.path.as_str(), made.file_type), ("/tmp/x/y/z", FileType::Directory));
    let again = handle.make_dir("/tmp/x/y/z", FileOptions::default()).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists, "{again}");
    handle.write_bytes("/tmp/file", "x").await.unwrap();
    let over = handle.make_dir("/tmp/file", FileOptions::default()).await.unwrap_err();
    assert_eq!(over.kind(), ErrorKind::InvalidArgument, "{over}");
}

/// What is missing is `not_found`, and never the sandbox.
pub async fn a_missing_path_is_not_found(stage: &Stage) {
    let handle = stage.create("one").await;
    let errors = [
        ("read", handle.read_bytes("/tmp/none").await.map(drop).unwrap_err()),
        ("stat", handle.stat("/tmp/none", FileOptions::default()).await.map(drop).unwrap_err()),
        ("list", handle.list_dir("/tmp/none").await.map(drop).unwrap_err()),
        ("rename", handle.rename("/tmp/none", "/tmp/x", FileOptions::default()).await.map(drop).unwrap_err()),
    ];
    for (call, error) in errors {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{call}: {error}");
    }
}

/// A directory has no content and a file no entries.
pub async fn a_path_of_the_wrong_type_is_invalid_argument(stage: &Stage) {
    let handle = stage.create("one").await;
    handle.write_bytes("/tmp/dir/file", "x").await.unwrap();
    let errors = [
        ("read", handle.read_bytes("/tmp/dir").await.map(drop).unwrap_err()),
        ("write", handle.write_bytes("/tmp/dir", "x").await.map(drop).unwrap_err()),
        ("list", handle.list_dir("/tmp/dir/file").await.map(drop).unwrap_err()),
    ];
    for (call, error) in errors {
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{call}: {error}");
    }
}

/// Pairs given at the write are kept with the file until the next write.
pub async fn file_metadata_is_kept_until_the_next_write(stage: &Stage) {
    let handle = stage.create("one").await;
    let options = WriteOptions::default().with_metadata("source", "upload").with_metadata("kind", "text");
    let expected = options.metadata.clone();
    handle.write("/tmp/file", ByteStream::from_bytes("x"), options).await.unwrap();
    let stat = |path| handle.stat(path, FileOptions::default());
    assert_eq!(stat("/tmp/file").await.unwrap().metadata, expected);
    handle.rename("/tmp/file", "/tmp/moved", FileOptions::default()).await.unwrap();
    assert_eq!(stat("/tmp/moved").await.unwrap().metadata, expected);
    handle.write_bytes("/tmp/moved", "y").await.unwrap();
    assert!(stat("/tmp/moved").await.unwrap().metadata.is_empty());
}

/// A user that does not exist may do nothing.
pub async fn a_file_call_as_an_unknown_user_is_unauthenticated(stage: &Stage) {
    let handle = stage.create("one").await;
    let error = handle.stat("/tmp", FileOptions::default().with_user("nobody-at-all")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
}
