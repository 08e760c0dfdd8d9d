//! Watching a directory.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use buffa::Message;
use bytes::Bytes;
use futures_core::Stream;
use sandhold_core::{ErrorKind, Result, ResultStream, WatchEvent, WatchEventKind, WatchOptions};

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
        Ok(self.explained_stream(Events { messages }))
    }
}

fn decode(message: &Bytes) -> std::result::Result<Option<Event>, buffa::DecodeError> {
    Ok(WatchDirResponse::decode_from_slice(message)?.event)
}

struct Events {
    messages: Messages,
}

impl Stream for Events {
    type Item = Result<WatchEvent>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let messages = &mut self.get_mut().messages;
        loop {
            let message = match ready!(messages.poll_next(cx)) {
                Some(message) => message?,
                // A watch goes on until it is dropped: an end of its own means lost events.
                None => {
                    let error = messages.call().lost(ErrorKind::Unavailable, "the watch ended by itself");
                    return Poll::Ready(Some(Err(error)));
                }
            };
            let event = decode(&message).map_err(|error| messages.malformed(error))?;
            if let Some(Event::Filesystem(event)) = event
                && let Some(event) = convert_event(*event)
            {
                return Poll::Ready(Some(Ok(event)));
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
