//! Lists that come in pages.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use http::Method;
use sandhold_core::{ErrorKind, Result, ResultStream};
use serde::de::DeserializeOwned;

use crate::control::{Ask, SharedControl};
use crate::error::Call;
use crate::wire::NEXT_TOKEN_HEADER;

/// Most pages without an item one after another. A server may filter what it has read, but one that only ever names
/// another page would be asked for ever.
const MOST_EMPTY: u32 = 64;

struct Pages<T> {
    control: SharedControl,
    call: Call,
    /// Makes the path of a page from its cursor.
    path: Arc<dyn Fn(Option<String>) -> String + Send + Sync>,
    read: VecDeque<T>,
    next: Next,
    /// Every cursor so far: one that comes again would go round for ever.
    seen: HashSet<String>,
    /// How many pages without an item came last.
    empty: u32,
}

enum Next {
    First,
    Page(String),
    End,
}

/// Streams the items of all pages; a page that fails, a cursor that comes again, or too many
/// pages without an item, end the list with an error.
pub(crate) fn pages<T: DeserializeOwned + Send + 'static>(
    control: &SharedControl,
    call: Call,
    path: impl Fn(Option<String>) -> String + Send + Sync + 'static,
) -> ResultStream<T> {
    let pages = Pages {
        control: Arc::clone(control),
        call,
        path: Arc::new(path),
        read: VecDeque::new(),
        next: Next::First,
        seen: HashSet::new(),
        empty: 0,
    };
    ResultStream::unfold(pages, |mut pages| async move {
        let item = pages.item().await.transpose()?;
        Some((item, pages))
    })
}

impl<T: DeserializeOwned> Pages<T> {
    async fn item(&mut self) -> Result<Option<T>> {
        loop {
            if let Some(item) = self.read.pop_front() {
                return Ok(Some(item));
            }
            let cursor = match std::mem::replace(&mut self.next, Next::End) {
                Next::First => None,
                Next::Page(cursor) => Some(cursor),
                Next::End => return Ok(None),
            };
            let reply = self.control.ask(Ask::new(self.call, Method::GET, (self.path)(cursor))).await?;
            self.read = reply.json()?;
            self.empty = if self.read.is_empty() { self.empty + 1 } else { 0 };
            let cursor = match reply.answer.headers.get(NEXT_TOKEN_HEADER).map(|cursor| cursor.to_str()) {
                Some(Ok("")) | None => continue,
                Some(Ok(cursor)) => cursor.to_owned(),
                Some(Err(error)) => {
                    return Err(self
                        .call
                        .error(ErrorKind::Unexpected, "the cursor of the next page is no text")
                        .with_source(error));
                }
            };
            if !self.seen.insert(cursor.clone()) {
                return Err(self
                    .call
                    .error(
                        ErrorKind::Unexpected,
                        "a page names a cursor that came before; the list has no end",
                    )
                    .with_reason("repeated_cursor"));
            }
            if self.empty >= MOST_EMPTY {
                let what =
                    format!("{MOST_EMPTY} pages came without an item, and the last one names another page");
                return Err(self.call.error(ErrorKind::Unexpected, what).with_reason("endless_list"));
            }
            self.next = Next::Page(cursor);
        }
    }
}
