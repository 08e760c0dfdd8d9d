//! The lowest layer of every root view: a small system tree of our own, built once and shared.
//!
//! Nothing of the host's `/etc` is laid under a sandbox. What programs need of it is copied, and only files that
//! everybody on the host may read.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::failure::{Doing, Failure};
use crate::record::{IdMap, Network, Spec};
use crate::sys;

/// Changes when the tree that this file builds changes.
const LAYOUT: u32 = 4;

/// What is copied from the host's `/etc`: nothing that tells who uses the host or lets anybody in.
const ETC: &[&str] = &[
    "alternatives",
    "bash_completion.d",
    "bindresvport.blacklist",
    "ca-certificates",
    "ca-certificates.conf",
    "debconf.conf",
    "debian_version",
    "dpkg",
    "emacs",
    "fonts",
    "gai.conf",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "login.defs",
    "lsb-release",
    "magic",
    "magic.mime",
    "mailcap",
    "mime.types",
    "networks",
    "os-release",
    "pam.conf",
    "pam.d",
    "perl",
    "protocols",
    "rpc",
    "security",
    "selinux",
    "services",
    "shells",
    "skel",
    "ssl",
    "terminfo",
    "timezone",
    "vim",
    "xattr.conf",
];
/// Copied as well, by the beginning of the name.
const ETC_PREFIXES: &[&str] = &["python", "java-"];
/// The parts of `/etc/apt` that hold no credentials.
const ETC_APT: &[&str] = &[
    "keyrings",
    "preferences",
    "preferences.d",
    "sources.list",
    "sources.list.d",
    "trusted.gpg",
    "trusted.gpg.d",
];

/// Links of a merged `/usr`, made where the host has the target.
const USR_LINKS: &[&str] = &["bin", "sbin", "lib", "lib32", "lib64", "libx32"];

/// Directories that are there, with their mode.
const DIRS: &[(&str, u32)] = &[
    ("boot", 0o755),
    ("dev", 0o755),
    ("etc", 0o755),
    ("etc/apt", 0o755),
    ("etc/apt/apt.conf.d", 0o755),
    ("home", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o555),
    ("root", 0o700),
    ("run", 0o755),
    ("srv", 0o755),
    ("sys", 0o555),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/backups", 0o755),
    ("var/cache", 0o755),
    ("var/cache/apt/archives/partial", 0o755),
    ("var/cache/debconf", 0o755),
    ("var/cache/ldconfig", 0o755),
    ("var/lib", 0o755),
    ("var/lib/apt/lists/partial", 0o755),
    ("var/lib/dpkg", 0o755),
    ("var/lib/misc", 0o755),
    ("var/lib/sandhold", 0o755),
    ("var/local", 0o755),
    ("var/log/apt", 0o755),
    ("var/mail", 0o755),
    ("var/opt", 0o755),
    ("var/spool", 0o755),
    ("var/tmp", 0o1777),
];

/// Debian's fixed users, so that packages find them, and the user of apt.
const PASSWD: &str = "\
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
bin:x:2:2:bin:/bin:/usr/sbin/nologin
sys:x:3:3:sys:/dev:/usr/sbin/nologin
sync:x:4:65534:sync:/bin:/bin/sync
games:x:5:60:games:/usr/games:/usr/sbin/nologin
man:x:6:12:man:/var/cache/man:/usr/sbin/nologin
lp:x:7:7:lp:/var/spool/lpd:/usr/sbin/nologin
mail:x:8:8:mail:/var/mail:/usr/sbin/nologin
news:x:9:9:news:/var/spool/news:/usr/sbin/nologin
uucp:x:10:10:uucp:/var/spool/uucp:/usr/sbin/nologin
proxy:x:13:13:proxy:/bin:/usr/sbin/nologin
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
backup:x:34:34:backup:/var/backups:/usr/sbin/nologin
list:x:38:38:Mailing List Manager:/var/list:/usr/sbin/nologin
irc:x:39:39:ircd:/run/ircd:/usr/sbin/nologin
_apt:x:42:65534::/nonexistent:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
";
/// Debian's fixed groups; `sudo` gets the ordinary user.
const GROUPS: &[(&str, u32)] = &[
    ("daemon", 1),
    ("bin", 2),
    ("sys", 3),
    ("adm", 4),
    ("tty", 5),
    ("disk", 6),
    ("lp", 7),
    ("mail", 8),
    ("news", 9),
    ("uucp", 10),
    ("man", 12),
    ("proxy", 13),
    ("kmem", 15),
    ("dialout", 20),
    ("fax", 21),
    ("voice", 22),
    ("cdrom", 24),
    ("floppy", 25),
    ("tape", 26),
    ("audio", 29),
    ("dip", 30),
    ("www-data", 33),
    ("backup", 34),
    ("operator", 37),
    ("list", 38),
    ("irc", 39),
    ("src", 40),
    ("shadow", 42),
    ("utmp", 43),
    ("video", 44),
    ("sasl", 45),
    ("plugdev", 46),
    ("staff", 50),
    ("games", 60),
    ("users", 100),
    ("crontab", 101),
    ("input", 102),
    ("render", 103),
    ("kvm", 104),
    ("sgx", 105),
    ("netdev", 106),
    ("messagebus", 107),
    ("systemd-journal", 108),
    ("ssl-cert", 109),
    ("ssh", 110),
    ("nogroup", 65534),
];

/// A shell that starts fast: Debian's own profile runs programs.
const PROFILE: &str = "\
if [ \"$(id -u)\" -eq 0 ]; then
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
else
  PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games:/usr/sbin:/sbin
fi
export PATH
if [ \"${PS1-}\" ] && [ \"${BASH-}\" ]; then PS1='\\u@\\h:\\w\\$ '; fi
for i in /etc/profile.d/*.sh; do [ -r \"$i\" ] && . \"$i\"; done
unset i
";

/// Says whether every sandbox has a user or group of this name.
pub(crate) fn is_taken(name: &str) -> bool {
    let user = PASSWD.lines().any(|line| line.split(':').next() == Some(name));
    user || name == "sudo" || GROUPS.iter().any(|(group, _)| *group == name)
}

/// Returns the directory of the tree that `spec` needs, below `home`, and builds it if it is not there.
pub(crate) fn ensure(home: &Path, spec: &Spec) -> Result<PathBuf, Failure> {
    let parent = home.join("base");
    let path = parent.join(key(spec));
    if path.is_dir() {
        return Ok(path);
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(&parent)
        .doing("make the directory of base trees")?;
    // One builds, and the others wait: a second tree would only be removed again, which on some disks takes longer than
    // to build it.
    let lock = parent.join(format!(".lock-{}", key(spec)));
    let lock = fs::File::create(&lock).doing(format_args!("make {}", lock.display()))?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).doing("wait for the base tree")?;
    if path.is_dir() {
        return Ok(path);
    }
    let mut suffix = [0_u8; 8];
    sys::fill_random(&mut suffix).doing("get random numbers")?;
    let fresh = parent.join(format!(".new-{}", hex(&suffix)));
    // On disk before it has its name: later sandboxes trust a tree that is there.
    let stored = || fs::File::open(&fresh).and_then(|tree| Ok(rustix::fs::syncfs(tree)?));
    let built = build(&fresh, spec).and_then(|()| stored()).and_then(|()| match fs::rename(&fresh, &path) {
        // Another process was faster with the same tree.
        Err(_) if path.is_dir() => Ok(()),
        other => other,
    });
    if built.is_err() || fresh.exists() {
        // What is half built is only ever seen by us.
        let _ = crate::cleanup::remove_tree(&fresh);
    }
    built.doing(format_args!("build the base tree {}", path.display()))?;
    Ok(path)
}

/// Names a tree by everything that decides its content. Looks at times and sizes: this runs at every start.
fn key(spec: &Spec) -> String {
    let mut hash = Sha256::new();
    let tier = match spec.ids {
        IdMap::Full { .. } => "full",
        IdMap::Ranges { .. } => "ranges",
        IdMap::Single => "single",
    };
    hash.update(format!(
        "{LAYOUT} {tier} {:?} {:?} {:?} {}",
        spec.user,
        spec.workspace,
        spec.network,
        hostname(spec)
    ));
    let sources = [
        "/etc",
        "/etc/resolv.conf",
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/ld.so.cache",
        "/etc/alternatives",
        "/etc/apt/sources.list",
        "/etc/apt/sources.list.d",
        "/var/lib/dpkg/status",
        "/usr",
    ];
    for source in sources {
        if let Ok(meta) = fs::metadata(source) {
            hash.update(format!("{source} {} {} {}", meta.mtime(), meta.mtime_nsec(), meta.size()));
        }
    }
    hex(&hash.finalize()[..12])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Host name inside the sandbox.
pub(crate) fn hostname(spec: &Spec) -> &str {
    spec.hostname.as_deref().unwrap_or("sandhold")
}

fn build(root: &Path, spec: &Spec) -> io::Result<()> {
    fs::create_dir(root)?;
    fs::set_permissions(root, fs::Permissions::from_mode(0o755))?;
    for (dir, mode) in DIRS {
        make_dir(&root.join(dir), *mode)?;
    }
    for link in USR_LINKS {
        if Path::new("/usr").join(link).is_dir() {
            symlink(format!("usr/{link}"), root.join(link))?;
        }
    }
    symlink("/run", root.join("var/run"))?;
    symlink("/run/lock", root.join("var/lock"))?;
    write_etc(root, spec)?;
    copy_dpkg(root)?;
    if matches!(spec.ids, IdMap::Single) {
        drop_trigger(root, "man-db")?;
    }
    if !matches!(spec.ids, IdMap::Full { .. }) {
        // A directory that only the lower /usr has belongs to nobody that is mapped, and nothing can be added to
        // it; one that is here as well belongs to root inside.
        copy_directories(Path::new("/usr"), &root.join("usr"))?;
    }
    // The place where sudo is shown: to make it in a layer of the sandbox would copy directories up at each start.
    make_dir(&root.join("usr/local"), 0o755)?;
    make_dir(&root.join("usr/local/bin"), 0o755)?;
    write(&root.join("usr/local/bin/sudo"), "")?;
    // Debian has Python by its other name only, and what is written for sandboxes calls it by this one.
    let there = |name: &str| fs::symlink_metadata(name).is_ok();
    if there("/usr/bin/python3") && !there("/usr/bin/python") && !there("/usr/local/bin/python") {
        symlink("/usr/bin/python3", root.join("usr/local/bin/python"))?;
    }
    for dir in [Some(&spec.user.home), spec.workspace.as_ref()].into_iter().flatten() {
        let inside = root.join(dir.strip_prefix("/").unwrap_or(dir));
        make_dir(&inside, 0o755)?;
        // In the other tiers only a process inside can give it away.
        if matches!(spec.ids, IdMap::Full { .. }) {
            std::os::unix::fs::chown(&inside, Some(spec.user.id), Some(spec.user.id))?;
        }
    }
    Ok(())
}

fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o755).create(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn write(path: &Path, text: impl AsRef<[u8]>) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(text.as_ref())?;
    file.set_permissions(fs::Permissions::from_mode(0o644))
}

fn write_etc(root: &Path, spec: &Spec) -> io::Result<()> {
    let (host, etc) = (Path::new("/etc"), root.join("etc"));
    for entry in fs::read_dir(host)?.filter_map(Result::ok) {
        let name = entry.file_name();
        let Some(text) = name.to_str() else { continue };
        if ETC.contains(&text) || ETC_PREFIXES.iter().any(|prefix| text.starts_with(prefix)) {
            copy_public(&entry.path(), &etc.join(text))?;
        }
    }
    for name in ETC_APT {
        copy_public(&host.join("apt").join(name), &etc.join("apt").join(name))?;
    }
    copy_apt_conf(&host.join("apt/apt.conf.d"), &etc.join("apt/apt.conf.d"))?;
    if let Ok(text) = fs::read_to_string(host.join("pip.conf"))
        && !holds_credentials(&text)
    {
        write(&etc.join("pip.conf"), text)?;
    }

    let (user, id, home) = (&spec.user.name, spec.user.id, spec.user.home.display());
    let shell = if Path::new("/usr/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
    write(
        &etc.join("passwd"),
        format!("root:x:0:0:root:/root:{shell}\n{PASSWD}{user}:x:{id}:{id}::{home}:{shell}\n"),
    )?;
    let mut groups = format!("root:x:0:\nsudo:x:27:{user}\n{user}:x:{id}:\n");
    for (name, gid) in GROUPS {
        groups.push_str(&format!("{name}:x:{gid}:\n"));
    }
    write(&etc.join("group"), groups)?;
    let name = hostname(spec);
    write(&etc.join("hostname"), format!("{name}\n"))?;
    write(
        &etc.join("hosts"),
        format!("127.0.0.1 localhost {name}\n::1 localhost ip6-localhost ip6-loopback\n"),
    )?;
    write(&etc.join("host.conf"), "multi on\n")?;
    write(
        &etc.join("nsswitch.conf"),
        "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n",
    )?;
    let resolv = match spec.network {
        Network::Host => fs::read(host.join("resolv.conf")).unwrap_or_default(),
        Network::Loopback | Network::None => Vec::new(),
    };
    write(&etc.join("resolv.conf"), resolv)?;
    make_dir(&etc.join("profile.d"), 0o755)?;
    write(&etc.join("profile"), PROFILE)?;
    write(&etc.join("bash.bashrc"), "[ -z \"${PS1-}\" ] || PS1='\\u@\\h:\\w\\$ '\n")?;
    write(&etc.join("environment"), "")?;
    write(&etc.join("fstab"), "")?;
    write(&etc.join("machine-id"), "")?;
    symlink("/proc/self/mounts", etc.join("mtab"))?;
    // apt drops to `_apt` to download; with one mapped id there is nobody to drop to.
    if matches!(spec.ids, IdMap::Single) {
        write(&etc.join("apt/apt.conf.d/90sandhold"), "APT::Sandbox::User \"root\";\n")?;
    }
    Ok(())
}

/// Says whether a configuration file may hold a password or a token.
fn holds_credentials(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("passw") || text.contains("token") || text.contains("auth") || text.contains('@')
}

fn copy_apt_conf(from: &Path, to: &Path) -> io::Result<()> {
    let Ok(entries) = fs::read_dir(from) else { return Ok(()) };
    for entry in entries.filter_map(Result::ok) {
        // Hooks of the host's own tools (a desktop's package kit) have nobody to talk to inside.
        if let Ok(text) = fs::read_to_string(entry.path())
            && !holds_credentials(&text)
            && !text.contains("Invoke")
        {
            write(&to.join(entry.file_name()), text)?;
        }
    }
    Ok(())
}

/// Copies the package database without checksums, which nothing asks for when a package is added.
fn copy_dpkg(root: &Path) -> io::Result<()> {
    let (from, to) = (Path::new("/var/lib/dpkg"), root.join("var/lib/dpkg"));
    for dir in ["info", "updates", "triggers", "alternatives", "parts"] {
        make_dir(&to.join(dir), 0o755)?;
    }
    for name in [
        "arch",
        "arch-native",
        "available",
        "cmethopt",
        "diversions",
        "statoverride",
        "status",
        "triggers",
        "alternatives",
    ] {
        copy_public(&from.join(name), &to.join(name))?;
    }
    for name in ["status", "available", "diversions", "statoverride"] {
        if !to.join(name).exists() {
            write(&to.join(name), "")?;
        }
    }
    let Ok(entries) = fs::read_dir(from.join("info")) else { return Ok(()) };
    for entry in entries.filter_map(Result::ok) {
        if entry.path().extension().is_none_or(|extension| extension != "md5sums" && extension != "symbols") {
            copy_public(&entry.path(), &to.join("info").join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Keeps the package database from running a package's trigger, which gives files to a user that is not mapped.
fn drop_trigger(root: &Path, package: &str) -> io::Result<()> {
    let file = root.join("var/lib/dpkg/triggers/File");
    let Ok(text) = fs::read_to_string(&file) else { return Ok(()) };
    let others = text.lines().filter(|line| {
        let interested = line.split_whitespace().nth(1).unwrap_or_default();
        interested.split(['/', ':']).next() != Some(package)
    });
    write(&file, others.map(|line| format!("{line}\n")).collect::<String>())
}

/// Copies a file, a link or a tree, leaving out whatever not everybody may read. What is not there is no error.
fn copy_public(from: &Path, to: &Path) -> io::Result<()> {
    let Ok(meta) = fs::symlink_metadata(from) else { return Ok(()) };
    let kind = meta.file_type();
    if kind.is_symlink() {
        return symlink(fs::read_link(from)?, to);
    }
    if kind.is_file() && meta.mode() & 0o004 != 0 {
        let mut source = fs::File::open(from)?;
        let mut copy = fs::File::create(to)?;
        io::copy(&mut source, &mut copy)?;
        return copy.set_permissions(fs::Permissions::from_mode(meta.mode() & 0o755));
    }
    if kind.is_dir() && meta.mode() & 0o005 == 0o005 {
        make_dir(to, 0o755)?;
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy_public(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Makes the directories of a tree without what is in them.
fn copy_directories(from: &Path, to: &Path) -> io::Result<()> {
    make_dir(to, 0o755)?;
    let Ok(entries) = fs::read_dir(from) else { return Ok(()) };
    for entry in entries.filter_map(Result::ok) {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            copy_directories(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
