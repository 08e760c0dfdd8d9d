//! The root view of a sandbox, made from inside its namespaces.

use std::ffi::{CStr, CString};
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive,
    mount_change, mount_remount, move_mount, unmount,
};
use serde::{Deserialize, Serialize};

use crate::failure::{Doing, Failure, FailureKind};
use crate::record::{Bind, IdMap, Network, Origin, Spec, Under, Upper};
use crate::store::SNAPSHOTS;
use crate::{base, furnish, sys};

/// How the host's `/usr` is shown.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsrTier {
    /// Under a layer of the sandbox: everything can be changed, and root inside owns it.
    Overlay,
    /// Under a layer of the sandbox: files can be added, but those of the host not be changed.
    OverlayAdditive,
    /// Read-only, except `/usr/local`.
    ReadOnly,
}

const QUIET: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// Where the places that are mounted on are made, in the directory of a sandbox: in a file system in memory, which is
/// faster than on disk.
const PLACE: &str = "places";
/// The places in there.
const PLACES: [&str; 5] = ["base", "usr", "layer", "root", MEMORY];
/// Where a file system in memory is mounted that holds what a sandbox writes.
const MEMORY: &str = "memory";
/// What a sandbox writes to, and the work directories that overlays need beside it.
const LAYERS: [&str; 6] = ["upper", "work", "upper/root", "upper/usr", "work/root", "work/usr"];

/// The layer of a fork, in its directory.
pub(crate) const OWN_LAYER: &str = "origin";
/// The parts of a layer: over the root, over `/usr`, and over `/usr/local` where `/usr` cannot be written to.
pub(crate) const PARTS: [&str; 3] = ["root", "usr", "local"];

/// What lies under what a sandbox writes.
#[derive(Clone, Debug)]
pub(crate) struct View {
    /// The lowest tree of the root.
    pub(crate) base: PathBuf,
    /// Whether that is all there is: nothing of the host's `/usr` is shown.
    pub(crate) whole: bool,
    /// The layer between the two, of a snapshot or a fork.
    pub(crate) layer: Option<PathBuf>,
}

impl View {
    /// Finds what `spec` stands on, below `home`; `dir` is the directory of the sandbox.
    pub(crate) fn find(home: &Path, dir: &Path, spec: &Spec) -> Result<Self, Failure> {
        let layer = layer_of(home, dir, &spec.origin);
        let root = spec.origin.root.as_ref().map(|id| home.join(SNAPSHOTS).join(id).join("layer/root"));
        for path in layer.iter().chain(&root) {
            if !path.is_dir() {
                let message = format!("what the sandbox was made from is not there: {}", path.display());
                return Err(Failure::new(FailureKind::NotFound, message));
            }
        }
        let whole = root.is_some();
        let base = root.map_or_else(|| base::ensure(home, spec), Ok)?;
        Ok(Self { base, whole, layer })
    }
}

/// Where the layer is that a sandbox in `dir` stands on.
pub(crate) fn layer_of(home: &Path, dir: &Path, origin: &Origin) -> Option<PathBuf> {
    Some(match origin.under.as_ref()? {
        Under::Own => dir.join(OWN_LAYER),
        Under::Snapshot(id) => home.join(SNAPSHOTS).join(id).join("layer"),
    })
}

/// Makes, from outside, what [`enter`] needs in the directory of a sandbox, which is the current one.
pub(crate) fn prepare(spec: &Spec) -> Result<(), Failure> {
    let layers = LAYERS.iter().filter(|_| spec.upper == Upper::Disk);
    for dir in layers.chain([&PLACE]) {
        make_dirs(Path::new(dir), 0o755).doing(format_args!("make {dir}"))?;
    }
    if let IdMap::Full { start } = spec.ids {
        // Root inside is nobody here: it gets the layers, and may pass through the directory that it starts in.
        // Others do not get as far: the directories above are closed to them.
        fs::set_permissions(".", fs::Permissions::from_mode(0o711))
            .doing("open the directory to the sandbox")?;
        if spec.upper == Upper::Disk {
            for layer in LAYERS {
                match std::os::unix::fs::chown(layer, Some(start), Some(start)) {
                    // Root of a user namespace that has too few ids.
                    Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                        return Err(Failure::unsupported(format!(
                            "this root has no id {start} to give to a sandbox: it is root of a container or of user \
                             namespaces without enough ids; run as an ordinary user, or map 65536 more ids"
                        )));
                    }
                    other => other.doing("give the layers to the sandbox")?,
                }
            }
        }
    }
    Ok(())
}

/// Mounts that only the outside can make, not yet attached to any place.
#[derive(Debug)]
pub(crate) struct Trees {
    /// This program.
    pub(crate) program: OwnedFd,
    /// The base tree, with ids as the sandbox sees them.
    pub(crate) base: OwnedFd,
    /// The same of the layer, where there is one.
    pub(crate) layer: Option<OwnedFd>,
    /// The same of directories that all sandboxes see with their own ids, in the order of the binds.
    pub(crate) shared: Vec<OwnedFd>,
    /// The same of `/usr`, where it is shown and its file system allows it.
    pub(crate) usr: Option<OwnedFd>,
}

impl Trees {
    /// Puts together what was sent one by one; `None` if nothing was.
    pub(crate) fn from_fds(fds: Vec<OwnedFd>, spec: &Spec, view: &View) -> Option<Self> {
        let mut fds = fds.into_iter();
        let (program, base) = (fds.next()?, fds.next()?);
        let layer = view.layer.as_ref().and_then(|_| fds.next());
        let shared = spec.binds.iter().filter(|bind| bind.shared).map_while(|_| fds.next()).collect();
        Some(Self { program, base, layer, shared, usr: fds.next() })
    }
}

/// A root view that was entered.
#[derive(Debug)]
pub(crate) struct Entered {
    /// How the host's `/usr` is shown.
    pub(crate) usr: UsrTier,
    /// What the sandbox writes to, where that is in memory: nobody outside finds it otherwise.
    pub(crate) memory: Option<OwnedFd>,
}

/// Makes the root view and enters it. The current directory is that of the sandbox.
pub(crate) fn enter(spec: &Spec, view: &View, trees: Option<Trees>) -> Result<Entered, Failure> {
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)
        .doing("detach from mounts")?;
    mount("tmpfs", PLACE, "tmpfs", QUIET, c"mode=0755,size=64k").doing("mount a place for mounts")?;
    rustix::process::chdir(PLACE).doing("enter the place for mounts")?;
    for dir in PLACES {
        make_dirs(Path::new(dir), 0o755).doing(format_args!("make {dir}"))?;
    }
    let (storage, memory) = match spec.upper {
        Upper::Disk => ("..", None),
        Upper::Tmpfs { bytes } => {
            let options = text(&format!("size={bytes},mode=0755"));
            mount("tmpfs", MEMORY, "tmpfs", QUIET, options.as_c_str())
                .doing("mount a file system in memory")?;
            for layer in LAYERS {
                make_dirs(&Path::new(MEMORY).join(layer), 0o755).doing(format_args!("make {layer}"))?;
            }
            let upper = crate::layer::open_dir(rustix::fs::CWD, format!("{MEMORY}/upper"));
            (MEMORY, Some(upper.doing("open the file system in memory")?))
        }
    };
    // By short names without special characters: they become part of mount options.
    let mut shared = Vec::new().into_iter();
    let (program, usr) = match trees {
        Some(trees) => {
            shared = trees.shared.into_iter();
            attach(&trees.base, "base").doing("show the base tree")?;
            if let Some(layer) = trees.layer {
                attach(&layer, "layer").doing("show the layer below")?;
            }
            let usr = trees.usr.map(|usr| attach(&usr, "usr").map(|()| "usr"));
            (Some(trees.program), usr.transpose().doing("show /usr")?)
        }
        None => {
            mount_bind(view.base.as_path(), "base").doing("show the base tree")?;
            if let Some(layer) = &view.layer {
                mount_bind(layer.as_path(), "layer").doing("show the layer below")?;
            }
            (None, Some("/usr"))
        }
    };
    let over = |part: &str, lower: &str| match view.layer {
        Some(_) => format!("layer/{part}:{lower}"),
        None => lower.to_owned(),
    };
    let tier = if program.is_some() { UsrTier::Overlay } else { UsrTier::OverlayAdditive };
    overlay(storage, "root", &over("root", "base"), "root").map_err(|error| {
        Failure::unsupported(format!(
            "cannot lay a writable view over the base tree: {error}; the kernel must allow overlayfs in user \
             namespaces (5.11 or later), and the state directory must not itself be on overlayfs"
        ))
    })?;
    let usr = if view.whole {
        // Nobody promised that an imported tree has the places of the kernel.
        for place in ["proc", "dev", "run", "sys"] {
            make_inside(&Path::new("root").join(place)).doing(format_args!("make /{place}"))?;
        }
        UsrTier::Overlay
    } else {
        let lower = usr.map(|usr| over("usr", &format!("base/usr:{usr}")));
        mount_usr(storage, lower.as_deref(), tier, view.layer.is_some())?
    };
    show_sudo(program).doing("show sudo")?;
    mount_proc_and_dev(&spec.ids).doing("mount /proc and /dev")?;
    let options = text("mode=0755,size=25%");
    mount("tmpfs", "root/run", "tmpfs", QUIET, options.as_c_str()).doing("mount /run")?;
    fill_run(spec).doing("fill /run")?;
    mount_bind("root/run/sandhold/boot_id", "root/proc/sys/kernel/random/boot_id")
        .and_then(|()| {
            mount_remount("root/proc/sys/kernel/random/boot_id", MountFlags::BIND | MountFlags::RDONLY, c"")
        })
        .doing("give the sandbox a boot id")?;
    for bind in &spec.binds {
        let tree = if bind.shared { shared.next() } else { None };
        show(bind, tree)?;
    }
    let resolv = match spec.network {
        Network::Host if view.whole => fs::read("/etc/resolv.conf").unwrap_or_default(),
        _ => Vec::new(),
    };
    rustix::process::chdir("root").doing("enter the root view")?;
    rustix::process::pivot_root(".", ".").doing("change the root")?;
    unmount(".", UnmountFlags::DETACH).doing("leave the host's file systems")?;
    rustix::process::chdir("/").doing("enter the root view")?;
    if view.whole {
        furnish::complete(spec, &resolv)?;
    } else if view.layer.is_some() {
        furnish::add_user(spec)?;
    }
    own_places(spec)?;
    Ok(Entered { usr, memory })
}

fn text(value: &str) -> CString {
    CString::new(value).unwrap_or_default()
}

fn make_dirs(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(mode).create(path)
}

fn overlay(storage: &str, layer: &str, lower: &str, at: &str) -> io::Result<()> {
    let options = text(&format!(
        "lowerdir={lower},upperdir={storage}/upper/{layer},workdir={storage}/work/{layer},userxattr"
    ));
    Ok(mount("overlay", at, "overlay", QUIET, options.as_c_str())?)
}

fn attach(tree: &OwnedFd, at: &str) -> io::Result<()> {
    Ok(move_mount(tree, "", rustix::fs::CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Shows this program under the name by which it asks for root.
fn show_sudo(program: Option<OwnedFd>) -> io::Result<()> {
    // Before the host's own in every `PATH`, and not where a package would put it.
    let place = c"root/usr/local/bin/sudo";
    let path = Path::new("root/usr/local/bin/sudo");
    // The base tree has a place for it, unless `/usr` is shown without that tree, or the sandbox removed it.
    // Links that lead there are refused: they would be followed outside.
    make_inside(Path::new("root/usr/local/bin"))?;
    if !path.exists() {
        // One that leads nowhere is in the way.
        let _ = fs::remove_file(path);
        fs::OpenOptions::new().write(true).create_new(true).open(path)?;
    }
    match program {
        Some(tree) => attach(&tree, "root/usr/local/bin/sudo")?,
        None => mount_bind(std::env::current_exe()?, path)?,
    }
    sys::set_mount_flags(place, sys::MOUNT_ATTR_RDONLY)?;
    // One that is not setuid any more helps nobody.
    if Path::new("root/usr/bin/sudo").is_file() {
        mount_bind(path, "root/usr/bin/sudo")?;
    }
    Ok(())
}

/// Shows the host's `/usr`, writable if this host allows it: the only way to know is to try.
fn mount_usr(storage: &str, lower: Option<&str>, tier: UsrTier, layered: bool) -> Result<UsrTier, Failure> {
    if let Some(lower) = lower
        && overlay(storage, "usr", lower, "root/usr").is_ok()
    {
        return Ok(tier);
    }
    if layered && fs::read_dir("layer/usr").doing("look at the layer below")?.next().is_some() {
        return Err(Failure::unsupported(
            "the snapshot holds changes to /usr, which cannot be shown over /usr on this host",
        ));
    }
    mount_bind_recursive("/usr", "root/usr").doing("show /usr")?;
    sys::set_mount_flags(c"root/usr", sys::MOUNT_ATTR_RDONLY).doing("make /usr read-only")?;
    let local = Path::new("root/usr/local");
    if local.is_dir() {
        for layer in ["upper/local", "work/local"] {
            make_dirs(&Path::new(storage).join(layer), 0o755).doing(format_args!("make {layer}"))?;
        }
        let lower = if layered { "layer/local:/usr/local" } else { "/usr/local" };
        let merged = overlay(storage, "local", lower, "root/usr/local");
        if merged.is_err() && layered {
            overlay(storage, "local", "layer/local", "root/usr/local").doing("make /usr/local writable")?;
        } else if merged.is_err() {
            // The same reason as above: then it starts out empty.
            mount_bind(format!("{storage}/upper/local").as_str(), local).doing("make /usr/local writable")?;
        }
    }
    Ok(UsrTier::ReadOnly)
}

/// Devices that a sandbox has: those that hold no state of the host.
const DEVICES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

fn mount_proc_and_dev(ids: &IdMap) -> io::Result<()> {
    mount("proc", "root/proc", "proc", QUIET | MountFlags::NOEXEC, c"")?;
    let options = text("mode=0755,size=64k");
    mount("tmpfs", "root/dev", "tmpfs", MountFlags::NOSUID | MountFlags::NOEXEC, options.as_c_str())?;
    for device in DEVICES {
        let node = format!("root/dev/{device}");
        fs::File::create(&node)?;
        mount_bind(format!("/dev/{device}").as_str(), node.as_str())?;
    }
    for (link, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        symlink(target, format!("root/dev/{link}"))?;
    }
    for dir in ["pts", "shm", "mqueue"] {
        fs::create_dir(format!("root/dev/{dir}"))?;
    }
    // Terminals belong to the group `tty`, where that group is somebody.
    let group = if matches!(ids, IdMap::Single) { "" } else { ",gid=5" };
    let options = text(&format!("newinstance,ptmxmode=0666,mode=0620{group}"));
    let flags = MountFlags::NOSUID | MountFlags::NOEXEC;
    mount("devpts", "root/dev/pts", "devpts", flags, options.as_c_str())?;
    mount("tmpfs", "root/dev/shm", "tmpfs", QUIET, c"mode=1777")?;
    // Not on every kernel, and missed by few.
    let _ = mount("mqueue", "root/dev/mqueue", "mqueue", QUIET | MountFlags::NOEXEC, c"");
    Ok(())
}

fn fill_run(spec: &Spec) -> io::Result<()> {
    let run = Path::new("root/run");
    for dir in ["e2b", "sandhold"] {
        make_dirs(&run.join(dir), 0o755)?;
    }
    for dir in ["lock", "shm"] {
        make_dirs(&run.join(dir), 0o755)?;
        fs::set_permissions(run.join(dir), fs::Permissions::from_mode(0o1777))?;
    }
    let put = |name: &str, value: &str| fs::File::create(run.join(name))?.write_all(value.as_bytes());
    put("e2b/.E2B_SANDBOX", "true")?;
    put("e2b/.E2B_SANDBOX_ID", &spec.id)?;
    put("e2b/.E2B_TEMPLATE_ID", &spec.template)?;
    let mut random = [0_u8; 16];
    sys::fill_random(&mut random)?;
    put("sandhold/boot_id", &uuid(random))
}

/// Writes a random UUID (version 4) as the kernel writes its boot id.
fn uuid(mut bytes: [u8; 16]) -> String {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut out = String::with_capacity(37);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            out.push('-');
        }
        out.push_str(&format!("{byte:02x}"));
    }
    out.push('\n');
    out
}

/// Shows a directory of the host.
fn show(bind: &Bind, tree: Option<OwnedFd>) -> Result<(), Failure> {
    let doing = || format!("show {} at {}", bind.source.display(), bind.target.display());
    let inside = Path::new("root").join(bind.target.strip_prefix("/").unwrap_or(&bind.target));
    // The target is made in a view that earlier runs of the sandbox wrote to: a link in it may lead anywhere.
    let resolved = make_inside(&inside).map_err(|error| match error.kind() {
        io::ErrorKind::NotADirectory => Failure::new(
            FailureKind::InvalidArgument,
            format!("nothing can be mounted at {}: {error}", bind.target.display()),
        ),
        _ => Failure::os(doing(), error),
    })?;
    match tree {
        Some(tree) => attach(&tree, &resolved.to_string_lossy()).doing(doing())?,
        // Where ids are the caller's own, they are the same in all its sandboxes.
        None => mount_bind_recursive(&bind.source, resolved.as_path()).doing(doing())?,
    }
    if !bind.writable {
        let path = CString::new(resolved.as_os_str().as_encoded_bytes()).unwrap_or_default();
        sys::set_mount_flags(&path, sys::MOUNT_ATTR_RDONLY).doing(doing())?;
    }
    Ok(())
}

/// Makes a directory below `root` and refuses links on the way.
pub(crate) fn make_inside(path: &Path) -> io::Result<std::path::PathBuf> {
    let mut at = std::path::PathBuf::new();
    for part in path.components() {
        at.push(part);
        match fs::symlink_metadata(&at) {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => {
                let shown = Path::new("/").join(at.strip_prefix("root").unwrap_or(&at));
                let why = format!("{} is there, and is no directory", shown.display());
                return Err(io::Error::new(io::ErrorKind::NotADirectory, why));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => make_dirs(&at, 0o755)?,
            Err(error) => return Err(error),
        }
    }
    Ok(at)
}

/// Gives the ordinary user its places where the builder of the base tree could not. Once, at the first start: later
/// the user may have given them to somebody else.
fn own_places(spec: &Spec) -> Result<(), Failure> {
    if !matches!(spec.ids, IdMap::Ranges { .. }) {
        return Ok(());
    }
    let marker: &CStr = c"/var/lib/sandhold/owned";
    if rustix::fs::access(marker, rustix::fs::Access::EXISTS).is_ok() {
        return Ok(());
    }
    for path in [Some(&spec.user.home), spec.workspace.as_ref()].into_iter().flatten() {
        std::os::unix::fs::lchown(path, Some(spec.user.id), Some(spec.user.id)).doing(format_args!(
            "give {} to {}",
            path.display(),
            spec.user.name
        ))?;
    }
    // An imported tree need not have the directory.
    make_dirs(Path::new("/var/lib/sandhold"), 0o755)
        .and_then(|()| fs::File::create("/var/lib/sandhold/owned"))
        .doing("note that the user has its places")
        .map(drop)
}
