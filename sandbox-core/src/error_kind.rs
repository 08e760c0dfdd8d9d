use std::fmt;

/// Makes the kinds, and all that is said about them, from one table: the code, what it means, and what to do.
macro_rules! kinds {
    ($($name:ident $code:ident: $meaning:literal, $remedy:literal;)+) => {
        /// What went wrong, as a caller may act on it.
        ///
        /// Each kind has a stable code ([`ErrorKind::as_str`]), the same in Rust, Node.js and Python.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $(
                #[doc = concat!("`", stringify!($code), "`: ", $meaning, ".")]
                ///
                #[doc = concat!("What to do: ", $remedy, ".")]
                $name,
            )+
        }

        impl ErrorKind {
            /// Every kind, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// Returns the stable snake_case code that every language sees.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($code),)+
                }
            }

            /// Says in a few words of Markdown what it means.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self {
                    $(Self::$name => $meaning,)+
                }
            }

            /// Says in a few words of Markdown what a caller may do about it.
            #[must_use]
            pub const fn remedy(self) -> &'static str {
                match self {
                    $(Self::$name => $remedy,)+
                }
            }
        }
    };
}

kinds! {
    Gone gone:
        "the provider itself said that the sandbox does not exist any more",
        "acquire again; by default a new one is created and the facts name the old";
    NotFound not_found:
        "something inside or beside a sandbox does not exist: a file, a process, a template",
        "check the name in the message";
    AlreadyExists already_exists:
        "something of that name is there",
        "use it, or choose another name";
    Conflict conflict:
        "the key was asked for with another spec, or from inside its own hook (`reentrant`)",
        "use one spec a key, or say what shall happen by `on_spec_conflict`";
    Ownership ownership:
        "the sandbox belongs to another owner or key, or was made under other credentials",
        "check owner, key and credentials; nothing was woken or changed";
    InvalidArgument invalid_argument:
        "a value is not acceptable",
        "the message names it and the way out";
    InvalidState invalid_state:
        "the call does not fit the state, such as a detached sandbox (`detached`) or a paused one (`paused`)",
        "acquire or resume first";
    Unauthenticated unauthenticated:
        "no valid credentials, or no such user inside the sandbox",
        "give credentials, or a user that exists";
    PermissionDenied permission_denied:
        "the credentials or the file's mode do not allow it",
        "use another user or other credentials";
    RateLimited rate_limited:
        "the provider asks to slow down",
        "wait `retry_after`";
    QuotaExceeded quota_exceeded:
        "a quota of the account is used up",
        "free something, or raise the quota";
    StorageFull storage_full:
        "no space is left where the call must write",
        "free space; what was there before is whole";
    Timeout timeout:
        "a deadline passed; the context `stage` says where",
        "try again; look at `outcome` first";
    Cancelled cancelled:
        "the caller cancelled",
        "nothing";
    Unavailable unavailable:
        "the provider or the path to it cannot be reached; nothing is said about the sandbox",
        "try again later; the sandbox is kept";
    Stale stale:
        "the handle is of an older generation, or its lease was lost",
        "acquire again; nothing was sent";
    OutcomeUnknown outcome_unknown:
        "whether it took effect is not known",
        "acquire again, which settles it first";
    Unsupported unsupported:
        "the provider or this host cannot do it; said before anything happened",
        "the message says what is missing";
    Unexpected unexpected:
        "an answer that the contract does not explain",
        "report it; it is never read as *none*";
}

impl ErrorKind {
    /// Returns the kind with this code, or `None` for a code of another version.
    #[must_use]
    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == code)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;

    use super::*;

    const BEGIN: &str = "<!-- begin of the table of kinds -->\n";
    const END: &str = "<!-- end of the table of kinds -->\n";

    /// The page as it is to be: what is between the two marks comes from the code.
    fn page(now: &str) -> String {
        let (head, rest) = now.split_once(BEGIN).unwrap();
        let (_, tail) = rest.split_once(END).unwrap();
        let mut table = "| code | it means | what to do |\n|---|---|---|\n".to_owned();
        for kind in ErrorKind::ALL {
            writeln!(table, "| `{kind}` | {} | {} |", kind.meaning(), kind.remedy()).unwrap();
        }
        format!("{head}{BEGIN}{table}{END}{tail}")
    }

    #[test]
    fn the_page_of_errors_has_each_kind_once_as_the_code_says_it() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/errors.md");
        let now = std::fs::read_to_string(&path).unwrap();
        let wanted = page(&now);
        if std::env::var_os("SANDHOLD_WRITE_DOCS").is_some() {
            std::fs::write(&path, &wanted).unwrap();
        } else {
            assert_eq!(
                now, wanted,
                "docs/errors.md is out of date; run this test with SANDHOLD_WRITE_DOCS=1"
            );
        }
        for kind in ErrorKind::ALL {
            assert_eq!(wanted.matches(&format!("| `{kind}` |")).count(), 1, "{kind}");
        }
    }

    #[test]
    fn codes_are_unique_and_lead_back_to_their_kind() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::from_code(kind.as_str()), Some(*kind));
        }
        assert_eq!(ErrorKind::from_code("no_such_code"), None);
    }

    #[test]
    fn the_code_fixture_lists_every_kind_in_order() {
        let listed: Vec<_> = include_str!("../error_codes.txt").lines().collect();
        let codes: Vec<_> = ErrorKind::ALL.iter().map(|kind| kind.as_str()).collect();
        assert_eq!(listed, codes);
    }
}
