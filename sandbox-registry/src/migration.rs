//! What both databases share about the versions of their tables.

use sandhold_core::{Error, ErrorKind, Result};

/// Returns the migrations that are still to be applied to a store of this version.
///
/// # Errors
/// [`ErrorKind::Unsupported`] with reason `newer_schema` for a store that a later version of this library has changed.
pub(crate) fn missing<'a>(
    found: i64,
    migrations: &'a [&'a str],
) -> Result<impl Iterator<Item = (i64, &'a str)>> {
    let known = i64::try_from(migrations.len()).unwrap_or(i64::MAX);
    if found > known {
        return Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "the registry's tables have version {found}, and this program knows version {known}; use the version \
                 of this library that the other programs on this registry use"
            ),
        )
        .with_reason("newer_schema")
        .with_context("found", found)
        .with_context("known", known));
    }
    let done = usize::try_from(found).unwrap_or_default();
    Ok((1..).zip(migrations.iter().copied()).skip(done))
}
