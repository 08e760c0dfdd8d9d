//! `POST /files/compose`: several files become one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde::Deserialize;

use crate::daemon::files::actor;
use crate::daemon::files::failure::Failure;
use crate::daemon::files::target::{copy, named_temporary, same_file};
use crate::daemon::files::upload::Written;
use crate::daemon::fs::{Actor, Metadata, clean};
use crate::daemon::http::{self as plain, Body};
use crate::daemon::state::State;

/// Most bytes of a request: some ten thousand paths.
const MAX_BODY: usize = 4 * 1024 * 1024;

#[derive(Debug, Deserialize)]
struct Compose {
    #[serde(default)]
    source_paths: Vec<String>,
    #[serde(default)]
    destination: String,
    username: Option<String>,
}

/// Answers the request, whose token was checked.
pub(super) async fn compose(
    state: &Arc<State>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Failure> {
    let body = Limited::new(request.into_body(), MAX_BODY).collect();
    let body = tokio::time::timeout(state.config.upload_idle, body)
        .await
        .map_err(|_| Failure::new(StatusCode::REQUEST_TIMEOUT, "the request stalled"))?
        .map_err(|error| Failure::bad(format!("cannot read the request: {error}")))?;
    let request: Compose = serde_json::from_slice(&body.to_bytes())
        .map_err(|error| Failure::bad(format!("the request is not the expected JSON: {error}")))?;
    let state = Arc::clone(state);
    let done = tokio::task::spawn_blocking(move || {
        let actor = actor(&state, request.username.as_deref())?;
        join(&actor, &request)
    });
    let written = done.await.map_err(|_| Failure::interrupted())??;
    Ok(plain::json(StatusCode::OK, &written))
}

fn join(actor: &Actor, request: &Compose) -> Result<Written, Failure> {
    if request.source_paths.is_empty() || request.source_paths.iter().any(String::is_empty) {
        return Err(Failure::bad("source_paths must name at least one file, and none may be empty"));
    }
    if request.destination.is_empty() {
        return Err(Failure::bad("destination must not be empty"));
    }
    let destination = actor.resolve(&request.destination)?;
    let place_of_destination = place(&destination);
    let mut sources = Vec::new();
    let mut places = Vec::new();
    for source in &request.source_paths {
        let source = actor.resolve(source)?;
        let place_of_source = place(&source);
        if place_of_source == place_of_destination {
            return Err(Failure::bad(format!(
                "destination '{}' is also one of the sources",
                destination.display()
            )));
        }
        if places.contains(&place_of_source) {
            return Err(Failure::bad(format!("source '{}' is named twice", source.display())));
        }
        let stat = fs::metadata(&source).map_err(|error| Failure::find("read", &source, &error))?;
        if !stat.is_file() {
            return Err(Failure::bad(format!("source '{}' is not a regular file", source.display())));
        }
        sources.push(source);
        places.push(place_of_source);
    }
    if destination.is_dir() {
        return Err(Failure::directory(&destination));
    }
    let parent = destination.parent().unwrap_or(Path::new("/"));
    let write = |error: &io::Error| Failure::io("write", &destination, error);
    actor.make_dirs(parent).map_err(|error| write(&error))?;
    let temporary = Temporary::new(parent).map_err(|error| write(&error))?;
    fill(actor, &temporary, &sources)?;
    let written = temporary.file.metadata().map_err(|error| write(&error))?;
    temporary.rename(&destination).map_err(|error| write(&error))?;
    for source in &sources {
        // Whatever way led to it: the result itself stays.
        if fs::symlink_metadata(source).is_ok_and(|there| same_file(&there, &written)) {
            continue;
        }
        match fs::remove_file(source) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Failure::io("remove the composed", source, &error));
            }
            _ => {}
        }
    }
    Ok(Written::new(&destination, Metadata::new()))
}

/// Where a file stands, whatever links and `..` its path goes through.
fn place(path: &Path) -> PathBuf {
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => fs::canonicalize(parent).unwrap_or_else(|_| clean(parent)).join(name),
        _ => path.to_owned(),
    }
}

fn fill(actor: &Actor, into: &Temporary, sources: &[PathBuf]) -> Result<(), Failure> {
    let write = |error: io::Error| Failure::io("write", &into.path, &error);
    actor.own(&into.file).map_err(write)?;
    for source in sources {
        let mut file = fs::File::open(source).map_err(|error| Failure::find("read", source, &error))?;
        let length = file.metadata().map_err(write)?.len();
        copy(&mut file, &into.file, length).map_err(write)?;
    }
    Ok(())
}

/// A file under a temporary name, removed unless it is renamed.
struct Temporary {
    path: PathBuf,
    file: fs::File,
    renamed: bool,
}

impl Temporary {
    fn new(dir: &Path) -> io::Result<Self> {
        let (path, file) = named_temporary(dir)?;
        Ok(Self { path, file, renamed: false })
    }

    fn rename(mut self, to: &Path) -> io::Result<()> {
        fs::rename(&self.path, to)?;
        self.renamed = true;
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = fs::remove_file(&self.path);
        }
    }
}
