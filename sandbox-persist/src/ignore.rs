//! Patterns of `.gitignore` files, and of hosts, as `gitignore` describes them, over bytes.
//!
//! Whoever writes the workspace writes the patterns, so that matching must not take more than pattern times name.

/// One line.
#[derive(Debug)]
struct Pattern {
    negated: bool,
    dirs_only: bool,
    /// Matches the whole path below the file that the line is in, and not only the name.
    anchored: bool,
    matcher: Matcher,
}

#[derive(Debug)]
enum Matcher {
    Literal(Box<[u8]>),
    /// `*` and something without wildcards.
    Ending(Box<[u8]>),
    Tokens(Box<[Token]>),
}

#[derive(Debug)]
enum Token {
    Byte(u8),
    /// `?`: any byte but a slash.
    One,
    /// `*`: any bytes but slashes.
    Star,
    /// `**/`: nothing, or whole directories.
    Dirs,
    /// `/**` at the end: everything below.
    All,
    Class {
        negated: bool,
        ranges: Box<[(u8, u8)]>,
    },
}

/// The lines of one file; the last that matches decides.
#[derive(Debug, Default)]
pub(crate) struct Patterns(Vec<Pattern>);

/// Lines beyond these are left out: less is ignored then, and more is captured.
const MAX_LINES: usize = 4096;
pub(crate) const MAX_BYTES: u64 = 1 << 20;

impl Patterns {
    pub(crate) fn parse(text: &[u8]) -> Self {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        Self(text.split(|byte| *byte == b'\n').take(MAX_LINES).filter_map(Pattern::parse).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a path, relative to where the patterns are, is ignored: `None` where no line speaks of it.
    pub(crate) fn verdict(&self, path: &[u8], is_dir: bool) -> Option<bool> {
        let name = crate::path::split(path).1;
        self.0
            .iter()
            .rev()
            .find(|line| {
                (is_dir || !line.dirs_only) && line.matcher.matches(if line.anchored { path } else { name })
            })
            .map(|line| !line.negated)
    }
}

impl Pattern {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.starts_with(b"#") {
            return None;
        }
        // Blanks at the end do not count, unless a backslash stands before them.
        while let Some(rest) = line.strip_suffix(b" ") {
            let slashes = rest.iter().rev().take_while(|byte| **byte == b'\\').count();
            if slashes % 2 == 1 {
                break;
            }
            line = rest;
        }
        let negated = line.starts_with(b"!");
        line = line.strip_prefix(b"!").unwrap_or(line);
        let dirs_only = line.ends_with(b"/");
        line = line.strip_suffix(b"/").unwrap_or(line);
        let anchored = line.contains(&b'/');
        line = line.strip_prefix(b"/").unwrap_or(line);
        if line.is_empty() {
            return None;
        }
        Some(Self { negated, dirs_only, anchored, matcher: Matcher::parse(line)? })
    }
}

impl Matcher {
    fn parse(text: &[u8]) -> Option<Self> {
        let plain = |text: &[u8]| !text.iter().any(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'));
        if plain(text) {
            return Some(Self::Literal(text.into()));
        }
        match text.strip_prefix(b"*") {
            Some(ending) if plain(ending) && !ending.contains(&b'/') => Some(Self::Ending(ending.into())),
            _ => tokens(text).map(|tokens| Self::Tokens(tokens.into())),
        }
    }

    fn matches(&self, text: &[u8]) -> bool {
        match self {
            Self::Literal(literal) => **literal == *text,
            Self::Ending(ending) => text.ends_with(ending) && !text.contains(&b'/'),
            Self::Tokens(tokens) => simulate(tokens, text),
        }
    }
}

/// Reads a pattern; `None` for one that can match nothing, such as an open `[`.
fn tokens(text: &[u8]) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    // Git compares what is before the first wildcard by itself, and takes the rest for a pattern of its own.
    let first = text.iter().position(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'));
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        at += 1;
        tokens.push(match byte {
            b'\\' => {
                let escaped = *text.get(at)?;
                at += 1;
                Token::Byte(escaped)
            }
            b'?' => Token::One,
            b'[' => class(text, &mut at)?,
            b'*' => {
                let begins = Some(at - 1) == first || text[at - 2] == b'/';
                let stars = text[at..].iter().take_while(|byte| **byte == b'*').count();
                at += stars;
                match text.get(at) {
                    None if stars > 0 && begins => Token::All,
                    // Git lets the stars stand for any number of directories here, but not for none.
                    Some(b'\\') if stars > 0 && begins && text.get(at + 1) == Some(&b'/') => Token::All,
                    Some(b'/') if stars > 0 && begins => {
                        at += 1;
                        Token::Dirs
                    }
                    _ => Token::Star,
                }
            }
            byte => Token::Byte(byte),
        });
    }
    Some(tokens)
}

/// Reads what follows a `[`.
fn class(text: &[u8], at: &mut usize) -> Option<Token> {
    let negated = matches!(text.get(*at), Some(b'!' | b'^'));
    *at += usize::from(negated);
    let mut ranges = Vec::new();
    let mut first = true;
    loop {
        let mut byte = *text.get(*at)?;
        *at += 1;
        if byte == b']' && !first {
            return Some(Token::Class { negated, ranges: ranges.into() });
        }
        first = false;
        if byte == b'[' && text.get(*at) == Some(&b':') {
            let name = &text[*at + 1..];
            let end = name.windows(2).position(|pair| pair == b":]")?;
            ranges.extend_from_slice(named_class(&name[..end])?);
            *at += 1 + end + 2;
            continue;
        }
        if byte == b'\\' {
            byte = *text.get(*at)?;
            *at += 1;
        }
        let mut last = byte;
        if text.get(*at) == Some(&b'-') && text.get(*at + 1).is_some_and(|next| *next != b']') {
            last = *text.get(*at + 1)?;
            *at += 2;
            if last == b'\\' {
                last = *text.get(*at)?;
                *at += 1;
            }
        }
        ranges.push((byte, last));
    }
}

fn named_class(name: &[u8]) -> Option<&'static [(u8, u8)]> {
    Some(match name {
        b"alnum" => &[(b'0', b'9'), (b'A', b'Z'), (b'a', b'z')],
        b"alpha" => &[(b'A', b'Z'), (b'a', b'z')],
        b"blank" => &[(b' ', b' '), (b'\t', b'\t')],
        b"cntrl" => &[(0, 31), (127, 127)],
        b"digit" => &[(b'0', b'9')],
        b"graph" => &[(33, 126)],
        b"lower" => &[(b'a', b'z')],
        b"print" => &[(32, 126)],
        b"punct" => &[(33, 47), (58, 64), (91, 96), (123, 126)],
        b"space" => &[(9, 13), (b' ', b' ')],
        b"upper" => &[(b'A', b'Z')],
        b"xdigit" => &[(b'0', b'9'), (b'A', b'F'), (b'a', b'f')],
        _ => return None,
    })
}

/// Keeps the set of places in the pattern that the text so far can have led to.
fn simulate(tokens: &[Token], text: &[u8]) -> bool {
    // A token that may stand for nothing is passed at once.
    fn enter(tokens: &[Token], states: &mut [bool], mut at: usize) {
        loop {
            states[at] = true;
            match tokens.get(at) {
                Some(Token::Star | Token::Dirs | Token::All) => at += 1,
                _ => return,
            }
        }
    }

    let mut states = vec![false; tokens.len() + 1];
    let mut next = states.clone();
    enter(tokens, &mut states, 0);
    for &byte in text {
        next.fill(false);
        for (at, token) in tokens.iter().enumerate().filter(|(at, _)| states[*at]) {
            match token {
                Token::Byte(wanted) if *wanted == byte => enter(tokens, &mut next, at + 1),
                Token::One if byte != b'/' => enter(tokens, &mut next, at + 1),
                Token::Star if byte != b'/' => enter(tokens, &mut next, at),
                Token::All => enter(tokens, &mut next, at),
                // Whole directories: only behind a slash may anything follow.
                Token::Dirs if byte == b'/' => enter(tokens, &mut next, at),
                Token::Dirs => next[at] = true,
                Token::Class { negated, ranges }
                    if byte != b'/'
                        && (ranges.iter().any(|(from, to)| (*from..=*to).contains(&byte)) != *negated) =>
                {
                    enter(tokens, &mut next, at + 1);
                }
                _ => {}
            }
        }
        std::mem::swap(&mut states, &mut next);
    }
    states[tokens.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ignored(lines: &str, path: &str) -> bool {
        let (path, is_dir) = path.strip_suffix('/').map_or((path, false), |path| (path, true));
        Patterns::parse(lines.as_bytes()).verdict(path.as_bytes(), is_dir).unwrap_or(false)
    }

    #[test]
    fn lines_mean_what_git_says_they_mean() {
        for (lines, path, expected) in [
            ("*.log", "a/b.log", true),
            ("*.log\n!b.log", "a/b.log", false),
            ("/x", "a/x", false),
            ("a/x", "a/x", true),
            ("build/", "build", false),
            ("build/", "a/build/", true),
            ("**/foo", "foo", true),
            ("**/foo/bar", "x/y/foo/bar", true),
            ("abc/**", "abc/x/y", true),
            ("abc/**", "abc", false),
            ("a/**/b", "a/b", true),
            ("a/**/b", "a/x/y/b", true),
            ("a/*/b", "a/x/y/b", false),
            ("\\#x\\ ", "#x ", true),
            ("# x", "# x", false),
            ("[a-c]?[!x]", "bzy", true),
            ("[[:digit:]]x", "7x", true),
            ("foo**bar", "fooxbar", true),
            ("foo**/bar", "foo/x/bar", true),
            ("fo[o]**/bar", "foo/x/bar", false),
            ("/**\\/[^b]", "x/y z/a", true),
            ("/**\\/[^b]", "a", false),
            ("trail  \r", "trail", true),
            ("[", "[", false),
        ] {
            assert_eq!(ignored(lines, path), expected, "{lines:?} on {path:?}");
        }
    }

    #[test]
    fn a_line_that_is_made_to_take_for_ever_does_not() {
        let line = "a*".repeat(500) + "b";
        assert!(!ignored(&line, &"a".repeat(255)));
    }
}
