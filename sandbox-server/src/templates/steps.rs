//! What each step of a build does.

use sandhold_core::{
    ByteStream, Error, ErrorKind, ExecOutput, ProcessSpec, SandboxHandle, SandboxHandleExt, WriteOptions,
};
use sandhold_e2b::wire::{LogLevel, Step, StepKind};
use tokio::io::AsyncReadExt;

use super::record::{Context, Layer};
use super::session::{Session, Voice, in_context, run, shell};
use super::uploads::Uploads;

/// Where steps start that name no other place.
const HOME: &str = "/home/user";
/// Whom steps run as that change the system.
const ROOT: &str = "root";
/// Longest part of what a command wrote that its failure quotes, in bytes.
const MAX_QUOTE: usize = 512;

/// What the scripts below begin with. `single`: whether there is one id for all, so that everything belongs to everybody
/// already, and nothing can be given away.
const BEGIN: &str = r#"
set -euo pipefail
single() {
  local map
  mapfile -t map </proc/self/uid_map
  [[ ${#map[@]} = 1 && ${map[0]} =~ [[:space:]]1$ ]]
}
"#;

/// Lays uploaded files down. Arguments: archive, source in it, target, owner, mode, working directory.
const COPY: &str = r#"
archive=$1 source=$2 target=$3 owner=$4 mode=$5
stage=$(mktemp -d /tmp/.sandhold-copy.XXXXXX)
trap 'chmod -R u+rwX "$stage" 2>/dev/null || true; rm -rf "$stage" "$archive"' EXIT
tar -xf "$archive" -C "$stage"
cd "$6"
case $target in /*) ;; *) target=$PWD/$target ;; esac
entry=$stage/$source
if [ ! -e "$entry" ] && [ ! -L "$entry" ]; then
  echo "source path does not exist: $source" >&2
  exit 1
fi
single || chown -hR "$owner" "$entry"
if [ -n "$mode" ] && [ ! -L "$entry" ]; then chmod -R "$mode" "$entry"; fi
if [ -d "$entry" ] && [ ! -L "$entry" ]; then
  mkdir -p "$target"
  # A directory is merged into what is there: links to directories are followed, files are replaced.
  if tar --help 2>/dev/null | grep -q -e --keep-directory-symlink; then
    tar -C "$entry" -cf - . | tar -C "$target" -xpf - --keep-directory-symlink --no-overwrite-dir
  else
    cp -a "$entry/." "$target/"
  fi
else
  case $target in */) mkdir -p "$target" ;; *) mkdir -p "$(dirname "$target")" ;; esac
  mv -f "$entry" "$target"
fi
"#;

/// Makes a directory; what had to be made belongs to the user. Arguments: directory, user.
const MAKE_WORKDIR: &str = r#"
made=
at=$1
while [ ! -d "$at" ]; do made=$at; at=$(dirname "$at"); done
mkdir -p "$1"
if [ -n "$made" ]; then single || chown -R "$2" "$made"; fi
cd "$1"
pwd
"#;

/// Makes a user where there is none, and says its name. Arguments: name or id, whether it may become root.
const MAKE_USER: &str = r#"
if ! id -u "$1" >/dev/null 2>&1; then
  if single; then useradd -M -s /bin/bash "$1" >&2 && mkdir -p "/home/$1"
  elif command -v useradd >/dev/null; then useradd -m -s /bin/bash "$1"; else adduser -D -s /bin/bash "$1"; fi >&2
fi
if [ "$2" = true ]; then usermod -aG sudo "$1" >&2; fi
id -un "$1"
"#;

/// What a step needs.
#[derive(Debug)]
pub(crate) struct Surroundings<'a> {
    pub(crate) session: &'a Session,
    pub(crate) uploads: &'a Uploads,
    /// What the step stands on.
    pub(crate) layer: &'a Layer,
    pub(crate) voice: Voice<'a>,
}

/// What a step did.
#[derive(Debug)]
pub(crate) struct Done {
    /// How later steps run.
    pub(crate) context: Context,
    /// Whether files may have changed.
    pub(crate) changed: bool,
}

/// Does a step, or says why it failed.
pub(crate) async fn execute(step: &Step, at: &Surroundings<'_>) -> Result<Done, String> {
    match step.kind {
        StepKind::Run => at.run(&step.args).await,
        StepKind::Copy => at.copy(step).await,
        StepKind::Env => at.env(&step.args).await,
        StepKind::Workdir => at.workdir(&step.args).await,
        StepKind::User => at.user(&step.args).await,
        _ => Err("this server does not know this kind of step".to_owned()),
    }
}

impl Surroundings<'_> {
    fn context(&self) -> &Context {
        &self.layer.context
    }

    fn workdir_now(&self) -> &str {
        self.context().workdir.as_deref().unwrap_or(HOME)
    }

    async fn handle(&self) -> Result<std::sync::Arc<dyn SandboxHandle>, String> {
        let made = self.session.handle(self.layer).await;
        made.map_err(|error| format!("the sandbox of the build could not be made: {}", error.message()))
    }

    fn quiet(&self) -> Voice<'_> {
        Voice { level: LogLevel::Debug, only_errors: true, ..self.voice }
    }

    async fn run(&self, args: &[String]) -> Result<Done, String> {
        let [command, rest @ ..] = args else { return Err("RUN requires a command argument".to_owned()) };
        let user = rest.first().filter(|user| !user.is_empty()).unwrap_or(&self.context().user);
        let spec = shell(command, self.context(), user).with_cwd(self.workdir_now());
        let output = run(self.handle().await?.as_ref(), spec, self.voice).await;
        succeeded(output, user).map_err(|why| format!("failed to run command '{command}': {why}"))?;
        Ok(Done { context: self.context().clone(), changed: true })
    }

    async fn copy(&self, step: &Step) -> Result<Done, String> {
        let [source, target, rest @ ..] = step.args.as_slice() else {
            return Err("COPY requires a local path and a container path argument".to_owned());
        };
        let hash = step.files_hash.as_deref().ok_or("COPY requires files hash to be set")?;
        let archive = self.uploads.find(hash).await.ok_or_else(|| {
            format!("the files of COPY {source} were not uploaded; the link is from GET /templates/ID/files/{hash}")
        })?;
        let source = plain_part(source)?;
        let given = rest.first().filter(|owner| !owner.is_empty());
        let owner = given.unwrap_or(&self.context().user);
        let owner = if owner.contains(':') { owner.clone() } else { format!("{owner}:{owner}") };
        let mode = rest.get(1).map(String::as_str).unwrap_or_default();
        let handle = self.handle().await?;
        let inside = format!("/tmp/.sandhold-{hash}.tar");
        let file = tokio::fs::File::open(&archive)
            .await
            .map_err(|error| format!("the upload cannot be read: {error}"))?;
        let options = WriteOptions::default().with_user(ROOT);
        let put = handle.write(&inside, chunks(file), options).await;
        put.map_err(|error| format!("the files could not be brought in: {}", error.message()))?;
        let args = [inside.as_str(), &source, target, &owner, mode, self.workdir_now()];
        let output = self.script(handle.as_ref(), COPY, &args).await;
        succeeded(output, ROOT).map_err(|why| format!("failed to copy '{source}' to '{target}': {why}"))?;
        Ok(Done { context: self.context().clone(), changed: true })
    }

    async fn env(&self, args: &[String]) -> Result<Done, String> {
        if args.is_empty() || !args.len().is_multiple_of(2) {
            return Err("ENV requires both a key and value arguments".to_owned());
        }
        let mut context = self.context().clone();
        for pair in args.chunks_exact(2) {
            let [name, value] = pair else { continue };
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(format!("ENV {name:?} is no name of a variable"));
            }
            let value = self.evaluate(value, &context).await?;
            context.env.insert(name.clone(), value);
        }
        Ok(Done { context, changed: false })
    }

    async fn workdir(&self, args: &[String]) -> Result<Done, String> {
        let [path, ..] = args else { return Err("WORKDIR requires a path argument".to_owned()) };
        let path = self.evaluate(path, self.context()).await?;
        let absolute = if path.starts_with('/') { path } else { format!("{}/{path}", self.workdir_now()) };
        let handle = self.handle().await?;
        let output = self.script(handle.as_ref(), MAKE_WORKDIR, &[&absolute, &self.context().user]).await;
        let output =
            succeeded(output, ROOT).map_err(|why| format!("failed to create workdir {absolute}: {why}"))?;
        let mut context = self.context().clone();
        context.workdir = Some(last_line(&output));
        Ok(Done { context, changed: true })
    }

    async fn user(&self, args: &[String]) -> Result<Done, String> {
        let [name, rest @ ..] = args else { return Err("USER requires a username argument".to_owned()) };
        let name = self.evaluate(name, self.context()).await?;
        // The group that Docker allows after a colon has no place in a sandbox.
        let name = name.split(':').next().unwrap_or_default();
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "_.-".contains(letter);
        if name.is_empty() || name.starts_with('-') || !name.chars().all(plain) || name.len() > 64 {
            return Err(format!("USER {name:?} is no name of a user"));
        }
        let sudo = rest.first().map(String::as_str).unwrap_or_default();
        let handle = self.handle().await?;
        let output = self.script(handle.as_ref(), MAKE_USER, &[name, sudo]).await;
        let output =
            succeeded(output, ROOT).map_err(|why| format!("failed to create user '{name}': {why}"))?;
        let mut context = self.context().clone();
        context.user = last_line(&output);
        Ok(Done { context, changed: true })
    }

    /// Runs a script of our own as root; what it is given are arguments and not text of the script.
    async fn script(
        &self,
        handle: &dyn SandboxHandle,
        script: &str,
        args: &[&str],
    ) -> sandhold_core::Result<ExecOutput> {
        let mut argv = vec!["-c".to_owned(), format!("{BEGIN}{script}"), "build".to_owned()];
        argv.extend(args.iter().map(|arg| (*arg).to_owned()));
        // Not in the working directory: it may have been removed.
        let spec = in_context(ProcessSpec::argv("/bin/bash", argv), self.context(), ROOT).with_cwd("/");
        run(handle, spec, self.quiet()).await
    }

    /// Expands `$NAME` in a text, by the sandbox's shell; commands in it are not run.
    async fn evaluate(&self, text: &str, context: &Context) -> Result<String, String> {
        if !text.contains('$') {
            return Ok(text.to_owned());
        }
        let spec = shell(&format!("printf %s {}", quoted(text)), context, ROOT).with_cwd("/");
        let output = self.handle().await?.exec(spec).await;
        let output = succeeded(output, ROOT).map_err(|why| format!("failed to evaluate {text:?}: {why}"))?;
        Ok(output.stdout.text().into_owned())
    }
}

/// Writes a text for the shell: names after `$` count, commands do not. `\$` is a plain `$`, as in a Dockerfile.
fn quoted(text: &str) -> String {
    let mut quoted = String::from('"');
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match (letter, letters.peek()) {
            ('\\', Some('$')) => {
                letters.next();
                quoted.push_str("\\$");
            }
            ('\\' | '"' | '`', _) | ('$', Some('(')) => quoted.extend(['\\', letter]),
            _ => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns the answer of a script of ours.
fn last_line(output: &ExecOutput) -> String {
    output.stdout.text().lines().last().unwrap_or_default().to_owned()
}

/// Says in E2B's words why a command failed.
pub(crate) fn succeeded(output: sandhold_core::Result<ExecOutput>, user: &str) -> Result<ExecOutput, String> {
    let output = output.map_err(|error| refusal(&error, user))?;
    if output.exit.success() {
        return Ok(output);
    }
    let status = match (output.exit.code, output.exit.signal) {
        _ if output.exit.timed_out => "it took longer than an hour".to_owned(),
        _ if output.exit.oom_killed => "it ran out of memory".to_owned(),
        (Some(code), _) => format!("exit status {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or_default()),
    };
    let stderr = output.stderr.text();
    let said = stderr.trim();
    let mut begin = said.len().saturating_sub(MAX_QUOTE);
    while !said.is_char_boundary(begin) {
        begin += 1;
    }
    match said.get(begin..).unwrap_or_default() {
        "" => Err(status),
        said => Err(format!("{status}: {said}")),
    }
}

/// Says in E2B's words why a command could not be started.
pub(crate) fn refusal(error: &Error, user: &str) -> String {
    match error.kind() {
        ErrorKind::Unauthenticated => format!("command failed: unauthenticated: invalid username: '{user}'"),
        _ => format!("command failed: {}", error.message()),
    }
}

/// Returns the part of a source before its first pattern: patterns were followed where the archive was made.
fn plain_part(source: &str) -> Result<String, String> {
    let plain = source.split('/').take_while(|part| !part.contains(['*', '?', '[', ']', '{', '}', '\\']));
    let parts: Vec<_> = plain.filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return Err(format!("COPY {source:?} leads out of its files"));
    }
    Ok(if parts.is_empty() { ".".to_owned() } else { parts.join("/") })
}

/// Reads a file as a stream.
fn chunks(file: tokio::fs::File) -> ByteStream {
    ByteStream::unfold(Some(file), |file| async move {
        let mut file = file?;
        let mut buffer = bytes::BytesMut::with_capacity(256 * 1024);
        match file.read_buf(&mut buffer).await {
            Ok(0) => None,
            Ok(_) => Some((Ok(buffer.freeze()), Some(file))),
            Err(error) => Some((
                Err(Error::new(ErrorKind::Unavailable, "the upload cannot be read").with_source(error)),
                None,
            )),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_expanded_and_commands_and_escaped_signs_are_not() {
        for (text, expected) in [
            ("$HOME/bin", r#""$HOME/bin""#),
            (r"\$HOME", r#""\$HOME""#),
            ("$(id)`id`", r#""\$(id)\`id\`""#),
            (r"\$(id)", r#""\$(id)""#),
            (r#"a\b"c"#, r#""a\\b\"c""#),
        ] {
            assert_eq!(quoted(text), expected, "{text}");
        }
    }

    #[test]
    fn the_part_before_a_pattern_is_what_the_archive_is_looked_into_for() {
        for (source, expected) in [
            ("folder/*.txt", "folder"),
            ("folder/", "folder"),
            ("./a/b", "a/b"),
            ("*.txt", "."),
            (".", "."),
            ("a/{b,c}/d", "a"),
            ("/abs/x", "abs/x"),
        ] {
            assert_eq!(plain_part(source).as_deref(), Ok(expected), "{source}");
        }
        assert!(plain_part("../x").is_err());
    }
}
