//! The shim: looks like sudo(8) to whoever calls it.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, poll};

use super::{Answer, Request, SOCKET};
use crate::channel::send_with_fds;
use crate::sys;

const USAGE: &str = "usage: sudo [-EHins] [-u user] [VAR=value] [--] [command [args ...]]";

/// Kept without `-E`: what a terminal and a language need, and the mark by which the daemon finds a process tree.
const KEPT: [&str; 8] =
    ["TERM", "COLORTERM", "LANG", "LANGUAGE", "DISPLAY", "LS_COLORS", "DEBIAN_FRONTEND", "SANDHOLD_EXEC"];

/// What the command line asked for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    user: Option<String>,
    keep_env: bool,
    kept: Vec<String>,
    login: bool,
    shell: bool,
    /// Only asks whether it would work, or for nothing at all.
    nothing: bool,
    set: Vec<(String, String)>,
    argv: Vec<String>,
}

fn parse(args: &[String]) -> Result<Asked, String> {
    let mut asked = Asked::default();
    let mut args = args.iter();
    let mut only_command = false;
    while let Some(arg) = args.next() {
        if !only_command && let Some(long) = arg.strip_prefix("--") {
            let (name, value) =
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            let mut value = || {
                let value = value.map(str::to_owned).or_else(|| args.next().cloned());
                value.ok_or_else(|| format!("option --{name} needs a value\n{USAGE}"))
            };
            match name {
                "" => only_command = true,
                "user" => asked.user = Some(value()?),
                "preserve-env" if long.contains('=') => {
                    asked.kept.extend(value()?.split(',').map(str::to_owned));
                }
                "preserve-env" => asked.keep_env = true,
                "login" => asked.login = true,
                "shell" => asked.shell = true,
                "validate" | "remove-timestamp" | "reset-timestamp" => asked.nothing = true,
                "set-home" | "non-interactive" | "stdin" => {}
                "group" | "chdir" | "host" | "prompt" | "close-from" => {
                    return Err(format!("option --{name} is not supported in a sandbox\n{USAGE}"));
                }
                _ => return Err(format!("unknown option --{name}\n{USAGE}")),
            }
            continue;
        }
        if !only_command && arg.len() > 1 && arg.starts_with('-') {
            let mut letters = arg[1..].chars();
            while let Some(letter) = letters.next() {
                match letter {
                    'n' | 'H' | 'S' => {}
                    'E' => asked.keep_env = true,
                    'i' => asked.login = true,
                    's' => asked.shell = true,
                    'v' | 'k' | 'K' => asked.nothing = true,
                    'u' => {
                        let rest = letters.as_str();
                        let value =
                            if rest.is_empty() { args.next().cloned() } else { Some(rest.to_owned()) };
                        asked.user = Some(value.ok_or_else(|| format!("option -u needs a user\n{USAGE}"))?);
                        break;
                    }
                    _ => return Err(format!("option -{letter} is not supported in a sandbox\n{USAGE}")),
                }
            }
            continue;
        }
        match arg.split_once('=') {
            Some((name, value)) if asked.argv.is_empty() && is_variable(name) => {
                asked.set.push((name.to_owned(), value.to_owned()));
            }
            _ => {
                asked.argv = std::iter::once(arg.clone()).chain(args.cloned()).collect();
                break;
            }
        }
    }
    if asked.argv.is_empty() && !asked.login && !asked.shell && !asked.nothing {
        return Err(USAGE.to_owned());
    }
    // `sudo -k command` runs the command.
    asked.nothing &= asked.argv.is_empty();
    Ok(asked)
}

fn is_variable(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Runs the shim and returns its exit code.
pub(crate) fn run(args: &[std::ffi::OsString]) -> u8 {
    let told = args.iter().map(|arg| arg.to_str().map(str::to_owned)).collect::<Option<Vec<_>>>();
    let result =
        told.ok_or_else(|| "arguments must be UTF-8".to_owned()).and_then(|args| ask(&parse(&args)?));
    match result {
        Ok(Answer::Exit(code)) => code as u8,
        // As a shell says that a command was killed.
        Ok(Answer::Signal(number)) => (128 + number) as u8,
        Ok(Answer::Failed(message)) | Err(message) => {
            let _ = writeln!(std::io::stderr(), "sudo: {message}");
            1
        }
    }
}

fn ask(asked: &Asked) -> Result<Answer, String> {
    if asked.nothing {
        return Ok(Answer::Exit(0));
    }
    let kept = |name: &str| {
        asked.keep_env
            || KEPT.contains(&name)
            || name.starts_with("LC_")
            || asked.kept.iter().any(|kept| kept == name)
    };
    let request = Request {
        user: asked.user.clone().unwrap_or_else(|| "root".to_owned()),
        argv: asked.argv.clone(),
        login: asked.login,
        shell: asked.shell,
        cwd: std::env::current_dir().unwrap_or_else(|_| "/".into()),
        env: std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| kept(name))
            .collect(),
        set: asked.set.clone(),
    };
    let text = serde_json::to_vec(&request).map_err(|error| error.to_string())?;
    // Before anything is started: no signal may find nobody who passes it on.
    let signals = sys::catch_signals().map_err(|error| error.to_string())?;
    let mut stream = UnixStream::connect(SOCKET)
        .map_err(|error| format!("the sandbox's daemon cannot be reached: {error}"))?;
    let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let length = (text.len() as u32).to_le_bytes();
    send_with_fds(stream.as_fd(), &length, &[stdin.as_fd(), stdout.as_fd(), stderr.as_fd()])
        .and_then(|_| stream.write_all(&text))
        .map_err(|error| format!("cannot ask the sandbox's daemon: {error}"))?;
    loop {
        let mut fds = [PollFd::new(&stream, PollFlags::IN), PollFd::new(&signals, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.to_string()),
        }
        let (answered, signalled) = (!fds[0].revents().is_empty(), !fds[1].revents().is_empty());
        if signalled && let Some(number) = sys::next_signal(signals.as_fd()) {
            // Too late if it fails: then the answer is there.
            let _ = stream.write_all(&[number]);
        }
        if answered {
            let mut answer = String::new();
            stream.read_to_string(&mut answer).map_err(|error| error.to_string())?;
            return serde_json::from_str(&answer).map_err(|_| "the sandbox's daemon said nothing".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Asked {
        parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn the_usual_command_lines_are_understood() {
        let plain = parsed("apt-get install -y jq");
        assert_eq!(plain.argv, ["apt-get", "install", "-y", "jq"]);
        assert_eq!(parsed("-n -- true").argv, ["true"]);
        assert!(parsed("-nE make").keep_env);
        for line in ["-u postgres psql", "-upostgres psql", "--user=postgres psql", "--user postgres psql"] {
            let asked = parsed(line);
            assert_eq!(
                (asked.user.as_deref(), asked.argv.as_slice()),
                (Some("postgres"), &["psql".to_owned()][..])
            );
        }
        let set = parsed("-H A=1 B=x=y env C=2");
        assert_eq!(set.set, [("A".to_owned(), "1".to_owned()), ("B".to_owned(), "x=y".to_owned())]);
        assert_eq!(set.argv, ["env", "C=2"]);
        assert!(parsed("-i").login && parsed("-s").shell && parsed("-v").nothing);
        assert_eq!(parsed("--preserve-env=A,B true").kept, ["A", "B"]);
        assert!(!parsed("-k true").nothing);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for line in ["-u", "-Q true", "--frobnicate true", "-n", "--chdir=/ true"] {
            assert!(parse(&line.split(' ').map(str::to_owned).collect::<Vec<_>>()).is_err(), "{line}");
        }
    }
}
