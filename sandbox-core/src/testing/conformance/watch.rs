//! Rules about watching directories.

use super::{Stage, within};
use crate::{
    ErrorKind, FileOptions, ResultStream, SandboxHandleExt, WatchEvent, WatchEventKind, WatchOptions,
};

/// Reads events until this one comes; returns all that were read.
async fn until(events: &mut ResultStream<WatchEvent>, kind: WatchEventKind, name: &str) -> Vec<WatchEvent> {
    within(&format!("the event {kind:?} of {name:?} comes"), async {
        let mut seen = Vec::new();
        loop {
            let event = events.next().await.expect("the watch goes on").unwrap();
            let found = event.kind == kind && event.name == name;
            seen.push(event);
            if found {
                return seen;
            }
        }
    })
    .await
}

/// A watch is in force when the call returns: what happens next is seen.
pub async fn a_watch_sees_creates_writes_renames_and_removes(stage: &Stage) {
    let handle = stage.create("one").await;
    handle.make_dir("/tmp/watched", FileOptions::default()).await.unwrap();
    let mut events = handle.watch("/tmp/watched", WatchOptions::default()).await.unwrap();
    handle.write_bytes("/tmp/watched/a", "1").await.unwrap();
    until(&mut events, WatchEventKind::Create, "a").await;
    handle.write_bytes("/tmp/watched/a", "2").await.unwrap();
    until(&mut events, WatchEventKind::Write, "a").await;
    handle.rename("/tmp/watched/a", "/tmp/watched/b", FileOptions::default()).await.unwrap();
    until(&mut events, WatchEventKind::Rename, "a").await;
    until(&mut events, WatchEventKind::Create, "b").await;
    handle.remove("/tmp/watched/b", FileOptions::default()).await.unwrap();
    until(&mut events, WatchEventKind::Remove, "b").await;
    handle.make_dir("/tmp/watched/dir", FileOptions::default()).await.unwrap();
    until(&mut events, WatchEventKind::Create, "dir").await;
}

/// A watch that is not recursive is silent about what is below.
pub async fn a_plain_watch_does_not_see_what_is_below(stage: &Stage) {
    let handle = stage.create("one").await;
    handle.make_dir("/tmp/watched/sub", FileOptions::default()).await.unwrap();
    let mut events = handle.watch("/tmp/watched", WatchOptions::default()).await.unwrap();
    handle.write_bytes("/tmp/watched/sub/below", "x").await.unwrap();
    handle.write_bytes("/tmp/watched/end", "x").await.unwrap();
    let seen = until(&mut events, WatchEventKind::Create, "end").await;
    assert!(seen.iter().all(|event| !event.name.contains("below")), "{seen:?}");
}

/// A recursive watch sees what is below, also in directories that appear later.
pub async fn a_recursive_watch_sees_new_directories(stage: &Stage) {
    let handle = stage.create("one").await;
    handle.make_dir("/tmp/watched/old", FileOptions::default()).await.unwrap();
    let mut events = handle.watch("/tmp/watched", WatchOptions::default().recursive()).await.unwrap();
    handle.write_bytes("/tmp/watched/old/file", "x").await.unwrap();
    until(&mut events, WatchEventKind::Create, "old/file").await;
    handle.make_dir("/tmp/watched/new", FileOptions::default()).await.unwrap();
    until(&mut events, WatchEventKind::Create, "new").await;
    handle.write_bytes("/tmp/watched/new/file", "x").await.unwrap();
    until(&mut events, WatchEventKind::Create, "new/file").await;
}

/// What is made together with a new directory is not lost between the two.
pub async fn a_recursive_watch_sees_files_made_at_once_with_their_directory(stage: &Stage) {
    let handle = stage.create("one").await;
    handle.make_dir("/tmp/watched", FileOptions::default()).await.unwrap();
    let mut events = handle.watch("/tmp/watched", WatchOptions::default().recursive()).await.unwrap();
    handle.write_bytes("/tmp/watched/x/y/z/file", "x").await.unwrap();
    until(&mut events, WatchEventKind::Create, "x/y/z/file").await;
}

/// Events carry the facts of their entry where asked for, and else not.
pub async fn events_carry_entries_where_asked_for(stage: &Stage) {
    let handle = stage.create("one").await;
    handle.make_dir("/tmp/watched", FileOptions::default()).await.unwrap();
    let mut with = handle.watch("/tmp/watched", WatchOptions::default().with_entries()).await.unwrap();
    let mut without = handle.watch("/tmp/watched", WatchOptions::default()).await.unwrap();
    handle.write_bytes("/tmp/watched/file", "12345").await.unwrap();
    let seen = until(&mut with, WatchEventKind::Create, "file").await;
    let entry = seen.last().and_then(|event| event.entry.as_ref()).expect("an entry");
    assert_eq!((entry.name.as_str(), entry.path.as_str()), ("file", "/tmp/watched/file"));
    let seen = until(&mut without, WatchEventKind::Create, "file").await;
    assert!(seen.iter().all(|event| event.entry.is_none()), "{seen:?}");
}

/// Only directories that are there can be watched.
pub async fn a_watch_of_a_missing_or_wrong_path_is_refused(stage: &Stage) {
    let handle = stage.create("one").await;
    handle.write_bytes("/tmp/file", "x").await.unwrap();
    for (path, kind) in [("/tmp/none", ErrorKind::NotFound), ("/tmp/file", ErrorKind::InvalidArgument)] {
        let error = handle.watch(path, WatchOptions::default()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{path}: {error}");
    }
}
