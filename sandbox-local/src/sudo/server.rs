//! The daemon's side: starts what the shim asks for.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use sandhold_envd::{Daemon, Guest, GuestCommand, GuestExit};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::{UnixListener, UnixStream};

use super::{Answer, MOST_BYTES, Request, SOCKET};
use crate::channel::receive_with_fds;

/// What Debian's sudo gives to root.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A terminal sends these to every process in the foreground; the command is in no foreground itself.
const FROM_TERMINALS: [Signal; 4] = [Signal::INT, Signal::QUIT, Signal::HUP, Signal::WINCH];

/// After an error that only waiting helps against.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Listens for shims. Must run in a Tokio runtime.
pub(crate) fn serve(daemon: Daemon) -> io::Result<()> {
    let listener = UnixListener::bind(SOCKET)?;
    std::fs::set_permissions(SOCKET, std::fs::Permissions::from_mode(0o666))?;
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    tokio::spawn(answer(daemon.clone(), stream));
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    });
    Ok(())
}

async fn answer(daemon: Daemon, mut stream: UnixStream) {
    let answer = match run(daemon, &mut stream).await {
        Ok(Some(answer)) => answer,
        // The shim was killed: nobody waits for an answer.
        Ok(None) => return,
        Err(error) => Answer::Failed(error.to_string()),
    };
    if let Ok(text) = serde_json::to_vec(&answer) {
        let _ = stream.write_all(&text).await;
    }
}

async fn run(daemon: Daemon, stream: &mut UnixStream) -> io::Result<Option<Answer>> {
    let (request, stdio) = receive(stream).await?;
    // Forking blocks.
    let started = tokio::task::spawn_blocking(move || start(&daemon, request, stdio)).await;
    let mut guest = started.map_err(io::Error::other)??;
    let mut signals = [0; 64];
    loop {
        let exit = tokio::select! {
            biased;
            exit = guest.exited() => exit,
            read = stream.read(&mut signals) => {
                let Ok(length @ 1..) = read else {
                    // Whoever killed the shim meant the command.
                    let _ = guest.signal_group(Signal::KILL.as_raw());
                    return Ok(None);
                };
                for number in &signals[..length] {
                    // It may have ended by now.
                    let number = i32::from(*number);
                    let _ = if FROM_TERMINALS.iter().any(|signal| signal.as_raw() == number) {
                        guest.signal_group(number)
                    } else {
                        guest.signal(number)
                    };
                }
                continue;
            }
        };
        return Ok(Some(match exit {
            GuestExit::Code(code) => Answer::Exit(code),
            GuestExit::Signal(number) => Answer::Signal(number),
            _ => Answer::Failed("nobody knows how the command ended".to_owned()),
        }));
    }
}

async fn receive(stream: &mut UnixStream) -> io::Result<(Request, [OwnedFd; 3])> {
    let bad = |message: &str| io::Error::new(io::ErrorKind::InvalidData, message);
    let mut length = [0; 4];
    let receive = || receive_with_fds(stream.as_fd(), &mut length);
    let (received, fds) = stream.async_io(Interest::READABLE, receive).await?;
    if received != length.len() {
        return Err(bad("the request is cut off"));
    }
    let stdio = <[OwnedFd; 3]>::try_from(fds).map_err(|_| bad("three descriptors are needed"))?;
    let length = u32::from_le_bytes(length) as usize;
    if length > MOST_BYTES {
        return Err(bad("the command line and environment are too long"));
    }
    let mut text = vec![0; length];
    stream.read_exact(&mut text).await?;
    Ok((serde_json::from_slice(&text).map_err(|_| bad("the request is damaged"))?, stdio))
}

fn start(daemon: &Daemon, request: Request, stdio: [OwnedFd; 3]) -> io::Result<Guest> {
    let account = account(&request.user)?;
    let mut env: Vec<(String, String)> = request.env;
    env.retain(|(name, _)| {
        !matches!(name.as_str(), "PATH" | "HOME" | "USER" | "LOGNAME" | "SHELL" | "MAIL" | "PWD")
    });
    let own = [
        ("PATH", PATH),
        ("HOME", &account.home),
        ("USER", &request.user),
        ("LOGNAME", &request.user),
        ("SHELL", &account.shell),
    ];
    env.extend(own.map(|(name, value)| (name.to_owned(), value.to_owned())));
    env.retain(|(name, _)| !request.set.iter().any(|(set, _)| set == name));
    env.extend(request.set);
    let cwd = if request.login { PathBuf::from(&account.home) } else { request.cwd };
    let mut argv = request.argv.into_iter();
    let (program, args) = if request.login || request.shell {
        let mut args = if request.login { vec!["-l".to_owned()] } else { Vec::new() };
        let words: Vec<String> = argv.map(|word| quote(&word)).collect();
        if !words.is_empty() {
            args.extend(["-c".to_owned(), words.join(" ")]);
        }
        (account.shell, args)
    } else {
        (argv.next().unwrap_or_default(), argv.collect())
    };
    let mut command = GuestCommand::new(program, stdio);
    (command.args, command.env, command.cwd, command.user) = (args, env, cwd, request.user);
    daemon.start_guest(command)
}

struct Account {
    home: String,
    shell: String,
}

/// Finds a user's home and shell in the sandbox's `/etc/passwd`.
fn account(user: &str) -> io::Result<Account> {
    let text = std::fs::read_to_string(Path::new("/etc/passwd"))?;
    let found = text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.len() >= 7 && fields[0] == user)
            .then(|| Account { home: fields[5].to_owned(), shell: fields[6].to_owned() })
    });
    found.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("unknown user {user}")))
}

/// Makes a word that a shell reads as it stands.
fn quote(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./:=@%+,".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}
