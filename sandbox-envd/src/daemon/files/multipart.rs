//! A push parser for `multipart/*` bodies (RFC 2046 section 5.1) that copies no content.
//!
//! Written here because uploads of any size go through it: ready-made parsers buffer all that has arrived.

use memchr::memmem;

/// Most bytes of the headers of one part.
const MAX_HEADERS: usize = 16 * 1024;
/// Most padding after a delimiter; senders put none.
const MAX_PADDING: usize = 256;

/// What a parser finds.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event<'a> {
    /// A part begins.
    Part(PartHead),
    /// More of the content of the part.
    Data(&'a [u8]),
    /// The part is complete.
    End,
}

/// The names in a part's `Content-Disposition`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PartHead {
    pub(super) name: Option<String>,
    /// The whole name, slashes and percent signs as they came.
    pub(super) filename: Option<String>,
}

/// Why a body is no multipart body.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Malformed {
    #[error("the content type names no multipart boundary of 1 to 70 characters")]
    Boundary,
    #[error("a multipart boundary is followed by something else than a line end")]
    Delimiter,
    #[error("the headers of a multipart part exceed {MAX_HEADERS} bytes")]
    HeadersTooLong,
    #[error("the multipart body ends before its closing boundary")]
    Truncated,
}

#[derive(Debug)]
enum State {
    /// In the content of a part, or before the first one.
    Content { in_part: bool },
    /// Right after a delimiter, collecting the rest of its line.
    AfterDelimiter { in_part: bool },
    /// Collecting the headers of a part.
    Headers,
    /// After the closing delimiter: whatever follows is ignored.
    Done,
}

/// Parses a body that is pushed in pieces of any size.
#[derive(Debug)]
pub(super) struct Parser {
    delimiter: Vec<u8>,
    state: State,
    /// Content that may be the start of a delimiter, or the line or headers collected so far.
    held: Vec<u8>,
}

impl Parser {
    /// Makes a parser from the value of a `Content-Type` header.
    pub(super) fn new(content_type: &str) -> Result<Self, Malformed> {
        let boundary = parameter(content_type, "boundary").unwrap_or_default();
        if boundary.is_empty() || boundary.len() > 70 {
            return Err(Malformed::Boundary);
        }
        Ok(Self {
            delimiter: format!("\r\n--{boundary}").into_bytes(),
            state: State::Content { in_part: false },
            // The first delimiter may stand at the very start, where no line end precedes it.
            held: b"\r\n".to_vec(),
        })
    }

    /// Takes the next piece of the body and hands what is in it to `found`.
    pub(super) fn push<E: From<Malformed>>(
        &mut self,
        mut input: &[u8],
        found: &mut impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        while !input.is_empty() {
            match self.state {
                State::Content { in_part } => input = self.content(input, in_part, found)?,
                State::AfterDelimiter { in_part } => input = self.after_delimiter(input, in_part, found)?,
                State::Headers => input = self.headers(input, found)?,
                State::Done => return Ok(()),
            }
        }
        Ok(())
    }

    /// Checks that the body is complete.
    pub(super) fn finish(&self) -> Result<(), Malformed> {
        if matches!(self.state, State::Done) { Ok(()) } else { Err(Malformed::Truncated) }
    }

    fn content<'a, E>(
        &mut self,
        input: &'a [u8],
        in_part: bool,
        found: &mut impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<&'a [u8], E> {
        let mut data = |bytes: &[u8]| match bytes {
            [] => Ok(()),
            _ if in_part => found(Event::Data(bytes)),
            _ => Ok(()),
        };
        let rest = if self.held.is_empty() {
            match memmem::find(input, &self.delimiter) {
                Some(at) => {
                    data(&input[..at])?;
                    &input[at + self.delimiter.len()..]
                }
                None => {
                    let keep = partial_match(input, &self.delimiter);
                    data(&input[..input.len() - keep])?;
                    self.held.extend_from_slice(&input[input.len() - keep..]);
                    return Ok(&[]);
                }
            }
        } else {
            // What was held back is a delimiter only together with the next few bytes.
            let before = self.held.len();
            let taken = input.len().min(self.delimiter.len());
            self.held.extend_from_slice(&input[..taken]);
            match memmem::find(&self.held, &self.delimiter) {
                Some(at) => {
                    data(&self.held[..at])?;
                    &input[at + self.delimiter.len() - before..]
                }
                None if taken == input.len() => {
                    let keep = partial_match(&self.held, &self.delimiter);
                    let sure = self.held.len() - keep;
                    data(&self.held[..sure])?;
                    self.held.drain(..sure);
                    return Ok(&[]);
                }
                None => {
                    data(&self.held[..before])?;
                    self.held.clear();
                    return Ok(input);
                }
            }
        };
        self.held.clear();
        self.state = State::AfterDelimiter { in_part };
        Ok(rest)
    }

    fn after_delimiter<'a, E: From<Malformed>>(
        &mut self,
        input: &'a [u8],
        in_part: bool,
        found: &mut impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<&'a [u8], E> {
        for (at, byte) in input.iter().enumerate() {
            self.held.push(*byte);
            let next = match self.held.as_slice() {
                b"-" => continue,
                b"--" => State::Done,
                // A longer word that only begins like the boundary: content, as in Go.
                line if is_word(line) => {
                    if in_part {
                        found(Event::Data(&self.delimiter))?;
                    }
                    self.state = State::Content { in_part };
                    return Ok(&input[at + 1..]);
                }
                [padding @ .., b'\r', b'\n'] if padding.iter().all(|byte| matches!(byte, b' ' | b'\t')) => {
                    State::Headers
                }
                [.., b'\r', b'\n'] => return Err(Malformed::Delimiter.into()),
                line if line.len() > MAX_PADDING => return Err(Malformed::Delimiter.into()),
                _ => continue,
            };
            self.held.clear();
            self.state = next;
            if in_part {
                found(Event::End)?;
            }
            return Ok(&input[at + 1..]);
        }
        Ok(&[])
    }

    fn headers<'a, E: From<Malformed>>(
        &mut self,
        input: &'a [u8],
        found: &mut impl FnMut(Event<'_>) -> Result<(), E>,
    ) -> Result<&'a [u8], E> {
        let before = self.held.len();
        let taken = input.len().min(MAX_HEADERS + 1 - before);
        self.held.extend_from_slice(&input[..taken]);
        // An empty line ends the headers; it may come first.
        let end = if self.held.starts_with(b"\r\n") {
            Some(2)
        } else {
            memmem::find(&self.held[before.saturating_sub(3)..], b"\r\n\r\n")
                .map(|at| before.saturating_sub(3) + at + 4)
        };
        let Some(end) = end else {
            let fits = self.held.len() <= MAX_HEADERS;
            return if fits { Ok(&[]) } else { Err(Malformed::HeadersTooLong.into()) };
        };
        let head = part_head(&self.held[..end]);
        self.held.clear();
        self.state = State::Content { in_part: true };
        found(Event::Part(head))?;
        Ok(&input[end - before..])
    }
}

/// Says whether what follows a boundary makes it a longer word.
fn is_word(line: &[u8]) -> bool {
    match line {
        [b'-', second] => *second != b'-',
        [first] => !matches!(first, b'-' | b' ' | b'\t' | b'\r' | b'\n'),
        _ => false,
    }
}

/// Length of the longest end of `data` that is a proper start of `delimiter`.
fn partial_match(data: &[u8], delimiter: &[u8]) -> usize {
    let longest = data.len().min(delimiter.len() - 1);
    let window = &data[data.len() - longest..];
    memchr::memchr_iter(b'\r', window)
        .find(|at| delimiter.starts_with(&window[*at..]))
        .map_or(0, |at| longest - at)
}

fn part_head(headers: &[u8]) -> PartHead {
    let text = String::from_utf8_lossy(headers);
    let disposition = text.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-disposition").then_some(value)
    });
    let Some(disposition) = disposition else { return PartHead::default() };
    let extended = parameter(disposition, "filename*").and_then(|value| decode_extended(&value));
    PartHead {
        name: parameter(disposition, "name"),
        filename: extended.or_else(|| parameter(disposition, "filename")),
    }
}

/// Decodes `UTF-8''percent%20encoded` (RFC 5987).
fn decode_extended(value: &str) -> Option<String> {
    let (charset, rest) = value.split_once('\'')?;
    let (_language, text) = rest.split_once('\'')?;
    if !charset.eq_ignore_ascii_case("utf-8") {
        return None;
    }
    // The form decoder knows percent signs; a plus sign stands for itself here.
    let text = text.replace('+', "%2B");
    form_urlencoded::parse(text.as_bytes()).next().map(|(name, _)| name.into_owned())
}

/// Value of a parameter of a header like `type; name=token; name="quoted"`.
///
/// As in Go, a backslash escapes only a character that needs it, so that Windows paths survive.
pub(super) fn parameter(header: &str, wanted: &str) -> Option<String> {
    let mut rest = &header[header.find(';')?..];
    while let Some(stripped) = rest.trim_start().strip_prefix(';') {
        let (name, value) = stripped.split_once('=')?;
        let value = value.trim_start();
        let (text, after) = match value.strip_prefix('"') {
            Some(quoted) => unquote(quoted),
            None => {
                let end = value.find(';').unwrap_or(value.len());
                (value[..end].trim_end().to_owned(), &value[end..])
            }
        };
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(text);
        }
        rest = after;
    }
    None
}

fn unquote(quoted: &str) -> (String, &str) {
    const SPECIAL: &str = "()<>@,;:\\\"/[]?=";
    let mut text = String::new();
    let mut chars = quoted.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (text, &quoted[at + 1..]),
            '\\' => match chars.next_if(|(_, next)| SPECIAL.contains(*next)) {
                Some((_, escaped)) => text.push(escaped),
                None => text.push('\\'),
            },
            _ => text.push(c),
        }
    }
    (text, "")
}

/// Reads a form that comes in these pieces into lines that tell its parts and their contents; for fuzz targets.
///
/// # Errors
/// Why it is no form.
#[cfg(feature = "fuzzing")]
pub fn multipart<'a>(
    content_type: &str,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Vec<String>, String> {
    let mut parser = Parser::new(content_type).map_err(|malformed| malformed.to_string())?;
    let (mut lines, mut content) = (Vec::new(), Vec::new());
    for piece in pieces {
        let mut found = |event: Event<'_>| -> Result<(), Malformed> {
            match event {
                Event::Part(head) => lines.push(format!("{head:?}")),
                Event::Data(data) => content.extend_from_slice(data),
                Event::End => lines.push(format!("{:?}", std::mem::take(&mut content))),
            }
            Ok(())
        };
        parser.push(piece, &mut found).map_err(|malformed| malformed.to_string())?;
    }
    parser.finish().map_err(|malformed| malformed.to_string())?;
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Parts = Vec<(PartHead, Vec<u8>)>;

    fn parse(boundary: &str, pieces: &[&[u8]]) -> Result<Parts, Malformed> {
        let mut parser = Parser::new(&format!("multipart/form-data; boundary={boundary}"))?;
        let mut parts = Parts::new();
        let mut open = false;
        for piece in pieces {
            parser.push(piece, &mut |event| {
                match event {
                    Event::Part(head) => {
                        assert!(!open);
                        open = true;
                        parts.push((head, Vec::new()));
                    }
                    Event::Data(data) => {
                        assert!(open && !data.is_empty());
                        parts.last_mut().unwrap().1.extend_from_slice(data);
                    }
                    Event::End => {
                        assert!(open);
                        open = false;
                    }
                }
                Ok::<(), Malformed>(())
            })?;
        }
        parser.finish().map(|()| parts)
    }

    fn body(boundary: &str, parts: &[(String, Vec<u8>)]) -> Vec<u8> {
        let mut body = Vec::new();
        for (filename, data) in parts {
            let head = format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{filename}\"\r\n\
                 Content-Type: application/octet-stream\r\n\r\n"
            );
            body.extend_from_slice(head.as_bytes());
            body.extend_from_slice(data);
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
        body
    }

    #[test]
    fn file_names_keep_slashes_percent_signs_and_windows_separators() {
        for (sent, got) in [
            ("a/b/../c.txt", "a/b/../c.txt"),
            ("say %22hi%22.txt", "say %22hi%22.txt"),
            ("C:\\dir\\f", "C:\\dir\\f"),
            ("a\\\"b", "a\"b"),
            ("é 漢.txt", "é 漢.txt"),
            ("a;b=c", "a;b=c"),
        ] {
            let parts = parse("xx", &[&body("xx", &[(sent.into(), b"1".to_vec())])]).unwrap();
            assert_eq!(parts[0].0, PartHead { name: Some("file".into()), filename: Some(got.into()) });
        }
    }

    #[test]
    fn an_extended_file_name_wins() {
        let head = b"Content-Disposition: form-data; name=\"file\"; filename=\"a\"; filename*=UTF-8''b%20c+d\r\n\r\n";
        assert_eq!(part_head(head).filename.as_deref(), Some("b c+d"));
    }

    #[test]
    fn preamble_padding_headerless_and_empty_parts_are_allowed() {
        let text = b"preamble\r\n--xx  \r\n\r\n\r\n--xx\r\nA: b\r\n\r\n1\r\n--xx--\r\nepilogue";
        let parts = parse("xx", &[text]).unwrap();
        assert_eq!(parts, [(PartHead::default(), vec![]), (PartHead::default(), b"1".to_vec())]);
        assert_eq!(parse("xx", &[b"--xx--"]), Ok(vec![]));
    }

    #[test]
    fn a_word_that_only_begins_like_the_boundary_is_content() {
        for content in
            ["\r\n--xxy", "\r\n--xx-", "\r\n--xx-\r", "\r\n--xx-y\r\n--xxx", "a\r\n--xx-\r\n--xx\u{0}"]
        {
            let body = body("xx", &[("f".into(), content.into())]);
            let bytes: Vec<&[u8]> = body.chunks(1).collect();
            for pieces in [&[body.as_slice()][..], &bytes] {
                assert_eq!(parse("xx", pieces).unwrap()[0].1, content.as_bytes());
            }
        }
    }

    #[test]
    fn a_malformed_boundary_line_does_not_end_the_part_before_it() {
        let mut parser = Parser::new("multipart/form-data; boundary=xx").unwrap();
        let ended = parser.push(b"--xx\r\n\r\nabc\r\n--xx y\r\n", &mut |event| match event {
            Event::End => panic!("the part was taken for complete"),
            _ => Ok::<(), Malformed>(()),
        });
        assert_eq!(ended, Err(Malformed::Delimiter));
    }

    #[test]
    fn what_is_no_multipart_body_is_refused() {
        assert_eq!(parse("xx", &[b""]), Err(Malformed::Truncated));
        assert_eq!(parse("xx", &[b"--xx\r\n\r\nabc"]), Err(Malformed::Truncated));
        assert_eq!(parse("xx", &[b"--xx y\r\n\r\nabc"]), Err(Malformed::Delimiter));
        assert_eq!(parse("", &[b"--\r\n"]), Err(Malformed::Boundary));
        let long = [b"--xx\r\nA: ".as_slice(), &[b'a'; MAX_HEADERS]].concat();
        assert_eq!(parse("xx", &[&long]), Err(Malformed::HeadersTooLong));
    }

    proptest! {
        #[test]
        fn parts_come_out_as_they_went_in_however_the_body_is_cut(
            contents in prop::collection::vec(
                prop::collection::vec(prop::sample::select(&b"\r\n--xa\0"[..]), 0..60), 0..4),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        ) {
            // A boundary that the contents resemble but cannot hold.
            let boundary = "xax9";
            let parts: Vec<_> = contents.into_iter().enumerate().map(|(i, c)| (format!("f{i}"), c)).collect();
            let body = body(boundary, &parts);
            let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(body.len() + 1)).collect();
            at.extend([0, body.len()]);
            at.sort_unstable();
            let pieces: Vec<&[u8]> = at.windows(2).map(|w| &body[w[0]..w[1]]).collect();
            let got = parse(boundary, &pieces).unwrap();
            let got: Vec<_> = got.into_iter().map(|(head, data)| (head.filename.unwrap(), data)).collect();
            prop_assert_eq!(got, parts);
        }

        #[test]
        fn no_body_makes_the_parser_panic(body in prop::collection::vec(prop::sample::select(&b"\r\n--x:;=\""[..]), 0..200)) {
            let _ = parse("x", &[&body]);
        }
    }
}
