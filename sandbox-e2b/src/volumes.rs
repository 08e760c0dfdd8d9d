//! Volumes: directories that outlive sandboxes, and their content.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use http::{Method, Request};
use http_body_util::BodyExt;
use sandhold_core::{ByteStream, DestroyOutcome, Error, ErrorKind, Outcome, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::control::{Ask, SharedControl, encoded};
use crate::error::{Call, NAME};
use crate::http::{Answer, Body, private, request, streamed, whole};
use crate::provider::E2bProvider;
use crate::wire::{ApiError, NewVolume, Secret, Volume, VolumeEntry, VolumeError};

/// The reason of an error about a volume that does not exist.
const MISSING: &str = "volume_not_found";
/// The reason of an error about a path of a volume that does not exist.
const NO_PATH: &str = "path_not_found";

/// The volumes of an account.
#[derive(Clone, Debug)]
pub struct Volumes {
    control: SharedControl,
}

impl E2bProvider {
    /// Returns the volumes of the account.
    #[must_use]
    pub fn volumes(&self) -> Volumes {
        Volumes { control: self.control().clone() }
    }
}

impl Volumes {
    /// Makes a volume and opens its content. Sent once: a second one of the same name is refused.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] or [`ErrorKind::Conflict`] for a name that cannot be used, or is.
    pub async fn create(&self, name: &str) -> Result<VolumeContent> {
        let call = Call::once("create_volume").about(MISSING);
        let ask = Ask::new(call, Method::POST, "/volumes").with_json(&NewVolume { name: name.to_owned() })?;
        let made = self.control.ask(ask).await.map_err(|error| error.with_context("volume", name))?;
        self.content(call, made.json()?)
    }

    /// Opens the content of a volume.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] with reason `volume_not_found`.
    pub async fn open(&self, id: &str) -> Result<VolumeContent> {
        let call = Call::look("open_volume").about(MISSING);
        let ask = Ask::new(call, Method::GET, format!("/volumes/{}", encoded(id)));
        let found = self.control.ask(ask).await.map_err(|error| error.with_context("volume", id))?;
        self.content(call, found.json()?)
    }

    /// Lists the volumes: their ids and names.
    ///
    /// # Errors
    /// Whatever keeps the server from saying so.
    pub async fn list(&self) -> Result<Vec<Volume>> {
        let call = Call::look("list_volumes").about(MISSING);
        self.control.ask(Ask::new(call, Method::GET, "/volumes")).await?.json()
    }

    /// Deletes a volume with its content.
    ///
    /// # Errors
    /// What the server says while sandboxes use it.
    pub async fn delete(&self, id: &str) -> Result<DestroyOutcome> {
        let call = Call::idempotent("delete_volume").about(MISSING);
        let ask = Ask::new(call, Method::DELETE, format!("/volumes/{}", encoded(id)));
        let reply = self.control.ask(ask.with_also(http::StatusCode::NOT_FOUND)).await?;
        let done = reply.status().is_success() || reply.doubted;
        Ok(if done { DestroyOutcome::Destroyed } else { DestroyOutcome::AlreadyGone })
    }

    fn content(&self, call: Call, volume: Volume) -> Result<VolumeContent> {
        let token =
            volume.token.clone().ok_or_else(|| call.unreadable("the answer has no token for the content"))?;
        let config = &self.control.config;
        let url = config.volume_url(volume.domain.as_deref());
        private(&url, config.allow_plaintext)?;
        let url = format!("{url}/volumecontent/{}", encoded(&volume.volume_id));
        Ok(VolumeContent { control: self.control.clone(), volume, token, url })
    }
}

/// Shapes what is made in a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct VolumeOptions {
    /// The owner; default the server's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The group; default the server's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// The permission bits; default the server's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<u32>,
    /// Whether parents are made, and a file that is there is overwritten; default no.
    #[serde(skip)]
    pub force: bool,
}

impl VolumeOptions {
    /// Sets the owner and the group.
    #[must_use]
    pub fn with_owner(mut self, uid: u32, gid: u32) -> Self {
        (self.uid, self.gid) = (Some(uid), Some(gid));
        self
    }

    /// Sets the permission bits.
    #[must_use]
    pub fn with_mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode);
        self
    }

    /// Makes parents, and overwrites a file that is there.
    #[must_use]
    pub fn with_force(mut self) -> Self {
        self.force = true;
        self
    }
}

/// The files of one volume.
#[derive(Clone, Debug)]
pub struct VolumeContent {
    control: SharedControl,
    volume: Volume,
    token: Secret,
    url: String,
}

impl VolumeContent {
    /// Returns the volume's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.volume.volume_id
    }

    /// Returns the volume's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.volume.name
    }

    /// Returns facts about a path.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] with reason `path_not_found`.
    pub async fn stat(&self, path: &str) -> Result<VolumeEntry> {
        let call = Call::look("volume_stat").about(NO_PATH);
        self.json(&call, Method::GET, &self.at("path", path, &VolumeOptions::default(), None), None).await
    }

    /// Changes the owner, group or permission bits of a path.
    ///
    /// # Errors
    /// As [`VolumeContent::stat`].
    pub async fn change(&self, path: &str, options: &VolumeOptions) -> Result<VolumeEntry> {
        let call = Call::idempotent("volume_change").about(NO_PATH);
        let body = serde_json::to_vec(options).map_err(|error| {
            call.error(ErrorKind::InvalidArgument, "the options are no JSON").with_source(error)
        })?;
        let url = self.at("path", path, &VolumeOptions::default(), None);
        self.json(&call, Method::PATCH, &url, Some(body.into())).await
    }

    /// Removes a path with all that is in it.
    ///
    /// # Errors
    /// As [`VolumeContent::stat`].
    pub async fn remove(&self, path: &str) -> Result<()> {
        let call = Call::idempotent("volume_remove").about(NO_PATH);
        let url = self.at("path", path, &VolumeOptions::default(), None);
        let doubted = AtomicBool::new(false);
        let removed = self.control.config.retry.run(|| async {
            let sent = self.send_once(&call, &Method::DELETE, &url, None).await;
            doubted.fetch_or(
                sent.as_ref().is_err_and(|error| error.outcome() == Outcome::Unknown),
                Ordering::Relaxed,
            );
            sent
        });
        match removed.await {
            // What is missing after a lost answer says that the first send was heard.
            Err(error) if error.reason() == Some(NO_PATH) && doubted.into_inner() => Ok(()),
            removed => removed.map(drop),
        }
    }

    /// Lists a directory, so many levels deep.
    ///
    /// # Errors
    /// As [`VolumeContent::stat`].
    pub async fn list(&self, path: &str, depth: u32) -> Result<Vec<VolumeEntry>> {
        let call = Call::look("volume_list").about(NO_PATH);
        let url = self.at("dir", path, &VolumeOptions::default(), Some(depth.max(1)));
        self.json(&call, Method::GET, &url, None).await
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] with reason `path_not_found` where parents are missing.
    pub async fn make_dir(&self, path: &str, options: &VolumeOptions) -> Result<VolumeEntry> {
        let call = Call::once("volume_make_dir").about(NO_PATH);
        self.json(&call, Method::POST, &self.at("dir", path, options, None), None).await
    }

    /// Reads a file as a stream.
    ///
    /// # Errors
    /// As [`VolumeContent::stat`].
    pub async fn read(&self, path: &str) -> Result<ByteStream> {
        let call = Call::look("volume_read").about(NO_PATH);
        let url = self.at("file", path, &VolumeOptions::default(), None);
        let request = self.request(Method::GET, &url, whole(Bytes::new()))?;
        let config = &self.control.config;
        let (head, body) = self.control.http.open(&call, request, config.request_timeout).await?.into_parts();
        if !head.status.is_success() {
            let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            return Err(self.refused(&call, &Answer { status: head.status, headers: head.headers, body }));
        }
        let patience = config.request_timeout;
        Ok(ByteStream::unfold(body, move |mut body| async move {
            loop {
                // A long file may take long; only silence ends it.
                let lost = match tokio::time::timeout(patience, body.frame()).await {
                    Ok(None) => return None,
                    Ok(Some(Ok(frame))) => match frame.into_data() {
                        Ok(data) if !data.is_empty() => return Some((Ok(data), body)),
                        _ => continue,
                    },
                    Ok(Some(Err(error))) => {
                        call.lost(ErrorKind::Unavailable, "the file broke off").with_source(error)
                    }
                    Err(elapsed) => {
                        call.lost(ErrorKind::Timeout, "the file fell silent").with_source(elapsed)
                    }
                };
                return Some((Err(lost), body));
            }
        }))
    }

    /// Writes a file from a stream; it is sent once.
    ///
    /// # Errors
    /// As [`VolumeContent::make_dir`]; [`ErrorKind::AlreadyExists`] or [`ErrorKind::Conflict`] for a file that is there,
    /// without [`VolumeOptions::force`].
    pub async fn write(&self, path: &str, body: ByteStream, options: &VolumeOptions) -> Result<VolumeEntry> {
        let call = Call::once("volume_write").about(NO_PATH);
        let mut request =
            self.request(Method::PUT, &self.at("file", path, options, None), streamed(body, None))?;
        let octets = HeaderValue::from_static("application/octet-stream");
        request.headers_mut().insert(CONTENT_TYPE, octets);
        // As long as the caller's body: a limit on the whole would cut slow ones off.
        let answer =
            self.control.http.send(&call, request, std::time::Duration::from_secs(24 * 3600)).await?;
        self.parsed(&call, &answer)
    }

    /// Returns the URL of a path of the volume.
    fn at(&self, route: &str, path: &str, options: &VolumeOptions, depth: Option<u32>) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("path", path);
        let numbers = [("uid", options.uid), ("gid", options.gid), ("mode", options.mode), ("depth", depth)];
        for (name, value) in numbers {
            if let Some(value) = value {
                query.append_pair(name, &value.to_string());
            }
        }
        if options.force {
            query.append_pair("force", "true");
        }
        format!("{}/{route}?{}", self.url, query.finish())
    }

    fn request(&self, method: Method, url: &str, body: Body) -> Result<Request<Body>> {
        let mut request = request(method, url, body)?;
        let bearer = HeaderValue::try_from(format!("Bearer {}", self.token.expose()));
        let mut bearer = bearer.map_err(|_| {
            Error::new(ErrorKind::Unexpected, "the token of the volume cannot be sent").at(NAME, "volume")
        })?;
        bearer.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, bearer);
        Ok(request)
    }

    async fn json<T: DeserializeOwned>(
        &self,
        call: &Call,
        method: Method,
        url: &str,
        body: Option<Bytes>,
    ) -> Result<T> {
        let answer = self.send(call, method, url, body).await?;
        self.parsed(call, &answer)
    }

    fn parsed<T: DeserializeOwned>(&self, call: &Call, answer: &Answer) -> Result<T> {
        if !answer.status.is_success() {
            return Err(self.refused(call, answer));
        }
        serde_json::from_slice(&answer.body).map_err(|error| {
            call.unreadable("the answer is not what E2B says at this place").with_source(error)
        })
    }

    async fn send(&self, call: &Call, method: Method, url: &str, body: Option<Bytes>) -> Result<Answer> {
        self.control.config.retry.run(|| self.send_once(call, &method, url, body.clone())).await
    }

    async fn send_once(
        &self,
        call: &Call,
        method: &Method,
        url: &str,
        body: Option<Bytes>,
    ) -> Result<Answer> {
        let is_json = body.is_some();
        let mut request = self.request(method.clone(), url, whole(body.unwrap_or_default()))?;
        if is_json {
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        }
        let answer = self.control.http.send(call, request, self.control.config.request_timeout).await?;
        if answer.status.is_success() { Ok(answer) } else { Err(self.refused(call, &answer)) }
    }

    /// Volumes say what went wrong by a word in place of the status.
    fn refused(&self, call: &Call, answer: &Answer) -> Error {
        let Answer { status, headers, body } = answer;
        let error = match serde_json::from_slice::<VolumeError>(body) {
            Ok(own) => {
                let as_usual = serde_json::to_vec(&ApiError::new(status.as_u16(), own.message));
                call.answer(*status, headers, &as_usual.unwrap_or_default()).with_context("code", own.code)
            }
            Err(_) => call.answer(*status, headers, body),
        };
        error.with_context("volume", &self.volume.volume_id)
    }
}
