//! Packs of well-formed entries with contents, deltas and references of anybody's choice.
#![no_main]

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::OnceLock;

use arbitrary::Arbitrary;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use libfuzzer_sys::fuzz_target;
use sandhold_persist::{BundleLimits, ImportOptions, RepoKey, Vault, VaultConfig, VerifyOptions};
use sha1::{Digest, Sha1};
use tokio::runtime::Runtime;

const ID: &str = "20200101-000000-000000";

#[derive(Arbitrary, Debug)]
enum Object<'a> {
    Blob(&'a [u8]),
    Tag(&'a [u8]),
    /// Modes, names, and which object they are of.
    Tree(Vec<(u32, &'a [u8], u8)>),
    /// Its tree, its parents, and the rest of the manifest in its message.
    Commit(u8, Vec<u8>, &'a str),
    /// A delta of an earlier object by its place, or of any by its id.
    At(u8, Vec<Op<'a>>),
    Of(u8, Vec<Op<'a>>),
    /// An entry of any number, size and bytes.
    Odd(u8, u64, &'a [u8]),
}

#[derive(Arbitrary, Debug)]
enum Op<'a> {
    Insert(&'a [u8]),
    Copy(u16, u16),
    Raw(&'a [u8]),
}

struct Stage {
    runtime: Runtime,
    home: PathBuf,
}

fn stage() -> &'static Stage {
    static STAGE: OnceLock<Stage> = OnceLock::new();
    STAGE.get_or_init(|| Stage {
        runtime: tokio::runtime::Builder::new_current_thread().build().expect("a runtime"),
        home: tempfile::tempdir_in("/dev/shm").expect("a directory").keep(),
    })
}

#[derive(Default)]
struct Pack {
    bytes: Vec<u8>,
    ids: Vec<[u8; 20]>,
    contents: Vec<Vec<u8>>,
    places: Vec<usize>,
}

impl Pack {
    fn id(&self, at: u8) -> [u8; 20] {
        self.ids.get(usize::from(at) % self.ids.len().max(1)).copied().unwrap_or([at; 20])
    }

    fn entry(&mut self, number: u8, size: u64, base: &[u8], content: &[u8]) {
        self.places.push(self.bytes.len());
        let mut byte = (number << 4) | (size & 15) as u8;
        let mut rest = size >> 4;
        while rest != 0 {
            self.bytes.push(byte | 0x80);
            byte = (rest & 0x7f) as u8;
            rest >>= 7;
        }
        self.bytes.push(byte);
        self.bytes.extend_from_slice(base);
        let mut deflated = ZlibEncoder::new(&mut self.bytes, Compression::fast());
        deflated.write_all(content).expect("memory");
        deflated.finish().expect("memory");
    }

    fn whole(&mut self, number: u8, name: &str, content: &[u8]) {
        self.entry(number, content.len() as u64, &[], content);
        let mut hash = Sha1::new();
        hash.update(format!("{name} {}\0", content.len()));
        hash.update(content);
        self.ids.push(hash.finalize().into());
        self.contents.push(content.to_vec());
    }

    fn delta(&mut self, number: u8, of: u8, ops: &[Op]) {
        if self.ids.is_empty() {
            return;
        }
        let of = usize::from(of) % self.ids.len();
        let mut delta = Vec::new();
        varint(&mut delta, self.contents[of].len());
        let mut made = Vec::new();
        let mut steps = Vec::new();
        for op in ops {
            match op {
                Op::Insert(bytes) if !bytes.is_empty() => {
                    let bytes = &bytes[..bytes.len().min(127)];
                    steps.push(bytes.len() as u8);
                    steps.extend_from_slice(bytes);
                    made.extend_from_slice(bytes);
                }
                Op::Copy(from, length) => {
                    let [a, b] = from.to_le_bytes();
                    let [c, d] = length.to_le_bytes();
                    steps.extend_from_slice(&[0xb3, a, b, c, d]);
                    let (from, length) = (usize::from(*from), usize::from(*length));
                    made.extend_from_slice(self.contents[of].get(from..from + length).unwrap_or_default());
                }
                Op::Raw(bytes) => steps.extend_from_slice(bytes),
                Op::Insert(_) => {}
            }
        }
        varint(&mut delta, made.len());
        delta.extend_from_slice(&steps);
        let base = match number {
            6 => offset(self.bytes.len() - self.places[of]),
            _ => self.ids[of].to_vec(),
        };
        self.entry(number, delta.len() as u64, &base, &delta);
        self.ids.push(self.ids[of]);
        self.contents.push(made);
    }
}

fn varint(bytes: &mut Vec<u8>, mut value: usize) {
    while value > 0x7f {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

fn offset(mut back: usize) -> Vec<u8> {
    let mut bytes = vec![(back & 0x7f) as u8];
    back >>= 7;
    while back > 0 {
        back -= 1;
        bytes.insert(0, (back & 0x7f) as u8 | 0x80);
        back >>= 7;
    }
    bytes
}

fn hex(id: [u8; 20]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fuzz_target!(|objects: Vec<Object>| {
    let mut pack = Pack::default();
    let mut tip = [7; 20];
    for object in &objects {
        match object {
            Object::Blob(content) => pack.whole(3, "blob", content),
            Object::Tag(content) => pack.whole(4, "tag", content),
            Object::Tree(entries) => {
                let mut content = Vec::new();
                for (mode, name, of) in entries {
                    let mode = match mode % 5 {
                        0 => 0o100_644,
                        1 => 0o040_000,
                        2 => 0o120_000,
                        3 => 0o160_000,
                        _ => *mode,
                    };
                    content.extend_from_slice(format!("{mode:o} ").as_bytes());
                    content.extend(name.iter().filter(|byte| **byte != 0));
                    content.push(0);
                    content.extend_from_slice(&pack.id(*of));
                }
                pack.whole(2, "tree", &content);
            }
            Object::Commit(tree, parents, rest) => {
                let zero = "0".repeat(40);
                let mut content = format!("tree {}\n", hex(pack.id(*tree)));
                for parent in parents.iter().take(4) {
                    content += &format!("parent {}\n", hex(pack.id(*parent)));
                }
                content += "author A <a@b> 0 +0000\ncommitter A <a@b> 0 +0000\n\nx\n\n";
                content += &format!(
                    "Sandhold-Snapshot: {{\"id\":\"{ID}\",\"repo\":\"r\",\"workspace\":\"/w\",\"commit\":\"{zero}\",\
                     \"tree\":\"{zero}\",\"started_at_ms\":0,\"captured_at_ms\":0{}}}\n",
                    rest.replace('\n', " ")
                );
                pack.whole(1, "commit", content.as_bytes());
                tip = pack.ids.last().copied().unwrap_or(tip);
            }
            Object::At(of, ops) => pack.delta(6, *of, ops),
            Object::Of(of, ops) => pack.delta(7, *of, ops),
            Object::Odd(number, size, bytes) => {
                pack.entry(*number & 7, *size, &[], bytes);
                pack.ids.push([*number; 20]);
                pack.contents.push(Vec::new());
            }
        }
    }
    let count = pack.places.len() as u32;
    let mut bundle = format!("# v2 git bundle\n{} refs/sandbox/snapshots/{ID}\n\n", hex(tip)).into_bytes();
    let start = bundle.len();
    bundle.extend_from_slice(b"PACK\0\0\0\x02");
    bundle.extend_from_slice(&count.to_be_bytes());
    bundle.extend_from_slice(&pack.bytes);
    let digest: [u8; 20] = Sha1::digest(&bundle[start..]).into();
    bundle.extend_from_slice(&digest);

    let stage = stage();
    let dir = tempfile::tempdir_in(&stage.home).expect("a directory");
    let file = dir.path().join("x.bundle");
    std::fs::write(&file, bundle).expect("a file");
    stage.runtime.block_on(async {
        let config = VaultConfig::new(dir.path(), RepoKey::new("fuzz").expect("a key"));
        let vault = Vault::open(config).await.expect("a vault");
        let mut limits = BundleLimits::default();
        limits.inflated = 64 << 20;
        let options = ImportOptions::new().with_any_repository(true).with_limits(limits);
        match vault.import_bundle(&file, options).await {
            Ok(imported) => {
                let verified = vault.verify(&imported.snapshot.id, VerifyOptions::new()).await.expect("a look");
                assert!(verified.is_good(), "taken, and not good: {verified:?}");
            }
            Err(_) => {
                assert!(vault.snapshots().await.expect("a list").is_empty());
                let packs = std::fs::read_dir(vault.git_dir().join("objects/pack")).expect("packs");
                assert_eq!(packs.count(), 0, "something of a refused bundle stays");
            }
        }
    });
});
