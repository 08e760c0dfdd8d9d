//! What a volume's content API does with paths that lead elsewhere and with what is no mode.

#![allow(clippy::unwrap_used, reason = "a broken rule panics")]

#[path = "support/building.rs"]
mod building;
#[path = "support/http.rs"]
mod http;
mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use building::{built, run};
use http::{Answer, Box as Sandbox, Request};
use serde_json::json;
use support::Served;

struct Volume {
    server: Served,
    id: String,
    token: String,
}

impl Volume {
    fn make() -> Self {
        let server = Served::start(&[]);
        let made =
            Request::new("POST", "/volumes").key().json(&json!({ "name": "data" })).send(server.address());
        assert_eq!(made.status, 201, "{made:?}");
        let text = |field: &str| made.json()[field].as_str().unwrap().to_owned();
        Self { id: text("volumeID"), token: text("token"), server }
    }

    /// Where its files are on this machine.
    fn files(&self) -> PathBuf {
        self.server.state().join("server/volume-files").join(&self.id).join("data")
    }

    fn ask(&self, method: &str, kind: &str, query: &str, body: &str) -> Answer {
        Request::new(method, &format!("/volumecontent/{}/{kind}?{query}", self.id))
            .header("Authorization", &format!("Bearer {}", self.token))
            .body(body)
            .send(self.server.address())
    }
}

#[test]
fn a_link_is_no_way_out_of_a_volume_and_the_caller_is_told_what_stands_in_the_way() {
    let volume = Volume::make();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("kept"), "kept").unwrap();
    let files = volume.files();
    for (name, target) in [
        ("away", outside.path().to_str().unwrap()),
        ("up", "../../../../../../../../tmp"),
        ("round", "round"),
        ("nowhere", "nothing"),
    ] {
        symlink(target, files.join(name)).unwrap();
        for path in [format!("/{name}/file"), format!("/{name}/deep/file")] {
            let put = volume.ask("PUT", "file", &format!("path={path}"), "x");
            assert_eq!(
                (put.status, &put.json()["code"]),
                (400, &json!("invalid_argument")),
                "{path} {put:?}"
            );
            let made = volume.ask("POST", "dir", &format!("path={path}&force=true"), "");
            assert_eq!(made.status, 400, "{path} {made:?}");
        }
    }
    fs::write(files.join("plain"), "plain").unwrap();
    assert_eq!(volume.ask("PUT", "file", "path=/plain/file", "x").status, 400);
    let long = "n".repeat(300);
    assert_eq!(volume.ask("PUT", "file", &format!("path=/{long}"), "x").status, 400);
    let names = |directory: &std::path::Path| fs::read_dir(directory).unwrap().count();
    assert_eq!(
        (names(outside.path()), fs::read_to_string(outside.path().join("kept")).unwrap()),
        (1, "kept".into())
    );
    // Nothing was left behind, neither among the files nor where they wait.
    assert_eq!((names(&files), names(&files.join("../staging"))), (5, 0));
    // A link inside to a directory inside is a way like any other.
    fs::create_dir(files.join("inner")).unwrap();
    symlink("/inner", files.join("link")).unwrap();
    assert_eq!(volume.ask("PUT", "file", "path=/link/file", "x").status, 201);
    assert_eq!(fs::read_to_string(files.join("inner/file")).unwrap(), "x");
}

#[test]
fn what_is_more_than_permission_bits_is_no_mode() {
    let volume = Volume::make();
    assert_eq!(volume.ask("PUT", "file", "path=/file&mode=384", "x").status, 201);
    let mode = || volume.ask("GET", "path", "path=/file", "").json()["mode"].clone();
    assert_eq!(mode(), 0o600);
    for bad in ["4096", "33188", "4294967295", "4294967296", "99999999999999999999", "-1", "\"640\"", "1.5"] {
        let patched = volume.ask("PATCH", "path", "path=/file", &format!("{{\"mode\":{bad}}}"));
        assert_eq!((patched.status, &patched.json()["code"]), (400, &json!("invalid_argument")), "{bad}");
        let put = volume.ask("PUT", "file", &format!("path=/other&mode={bad}"), "x");
        assert_eq!(put.status, 400, "{bad} {put:?}");
    }
    assert_eq!(mode(), 0o600);
    assert_eq!(volume.ask("PATCH", "path", "path=/file", r#"{"mode":420}"#).json()["mode"], 0o644);
}

#[test]
fn what_is_no_file_has_no_content_and_is_no_failure_of_the_server() {
    let volume = Volume::make();
    let _socket = UnixListener::bind(volume.files().join("socket")).unwrap();
    fs::create_dir(volume.files().join("directory")).unwrap();
    for name in ["socket", "directory"] {
        let path = format!("path=/{name}");
        let read = volume.ask("GET", "file", &path, "");
        assert_eq!((read.status, &read.json()["code"]), (400, &json!("invalid_argument")), "{read:?}");
    }
    assert_eq!(volume.ask("GET", "path", "path=/socket", "").json()["type"], "unknown");
    let changed = volume.ask("PATCH", "path", "path=/socket", r#"{"mode":384}"#);
    assert_eq!((changed.status, &changed.json()["code"]), (400, &json!("invalid_argument")), "{changed:?}");
    assert_eq!(volume.ask("DELETE", "path", "path=/socket", "").status, 204);
}

#[test]
fn a_volume_on_a_file_is_refused_and_leaves_nothing() {
    let volume = Volume::make();
    let at = volume.server.address();
    let body = json!({ "fromTemplate": "base", "steps": [run("touch file && ln -s /tmp link")] });
    assert_eq!(built(at, "with-file", &body).1["status"], "ready");
    for name in ["file", "file/inner", "link"] {
        let path = format!("/home/user/{name}");
        let mounts = json!([{ "name": "data", "path": path }]);
        let asked = json!({ "templateID": "with-file", "volumeMounts": mounts });
        let made = Request::new("POST", "/v2/sandboxes").key().json(&asked).send(at);
        let why = made.json()["message"].as_str().unwrap().to_owned();
        assert!(made.status == 400 && why.contains(&path) && why.contains("is no directory"), "{made:?}");
    }
    assert_eq!(Request::new("GET", "/v2/sandboxes").key().send(at).json(), json!([]));
}

#[test]
fn a_volume_is_not_deleted_under_a_create_that_mounts_it() {
    let server = Served::start(&[]);
    let at = server.address();
    let mounts = json!([{ "name": "shared", "path": "/mnt/shared" }]);
    let asked = json!({ "templateID": "base", "timeout": 600, "volumeMounts": mounts });
    for round in 0..8 {
        let made = Request::new("POST", "/volumes").key().json(&json!({ "name": "shared" })).send(at);
        assert_eq!(made.status, 201, "{made:?}");
        let path = format!("/volumes/{}", made.json()["volumeID"].as_str().unwrap());
        let remove = || Request::new("DELETE", &path).key().send(at);
        let (created, removed) = std::thread::scope(|scope| {
            let create = scope.spawn(|| Request::new("POST", "/v2/sandboxes").key().json(&asked).send(at));
            // Each round a little later in the create.
            for _ in 0..round * 4 {
                assert_eq!(Request::new("GET", "/health").send(at).status, 200);
            }
            let removed = remove();
            (create.join().unwrap(), removed)
        });
        match (created.status, removed.status) {
            (201, 409) => {
                let sandbox = Sandbox::of(at, created.json());
                let pause = sandbox.control("POST", "/pause").json(&json!({ "memory": false })).send(at);
                assert_eq!(pause.status, 204, "{pause:?}");
                let connect = sandbox.control("POST", "/connect").json(&json!({ "timeout": 60 })).send(at);
                assert_eq!(connect.status, 201, "{connect:?}");
                assert_eq!(sandbox.control("DELETE", "").send(at).status, 204);
                assert_eq!(remove().status, 204);
            }
            (400, 204) => assert_eq!(created.json()["message"], "volume 'shared' not found"),
            _ => panic!("{created:?} {removed:?}"),
        }
    }
}

#[test]
fn files_of_a_volume_are_removed_by_its_deletion_alone() {
    let mut volume = Volume::make();
    assert_eq!(volume.ask("PUT", "file", "path=/file", "kept").status, 201);
    let (file, documents) = (volume.files().join("file"), volume.server.state().join("server/volumes"));
    let document = documents.join(&volume.id);
    let text = fs::read(&document).unwrap();
    fs::remove_dir_all(&documents).unwrap();
    volume.server.crash_and_restart();
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
    // With its document it is there again.
    fs::write(&document, text).unwrap();
    volume.server.crash_and_restart();
    assert_eq!(volume.ask("GET", "file", "path=/file", "").text(), "kept");
    // As if a server had died in the middle of its deletion, which the next one ends.
    let files = volume.server.state().join("server/volume-files");
    fs::rename(files.join(&volume.id), files.join(format!("{}.deleted", volume.id))).unwrap();
    volume.server.crash_and_restart();
    assert_eq!(volume.ask("GET", "file", "path=/file", "").status, 404);
    assert!(!document.exists() && fs::read_dir(&files).unwrap().next().is_none());
}
