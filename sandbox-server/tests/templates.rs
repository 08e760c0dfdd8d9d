//! Templates as they stand on the wire, images, and what a killed server leaves of builds.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a broken rule panics")]

#[path = "support/building.rs"]
mod building;
#[path = "support/http.rs"]
mod http;
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use building::{ask, built, run, sandbox};
use http::{Box, Request, read, until};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use support::Served;

/// Makes a small root of this machine's own programs.
fn root_of_programs(root: &Path) {
    let programs = [
        "bash", "cat", "chmod", "chown", "cp", "dirname", "grep", "id", "ls", "mkdir", "mktemp", "mv", "rm",
        "sleep", "stat", "sync", "tar", "tr",
    ];
    for dir in ["usr/bin", "etc", "tmp", "srv"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    symlink("usr/bin", root.join("bin")).unwrap();
    let mut libraries = BTreeSet::new();
    for program in programs {
        let from =
            ["/usr/bin", "/bin"].iter().map(|dir| Path::new(dir).join(program)).find(|path| path.exists());
        let from = from.unwrap_or_else(|| panic!("this machine has no {program}"));
        fs::copy(&from, root.join("usr/bin").join(program)).unwrap();
        let listed = Command::new("ldd").arg(&from).output().unwrap();
        let text = String::from_utf8(listed.stdout).unwrap();
        libraries.extend(text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from));
    }
    for library in libraries {
        let to = root.join(library.strip_prefix("/").unwrap());
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(library, to).unwrap();
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/bash\nwww-data:x:33:33::/srv:/bin/bash\n")
        .unwrap();
}

/// Writes what `docker save` writes, with two layers: programs, and a file of somebody else's with one taken away.
fn save_image(directory: &Path) {
    let root = directory.join(".programs");
    root_of_programs(&root);
    let tar = |fill: &dyn Fn(&mut tar::Builder<Vec<u8>>)| {
        let mut builder = tar::Builder::new(Vec::new());
        builder.follow_symlinks(false);
        fill(&mut builder);
        builder.into_inner().unwrap()
    };
    let below = tar(&|builder| builder.append_dir_all(".", &root).unwrap());
    let above = tar(&|builder| {
        for (path, uid, text) in [("srv/theirs", 33, "theirs"), ("usr/bin/.wh.tr", 0, "")] {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o600);
            header.set_uid(uid);
            header.set_gid(uid);
            builder.append_data(&mut header, path, text.as_bytes()).unwrap();
        }
    });
    // The files of the lower layer belong to whoever runs the test; in an image they are root's.
    let below = owned_by_root(&below);
    let digest = |bytes: &[u8]| format!("sha256:{:x}", Sha256::digest(bytes));
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = json!({
        "architecture": architecture, "os": "linux", "config": { "Env": ["FROM_IMAGE=yes", "PATH=/usr/bin"] },
        "rootfs": { "type": "layers", "diff_ids": [digest(&below), digest(&above)] },
    });
    let manifest = json!([{ "Config": "c.json", "RepoTags": ["programs:1"], "Layers": ["0.tar", "1.tar"] }]);
    let mut archive = tar::Builder::new(fs::File::create(directory.join("saved.tar")).unwrap());
    for (name, bytes) in [
        ("c.json", config.to_string().into_bytes()),
        ("manifest.json", manifest.to_string().into_bytes()),
        ("0.tar", below),
        ("1.tar", above),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, bytes.as_slice()).unwrap();
    }
    archive.finish().unwrap();
}

fn owned_by_root(layer: &[u8]) -> Vec<u8> {
    let mut out = tar::Builder::new(Vec::new());
    for entry in tar::Archive::new(layer).entries().unwrap() {
        let mut entry = entry.unwrap();
        let (path, link) =
            (entry.path().unwrap().into_owned(), entry.link_name().unwrap().map(|link| link.into_owned()));
        let mut header = entry.header().clone();
        header.set_uid(0);
        header.set_gid(0);
        match link {
            Some(link) => out.append_link(&mut header, path, link).unwrap(),
            None => {
                let mut bytes = Vec::new();
                std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
                out.append_data(&mut header, path, bytes.as_slice()).unwrap();
            }
        }
    }
    out.into_inner().unwrap()
}

#[test]
fn sandboxes_are_made_from_images_and_root_directories() {
    let images = tempfile::tempdir().unwrap();
    save_image(images.path());
    root_of_programs(&images.path().join("plain-root"));
    let server = Served::start(&["--images", images.path().to_str().unwrap()]);
    let at = server.address();
    let steps = json!([
        run("stat -c '%U %u %a' /srv/theirs > /srv/seen 2>&1; cat /srv/seen; exit 0"),
        { "type": "RUN", "args": ["stat -c '%u %a' /srv/theirs > /srv/seen; echo \"$FROM_IMAGE\" >> /srv/seen", "root"] },
        { "type": "RUN", "args": ["if [ -e /usr/bin/tr ]; then exit 9; fi; ls /usr/bin | grep -c . >> /srv/seen", "root"] },
        { "type": "RUN", "args": ["chmod 644 /srv/seen", "root"] },
    ]);
    let body = json!({ "fromImage": "programs:1", "steps": steps });
    let (_, end) = built(at, "from-image", &body);
    assert_eq!(end["status"], "ready", "{end}");
    let made = sandbox(at, "from-image");
    let seen = made.read("/srv/seen");
    let tier = fs::read_to_string("/proc/self/uid_map").unwrap();
    let users = if seen.text().starts_with("33 ") { "of their own" } else { "one" };
    println!("owners are {users}, the map here is {tier}");
    if rustix::process::geteuid().is_root() {
        assert_eq!(seen.text(), "33 600\nyes\n17\n");
    } else {
        assert!(seen.text().ends_with(" 600\nyes\n17\n"), "{seen:?}");
    }
    // The ordinary user is there, and nothing of this machine's programs.
    made.write("mine.txt", "mine");
    assert_eq!(made.read("/home/user/mine.txt").text(), "mine");
    assert_eq!(made.read("/usr/bin/python3").status, 404);
    // From the same image again: it is laid down once.
    let (again, end) = built(at, "from-image-again", &body);
    assert_eq!(end["status"], "ready", "{end}");
    let log = again.status(at)["logs"].to_string();
    assert!(log.contains("CACHED [base] image") && log.contains("CACHED [builder 1/4]"), "{log}");

    let body = json!({ "fromImage": "plain-root", "steps": [run("echo yes > made.txt")] });
    let (_, end) = built(at, "from-root", &body);
    assert_eq!(end["status"], "ready", "{end}");
    assert_eq!(sandbox(at, "from-root").read("made.txt").text(), "yes\n");

    let (_, end) = built(at, "from-nothing", &json!({ "fromImage": "programs:2", "steps": [] }));
    assert_eq!((&end["status"], &end["reason"]["step"]), (&json!("error"), &json!("base")));
    let why = end["reason"]["message"].as_str().unwrap();
    assert!(why.contains("docker save programs:2") && why.contains("--image-alias programs:2=base"), "{why}");
}

#[test]
fn a_killed_server_leaves_no_build_that_runs_for_ever_and_keeps_what_was_built() {
    let mut server = Served::start(&[]);
    let at = server.address();
    let body =
        json!({ "fromImage": "e2bdev/base", "steps": [run("echo kept > kept.txt"), run("sleep 600")] });
    let (_, end) =
        built(at, "done", &json!({ "fromImage": "e2bdev/base", "steps": [run("echo kept > kept.txt")] }));
    assert_eq!(end["status"], "ready", "{end}");
    let running = ask(at, "cut-short");
    assert_eq!(running.start(at, &body).status, 202);
    until("the second step runs", || running.status(at)["logs"].to_string().contains("[builder 2/2]"));
    let waiting = ask(at, "waits");
    let sandboxes = || fs::read_dir(server.state().join("sandboxes")).unwrap().count();
    assert!(sandboxes() > 0);

    server.crash_and_restart();
    let at = server.address();

    let end = running.status(at);
    assert_eq!(end["status"], "error");
    assert!(end["reason"]["message"].as_str().unwrap().contains("the server was stopped during the build"));
    // What it said until then can still be read, and the sandbox that it ran in is gone.
    assert!(end["logs"].to_string().contains("[builder 2/2]"), "{end}");
    let state = server.state();
    until("the sandbox of the build is gone", || fs::read_dir(state.join("sandboxes")).unwrap().count() == 0);
    assert_eq!(sandbox(at, "done").read("kept.txt").text(), "kept\n");
    // A build that waited still does, and a layer that was made is still known.
    assert_eq!(
        waiting
            .start(at, &json!({ "fromImage": "e2bdev/base", "steps": [run("echo kept > kept.txt")] }))
            .status,
        202
    );
    let end = waiting.end(at);
    assert!(end["status"] == "ready" && end["logs"].to_string().contains("CACHED"), "{end}");
}

#[test]
fn a_build_can_be_cancelled_and_ends_with_its_template() {
    let server = Served::start(&[]);
    let at = server.address();
    let body = json!({ "fromTemplate": "base", "steps": [run("sleep 600")] });
    let one = ask(at, "cancelled");
    assert_eq!(one.start(at, &body).status, 202);
    until("the step runs", || one.status(at)["logs"].to_string().contains("[builder 1/1]"));
    assert_eq!(Request::new("DELETE", &one.path()).key().send(at).status, 204);
    let end = one.end(at);
    assert_eq!(
        (&end["status"], &end["reason"]["message"]),
        (&json!("error"), &json!("the build was cancelled"))
    );

    let other = ask(at, "deleted");
    assert_eq!(other.start(at, &body).status, 202);
    until("the step runs", || other.status(at)["logs"].to_string().contains("[builder 1/1]"));
    let path = format!("/templates/{}", other.template);
    assert_eq!(Request::new("DELETE", &path).key().send(at).status, 204);
    assert_eq!(Request::new("GET", &format!("{}/status", other.path())).key().send(at).status, 404);
    let state = server.state();
    until("both sandboxes are gone", || fs::read_dir(state.join("sandboxes")).unwrap().count() == 0);
}

#[test]
fn uploads_need_their_link_and_their_length() {
    let server = Served::start(&[]);
    let at = server.address();
    let building = ask(at, "uploads");
    let hash = "a".repeat(64);
    let link = |hash: &str| {
        Request::new("GET", &format!("/templates/{}/files/{hash}", building.template)).key().send(at)
    };
    let answer = link(&hash);
    assert_eq!((answer.status, &answer.json()["present"]), (201, &json!(false)));
    let url = answer.json()["url"].as_str().unwrap().to_owned();
    let origin = format!("http://{at}");
    let path = url.strip_prefix(&origin).unwrap_or_else(|| panic!("{url} is not at {origin}")).to_owned();
    for bad in ["", "A", &"A".repeat(64), "..%2f..%2fsecret"] {
        assert!(link(bad).status >= 400, "{bad}");
    }
    let put = |path: &str, body: &str| Request::new("PUT", path).body(body).send(at);
    let other = path.replace(&hash, &"b".repeat(64));
    let later = path.replace("expires=", "expires=9");
    for forged in [other.as_str(), later.as_str(), path.split('?').next().unwrap(), &format!("{path}x")] {
        let answer = put(forged, "x");
        assert_eq!((answer.status, &answer.json()["code"]), (403, &json!(403)), "{forged}");
    }
    let mut chunked = std::net::TcpStream::connect(at).unwrap();
    let head = format!(
        "PUT {path} HTTP/1.1\r\nHost: {at}\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n1\r\nx\r\n0\r\n\r\n"
    );
    std::io::Write::write_all(&mut chunked, head.as_bytes()).unwrap();
    assert_eq!(read(&mut chunked).status, 411);
    // A body that breaks off leaves nothing.
    let mut short = std::net::TcpStream::connect(at).unwrap();
    let head = format!("PUT {path} HTTP/1.1\r\nHost: {at}\r\nContent-Length: 100\r\n\r\nonly this");
    std::io::Write::write_all(&mut short, head.as_bytes()).unwrap();
    short.shutdown(std::net::Shutdown::Write).unwrap();
    drop(read_quietly(&mut short));
    assert_eq!(link(&hash).json()["present"], json!(false));
    assert_eq!(put(&path, "a tar").status, 200);
    assert_eq!(link(&hash).json()["present"], json!(true));

    // What is no tar, and what was not uploaded, end the build with its step.
    for (files, says) in [(hash.clone(), "failed to copy"), ("c".repeat(64), "were not uploaded")] {
        let step = json!({ "type": "COPY", "args": ["a", "b", "", ""], "filesHash": files });
        let (_, end) = built(at, "uploads", &json!({ "fromImage": "e2bdev/base", "steps": [step] }));
        assert_eq!((&end["status"], &end["reason"]["step"]), (&json!("error"), &json!("1")));
        assert!(end["reason"]["message"].as_str().unwrap().contains(says), "{end}");
    }
}

fn read_quietly(stream: &mut std::net::TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = std::io::Read::read_to_end(stream, &mut bytes);
    bytes
}

#[test]
fn bad_requests_have_the_statuses_of_e2b() {
    let server = Served::start(&[]);
    let at = server.address();
    let status = |method: &str, path: &str, body: Value| {
        let answer = Request::new(method, path).key().json(&body).send(at);
        assert!(
            answer.status == 204 || answer.json()["code"] == json!(answer.status),
            "{method} {path}: {answer:?}"
        );
        answer.status
    };
    for name in ["", "a b", "a/b/c", ":x", "x:", "base", "other/x", "x:00000000-0000-4000-8000-000000000000"]
    {
        assert_eq!(status("POST", "/v3/templates", json!({ "name": name })), 400, "{name:?}");
    }
    for bad in [
        json!({ "name": "x", "cpuCount": 0 }),
        json!({ "name": "x", "memoryMB": 127 }),
        json!({ "name": "x", "tags": ["a b"] }),
        json!({}),
    ] {
        assert_eq!(status("POST", "/v3/templates", bad.clone()), 400, "{bad}");
    }
    let building = ask(at, "plain:v1");
    let start = format!("/v2{}", building.path());
    let body = json!({ "fromImage": "e2bdev/base", "steps": [] });
    assert_eq!(status("POST", &start, json!({ "steps": [] })), 400);
    assert_eq!(status("POST", &start, json!({ "fromImage": "a", "fromTemplate": "base", "steps": [] })), 400);
    assert_eq!(status("POST", &start, json!({ "fromTemplate": "none", "steps": [] })), 404);
    assert_eq!(
        status("POST", &format!("/v2/templates/{}/builds/none", building.template), body.clone()),
        400
    );
    assert_eq!(status("POST", "/v2/templates/none/builds/none", body.clone()), 404);
    assert_eq!(
        status("GET", &format!("/templates/{}/builds/none/status", building.template), Value::Null),
        400
    );
    // Before it is ready nothing can be made from it.
    assert_eq!(status("POST", "/v2/sandboxes", json!({ "templateID": "plain:v1" })), 404);
    assert_eq!(building.start(at, &body).status, 202);
    assert_eq!(status("POST", &start, body), 400);
    assert_eq!(building.end(at)["status"], "ready");
    for step in [
        json!({ "type": "DANCE", "args": [] }),
        json!({ "type": "RUN", "args": [] }),
        json!({ "type": "ENV", "args": ["A"] }),
        json!({ "type": "USER", "args": ["-x"] }),
        json!({ "type": "COPY", "args": ["../x", "y"], "filesHash": "0" }),
    ] {
        let (_, end) = built(at, "bad-step", &json!({ "fromImage": "e2bdev/base", "steps": [step] }));
        assert_eq!((&end["status"], &end["reason"]["step"]), (&json!("error"), &json!("1")), "{end}");
    }
    for (method, path, body) in [
        ("POST", "/templates/tags", json!({ "target": "plain:v1", "tags": [] })),
        ("POST", "/templates/tags", json!({ "target": "plain:v1", "tags": ["a b"] })),
        ("POST", "/templates/tags", json!({ "target": "other/plain:v1", "tags": ["a"] })),
        ("DELETE", "/templates/tags", json!({ "name": "plain", "tags": ["default"] })),
        ("DELETE", "/templates/tags", json!({ "name": "plain:v1", "tags": ["a"] })),
        ("DELETE", "/templates/base", Value::Null),
        ("GET", "/v2/templates?limit=0", Value::Null),
        ("GET", "/v2/templates?nextToken=x", Value::Null),
        ("GET", "/templates/aliases/a%2Fb%2Fc", Value::Null),
    ] {
        assert_eq!(status(method, path, body), 400, "{method} {path}");
    }
    for (method, path, body) in [
        ("POST", "/templates/tags", json!({ "target": "plain:v2", "tags": ["a"] })),
        ("DELETE", "/templates/tags", json!({ "name": "none", "tags": ["a"] })),
        ("GET", "/templates/aliases/none", Value::Null),
        ("GET", "/templates/none", Value::Null),
        ("GET", "/templates/none/tags", Value::Null),
        // The base is this machine's, and no template of anybody's.
        ("GET", "/templates/base/tags", Value::Null),
        ("DELETE", "/templates/sandhold%2Fnone%3Av1", Value::Null),
        ("POST", "/v2/sandboxes", json!({ "templateID": "plain:v2" })),
    ] {
        assert_eq!(status(method, path, body), 404, "{method} {path}");
    }
    let keyless = Request::new("GET", "/v2/templates").send(at);
    assert_eq!(keyless.status, 401);
}

#[test]
fn the_log_of_a_build_is_read_in_pages_of_a_hundred_lines_and_from_both_ends() {
    let server = Served::start(&[]);
    let at = server.address();
    let body = json!({ "fromTemplate": "base", "steps": [run("seq 1 250; echo wrong >&2")] });
    let (building, end) = built(at, "talks", &body);
    assert_eq!(end["status"], "ready", "{end}");
    let read = |rest: &str| {
        let answer = Request::new("GET", &format!("{}/{rest}", building.path())).key().send(at);
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    };
    // As the SDKs do it: from where the last page ended, until one is empty.
    let (mut all, mut pages) = (Vec::new(), Vec::new());
    loop {
        let page = read(&format!("status?logsOffset={}", all.len()));
        let entries = page["logEntries"].as_array().unwrap().clone();
        let messages: Vec<_> = entries.iter().map(|entry| entry["message"].clone()).collect();
        assert_eq!(page["logs"], json!(messages));
        if entries.is_empty() {
            break;
        }
        pages.push(entries.len());
        all.extend(entries);
    }
    assert!(pages.len() == 3 && pages[..2] == [100, 100] && all.len() > 250, "{pages:?}");
    let said: Vec<_> =
        all.iter().filter_map(|entry| entry["message"].as_str()?.split_once("[stdout]: ")).collect();
    assert_eq!(
        said.iter().map(|(_, text)| *text).collect::<Vec<_>>(),
        (1..=250).map(|n| n.to_string()).collect::<Vec<_>>()
    );
    let logs = |query: &str| read(&format!("logs{query}"))["logs"].as_array().unwrap().clone();
    assert_eq!(logs(""), all[..100]);
    assert_eq!(logs("?limit=7"), all[..7]);
    let mut last: Vec<_> = all[all.len() - 5..].to_vec();
    last.reverse();
    assert_eq!(logs("?direction=backward&limit=5"), last);
    let loud = logs("?level=error");
    assert!(loud.iter().all(|entry| entry["level"] == "error"), "{loud:?}");
    for bad in
        ["logs?direction=up", "logs?level=loud", "logs?limit=x", "status?logsOffset=x", "status?level=loud"]
    {
        let answer = Request::new("GET", &format!("{}/{bad}", building.path())).key().send(at);
        assert_eq!((answer.status, &answer.json()["code"]), (400, &json!(400)), "{bad}");
    }
}

#[test]
fn templates_are_listed_in_pages_and_shown_with_their_builds() {
    let server = Served::start(&[]);
    let at = server.address();
    let mut asked: Vec<_> = (0..5).map(|number| ask(at, &format!("listed-{number}")).template).collect();
    asked.reverse();
    let mut seen = Vec::new();
    let mut path = "/v2/templates?limit=2".to_owned();
    loop {
        let page = Request::new("GET", &path).key().send(at);
        let items = page.json();
        assert!(items.as_array().unwrap().len() <= 2);
        seen.extend(
            items.as_array().unwrap().iter().map(|item| item["templateID"].as_str().unwrap().to_owned()),
        );
        match page.header("x-next-token") {
            Some(token) => path = format!("/v2/templates?limit=2&nextToken={token}"),
            None => break,
        }
    }
    seen.sort_by_key(|id| asked.iter().position(|known| known == id));
    assert_eq!(seen, asked);
    ask(at, "listed-0:v2");
    let detail = Request::new("GET", "/templates/listed-0").key().send(at).json();
    assert_eq!(detail["builds"].as_array().unwrap().len(), 2);
    assert_eq!((&detail["names"], &detail["public"]), (&json!(["sandhold/listed-0"]), &json!(false)));
    let changed =
        Request::new("PATCH", "/v2/templates/listed-0").key().json(&json!({ "public": true })).send(at);
    assert_eq!((changed.status, &changed.json()["names"]), (200, &json!(["sandhold/listed-0"])));
    assert_eq!(
        Request::new("GET", "/templates/aliases/listed-0").key().send(at).json()["public"],
        json!(true)
    );
}

#[test]
fn the_template_that_the_sdks_take_for_mcp_servers_is_the_base_until_somebody_builds_it() {
    let server = Served::start(&[]);
    let at = server.address();
    let create = || {
        let asked = json!({ "templateID": "mcp-gateway", "timeout": 60 });
        let answer = Request::new("POST", "/v2/sandboxes").key().json(&asked).send(at);
        assert_eq!(answer.status, 201, "{answer:?}");
        Box::of(at, answer.json())
    };
    assert_eq!(create().read("/home/user/gateway").status, 404);
    let body = json!({ "fromTemplate": "base", "steps": [run("touch /home/user/gateway")] });
    assert_eq!(built(at, "mcp-gateway", &body).1["status"], "ready");
    assert_eq!(create().read("/home/user/gateway").status, 200);
}

#[test]
fn a_copy_of_a_create_finds_its_sandbox_also_when_the_tag_is_gone() {
    let server = Served::start(&[]);
    let at = server.address();
    let body = json!({ "fromTemplate": "base", "steps": [] });
    assert_eq!(built(at, "tagged:v1", &body).1["status"], "ready");
    let create = || {
        let request = Request::new("POST", "/v2/sandboxes").key().header("Idempotency-Key", "tagged");
        request.json(&json!({ "templateID": "tagged:v1", "timeout": 600 })).send(at)
    };
    let first = create();
    assert_eq!(first.status, 201, "{first:?}");
    let tags = json!({ "name": "tagged", "tags": ["v1"] });
    assert_eq!(Request::new("DELETE", "/templates/tags").key().json(&tags).send(at).status, 204);
    let again = create();
    assert_eq!((again.status, again.text()), (201, first.text()));
}

#[test]
fn a_template_is_not_deleted_under_a_create() {
    let server = Served::start(&[]);
    let at = server.address();
    let asked = json!({ "templateID": "used", "timeout": 600 });
    for round in 0..6 {
        let body = json!({ "fromTemplate": "base", "steps": [] });
        assert_eq!(built(at, "used", &body).1["status"], "ready");
        let remove = || Request::new("DELETE", "/templates/used").key().send(at);
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
            (201, 400) => {
                assert_eq!(remove().status, 400, "it has a sandbox");
                let sandbox = Box::of(at, created.json());
                assert_eq!(sandbox.control("DELETE", "").send(at).status, 204);
                assert_eq!(remove().status, 204);
            }
            (404, 204) => {}
            _ => panic!("{created:?} {removed:?}"),
        }
    }
}
