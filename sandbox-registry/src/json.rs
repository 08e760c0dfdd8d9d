//! A record as the JSON text of one column.

use sandhold_core::{Error, ErrorKind, Record, Result};

pub(crate) fn encode(record: &Record) -> Result<String> {
    serde_json::to_string(record).map_err(|error| {
        Error::new(ErrorKind::Unexpected, "the record cannot be written as JSON").with_source(error)
    })
}

/// Reads a record and sees that it is the one of the row it was found in.
pub(crate) fn decode(owner: &str, key: &str, text: &str) -> Result<Record> {
    let problem = match serde_json::from_str::<Record>(text) {
        Ok(record) if record.owner.as_str() == owner && record.key.as_str() == key => return Ok(record),
        Ok(_) => "it is the record of another key".to_owned(),
        Err(error) => error.to_string(),
    };
    Err(Error::new(ErrorKind::Unexpected, "the record cannot be understood")
        .with_context("owner", owner)
        .with_context("key", key)
        .with_source(problem))
}

/// A number as the databases have it; what is too large for them is larger than any that is counted.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A counter of ours as it was stored.
pub(crate) fn counter(number: i64) -> Result<u64> {
    u64::try_from(number).map_err(|error| {
        Error::new(ErrorKind::Unexpected, format!("the store has the number {number} as a counter"))
            .with_source(error)
    })
}
