//! The trees that are measured.

use std::fs;
use std::io::Write;
use std::path::Path;

use sandhold_persist::WorkPath;

pub(crate) type Fill = fn(&mut fastrand::Rng, &mut [u8]);

const FILES_IN_DIR: usize = 50;

/// Text of a median of about 400 bytes in each file, 50 files a directory.
pub(crate) fn small(work: &Path, files: usize) -> std::io::Result<()> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut content = vec![0; 1600];
    for index in 0..files {
        if index % FILES_IN_DIR == 0 {
            fs::create_dir_all(work.join(dir(index)))?;
        }
        text(&mut random, &mut content);
        let length = random.usize(100..700);
        fs::write(work.join(dir(index)).join(format!("file{index}.txt")), &content[..length])?;
    }
    Ok(())
}

fn dir(index: usize) -> String {
    let dir = index / FILES_IN_DIR;
    format!("part{}/dir{dir}", dir / 40)
}

/// Writes one file anew, and tells which.
pub(crate) fn change(work: &Path, files: usize, run: usize) -> std::io::Result<WorkPath> {
    let index = run * 7919 % files;
    let path = format!("{}/file{index}.txt", dir(index));
    fs::write(work.join(&path), format!("changed in run {run}\n"))?;
    Ok(WorkPath::from(path.as_str()))
}

/// As many MiB in 20 files.
pub(crate) fn big(work: &Path, mib: usize, fill: Fill) -> std::io::Result<()> {
    fs::create_dir_all(work)?;
    let mut random = fastrand::Rng::with_seed(2);
    let mut content = vec![0; 1 << 20];
    for index in 0..20 {
        let mut file = fs::File::create(work.join(format!("big{index}")))?;
        for _ in 0..mib / 20 {
            fill(&mut random, &mut content);
            file.write_all(&content)?;
        }
    }
    Ok(())
}

pub(crate) fn random(random: &mut fastrand::Rng, content: &mut [u8]) {
    random.fill(content);
}

/// Words, as in source and prose.
pub(crate) fn text(random: &mut fastrand::Rng, content: &mut [u8]) {
    const WORDS: [&str; 16] = [
        "let ", "fn ", "return ", "value", "index", " = ", "self.", "();\n", "    ", "match ", "error",
        "// the ", "Some(", "result", "0x", ");\n",
    ];
    let mut at = 0;
    while at < content.len() {
        let word = match random.u8(..8) {
            0 => format!("{:x} ", random.u16(..)),
            _ => WORDS[random.usize(..WORDS.len())].to_owned(),
        };
        let length = word.len().min(content.len() - at);
        content[at..at + length].copy_from_slice(&word.as_bytes()[..length]);
        at += length;
    }
}
