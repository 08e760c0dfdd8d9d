//! Names of templates: `[namespace/]name[:tag]`.

use std::fmt;

/// The tag that a name without one means.
pub(crate) const DEFAULT_TAG: &str = "default";

/// The only namespace of this server: it serves one team.
pub(crate) const NAMESPACE: &str = "sandhold";

/// Longest part of a name.
const MAX_PART: usize = 128;

/// A template as a caller names it, by name or by id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TemplateName {
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) tag: Option<String>,
}

impl TemplateName {
    /// Reads a name; it is trimmed and lower-cased first, as E2B does.
    ///
    /// # Errors
    /// A sentence that says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let lower = text.trim().to_lowercase();
        let (name, tag) = match lower.split_once(':') {
            Some((name, tag)) => (name, Some(tag)),
            None => (lower.as_str(), None),
        };
        let (namespace, name) = match name.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, name),
        };
        for part in [namespace, Some(name)].into_iter().flatten() {
            if !is_plain(part, "-_") {
                return Err(format!(
                    "the template name {:?} is not [namespace/]name[:tag] of the letters a-z, digits, - and _",
                    shown(text)
                ));
            }
        }
        let tag = tag.map(parse_tag).transpose()?;
        Ok(Self { namespace: namespace.map(str::to_owned), name: name.to_owned(), tag })
    }

    /// Says whether the name may be one of this server's own templates.
    pub(crate) fn is_ours(&self) -> bool {
        self.namespace.as_deref().is_none_or(|namespace| namespace == NAMESPACE)
    }

    /// The tag, or the one that is meant when none is given.
    pub(crate) fn tag(&self) -> &str {
        self.tag.as_deref().unwrap_or(DEFAULT_TAG)
    }
}

impl fmt::Display for TemplateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)?;
        match &self.tag {
            Some(tag) => write!(f, ":{tag}"),
            None => Ok(()),
        }
    }
}

/// Reads a tag; it is trimmed and lower-cased first.
///
/// # Errors
/// A sentence that says what is wrong with it.
pub(crate) fn parse_tag(text: &str) -> Result<String, String> {
    let tag = text.trim().to_lowercase();
    if !is_plain(&tag, "-_.") || tag.bytes().all(|byte| byte == b'.') {
        return Err(format!(
            "the tag {:?} is not made of the letters a-z, digits, -, _ and ., and not of dots alone",
            shown(text)
        ));
    }
    // One that looks like the id of a build could stand for two of them.
    if is_uuid(&tag) {
        return Err(format!("the tag {:?} is a UUID, which is kept for builds", shown(text)));
    }
    Ok(tag)
}

/// Reads tags, each once, in their order.
///
/// # Errors
/// As [`parse_tag`].
pub(crate) fn parse_tags<'a>(tags: impl IntoIterator<Item = &'a String>) -> Result<Vec<String>, String> {
    let mut found = Vec::new();
    for tag in tags {
        let tag = parse_tag(tag)?;
        if !found.contains(&tag) {
            found.push(tag);
        }
    }
    Ok(found)
}

fn is_plain(part: &str, marks: &str) -> bool {
    let allowed =
        |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || marks.contains(letter);
    (1..=MAX_PART).contains(&part.len()) && part.chars().all(allowed)
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

fn shown(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_every_form() {
        let name = TemplateName::parse(" Team/My-App_1:V1.0 ").expect("a name");
        assert_eq!(name.to_string(), "team/my-app_1:v1.0");
        assert_eq!(TemplateName::parse("base").expect("a name").tag(), "default");
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for bad in [
            "",
            ":tag",
            "name:",
            "a/b/c",
            "/a",
            "a/",
            "a b",
            "a.b",
            "../a",
            "ä",
            "a:b:c",
            "a:00000000-0000-0000-0000-000000000000",
            &"a".repeat(129),
        ] {
            assert!(TemplateName::parse(bad).is_err(), "{bad:?}");
        }
    }
}
