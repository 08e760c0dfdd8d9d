//! What is ignored is what git ignores, on trees and patterns that nobody thought of.

#![allow(clippy::unwrap_used, reason = "a failure of what a test builds fails the test")]

mod support;

use std::collections::BTreeSet;

use sandhold_persist::CaptureOptions;
use support::{Place, git};

const NAMES: &[&str] =
    &["a", "b", "ab", "abc", "foo", "bar", "x.log", "y.txt", "a b", "[c]", "d*", "#h", "!n", "B\\s"];
const PIECES: &[&str] = &[
    "a",
    "b",
    "c",
    "foo",
    "bar",
    "*",
    "**",
    "?",
    "/",
    "/**/",
    "**/",
    "/**",
    "*.log",
    ".txt",
    "[a-c]",
    "[!a]",
    "[^b]",
    "\\*",
    "\\ ",
    " ",
    "[[:alpha:]]",
    "[]c]",
    "\\#",
    "#",
    "!",
    "\\!",
    "[",
    "\\",
    "[c",
    "***",
    "a/b",
    "x.*",
    "\\\\s",
];

fn line(random: &mut fastrand::Rng) -> String {
    let mut line = String::new();
    if random.u8(..5) == 0 {
        line.push('!');
    }
    for _ in 0..random.usize(1..5) {
        line.push_str(random.choice(PIECES).unwrap());
    }
    if random.u8(..4) == 0 {
        line.push('/');
    }
    line
}

#[tokio::test]
async fn what_is_captured_is_what_git_would_add() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..40 {
        let place = Place::new().await;
        place.git(&["init", "-q"]);
        for _ in 0..40 {
            let depth = random.usize(1..4);
            let path: Vec<_> = (0..depth).map(|_| *random.choice(NAMES).unwrap()).collect();
            let path = place.work.join(path.join("/"));
            if std::fs::create_dir_all(path.parent().unwrap()).is_ok() && !path.exists() {
                std::fs::write(&path, round.to_string()).unwrap();
            }
        }
        for dir in ["", "a/", "foo/", "ab/bar/"] {
            if random.bool() && (dir.is_empty() || place.work.join(dir).is_dir()) {
                let lines: Vec<_> = (0..random.usize(1..6)).map(|_| line(&mut random)).collect();
                let end = if random.bool() { "\n" } else { "\r\n" };
                place.write(format!("{dir}.gitignore"), lines.join(end) + end);
            }
        }
        place.write("always", "so that there is something");
        let list = |text: String| -> BTreeSet<String> { text.split('\0').map(str::to_owned).collect() };
        let expected = list(place.git(&["ls-files", "-o", "-z", "--exclude-standard"]));
        let snapshot = place.vault.capture(&place.work, CaptureOptions::new()).await;
        let tree = match snapshot {
            Ok(snapshot) => snapshot.tree.to_string(),
            Err(failure) => panic!("{failure}"),
        };
        let found = list(git(&place.vault.git_dir(), &["ls-tree", "-r", "-z", "--name-only", &tree]));
        assert_eq!(
            found,
            expected,
            "round {round} of seed {seed}: {:?}",
            expected
                .iter()
                .chain(&found)
                .filter(|path| path.ends_with(".gitignore"))
                .map(|path| std::fs::read_to_string(place.work.join(path)))
                .collect::<Vec<_>>()
        );
    }
}
