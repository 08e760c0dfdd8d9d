//! The few commands that a fake sandbox knows.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::sleep;

use super::files::parse;
use super::machine::{Machine, lock};
use super::processes::FakeProcess;
use crate::{Error, ExitStatus, OutputStream, ProcessSpec, Result};

/// What a hook says that a program does: wait, write, end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reply {
    /// How long it runs before it writes; `None` for ever.
    pub after: Option<Duration>,
    /// What it writes to standard output.
    pub stdout: Bytes,
    /// What it writes to standard error.
    pub stderr: Bytes,
    /// How it ends.
    pub exit: ExitStatus,
}

impl Reply {
    /// Writes this to standard output at once and exits with code 0.
    pub fn stdout(bytes: impl Into<Bytes>) -> Self {
        Self {
            after: Some(Duration::ZERO),
            stdout: bytes.into(),
            exit: ExitStatus::exited(0),
            ..Self::default()
        }
    }

    /// Exits with this code at once.
    #[must_use]
    pub fn exit(code: i32) -> Self {
        Self { exit: ExitStatus::exited(code), ..Self::stdout("") }
    }

    /// Runs until it is killed.
    #[must_use]
    pub fn hang() -> Self {
        Self { after: None, ..Self::stdout("") }
    }

    /// Runs this long before it writes.
    #[must_use]
    pub fn with_after(mut self, time: Duration) -> Self {
        self.after = Some(time);
        self
    }

    /// Writes this to standard error.
    #[must_use]
    pub fn with_stderr(mut self, bytes: impl Into<Bytes>) -> Self {
        self.stderr = bytes.into();
        self
    }
}

pub(super) type Hook = Arc<dyn Fn(&ProcessSpec) -> Option<Reply> + Send + Sync>;

const PROGRAMS: &[&str] =
    &["true", "false", "echo", "cat", "sleep", "pwd", "printenv", "listen", "sh", "bash"];

/// The name of a program without the directories where programs are.
fn base(program: &str) -> &str {
    program.strip_prefix("/usr").unwrap_or(program).strip_prefix("/bin/").unwrap_or(program)
}

/// Refuses what no process can be started from, naming the value.
pub(super) fn check(machine: &Machine, spec: &ProcessSpec, hooked: bool) -> Result<()> {
    let invalid = |what: String| Err(Error::invalid_argument(what));
    for text in std::iter::once(&spec.program).chain(&spec.args) {
        if text.contains('\0') {
            return invalid(format!("the argument {text:?} contains a NUL byte"));
        }
    }
    for (name, value) in &spec.env {
        if name.is_empty() || name.contains(['=', '\0']) {
            return invalid(format!("the variable name {name:?} is empty or contains '=' or NUL"));
        }
        if value.contains('\0') {
            return invalid(format!("the value of the variable {name:?} contains a NUL byte"));
        }
    }
    let cwd = cwd(machine, spec);
    if !lock(&machine.files).is_dir(&parse(&cwd, &machine.spec.home)?) {
        return invalid(format!("the working directory {cwd:?} does not exist"));
    }
    if !hooked && !PROGRAMS.contains(&base(&spec.program)) {
        return invalid(format!("the program {:?} does not exist", spec.program));
    }
    Ok(())
}

fn cwd(machine: &Machine, spec: &ProcessSpec) -> String {
    let default = machine.spec.workdir.as_ref().unwrap_or(&machine.spec.home);
    spec.cwd.as_ref().unwrap_or(default).clone()
}

/// Runs a process to its end, be it its own, a signal, its deadline or the end of the sandbox.
pub(super) async fn run(
    machine: Arc<Machine>,
    process: Arc<FakeProcess>,
    input: mpsc::UnboundedReceiver<Bytes>,
    reply: Option<Reply>,
) {
    let deadline = async {
        match process.spec.deadline {
            Some(deadline) => sleep(deadline).await,
            None => std::future::pending().await,
        }
    };
    let mut running = Running { machine: &machine, process: &process, input };
    let work = async {
        match reply {
            Some(reply) => running.reply(reply).await,
            None => {
                let argv =
                    std::iter::once(&process.spec.program).chain(&process.spec.args).cloned().collect();
                ExitStatus::exited(running.command(argv, &Sink::Process).await)
            }
        }
    };
    let status = tokio::select! {
        biased;
        // Nobody is told of an exit: whoever reads hears that the sandbox is gone.
        () = machine.gone() => return,
        signal = process.stopped() => ExitStatus::signaled(signal),
        () = deadline => ExitStatus { timed_out: true, ..ExitStatus::signaled(15) },
        status = work => status,
    };
    if process.spec.retain.is_none() {
        lock(&machine.processes).forget(process.pid);
    }
    process.finish(status);
}

enum Sink {
    Process,
    File { path: String, append: bool },
}

struct Running<'a> {
    machine: &'a Arc<Machine>,
    process: &'a FakeProcess,
    input: mpsc::UnboundedReceiver<Bytes>,
}

impl Running<'_> {
    /// Does nothing while the sandbox is paused.
    async fn thawed(&self) {
        self.machine.until(|life| life.is_running()).await;
    }

    async fn reply(&self, reply: Reply) -> ExitStatus {
        match reply.after {
            Some(after) => sleep(after).await,
            None => std::future::pending().await,
        }
        self.thawed().await;
        self.process.output(OutputStream::Stdout, reply.stdout);
        self.process.output(OutputStream::Stderr, reply.stderr);
        reply.exit
    }

    async fn write(&self, sink: &Sink, data: impl Into<Bytes> + Send) -> i32 {
        self.thawed().await;
        match sink {
            Sink::Process => self.process.output(OutputStream::Stdout, data),
            Sink::File { path, append } => {
                let data = data.into();
                let written = self.path(path).and_then(|path| {
                    let mut files = lock(&self.machine.files);
                    if *append {
                        files.append(path, &data)
                    } else {
                        files.write(path, data, Default::default()).map(drop)
                    }
                });
                if let Err(error) = written {
                    return self.complain(&error.to_string(), 1);
                }
            }
        }
        0
    }

    fn complain(&self, what: &str, code: i32) -> i32 {
        self.process.output(OutputStream::Stderr, format!("{what}\n"));
        code
    }

    fn path(&self, path: &str) -> Result<Vec<String>> {
        let cwd = parse(&cwd(self.machine, &self.process.spec), &self.machine.spec.home)?;
        parse(path, &format!("/{}", cwd.join("/")))
    }

    fn variable(&self, name: &str) -> Option<&String> {
        self.process.spec.env.get(name).or_else(|| self.machine.spec.env.get(name))
    }

    async fn command(&mut self, argv: Vec<String>, sink: &Sink) -> i32 {
        let Some((program, args)) = argv.split_first() else { return 0 };
        match base(program) {
            "true" => self.write(sink, "").await,
            "false" => 1,
            "echo" => self.write(sink, format!("{}\n", args.join(" "))).await,
            "pwd" => match self.path(".") {
                Ok(path) => self.write(sink, format!("/{}\n", path.join("/"))).await,
                Err(error) => self.complain(&error.to_string(), 1),
            },
            "printenv" => match args.first().and_then(|name| self.variable(name)) {
                Some(value) => {
                    let line = format!("{value}\n");
                    self.write(sink, line).await
                }
                None => 1,
            },
            "sleep" => match args.first().and_then(|text| text.parse::<f64>().ok()) {
                Some(seconds) if (0.0..1e9).contains(&seconds) => {
                    sleep(Duration::from_secs_f64(seconds)).await;
                    self.thawed().await;
                    0
                }
                _ => self.complain("sleep: give a number of seconds", 1),
            },
            "cat" => self.cat(args, sink).await,
            "listen" => match args.first().and_then(|port| port.parse().ok()) {
                Some(port) => {
                    let _listening = Listening::new(self.machine, port);
                    // Tells that the port is open; the test may go on.
                    self.write(sink, "listening\n").await;
                    std::future::pending().await
                }
                None => self.complain("listen: give a port", 1),
            },
            "sh" | "bash" => {
                let line = args.iter().position(|arg| arg.starts_with('-') && arg.ends_with('c'));
                match line.and_then(|at| args.get(at + 1)) {
                    Some(line) => Box::pin(self.shell(line)).await,
                    None => self.complain("sh: only -c LINE is known", 2),
                }
            }
            other => self.complain(&format!("sh: {other}: not found"), 127),
        }
    }

    async fn cat(&mut self, args: &[String], sink: &Sink) -> i32 {
        for path in args {
            let content = self.path(path).and_then(|path| lock(&self.machine.files).read(&path));
            match content {
                Ok(content) => {
                    self.write(sink, content).await;
                }
                Err(error) => return self.complain(&format!("cat: {error}"), 1),
            }
        }
        if args.is_empty() {
            let is_terminal = self.process.spec.pty.is_some();
            while let Some(data) = self.input.recv().await {
                if is_terminal && data.contains(&4) {
                    break;
                }
                self.write(sink, data).await;
            }
        }
        0
    }

    /// Runs a line: words with quotes, `;`, `&&`, `>` and `>>`, `exit`. Nothing is expanded.
    async fn shell(&mut self, line: &str) -> i32 {
        let mut code = 0;
        for command in split(line) {
            if command.only_after_success && code != 0 {
                continue;
            }
            if command.argv.first().is_some_and(|program| program == "exit") {
                return command.argv.get(1).and_then(|code| code.parse().ok()).unwrap_or(code);
            }
            code = self.command(command.argv, &command.sink).await;
        }
        code
    }
}

/// Keeps a port open while a command runs.
struct Listening<'a> {
    machine: &'a Machine,
    port: u16,
}

impl<'a> Listening<'a> {
    fn new(machine: &'a Machine, port: u16) -> Self {
        lock(&machine.ports).insert(port);
        Self { machine, port }
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        lock(&self.machine.ports).remove(&self.port);
    }
}

struct Command {
    argv: Vec<String>,
    sink: Sink,
    only_after_success: bool,
}

#[derive(PartialEq, Eq)]
enum Token {
    Word(String),
    Mark(&'static str),
}

fn tokens(line: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        let mark = [";", "\n", "&&", ">>", ">"].into_iter().find(|mark| rest.starts_with(mark));
        if mark.is_some() || c.is_whitespace() {
            tokens.extend(word.take().map(Token::Word));
            tokens.extend(mark.map(Token::Mark));
            rest = &rest[mark.map_or(c.len_utf8(), str::len)..];
            continue;
        }
        let word = word.get_or_insert_default();
        rest = &rest[c.len_utf8()..];
        match c {
            '\'' | '"' => {
                let end = rest.find(c).unwrap_or(rest.len());
                word.push_str(&rest[..end]);
                rest = rest.get(end + 1..).unwrap_or_default();
            }
            c => word.push(c),
        }
    }
    tokens.extend(word.map(Token::Word));
    tokens
}

fn split(line: &str) -> Vec<Command> {
    let fresh = |only_after_success| Command { argv: Vec::new(), sink: Sink::Process, only_after_success };
    let mut commands = vec![fresh(false)];
    let mut tokens = tokens(line).into_iter();
    while let Some(token) = tokens.next() {
        match token {
            Token::Mark(mark @ (">" | ">>")) => {
                if let (Some(Token::Word(path)), Some(command)) = (tokens.next(), commands.last_mut()) {
                    command.sink = Sink::File { path, append: mark == ">>" };
                }
            }
            Token::Mark(mark) => commands.push(fresh(mark == "&&")),
            Token::Word(word) => {
                if let Some(command) = commands.last_mut() {
                    command.argv.push(word);
                }
            }
        }
    }
    commands.retain(|command| !command.argv.is_empty());
    commands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_split_into_commands_and_words() {
        let commands = split("echo 'a b' \"c;d\"e && cat x>>y; exit 3");
        let argvs: Vec<_> = commands.iter().map(|command| command.argv.join("|")).collect();
        assert_eq!(argvs, ["echo|a b|c;de", "cat|x", "exit|3"]);
        assert!(matches!(&commands[1].sink, Sink::File { path, append: true } if path == "y"));
        assert!(commands[1].only_after_success && !commands[2].only_after_success);
    }
}
