//! The matrix of a run: one row for each rule and provider, for who reads no test output.

use std::fs::OpenOptions;
use std::io::Write as _;

use super::Stage;

/// Names the file that rows are added to.
const FILE: &str = "SANDHOLD_MATRIX";

/// Adds a row where one is asked for: `pass`, `not applicable` with what is lacking, or `FAIL`.
pub(super) fn note(rule: &str, stage: &Stage, broken: Option<&str>) {
    let Some(path) = std::env::var_os(FILE).filter(|path| !path.is_empty()) else { return };
    let row = row(rule, stage.provider().name(), broken, stage.lacked().as_deref());
    let written = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(row.as_bytes()));
    // Whoever asked for the matrix is not to get one with holes.
    written.unwrap_or_else(|error| panic!("{FILE} names {path:?}, which cannot be written: {error}"));
}

/// One write of one line, so that tests at the same time do not mix theirs.
fn row(rule: &str, provider: &str, broken: Option<&str>, lacked: Option<&str>) -> String {
    let result = match (broken, lacked) {
        (Some(how), _) => format!("**FAIL**: {how}"),
        (None, Some(what)) => format!("not applicable: needs {what}"),
        (None, None) => "pass".to_owned(),
    };
    format!("| `{rule}` | {provider} | {result} |\n")
}

#[cfg(test)]
mod tests {
    use super::row;

    #[test]
    fn a_rule_passes_does_not_apply_or_fails() {
        assert_eq!(row("r", "fake", None, None), "| `r` | fake | pass |\n");
        assert_eq!(row("r", "fake", None, Some("pause")), "| `r` | fake | not applicable: needs pause |\n");
        assert_eq!(row("r", "fake", Some("broken"), Some("pause")), "| `r` | fake | **FAIL**: broken |\n");
    }
}
