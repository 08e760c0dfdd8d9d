//! Watching a directory.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use buffa::Message;
use bytes::Bytes;
use futures_core::Stream;
use sandhold_core::{Error, ErrorKind, Result, ResultStream, WatchEvent, WatchEventKind, WatchOptions};

use crate::client::convert;
use crate::client::fault::Effect;
use crate::client::handle::EnvdHandle;
use crate::client::rpc::Messages;
use crate::messages::filesystem::__buffa::oneof::watch_dir_response::Event;
use crate::messages::filesystem::{FilesystemEvent, WatchDirRequest, WatchDirResponse};

impl EnvdHandle {
    pub(crate) async fn watch_dir(
        &self,
        path: &str,
        options: WatchOptions,
    ) -> Result<ResultStream<WatchEvent>> {
        let call = self.call("watch", Effect::None);
        let request = WatchDirRequest {
            path: path.to_owned(),
            recursive: options.recursive,
            include_entry: options.include_entry,
            allow_network_mounts: false,
        };
        let route = "/filesystem.Filesystem/WatchDir";
        let stream = self.client().stream(&call, route, &request, options.user.as_deref(), None).await;
        let mut messages = self.explained(stream).await?;
        loop {
            let Some(message) = messages.next().await else {
                let error =
                    call.error(ErrorKind::Unexpected, "the stream ended before the watch was in force");
                return Err(self.explain(error).await);
            };
            let message = self.explained(message).await?;
            match decode(&message).map_err(|error| messages.malformed(error))? {
                Some(Event::Start(_)) => break,
                Some(Event::Keepalive(_)) => {}
                _ => return Err(messages.malformed("the first event is not a start")),
            }
        }
        Ok(ResultStream::new(Events { handle: self.clone(), messages, state: State::Open }))
    }
}

fn decode(message: &Bytes) -> std::result::Result<Option<Event>, buffa::DecodeError> {
    Ok(WatchDirResponse::decode_from_slice(message)?.event)
}

struct Events {
    handle: EnvdHandle,
    messages: Messages,
    state: State,
}

enum State {
    Open,
    /// Something broke, and it is being found out what.
    Explaining(Pin<Box<dyn Future<Output = Error> + Send>>),
    Ended,
}

impl Stream for Events {
    type Item = Result<WatchEvent>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            match &mut this.state {
                State::Ended => return Poll::Ready(None),
                State::Explaining(explaining) => {
                    let error = ready!(explaining.as_mut().poll(cx));
                    this.state = State::Ended;
                    return Poll::Ready(Some(Err(error)));
                }
                State::Open => {
                    let error = match ready!(this.messages.poll_next(cx)) {
                        Some(Ok(message)) => match decode(&message) {
                            Ok(Some(Event::Filesystem(event))) => match convert_event(*event) {
                                Some(event) => return Poll::Ready(Some(Ok(event))),
                                None => continue,
                            },
                            Ok(_) => continue,
                            Err(error) => this.messages.malformed(error),
                        },
                        Some(Err(error)) => error,
                        // A watch goes on until it is dropped: an end of its own means lost events.
                        None => {
                            this.messages.call().lost(ErrorKind::Unavailable, "the watch ended by itself")
                        }
                    };
                    let handle = this.handle.clone();
                    this.state = State::Explaining(Box::pin(async move { handle.explain(error).await }));
                }
            }
        }
    }
}

/// Returns none for an event of another version.
fn convert_event(event: FilesystemEvent) -> Option<WatchEvent> {
    if event.overflow {
        return Some(WatchEvent::new("", WatchEventKind::Overflow));
    }
    let mut converted = WatchEvent::new(event.name, convert::watch_kind(event.r#type)?);
    converted.entry = event.entry.into_option().map(convert::entry);
    Some(converted)
}
