//! A listing that is read one page at a time.

use std::collections::VecDeque;
use std::future::Future;

use sandhold_core::{Record, RecordFilter, Result, ResultStream};

/// How many rows one page has.
pub(crate) const PAGE: usize = 128;

/// The name that a page begins after: owner and key.
pub(crate) type Name = (String, String);

/// One page: its records, and where the next one begins.
pub(crate) struct Page {
    pub(crate) records: Vec<Record>,
    pub(crate) next: Option<Name>,
}

impl Page {
    /// Makes a page of rows as they were read; only what matches the filter is in it.
    pub(crate) fn of(rows: Vec<(String, String, String)>, filter: &RecordFilter) -> Result<Self> {
        let next = match rows.last() {
            Some((owner, key, _)) if rows.len() == PAGE => Some((owner.clone(), key.clone())),
            _ => None,
        };
        let mut records = Vec::with_capacity(rows.len());
        for (owner, key, text) in rows {
            let record = crate::json::decode(&owner, &key, &text)?;
            if filter.matches(&record) {
                records.push(record);
            }
        }
        Ok(Self { records, next })
    }
}

enum From {
    Start,
    After(Name),
    End,
}

/// Streams the records of all pages that `fetch` returns.
pub(crate) fn stream<F>(
    fetch: impl Fn(Option<Name>) -> F + Clone + Send + Sync + 'static,
) -> ResultStream<Record>
where
    F: Future<Output = Result<Page>> + Send + 'static,
{
    ResultStream::unfold((VecDeque::new(), From::Start), move |(mut ready, mut from)| {
        let fetch = fetch.clone();
        async move {
            loop {
                if let Some(record) = ready.pop_front() {
                    return Some((Ok(record), (ready, from)));
                }
                let after = match from {
                    From::Start => None,
                    From::After(name) => Some(name),
                    From::End => return None,
                };
                match fetch(after).await {
                    Ok(page) => {
                        ready = page.records.into();
                        from = page.next.map_or(From::End, From::After);
                    }
                    Err(error) => return Some((Err(error), (ready, From::End))),
                }
            }
        }
    })
}
