//! The official E2B SDKs, unchanged, judge a sandbox of this provider, in whatever tier of users this host has.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests: a broken rule panics")]

#[path = "../../sandbox-envd/tests/sdk/harness.rs"]
#[allow(dead_code, reason = "the daemon's own tests use the rest")]
mod harness;
#[path = "../../sandbox-envd/tests/sdk/packages.rs"]
mod packages;
mod support;

use std::fs;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;

use harness::{ADDRESS, Judge, Users};
use sandhold_core::{Attempt, CreateOptions, Generation, Key, Owner, SandboxProvider, SandboxSpec, Tags};
use support::LocalFixture;

/// Finds the socket of the one sandbox below the state directory.
fn socket(dir: &Path) -> Option<PathBuf> {
    fs::read_dir(dir).ok()?.filter_map(Result::ok).find_map(|entry| match entry.file_type().ok()? {
        kind if kind.is_dir() => socket(&entry.path()),
        kind if kind.is_socket() && entry.file_name() == "envd.sock" => Some(entry.path()),
        _ => None,
    })
}

/// Carries every connection to the SDKs' address to the sandbox, for as long as the test program runs.
fn forward(to: PathBuf) {
    let listener = TcpListener::bind(ADDRESS).unwrap();
    thread::spawn(move || {
        for outer in listener.incoming() {
            let (outer, inner) = (outer.unwrap(), UnixStream::connect(&to).unwrap());
            outer.set_nodelay(true).unwrap();
            let (outer_too, inner_too) = (outer.try_clone().unwrap(), inner.try_clone().unwrap());
            thread::spawn(move || carry(&outer, &inner, || inner.shutdown(Shutdown::Write)));
            thread::spawn(move || carry(&inner_too, &outer_too, || half_close(&outer_too)));
        }
    });
}

fn half_close(stream: &TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Write)
}

/// Carries one direction to its end; what breaks it off is for the side that sees it to tell.
fn carry<A, B>(from: A, to: B, close: impl FnOnce() -> io::Result<()>)
where
    A: io::Read,
    B: io::Write,
{
    let (mut from, mut to) = (from, to);
    let _ = io::copy(&mut from, &mut to);
    let _ = close();
}

#[tokio::test]
async fn the_official_sdks_find_everything_in_a_local_sandbox_as_they_expect() {
    let judge = match Judge::new(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        Ok(judge) => judge,
        Err(missing) => return println!("skipped: needs {missing}"),
    };
    let fixture = LocalFixture::new();
    let provider = fixture.open();
    let tags = Tags {
        owner: Owner::new("sdk").unwrap(),
        key: Key::new("sdk").unwrap(),
        generation: Generation::random().unwrap(),
        attempt: Attempt::random().unwrap(),
    };
    let handle = provider.create_opts(CreateOptions::new(SandboxSpec::default(), tags)).await.unwrap();
    let tier = handle.info().await.unwrap().isolation.unwrap().users;
    let users = if tier == "single" { Users::One } else { Users::Many };
    println!("users in tier {tier}");
    forward(socket(provider.home()).unwrap());
    tokio::task::spawn_blocking(move || {
        judge.javascript(".", users);
        judge.python(".", users);
    })
    .await
    .unwrap();
    provider.destroy(handle.id()).await.unwrap();
}
