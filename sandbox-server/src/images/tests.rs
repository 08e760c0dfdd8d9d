//! Images are made here as builders make them, and laid down.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::archive::Archive;
use super::reference::Reference;
use super::*;

/// How a layer is packed.
#[derive(Clone, Copy)]
enum Packing {
    Plain,
    Gzip,
    Zstd,
}

/// One entry of a layer.
enum Entry<'a> {
    Dir(&'a str, u32),
    File(&'a str, &'a str),
    Mode(&'a str, u32),
    Link(&'a str, &'a str),
    Hard(&'a str, &'a str),
    Owned(&'a str, u64, u64),
    Device(&'a str),
}

fn layer(entries: &[Entry<'_>]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut put =
        |path: &str, kind: tar::EntryType, mode: u32, (uid, gid): (u64, u64), link: &str, data: &[u8]| {
            let mut header = tar::Header::new_ustar();
            // Not by `set_path`, which refuses the paths that must be tried.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
            header.set_entry_type(kind);
            header.set_mode(mode);
            header.set_uid(uid);
            header.set_gid(gid);
            header.set_mtime(1_600_000_000);
            header.set_size(data.len() as u64);
            header.set_cksum();
            tar.append(&header, data).unwrap();
        };
    use tar::EntryType as Kind;
    for entry in entries {
        match *entry {
            Entry::Dir(path, mode) => put(path, Kind::Directory, mode, (0, 0), "", b""),
            Entry::File(path, text) => put(path, Kind::Regular, 0o644, (0, 0), "", text.as_bytes()),
            Entry::Mode(path, mode) => put(path, Kind::Regular, mode, (0, 0), "", b"mode"),
            Entry::Link(path, target) => put(path, Kind::Symlink, 0o777, (0, 0), target, b""),
            Entry::Hard(path, target) => put(path, Kind::Link, 0o644, (0, 0), target, b""),
            Entry::Owned(path, uid, gid) => put(path, Kind::Regular, 0o640, (uid, gid), "", b"owned"),
            Entry::Device(path) => put(path, Kind::Char, 0o666, (0, 0), "", b""),
        }
    }
    tar.into_inner().unwrap()
}

fn packed(layer: &[u8], packing: Packing) -> Vec<u8> {
    match packing {
        Packing::Plain => layer.to_vec(),
        Packing::Gzip => {
            let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            gzip.write_all(layer).unwrap();
            gzip.finish().unwrap()
        }
        Packing::Zstd => {
            ruzstd::encoding::compress_to_vec(layer, ruzstd::encoding::CompressionLevel::Fastest)
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

fn config(layers: &[Vec<u8>]) -> Vec<u8> {
    let diff_ids: Vec<_> = layers.iter().map(|layer| format!("sha256:{}", hex(layer))).collect();
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    serde_json::to_vec(&serde_json::json!({
        "architecture": architecture, "os": "linux",
        "config": {"Env": ["PATH=/opt/bin:/bin", "LANG=C.UTF-8", "EMPTY="]},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }))
    .unwrap()
}

fn write_tar(path: &Path, members: &[(String, Vec<u8>)]) {
    let mut tar = tar::Builder::new(std::fs::File::create(path).unwrap());
    for (name, data) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(data.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, data.as_slice()).unwrap();
    }
    tar.finish().unwrap();
}

/// Writes what `docker save` writes.
fn saved(path: &Path, tags: &[&str], layers: &[Vec<u8>], packing: Packing) {
    let config = config(layers);
    let names: Vec<_> = (0..layers.len()).map(|number| format!("{number}/layer.tar")).collect();
    let manifest = serde_json::json!([{"Config": "config.json", "RepoTags": tags, "Layers": names}]);
    let mut members = vec![("config.json".to_owned(), config)];
    members.extend(names.iter().zip(layers).map(|(name, layer)| (name.clone(), packed(layer, packing))));
    members.push(("manifest.json".to_owned(), serde_json::to_vec(&manifest).unwrap()));
    write_tar(path, &members);
}

/// Returns the members of an OCI layout.
fn layout(reference: &str, layers: &[Vec<u8>], packing: Packing) -> Vec<(String, Vec<u8>)> {
    let mut members = Vec::new();
    let mut blob = |bytes: Vec<u8>| {
        let digest = hex(&bytes);
        let size = bytes.len();
        members.push((format!("blobs/sha256/{digest}"), bytes));
        serde_json::json!({"digest": format!("sha256:{digest}"), "size": size, "mediaType": "application/octet-stream"})
    };
    let config = blob(config(layers));
    let layers: Vec<_> = layers.iter().map(|layer| blob(packed(layer, packing))).collect();
    let manifest = serde_json::json!({"schemaVersion": 2, "config": config, "layers": layers});
    let here = blob(serde_json::to_vec(&manifest).unwrap());
    let mut foreign = here.clone();
    foreign["platform"] = serde_json::json!({"os": "linux", "architecture": "s390x"});
    // As buildx writes it: an index in the index, with more than one platform.
    let inner = blob(serde_json::to_vec(&serde_json::json!({"manifests": [foreign, here]})).unwrap());
    let mut named = inner;
    named["annotations"] = serde_json::json!({"org.opencontainers.image.ref.name": reference});
    members.push((
        "index.json".to_owned(),
        serde_json::to_vec(&serde_json::json!({"manifests": [named]})).unwrap(),
    ));
    members.push(("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec()));
    members
}

fn bash() -> Vec<u8> {
    layer(&[Entry::Dir("bin", 0o755), Entry::File("bin/bash", "#!")])
}

fn find(directory: &Path, name: &str) -> Result<Found, ImageError> {
    ImageLibrary::new(Some(directory.to_owned()), &[]).unwrap().find(name)
}

/// Lays an image of these layers down.
fn lay(layers: &[Vec<u8>]) -> Result<(tempfile::TempDir, PathBuf, Unpacked), ImageError> {
    lay_within(layers, Limits::default())
}

fn lay_within(
    layers: &[Vec<u8>],
    limits: Limits,
) -> Result<(tempfile::TempDir, PathBuf, Unpacked), ImageError> {
    let home = tempfile::tempdir().unwrap();
    saved(&home.path().join("a.tar"), &["a:1"], layers, Packing::Gzip);
    let Found::Image(image) = find(home.path(), "a:1")? else { panic!("an image") };
    let root = home.path().join("root");
    let unpacked = unpack(&image, &root, limits, &|| false)?;
    Ok((home, root, unpacked))
}

fn text(path: PathBuf) -> String {
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn every_kind_of_archive_holds_the_same_image() {
    let layers = [bash(), layer(&[Entry::File("hello", "hi")])];
    let home = tempfile::tempdir().unwrap();
    for (number, packing) in [Packing::Plain, Packing::Gzip, Packing::Zstd].into_iter().enumerate() {
        saved(
            &home.path().join(format!("saved{number}.tar")),
            &[&format!("saved:{number}")],
            &layers,
            packing,
        );
        write_tar(
            &home.path().join(format!("oci{number}.tar")),
            &layout(&format!("oci:{number}"), &layers, packing),
        );
        let directory = home.path().join(format!("dir{number}"));
        for (name, data) in layout("latest", &layers, packing) {
            let path = directory.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, data).unwrap();
        }
    }
    let mut digests = BTreeMap::new();
    for number in 0..3 {
        for name in
            [format!("saved:{number}"), format!("docker.io/library/oci:{number}"), format!("dir{number}")]
        {
            let Found::Image(image) = find(home.path(), &name).unwrap() else { panic!("{name} is an image") };
            assert_eq!(image.config.env[0], ("PATH".to_owned(), "/opt/bin:/bin".to_owned()));
            *digests.entry(image.digest.clone()).or_insert(0) += 1;
            let root = home.path().join("root");
            unpack(&image, &root, Limits::default(), &|| false).unwrap();
            assert_eq!(text(root.join("hello")), "hi", "{name}");
            crate::rooted::remove_tree(&root).unwrap();
        }
    }
    assert_eq!(digests.into_values().collect::<Vec<_>>(), [9]);
}

#[test]
fn a_later_layer_hides_what_it_says_and_nothing_else() {
    let (_home, root, _) = lay(&[
        bash(),
        layer(&[
            Entry::Dir("d", 0o755),
            Entry::File("d/gone", "1"),
            Entry::File("d/kept", "1"),
            Entry::Dir("o", 0o755),
            Entry::File("o/old", "1"),
            Entry::Dir("o/sub", 0o755),
            Entry::File("o/sub/old", "1"),
            Entry::Dir("t", 0o755),
            Entry::File("t/inside", "1"),
        ]),
        layer(&[
            Entry::File("d/.wh.gone", ""),
            // What this layer itself has in an opaque directory stays, also when it came first.
            Entry::File("o/new", "2"),
            Entry::File("o/sub/new", "2"),
            Entry::File("o/.wh..wh..opq", ""),
            Entry::File(".wh.t", ""),
            Entry::File("t", "a file now"),
        ]),
    ])
    .unwrap();
    let names = |path: &str| {
        let mut names: Vec<_> = std::fs::read_dir(root.join(path))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names("d"), ["kept"]);
    assert_eq!(names("o"), ["new", "sub"]);
    assert_eq!(names("o/sub"), ["new"]);
    assert_eq!(text(root.join("t")), "a file now");
}

#[test]
fn links_modes_times_and_merged_directories_are_kept() {
    let (_home, root, unpacked) = lay(&[
        bash(),
        layer(&[
            Entry::Dir("usr", 0o755),
            Entry::Dir("usr/lib", 0o755),
            Entry::Link("lib", "usr/lib"),
            Entry::File("first", "one file"),
            Entry::Hard("second", "first"),
            Entry::Mode("run-me", 0o4755),
            Entry::Mode("secret", 0o000),
            Entry::Dir("closed", 0o500),
            Entry::File("closed/inside", "x"),
            Entry::Device("dev-null"),
        ]),
        // As packages do it where `/lib` is a link.
        layer(&[Entry::Dir("lib", 0o755), Entry::File("lib/new.so", "elf"), Entry::File("closed/more", "y")]),
    ])
    .unwrap();
    let meta = |path: &str| std::fs::symlink_metadata(root.join(path)).unwrap();
    assert!(meta("lib").is_symlink());
    assert_eq!(text(root.join("usr/lib/new.so")), "elf");
    assert_eq!((meta("first").ino(), meta("first").nlink()), (meta("second").ino(), 2));
    // Without the bit that would make it somebody's program outside.
    assert_eq!(meta("run-me").permissions().mode() & 0o7777, 0o755);
    assert_eq!(meta("secret").permissions().mode() & 0o7777, 0);
    assert_eq!(meta("closed").permissions().mode() & 0o7777, 0o500);
    assert_eq!(meta("first").mtime(), 1_600_000_000);
    assert_eq!(meta("closed").mtime(), 1_600_000_000);
    assert_eq!(unpacked.skipped_devices, 1);
    assert!(std::fs::symlink_metadata(root.join("dev-null")).is_err());
}

#[test]
fn owners_are_set_as_root_and_noted_otherwise() {
    let (_home, root, unpacked) = lay(&[
        bash(),
        layer(&[Entry::Owned("mine", 33, 42), Entry::Owned("twice", 5, 5)]),
        layer(&[Entry::File("twice", "")]),
    ])
    .unwrap();
    if rustix::process::geteuid().is_root() {
        let meta = std::fs::metadata(root.join("mine")).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (33, 42));
        assert!(unpacked.owners.is_empty());
    } else {
        assert_eq!(unpacked.owners, BTreeMap::from([(PathBuf::from("mine"), (33, 42))]));
    }
    assert!(
        matches!(lay(&[bash(), layer(&[Entry::Owned("far", 70_000, 0)])]), Err(ImageError::Invalid(why)) if why.contains("70000"))
    );
}

#[test]
fn nothing_is_written_outside() {
    for hostile in [
        vec![Entry::File("../outside", "x")],
        vec![Entry::File("a/../../outside", "x")],
        vec![Entry::Hard("stolen", "../a.tar")],
        vec![Entry::Hard("stolen", "/etc/passwd-of-nobody")],
        vec![Entry::File(".wh...", "x")],
        vec![Entry::File(".wh.", "x")],
    ] {
        assert!(lay(&[bash(), layer(&hostile)]).is_err());
    }
    // Links may lead anywhere; what goes through them stays inside.
    for target in ["/", "..", "../../../..", "/proc/self/root", "/tmp"] {
        let (home, root, _) = lay(&[
            bash(),
            layer(&[
                Entry::Dir("tmp", 0o755),
                Entry::Dir("proc/self", 0o755),
                Entry::Link("proc/self/root", "/"),
                Entry::Link("way", target),
                Entry::File("way/outside-of-it", "x"),
            ]),
            layer(&[Entry::File("way/.wh.a.tar", ""), Entry::File("way/.wh.root", "")]),
        ])
        .unwrap();
        for outside in [
            home.path().join("outside-of-it"),
            PathBuf::from("/outside-of-it"),
            PathBuf::from("/tmp/outside-of-it"),
        ] {
            assert!(!outside.exists(), "{target} led to {}", outside.display());
        }
        assert!(root.exists() && home.path().join("a.tar").exists(), "{target} took away what is outside");
    }
}

#[test]
fn damage_and_size_are_found() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("a.tar");
    let layers = [bash(), layer(&[Entry::File("hello", &"x".repeat(5000))])];
    saved(&path, &["a:1"], &layers, Packing::Plain);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(8).position(|window| window == b"xxxxxxxx").unwrap();
    bytes[at] = b'y';
    std::fs::write(&path, bytes).unwrap();
    let Found::Image(image) = find(home.path(), "a:1").unwrap() else { panic!("an image") };
    let broken = unpack(&image, &home.path().join("root"), Limits::default(), &|| false);
    assert!(matches!(broken, Err(ImageError::Invalid(why)) if why.contains("damaged")));
    for limits in [Limits { bytes: 4000, ..Limits::default() }, Limits { entries: 2, ..Limits::default() }] {
        assert!(matches!(lay_within(&layers, limits), Err(ImageError::Invalid(_))));
    }
    let Found::Image(image) = find(home.path(), "a:1").unwrap() else { panic!("an image") };
    let stopped = unpack(&image, &home.path().join("other"), Limits::default(), &|| true);
    assert!(matches!(stopped, Err(ImageError::Stopped)));
}

#[test]
fn what_is_not_there_is_named_with_the_way_out() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("notes.txt"), "no image").unwrap();
    std::fs::write(home.path().join("packed.tar.gz"), packed(&bash(), Packing::Gzip)).unwrap();
    let why = find(home.path(), "node:24").unwrap_err().to_string();
    for part in ["node:24", "docker save node:24", "--image-alias node:24=base", "packed.tar.gz"] {
        assert!(why.contains(part), "{part} is not in {why}");
    }
    let why = ImageLibrary::new(None, &[]).unwrap().find("node:24").unwrap_err().to_string();
    assert!(why.contains("--images DIR"), "{why}");
    // No shell, no commands.
    assert!(
        lay(&[layer(&[Entry::File("hello", "hi")])])
            .is_err_and(|error| error.to_string().contains("/bin/bash"))
    );
}

#[test]
fn the_base_stands_in_only_for_what_is_not_there_and_was_said() {
    let home = tempfile::tempdir().unwrap();
    saved(&home.path().join("u.tar"), &["ubuntu:22.04"], &[bash()], Packing::Plain);
    assert!(matches!(find(home.path(), "ubuntu:22.04"), Ok(Found::Image(_))));
    for name in ["ubuntu:24.04", "debian", "e2bdev/base", "e2bdev/base:latest"] {
        assert!(matches!(find(home.path(), name), Ok(Found::Base)), "{name}");
    }
    let aliases = [
        ("ubuntu".to_owned(), Alias::Nothing),
        ("python:3".to_owned(), Alias::Base),
        ("mine".to_owned(), Alias::Image("ubuntu:22.04".to_owned())),
    ];
    let library = ImageLibrary::new(Some(home.path().to_owned()), &aliases).unwrap();
    assert!(library.find("ubuntu:24.04").is_err());
    assert!(library.find("python:3.12").is_err());
    assert!(matches!(library.find("python:3"), Ok(Found::Base)));
    assert!(matches!(library.find("mine:any"), Ok(Found::Image(_))));
    assert!(ImageLibrary::new(None, &[("a b".to_owned(), Alias::Base)]).is_err());
}

#[test]
fn archives_that_are_cut_short_or_foreign_are_no_images() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("a.tar");
    saved(&path, &["a:1"], &[bash()], Packing::Plain);
    let whole = std::fs::read(&path).unwrap();
    for cut in [0, 1, 511, 512, 700, 1024, 2000, whole.len() / 2, whole.len() - 1500] {
        std::fs::write(&path, &whole[..cut]).unwrap();
        // Whatever is said of it, it is said, and nobody panics.
        if let Ok(Some(archive)) = Archive::open(&path)
            && let Some(position) = archive.position(&Reference::parse("a:1").unwrap())
            && let Ok(image) = archive.image(position)
        {
            let root = home.path().join(format!("root{cut}"));
            assert!(unpack(&image, &root, Limits::default(), &|| false).is_err(), "cut at {cut}");
        }
    }
}

#[test]
fn what_is_no_file_among_the_images_keeps_nobody_waiting() {
    let home = tempfile::tempdir().unwrap();
    // Before the one that is asked for, which is found after it.
    let pipe = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, home.path().join("a.tar"), pipe, 0o600.into(), 0).unwrap();
    saved(&home.path().join("b.tar"), &["b:1"], &[bash()], Packing::Plain);
    assert!(matches!(find(home.path(), "b:1"), Ok(Found::Image(_))));
}
