//! The helper program that is measured and killed.

use std::path::PathBuf;

use crate::Result;

/// The name of the helper program, and the variable that names another.
const HELPER: &str = "sandhold-helper";
const HELPER_VARIABLE: &str = "SANDHOLD_HELPER";

pub(crate) fn find() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os(HELPER_VARIABLE).filter(|named| !named.is_empty()) {
        return Ok(named.into());
    }
    let beside = std::env::current_exe()?.with_file_name(HELPER);
    if beside.is_file() {
        return Ok(beside);
    }
    Err(format!("{} is not there; build it by `make helper`, or set {HELPER_VARIABLE}", beside.display())
        .into())
}
