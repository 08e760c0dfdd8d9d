//! `/files` over a real socket, with exact status codes, headers and bodies.

#![cfg(feature = "daemon")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests are tests")]

mod support;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use sandhold_envd::UserMode;
use serde_json::{Value, json};
use support::{Answer, Running, Wire, ask};

const RAW: (&str, &str) = ("Content-Type", "application/octet-stream");

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn encode(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

async fn get(running: &Running, path: &Path, headers: &[(&str, &str)]) -> Answer {
    ask(running.address, &format!("GET /files?path={}", encode(text(path))), headers, b"").await
}

async fn put(running: &Running, path: &Path, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let headers: Vec<_> = headers.iter().copied().chain([RAW]).collect();
    ask(running.address, &format!("POST /files?path={}", encode(text(path))), &headers, body).await
}

async fn form(running: &Running, query: &str, parts: &[(&str, &str, &[u8])]) -> Answer {
    let mut body = Vec::new();
    for (name, filename, data) in parts {
        let head = format!(
            "--BoUnD\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"{filename}\"\r\n\r\n"
        );
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(data);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(b"--BoUnD--\r\n");
    let headers = [("Content-Type", "multipart/form-data; boundary=BoUnD")];
    ask(running.address, &format!("POST /files{query}"), &headers, &body).await
}

fn assert_error(answer: &Answer, status: u16) {
    assert_eq!(answer.status, status, "{}", String::from_utf8_lossy(&answer.body));
    assert_eq!(answer.header("content-type"), Some("application/json; charset=utf-8"));
    assert_eq!(answer.json()["code"], status);
    assert!(answer.json()["message"].is_string());
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

fn gunzip(data: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::new();
    flate2::read::GzDecoder::new(data).read_to_end(&mut decoded).unwrap();
    decoded
}

/// Bytes without a pattern that a mistake could hide in.
fn noise(length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(7);
    std::iter::repeat_with(|| random.u8(..)).take(length).collect()
}

#[tokio::test]
async fn a_download_has_the_headers_of_a_plain_file() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a b.txt");
    fs::write(&file, "hello").unwrap();
    let time = std::time::UNIX_EPOCH + Duration::from_millis(1_700_000_000_900);
    fs::File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
    for method in ["GET", "HEAD"] {
        let line = format!("{method} /files?path={}", encode(text(&file)));
        let mut wire = Wire::open(running.address).await;
        wire.send(support::request(&line, &[], b"")).await;
        let answer = if method == "HEAD" { wire.head().await } else { wire.answer().await };
        assert_eq!(answer.status, 200);
        assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(answer.header("content-length"), Some("5"));
        assert_eq!(answer.header("content-disposition"), Some("inline; filename=\"a b.txt\""));
        assert_eq!(answer.header("last-modified"), Some("Tue, 14 Nov 2023 22:13:20 GMT"));
        assert_eq!(answer.header("vary"), Some("Accept-Encoding"));
        assert_eq!(answer.header("accept-ranges"), Some("bytes"));
        assert_eq!(answer.body, if method == "HEAD" { b"".to_vec() } else { b"hello".to_vec() });
        // The connection is in step: the next request on it is answered.
        wire.send(support::request("GET /health", &[], b"")).await;
        assert_eq!(wire.head().await.status, 204);
    }
}

#[tokio::test]
async fn an_empty_file_keeps_its_content_length_and_gzip_of_it_is_valid() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("empty");
    fs::write(&file, "").unwrap();
    let answer = get(&running, &file, &[]).await;
    assert_eq!((answer.status, answer.header("content-length")), (200, Some("0")));
    let answer = get(&running, &file, &[("Accept-Encoding", "gzip")]).await;
    assert_eq!(answer.header("content-encoding"), Some("gzip"));
    assert_eq!(gunzip(&answer.body), b"");
}

#[tokio::test]
async fn files_of_every_size_come_back_as_they_are_with_and_without_gzip() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("data.bin");
    const CHUNK: usize = 512 * 1024;
    for size in [1, 4095, 4096, 4097, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 5_000_001] {
        let data = noise(size);
        fs::write(&file, &data).unwrap();
        let answer = get(&running, &file, &[]).await;
        assert_eq!(answer.header("content-length"), Some(size.to_string().as_str()));
        assert!(answer.complete && answer.body == data, "{size}");
        let answer = get(&running, &file, &[("Accept-Encoding", "gzip, deflate")]).await;
        assert_eq!(answer.header("content-length"), None);
        assert!(answer.complete && gunzip(&answer.body) == data, "{size}");
    }
}

#[tokio::test]
async fn kernel_files_are_read_to_their_end_whatever_size_they_claim() {
    let running = support::start(|config| config).await;
    let version = Path::new("/proc/version");
    let answer = get(&running, version, &[]).await;
    assert_eq!(answer.body, fs::read(version).unwrap());
    assert_eq!(answer.header("content-length"), Some(answer.body.len().to_string().as_str()));
    let gzipped = get(&running, version, &[("Accept-Encoding", "gzip")]).await;
    assert_eq!(gunzip(&gzipped.body), answer.body);
    // Says 4096 and holds less.
    let size = Path::new("/sys/kernel/mm/transparent_hugepage/enabled");
    if size.exists() {
        assert_eq!(get(&running, size, &[]).await.body, fs::read(size).unwrap());
    } else {
        println!("skipped: needs {size:?}");
    }
}

#[tokio::test]
async fn a_range_is_served_alone_and_an_impossible_one_refused() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("data.bin");
    let data = noise(2_000_000);
    fs::write(&file, &data).unwrap();
    for (range, part) in [
        ("bytes=0-0", 0..1),
        ("bytes=100-199", 100..200),
        ("bytes=0-1999999", 0..2_000_000),
        ("bytes=1500000-", 1_500_000..2_000_000),
        ("bytes=-7", 1_999_993..2_000_000),
        ("bytes=524287-524288", 524_287..524_289),
        ("bytes=1999999-3000000", 1_999_999..2_000_000),
    ] {
        let answer = get(&running, &file, &[("Range", range), ("Accept-Encoding", "gzip")]).await;
        assert_eq!(answer.status, 206, "{range}");
        let told = format!("bytes {}-{}/2000000", part.start, part.end - 1);
        assert_eq!(answer.header("content-range"), Some(told.as_str()));
        assert_eq!(answer.header("content-encoding"), None);
        assert!(answer.body == data[part], "{range}");
    }
    let answer = get(&running, &file, &[("Range", "bytes=2000000-")]).await;
    assert_error(&answer, 416);
    assert_eq!(answer.header("content-range"), Some("bytes */2000000"));
    let several = get(&running, &file, &[("Range", "bytes=0-1,5-6")]).await;
    assert_eq!((several.status, several.body == data), (200, true));
}

#[tokio::test]
async fn conditions_save_the_body() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    fs::write(&file, "hello").unwrap();
    let modified = get(&running, &file, &[]).await.header("last-modified").unwrap().to_owned();
    let answer = get(&running, &file, &[("If-Modified-Since", &modified)]).await;
    assert_eq!((answer.status, answer.body.len()), (304, 0));
    let past = "Mon, 01 Jan 2001 00:00:00 GMT";
    let answer = get(&running, &file, &[("If-Modified-Since", past), ("Accept-Encoding", "gzip")]).await;
    assert_eq!((answer.status, answer.body.as_slice()), (200, b"hello".as_slice()));
    assert_error(&get(&running, &file, &[("If-Unmodified-Since", past)]).await, 412);
    let stale = get(&running, &file, &[("If-Range", past), ("Range", "bytes=0-0")]).await;
    assert_eq!((stale.status, stale.body.len()), (200, 5));
    let fresh = get(&running, &file, &[("If-Range", &modified), ("Range", "bytes=0-0")]).await;
    assert_eq!((fresh.status, fresh.body.len()), (206, 1));
}

#[tokio::test]
async fn what_cannot_be_downloaded_is_refused_and_never_waited_for() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    assert_error(&get(&running, &dir.path().join("no"), &[]).await, 404);
    assert_error(&get(&running, dir.path(), &[]).await, 400);
    assert_error(&get(&running, Path::new("~nobody/x"), &[]).await, 400);
    assert_error(&get(&running, Path::new("/a\0b"), &[]).await, 400);
    let file = dir.path().join("f");
    fs::write(&file, "").unwrap();
    assert_error(&get(&running, &file, &[("Accept-Encoding", "identity;q=0")]).await, 406);
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)
        .unwrap();
    assert_error(&get(&running, &pipe, &[]).await, 400);
    assert_error(&put(&running, &pipe, &[], b"x").await, 409);
    assert_error(&ask(running.address, "PUT /files?path=/tmp/x", &[], b"").await, 405);
}

#[tokio::test]
async fn a_raw_upload_makes_parents_and_answers_the_exact_entry() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a/b/say %22hi%22.txt");
    let answer = put(&running, &file, &[], b"hello").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json(), json!([{ "path": text(&file), "name": "say %22hi%22.txt", "type": "file" }]));
    assert_eq!(fs::read_to_string(&file).unwrap(), "hello");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
    let empty = dir.path().join("empty");
    assert_eq!(put(&running, &empty, &[], b"").await.status, 200);
    assert_eq!(fs::metadata(&empty).unwrap().len(), 0);
}

#[tokio::test]
async fn uploads_of_every_size_replace_new_and_existing_files_in_the_same_inode() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    for size in [0, 1, 262_143, 262_144, 262_145, 524_288, 3_000_001] {
        let data = noise(size);
        let fresh = dir.path().join(format!("fresh-{size}"));
        assert_eq!(put(&running, &fresh, &[], &data).await.status, 200);
        assert!(fs::read(&fresh).unwrap() == data, "{size}");

        for old in [0, 10, 1_000_000] {
            let existing = dir.path().join(format!("existing-{size}-{old}"));
            fs::write(&existing, noise(old)).unwrap();
            fs::hard_link(&existing, dir.path().join(format!("link-{size}-{old}"))).unwrap();
            let inode = fs::metadata(&existing).unwrap().ino();
            assert_eq!(put(&running, &existing, &[], &data).await.status, 200);
            assert!(fs::read(&existing).unwrap() == data, "{size} over {old}");
            assert_eq!(fs::metadata(&existing).unwrap().ino(), inode);
            assert_eq!(fs::metadata(&existing).unwrap().nlink(), 2);
        }
    }
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_str().unwrap().starts_with('.')), "{left:?}");
}

#[tokio::test]
async fn an_upload_through_a_link_writes_its_target() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("real"), "old").unwrap();
    symlink("real", dir.path().join("link")).unwrap();
    symlink("made", dir.path().join("dangling")).unwrap();
    let data = noise(600_000);
    assert_eq!(put(&running, &dir.path().join("link"), &[], &data).await.status, 200);
    assert!(fs::read(dir.path().join("real")).unwrap() == data);
    assert_eq!(put(&running, &dir.path().join("dangling"), &[], b"x").await.status, 200);
    assert_eq!(fs::read(dir.path().join("made")).unwrap(), b"x");
    assert!(dir.path().join("link").is_symlink() && dir.path().join("dangling").is_symlink());
}

#[tokio::test]
async fn uploads_to_one_path_at_once_do_not_mix() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    for (name, there) in [("new", false), ("existing", true)] {
        // Held in memory, and long enough not to be.
        for sizes in [[250_000, 200_000], [3_000_000, 2_000_000], [3_000_000, 100_000]] {
            let file = dir.path().join(format!("{name}-{}-{}", sizes[0], sizes[1]));
            if there {
                fs::write(&file, noise(4_000_000)).unwrap();
            }
            let bodies: Vec<Vec<u8>> =
                (0..16).map(|number| vec![number; sizes[usize::from(number) % 2]]).collect();
            // All of them have begun before the first one ends.
            let mut wires = Vec::new();
            for body in &bodies {
                wires.push(begin(&running, &file, body.len(), &body[..body.len() - 1]).await);
            }
            let ends: Vec<_> = wires
                .into_iter()
                .zip(&bodies)
                .map(|(mut wire, body)| {
                    let last = body[body.len() - 1..].to_vec();
                    tokio::spawn(async move {
                        wire.send(last).await;
                        wire.answer().await.status
                    })
                })
                .collect();
            for end in ends {
                assert_eq!(end.await.unwrap(), 200);
            }
            let found = fs::read(&file).unwrap();
            assert!(bodies.contains(&found), "{}: {} bytes of several", file.display(), found.len());
        }
    }
}

fn pipe(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_to_a_pipe_reaches_a_slow_reader_whole() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe");
    pipe(&path);
    let data = noise(1_000_000);
    let reader = tokio::task::spawn_blocking({
        let path = path.clone();
        move || fs::read(path).unwrap()
    });
    // Until the reader has opened it there is none.
    loop {
        let answer = put(&running, &path, &[], &data).await;
        if answer.status == 200 {
            break;
        }
        assert_error(&answer, 409);
    }
    assert!(reader.await.unwrap() == data);
}

#[tokio::test]
async fn uploads_to_pipes_that_nobody_reads_keep_nobody_else_waiting() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    // Open on both sides, and never read: more of them than a daemon has threads for what blocks.
    let mut held = Vec::new();
    let mut wires = Vec::new();
    let data = noise(100_000);
    for number in 0..512 {
        let path = dir.path().join(format!("pipe-{number}"));
        pipe(&path);
        held.push(fs::OpenOptions::new().read(true).write(true).open(&path).unwrap());
        wires.push(begin(&running, &path, data.len(), &data).await);
    }
    let (send, mut refused) = tokio::sync::mpsc::unbounded_channel();
    for mut wire in wires {
        let send = send.clone();
        tokio::spawn(async move { send.send(wire.answer().await) });
    }
    // Some have the patience of an upload; the others get an answer at once.
    for _ in 0..512 - 16 {
        assert_error(&refused.recv().await.unwrap(), 409);
    }
    let file = dir.path().join("file");
    assert_eq!(put(&running, &file, &[], &data).await.status, 200);
    assert!(get(&running, &file, &[]).await.body == data);
}

#[tokio::test]
async fn whoever_prefers_it_is_told_everything_about_a_file_in_the_answer_to_its_upload() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    for size in [0, 5, 300_000] {
        let plain = put(&running, &file, &[], &noise(size)).await.json();
        assert_eq!(plain, json!([{ "path": text(&file), "name": "file", "type": "file" }]));
        let preferred = [("prefer", "return=representation"), ("x-metadata-a", "b")];
        let told = put(&running, &file, &preferred, &noise(size)).await.json();
        let entry = &told[0]["entry"];
        assert_eq!((&told[0]["path"], &entry["path"]), (&json!(text(&file)), &json!(text(&file))));
        assert_eq!((&entry["type"], &entry["permissions"]), (&json!("FILE_TYPE_FILE"), &json!("-rw-r--r--")));
        // 64 bits are text in this JSON, and zero is left out.
        let told = entry["size"].as_str().map_or(0, |size| size.parse().unwrap());
        assert_eq!((told, &entry["metadata"]), (size, &json!({ "a": "b" })));
    }
}

#[tokio::test]
async fn an_upload_to_a_device_goes_through() {
    let running = support::start(|config| config).await;
    for size in [3, 1_000_000] {
        assert_eq!(put(&running, Path::new("/dev/null"), &[], &noise(size)).await.status, 200);
    }
}

#[tokio::test]
async fn a_form_names_its_files_and_other_parts_are_ignored() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| text(&dir.path().join(name)).to_owned();
    let (one, two) = (at("one"), at("sub/two"));
    let big = noise(700_000);
    let answer =
        form(&running, "", &[("file", &one, b"1"), ("note", "x", b"no"), ("file", &two, &big)]).await;
    assert_eq!(
        answer.json(),
        json!([
            { "path": one, "name": "one", "type": "file" },
            { "path": two, "name": "two", "type": "file" },
        ])
    );
    assert!(fs::read(&two).unwrap() == big);
    let query = format!("?path={}", encode(&at("three")));
    let answer = form(&running, &query, &[("file", "ignored", b"3")]).await;
    assert_eq!(answer.json()[0]["path"], at("three"));
    assert_eq!(form(&running, "", &[("note", "x", b"")]).await.json(), json!([]));
}

#[tokio::test]
async fn the_same_path_twice_in_a_form_is_refused_after_the_first() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let path = text(&dir.path().join("f")).to_owned();
    let answer = form(&running, "", &[("file", &path, b"first"), ("file", &path, b"second")]).await;
    assert_error(&answer, 400);
    assert_eq!(fs::read(&path).unwrap(), b"first");
}

#[tokio::test]
async fn uploads_that_make_no_sense_are_refused_and_touch_nothing() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    let line = format!("POST /files?path={}", encode(text(&file)));
    for headers in [
        vec![],
        vec![("Content-Type", "text/plain")],
        vec![("Content-Type", "multipart/form-data")],
        vec![RAW, ("Content-Encoding", "br")],
        vec![RAW, ("Content-Encoding", "gzip")],
        vec![RAW, ("X-Metadata-K", "a\tb")],
        vec![("Content-Type", "multipart/form-data; boundary=x")],
    ] {
        assert_error(&ask(running.address, &line, &headers, b"not gzip, no form").await, 400);
    }
    assert_error(&ask(running.address, "POST /files", &[RAW], b"x").await, 400);
    assert_error(&put(&running, dir.path(), &[], b"x").await, 400);
    assert_error(&put(&running, Path::new("~nobody/f"), &[], b"x").await, 400);
    assert!(!file.exists());
}

#[tokio::test]
async fn a_gzip_body_is_decoded_in_every_kind_of_upload() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    let data = noise(900_000);
    let two_members = [gzip(&data[..400_000]), gzip(&data[400_000..])].concat();
    let answer = put(&running, &file, &[("Content-Encoding", "gzip")], &two_members).await;
    assert_eq!(answer.status, 200);
    assert!(fs::read(&file).unwrap() == data);
    let cut = put(&running, &file, &[("Content-Encoding", "gzip")], &gzip(&data)[..500_000]).await;
    assert_error(&cut, 400);
    assert!(fs::read(&file).unwrap() == data, "the old content stays");
    assert_eq!(put(&running, &file, &[("Content-Encoding", "identity")], b"x").await.status, 200);
    let body = gzip(
        format!(
            "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{}\"\r\n\r\nok\r\n--B--",
            text(&file)
        )
        .as_bytes(),
    );
    let headers = [("Content-Type", "multipart/form-data; boundary=B"), ("Content-Encoding", "gzip")];
    assert_eq!(ask(running.address, "POST /files", &headers, &body).await.status, 200);
    assert_eq!(fs::read(&file).unwrap(), b"ok");
}

#[tokio::test]
async fn metadata_is_replaced_by_every_upload() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    let answer = put(&running, &file, &[("X-Metadata-Author", "me"), ("x-metadata-b", "2")], b"1").await;
    assert_eq!(answer.json()[0]["metadata"], json!({ "author": "me", "b": "2" }));
    let mut value = [0; 8];
    match rustix::fs::getxattr(&file, "user.e2b.author", &mut value) {
        Ok(length) => assert_eq!(&value[..length], b"me"),
        Err(rustix::io::Errno::NOTSUP) => {
            println!("skipped: needs a file system with user attributes");
            return;
        }
        Err(error) => panic!("{error}"),
    }
    put(&running, &file, &[("X-Metadata-B", "3")], b"1").await;
    let stat = ask(
        running.address,
        "POST /filesystem.Filesystem/Stat",
        &[("Content-Type", "application/json")],
        json!({ "path": text(&file) }).to_string().as_bytes(),
    )
    .await
    .json();
    assert_eq!(stat["entry"]["metadata"], json!({ "b": "3" }));
    let cleared = put(&running, &file, &[], b"1").await.json();
    assert_eq!(cleared[0].get("metadata"), None);
    assert!(rustix::fs::getxattr(&file, "user.e2b.b", &mut value).is_err());
}

#[tokio::test]
async fn uploads_belong_to_the_user_and_unknown_users_are_refused() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    let running = support::start(|config| config.with_user_mode(UserMode::SetId)).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("d/f");
    let line = format!("POST /files?username=nobody&path={}", encode(text(&file)));
    for size in [1, 400_000] {
        assert_eq!(ask(running.address, &line, &[RAW], &noise(size)).await.status, 200);
        let stat = fs::metadata(&file).unwrap();
        assert_eq!((stat.uid(), stat.gid()), (65534, 65534));
    }
    assert_eq!(fs::metadata(dir.path().join("d")).unwrap().uid(), 65534);
    for method in ["GET", "POST"] {
        let line = format!("{method} /files?username=no-such-user&path=/tmp/x");
        assert_error(&ask(running.address, &line, &[RAW], b"").await, 401);
    }
}

/// Begins an upload with a length, sends a part of it, and returns the connection.
async fn begin(running: &Running, path: &Path, length: usize, sent: &[u8]) -> Wire {
    let mut wire = Wire::open(running.address).await;
    let head = format!(
        "POST /files?path={} HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n\
         Content-Length: {length}\r\n\r\n",
        encode(text(path))
    );
    wire.send(head).await;
    wire.send(sent).await;
    wire
}

/// Connections that the daemon serves, as its `Debug` text tells.
fn connections(running: &Running) -> usize {
    let told = format!("{:?}", running.daemon);
    let (_, rest) = told.split_once("connections: ").unwrap();
    // One receiver is that of the listener.
    rest[..rest.find(',').unwrap()].parse::<usize>().unwrap() - 1
}

async fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while !check() {
        assert!(tokio::time::Instant::now() < deadline, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_broken_upload_leaves_no_new_file_and_the_old_content_of_an_existing_one() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let (fresh, existing) = (dir.path().join("new/fresh"), dir.path().join("existing"));
    fs::write(&existing, "precious").unwrap();
    let sent = noise(2_000_000);

    let staged = || {
        fs::read_dir("/proc/self/fd").unwrap().flatten().any(|fd| {
            let target = fs::read_link(fd.path()).unwrap_or_default();
            target.starts_with(dir.path()) && text(&target).ends_with("(deleted)")
        })
    };
    let wire = begin(&running, &fresh, 3_000_000, &sent).await;
    eventually("the content is staged", staged).await;
    assert!(!fresh.exists(), "half a file has no name");
    drop(wire);
    eventually("the staged content goes", || !staged()).await;
    assert!(!fresh.exists());

    let wire = begin(&running, &existing, 3_000_000, &sent).await;
    eventually("the content is staged", staged).await;
    assert_eq!(fs::read_to_string(&existing).unwrap(), "precious");
    drop(wire);
    eventually("the staged content goes", || !staged()).await;
    assert_eq!(fs::read_to_string(&existing).unwrap(), "precious");

    for path in [&fresh, &existing] {
        let wire = begin(&running, path, 100, b"short").await;
        drop(wire);
    }
    // Once the daemon closed its side of them, nothing of the short ones can be written any more.
    eventually("the connections end", || connections(&running) == 0).await;
    assert!(!fresh.exists());
    assert_eq!(fs::read_to_string(&existing).unwrap(), "precious");
}

#[tokio::test]
async fn a_stalled_upload_fails_at_the_idle_limit_and_a_slow_one_does_not() {
    let idle = Duration::from_secs(2);
    let running = support::start(|config| config.with_upload_idle(idle)).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");

    let mut stalled = begin(&running, &file, 1_000_000, &noise(500_000)).await;
    let answer = stalled.answer().await;
    assert_error(&answer, 408);
    eventually("the half file goes", || !file.exists()).await;

    // Slow but steady: longer than the limit all in all, but never silent for as long.
    let mut slow = begin(&running, &file, 30, b"").await;
    let mut pace = tokio::time::interval(idle / 20);
    for _ in 0..30 {
        pace.tick().await;
        slow.send(b"x").await;
    }
    assert_eq!(slow.answer().await.status, 200);
    assert_eq!(fs::read(&file).unwrap(), [b'x'; 30]);
}

#[tokio::test]
async fn a_full_disk_is_507_and_keeps_the_old_content() {
    let dir = tempfile::tempdir().unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .arg(dir.path())
        .output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        println!("skipped: needs the right to mount a tmpfs");
        return;
    }
    let running = support::start(|config| config).await;
    let (existing, fresh) = (dir.path().join("existing"), dir.path().join("fresh"));
    fs::write(&existing, noise(500_000)).unwrap();
    let answers = [
        put(&running, &existing, &[], &noise(3_000_000)).await,
        put(&running, &fresh, &[], &noise(3_000_000)).await,
        form(&running, "", &[("file", text(&fresh), &noise(3_000_000))]).await,
    ];
    let kept = fs::read(&existing).unwrap() == noise(500_000);
    let gone = !fresh.exists();
    fs::write(dir.path().join("filler"), noise(400_000)).unwrap();
    fs::write(dir.path().join("small"), "precious").unwrap();
    let short = put(&running, &dir.path().join("small"), &[], &noise(250_000)).await;
    let small = fs::read_to_string(dir.path().join("small")).unwrap();
    std::process::Command::new("umount").arg("-l").arg(dir.path()).status().unwrap();
    for answer in answers.iter().chain([&short]) {
        assert_error(answer, 507);
    }
    assert!(kept && gone);
    assert_eq!(small, "precious");
}

#[tokio::test]
async fn a_signature_opens_one_file_for_one_operation_and_errors_have_exact_bodies() {
    use base64::Engine;
    use sha2::Digest;
    let running = support::start(|config| config.with_access_token("secret")).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("f");
    fs::write(&file, "hello").unwrap();
    let sign = |operation: &str, user: &str, expiration: Option<i64>| {
        let mut covered = format!("{}:{operation}:{user}:secret", text(&file));
        let mut query = format!("path={}&username={user}", encode(text(&file)));
        if let Some(expiration) = expiration {
            covered.push_str(&format!(":{expiration}"));
            query.push_str(&format!("&signature_expiration={expiration}"));
        }
        let hash = base64::engine::general_purpose::STANDARD_NO_PAD.encode(sha2::Sha256::digest(covered));
        format!("{query}&signature={}", encode(&format!("v1_{hash}")))
    };
    let read = async |query: &str| ask(running.address, &format!("GET /files?{query}"), &[], b"").await;
    assert_eq!(read(&sign("read", "", None)).await.body, b"hello");
    // An ordinary user's daemon knows that user alone.
    let myself = std::process::Command::new("id").arg("-un").output().unwrap().stdout;
    let myself = String::from_utf8(myself).unwrap();
    assert_eq!(read(&sign("read", myself.trim(), Some(4_000_000_000))).await.status, 200);
    let write = format!("POST /files?{}", sign("write", "", None));
    assert_eq!(ask(running.address, &write, &[RAW], b"new").await.status, 200);

    let refused = |message: &str| json!({ "code": 401, "message": message });
    let body = |answer: Answer| -> Value { answer.json() };
    assert_eq!(body(read(&sign("read", "", Some(1))).await), refused("signature is already expired"));
    assert_eq!(body(read(&sign("write", "", None)).await), refused("invalid signature"));
    let unsigned = format!("path={}", encode(text(&file)));
    assert_eq!(body(read(&unsigned).await), refused("missing signature query parameter"));
    let with = async |token: &str| get(&running, &file, &[("X-Access-Token", token)]).await;
    assert_eq!(with("secret").await.body, b"new");
    assert_error(&with("wrong").await, 401);
    let compose = ask(running.address, "POST /files/compose", &[], b"{}").await;
    assert_error(&compose, 401);
}

async fn compose(running: &Running, request: Value) -> Answer {
    let body = request.to_string();
    ask(running.address, "POST /files/compose", &[("Content-Type", "application/json")], body.as_bytes())
        .await
}

#[tokio::test]
async fn compose_joins_in_order_and_removes_the_sources() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| text(&dir.path().join(name)).to_owned();
    let parts = [noise(300_000), b"middle".to_vec(), Vec::new(), noise(5)];
    for (index, part) in parts.iter().enumerate() {
        fs::write(at(&index.to_string()), part).unwrap();
    }
    let request = json!({ "source_paths": [at("0"), at("1"), at("2"), at("3")], "destination": at("x/out") });
    let answer = compose(&running, request).await;
    assert_eq!(answer.json(), json!({ "path": at("x/out"), "name": "out", "type": "file" }));
    assert!(fs::read(at("x/out")).unwrap() == parts.concat());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "only the new directory is left");
    assert_eq!(fs::read_dir(dir.path().join("x")).unwrap().count(), 1);
}

#[tokio::test]
async fn a_compose_that_cannot_be_done_changes_nothing() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| text(&dir.path().join(name)).to_owned();
    fs::write(at("a"), "a").unwrap();
    for (request, status) in [
        (json!({ "source_paths": [], "destination": at("out") }), 400),
        (json!({ "source_paths": [at("a")] }), 400),
        (json!({ "source_paths": [at("a"), ""], "destination": at("out") }), 400),
        (json!({ "source_paths": [at("a")], "destination": at("a") }), 400),
        (json!({ "source_paths": [at("a"), at("a")], "destination": at("out") }), 400),
        (json!({ "source_paths": [at("a")], "destination": text(dir.path()) }), 400),
        (json!({ "source_paths": [at("a"), text(dir.path())], "destination": at("out") }), 400),
        (json!({ "source_paths": [at("a"), at("no")], "destination": at("out") }), 404),
        (json!("what"), 400),
    ] {
        assert_error(&compose(&running, request).await, status);
    }
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["a"]);
}

#[tokio::test]
async fn a_compose_knows_a_file_by_whatever_way_leads_to_it() {
    let running = support::start(|config| config).await;
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| text(&dir.path().join(name)).to_owned();
    fs::create_dir(at("sub")).unwrap();
    std::os::unix::fs::symlink(dir.path(), at("way")).unwrap();
    fs::write(at("a"), "a").unwrap();
    for (sources, destination) in [
        (vec![at("a")], at("sub/../a")),
        (vec![at("a")], at("new/../a")),
        (vec![at("way/a")], at("a")),
        (vec![at("a"), at("way/a")], at("out")),
    ] {
        let request = json!({ "source_paths": sources, "destination": destination });
        assert_error(&compose(&running, request).await, 400);
        assert_eq!(fs::read_to_string(at("a")).unwrap(), "a");
    }
    // Only once `new` is made does this way lead to the source.
    let request = json!({ "source_paths": [at("a")], "destination": at("way/new/../a") });
    compose(&running, request).await;
    assert_eq!(fs::read_to_string(at("a")).unwrap(), "a");
}
