//! The stages of a flight, and which may follow which: the diagram of `docs/acquisition.md` is made from this table.

/// Where a flight is before its first stage.
#[cfg(any(test, feature = "testing"))]
const BEGIN: &str = "";

/// From, to, and why. Every stage but the first may also be the last.
#[cfg(any(test, feature = "testing"))]
const TRANSITIONS: &[(&str, &str, &str)] = &[
    (BEGIN, "record", "acquire"),
    (BEGIN, "settle", "a stop or destroy by key finds an open create"),
    ("record", "find", "ready, and set up"),
    ("record", "lease", "anything else"),
    ("find", "connect", "here, and ours"),
    ("find", "lease", "not running, or gone"),
    ("find", "discover", "gone, under the lease"),
    ("connect", "lease", "gone after all, or paused meanwhile"),
    ("connect", "find", "gone after all, and another host has the lease"),
    ("connect", "discover", "gone after all, under the lease"),
    ("connect", "intent", "found by owner and key, and gone after all"),
    ("connect", "record", "gone after all, at the look for its setup mark"),
    ("lease", "find", "a known id"),
    ("lease", "settle", "an open create"),
    ("lease", "destroy", "an open destroy"),
    ("lease", "discover", "no known id"),
    ("lease", "replace", "of another spec"),
    ("find", "replace", "of another spec, and of no record"),
    ("discover", "replace", "of another spec, and of no record"),
    ("replace", "intent", "its work was saved, and it was destroyed"),
    ("destroy", "find", "the caller knows an id"),
    ("destroy", "discover", "done"),
    ("discover", "connect", "found by owner and key"),
    ("discover", "intent", "none on any page"),
    ("intent", "create", "written down"),
    ("create", "settle", "the answer was lost"),
    ("create", "contend", "no registry that others share"),
    ("create", "record", "an attempt that is spent: its sandbox has ended"),
    ("settle", "create", "the same attempt again"),
    ("settle", "find", "its absence is proven, and an id is known"),
    ("settle", "discover", "its absence is proven"),
    ("settle", "connect", "the attempt is found, and adopted"),
    ("connect", "contend", "adopted"),
    ("connect", "replace", "adopted, and of another spec"),
    ("contend", "replace", "adopted, and of another spec"),
    ("contend", "record", "another host was first"),
    ("connect", "on_resume", "it was paused"),
    ("connect", "restore", "to be set up"),
    ("connect", "secrets", "to be set up"),
    ("connect", "setup mark", "to be set up, by nobody"),
    ("create", "restore", "new"),
    ("create", "secrets", "new"),
    ("create", "setup mark", "new, to be set up by nobody"),
    ("contend", "restore", "new"),
    ("contend", "secrets", "new"),
    ("contend", "setup mark", "new, to be set up by nobody"),
    ("contend", "on_resume", "adopted, and was paused"),
    ("on_resume", "restore", "to be set up"),
    ("on_resume", "secrets", "to be set up"),
    ("on_resume", "setup mark", "to be set up, by nobody"),
    ("restore", "secrets", "the work is back"),
    ("restore", "setup mark", "the work is back"),
    ("secrets", "on_start", "they are in place"),
    ("on_start", "setup mark", "it was needed"),
];

/// Sees that a flight goes no way that the table has not; for tests, whose flights it ends.
pub(super) fn check(from: &'static str, to: &'static str) {
    #[cfg(any(test, feature = "testing"))]
    assert!(
        from == to || TRANSITIONS.iter().any(|(known, next, _)| (*known, *next) == (from, to)),
        "a flight went from {from:?} to {to:?}, which docs/acquisition.md does not show"
    );
    #[cfg(not(any(test, feature = "testing")))]
    let _ = (from, to);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fmt::Write as _;
    use std::path::Path;

    use super::*;

    const OPEN: &str = "```mermaid\nstateDiagram-v2\n";
    const CLOSE: &str = "```\n";

    #[test]
    fn the_diagram_of_the_page_shows_the_transitions_of_the_code() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/acquisition.md");
        let now = std::fs::read_to_string(&path).unwrap();
        let (head, rest) = now.split_once(OPEN).unwrap();
        let (_, tail) = rest.split_once(CLOSE).unwrap();
        let mut diagram = String::new();
        for (from, to, why) in TRANSITIONS {
            let name = |stage: &str| if stage == BEGIN { "[*]".to_owned() } else { stage.replace(' ', "_") };
            writeln!(diagram, "    {} --> {}: {why}", name(from), name(to)).unwrap();
        }
        for last in ["connect", "create", "contend", "on_resume", "on_start", "setup_mark"] {
            writeln!(diagram, "    {last} --> [*]").unwrap();
        }
        let wanted = format!("{head}{OPEN}{diagram}{CLOSE}{tail}");
        if std::env::var_os("SANDHOLD_WRITE_DOCS").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        } else {
            assert_eq!(
                now, wanted,
                "docs/acquisition.md is out of date; run this test with SANDHOLD_WRITE_DOCS=1"
            );
        }
    }

    /// A stage that is entered somewhere and is in no row would end every flight that comes there.
    #[test]
    fn every_stage_that_the_code_enters_is_in_the_table_and_the_reverse() {
        let sources = [
            include_str!("contend.rs"),
            include_str!("create.rs"),
            include_str!("discover.rs"),
            include_str!("replace.rs"),
            include_str!("settle.rs"),
            include_str!("setup.rs"),
            include_str!("steps.rs"),
        ];
        let mut entered: BTreeSet<&str> = BTreeSet::new();
        for source in sources {
            for entrance in ["stage.enter(\"", "stage.of_open_create(\""] {
                let calls = source.split(entrance).skip(1);
                entered.extend(calls.filter_map(|call| call.split('"').next()));
            }
        }
        let shown: BTreeSet<&str> = TRANSITIONS.iter().map(|(_, to, _)| *to).collect();
        assert_eq!(entered, shown);
        let distinct: BTreeSet<_> = TRANSITIONS.iter().map(|(from, to, _)| (from, to)).collect();
        assert_eq!(distinct.len(), TRANSITIONS.len());
    }
}
