//! A git repository on its way into the sandbox: one bundle, streamed.

use std::io::Read;
use std::process::{Command, Stdio};

use sandhold_core::{
    ByteStream, Error, ErrorKind, ProcessSpec, Result, ResultStream, Sandbox, SandboxHandle as _,
    SandboxHandleExt as _, WriteOptions,
};

use crate::REPO;

/// Puts the present commit of a repository into the sandbox, with its history.
pub(crate) async fn put(sandbox: &Sandbox, path: &str) -> Result<()> {
    sandbox.write("/tmp/repo.bundle", bundle(path)?, WriteOptions::default()).await?;
    // The path is an argument of its own and never part of the line.
    let unpack = r#"git init -q "$1" && cd "$1" && git fetch -q /tmp/repo.bundle HEAD && git checkout -q -b work FETCH_HEAD"#;
    let unpacked = sandbox.exec(ProcessSpec::argv("/bin/sh", ["-c", unpack, "sh", REPO])).await?;
    if unpacked.exit.success() {
        return Ok(());
    }
    let said = unpacked.stderr.text().into_owned();
    Err(Error::new(ErrorKind::Unexpected, format!("git inside ended with {}: {said}", unpacked.exit)))
}

/// Streams `git bundle create` of the present commit.
fn bundle(path: &str) -> Result<ByteStream> {
    let failed =
        |what: &str| Error::invalid_argument(format!("{path:?} {what}; name a git repository with a commit"));
    let child = Command::new("git")
        .args(["-c", "safe.directory=*", "-C", path, "bundle", "create", "-q", "-", "HEAD"])
        .stdout(Stdio::piped())
        .spawn();
    let child = child.map_err(|error| failed("cannot be read by git").with_source(error))?;
    let lost = |what: &'static str| Error::new(ErrorKind::Unexpected, what);
    Ok(ResultStream::unfold(Some(child), move |child| async move {
        let mut child = child?;
        // Reading a pipe blocks, so it happens off the async threads.
        let read = tokio::task::spawn_blocking(move || {
            let mut chunk = vec![0; 256 * 1024];
            let length = child.stdout.as_mut().map_or(Ok(0), |stdout| stdout.read(&mut chunk))?;
            chunk.truncate(length);
            let ended = if length == 0 { Some(child.wait()?) } else { None };
            std::io::Result::Ok((child, chunk, ended))
        });
        match read.await {
            Ok(Ok((_, _, Some(ended)))) if ended.success() => None,
            Ok(Ok((_, _, Some(_)))) => Some((Err(lost("git bundle failed; is there a commit?")), None)),
            Ok(Ok((child, chunk, None))) => Some((Ok(chunk.into()), Some(child))),
            Ok(Err(error)) => Some((Err(lost("git bundle cannot be read").with_source(error)), None)),
            Err(error) => Some((Err(lost("the reader ended").with_source(error)), None)),
        }
    }))
}
