//! Dockerfiles, as far as a template can follow them. What it cannot follow is refused, never left out.

use std::collections::BTreeMap;

use sandhold_core::{Error, ErrorKind, Result};

use super::recipe::{CopyOptions, From, Instruction, Recipe};
use crate::wire::StepKind;

/// The user and directory of sandboxes from a file that sets none.
const USER: &str = "user";
const HOME: &str = "/home/user";

/// One instruction with its number, its word in capitals, and the rest.
struct Line {
    number: usize,
    word: String,
    rest: String,
}

impl Line {
    fn bad(&self, why: impl std::fmt::Display) -> Error {
        Error::invalid_argument(format!("line {} of the Dockerfile ({}) {why}", self.number, self.word))
    }

    fn unsupported(&self, why: impl std::fmt::Display) -> Error {
        let message = format!("line {} of the Dockerfile ({}) {why}", self.number, self.word);
        Error::new(ErrorKind::Unsupported, message)
    }
}

/// What is known while a file is read.
struct Reading<'a> {
    given: &'a BTreeMap<String, String>,
    declared: Vec<String>,
    /// Arguments before FROM: they stand in FROM only, until they are declared again.
    global: BTreeMap<String, String>,
    /// Arguments of the stage, which commands see as variables.
    arguments: BTreeMap<String, String>,
    env: BTreeMap<String, String>,
    recipe: Option<Recipe>,
    sets_user: bool,
    sets_workdir: bool,
    entry: Option<String>,
    command: Option<String>,
}

pub(crate) fn parse(text: &str, given: &BTreeMap<String, String>) -> Result<Recipe> {
    let mut reading = Reading {
        given,
        declared: Vec::new(),
        global: BTreeMap::new(),
        arguments: BTreeMap::new(),
        env: BTreeMap::new(),
        recipe: None,
        sets_user: false,
        sets_workdir: false,
        entry: None,
        command: None,
    };
    for line in lines(text)? {
        reading.read(&line)?;
    }
    let mut recipe =
        reading.recipe.ok_or_else(|| Error::invalid_argument("the Dockerfile has no FROM instruction"))?;
    if let Some(unknown) = given.keys().find(|name| !reading.declared.contains(name)) {
        return Err(Error::invalid_argument(format!(
            "the Dockerfile declares no ARG {unknown}; take it out of the arguments, or declare it"
        )));
    }
    if !reading.sets_user {
        recipe = recipe.user(USER);
    }
    if !reading.sets_workdir {
        recipe = recipe.workdir(HOME);
    }
    recipe.start = match (reading.entry, reading.command) {
        (Some(entry), Some(command)) => Some(format!("{entry} {command}")),
        (entry, command) => entry.or(command),
    };
    Ok(recipe)
}

/// Joins continued lines and leaves comments out.
fn lines(text: &str) -> Result<Vec<Line>> {
    let mut escape = '\\';
    let mut lines = Vec::new();
    let mut open: Option<(usize, String)> = None;
    let mut directives = true;
    for (number, raw) in text.lines().enumerate() {
        let trimmed = raw.trim_start();
        if let Some(comment) = trimmed.strip_prefix('#') {
            let directive = comment.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
            if directives
                && let Some((name, value)) = directive
                && name.eq_ignore_ascii_case("escape")
            {
                escape = match value {
                    "`" => '`',
                    "\\" => '\\',
                    _ => {
                        return Err(Error::invalid_argument(format!(
                            "the escape {value:?} is neither \\ nor `"
                        )));
                    }
                };
            }
            continue;
        }
        directives = false;
        if trimmed.is_empty() {
            continue;
        }
        let (number, mut whole) = open.take().unwrap_or((number + 1, String::new()));
        let ended = raw.trim_end();
        if let Some(part) = ended.strip_suffix(escape) {
            whole.push_str(part);
            open = Some((number, whole));
            continue;
        }
        whole.push_str(raw);
        lines.push(line(number, &whole));
    }
    if let Some((number, whole)) = open {
        lines.push(line(number, &whole));
    }
    Ok(lines)
}

fn line(number: usize, whole: &str) -> Line {
    let whole = whole.trim();
    let (word, rest) = whole.split_once(char::is_whitespace).unwrap_or((whole, ""));
    Line { number, word: word.to_ascii_uppercase(), rest: rest.trim().to_owned() }
}

impl Reading<'_> {
    fn read(&mut self, line: &Line) -> Result<()> {
        match line.word.as_str() {
            "FROM" => return self.from(line),
            "ARG" => return self.arg(line),
            _ if self.recipe.is_none() => return Err(line.bad("stands before FROM")),
            _ => {}
        }
        if line.rest.contains("<<")
            && matches!(line.word.as_str(), "RUN" | "COPY" | "ADD")
            && heredoc(&line.rest)
        {
            return Err(line.unsupported("has a here-document; write the text into a file and copy it"));
        }
        match line.word.as_str() {
            "RUN" => self.run(line),
            "COPY" | "ADD" => self.copy(line),
            "ENV" => self.env(line),
            "WORKDIR" => {
                let path = self.expand(line, &line.rest)?;
                self.sets_workdir = true;
                self.push(Instruction::Plain(StepKind::Workdir, vec![unquoted(&path).to_owned()]))
            }
            "USER" => {
                let user = self.expand(line, &line.rest)?;
                self.sets_user = true;
                // A group beside the user is the user's own in a sandbox.
                let user = user.split(':').next().unwrap_or_default().to_owned();
                self.push(Instruction::Plain(StepKind::User, vec![user]))
            }
            "CMD" => {
                self.command = Some(command(line)?);
                Ok(())
            }
            "ENTRYPOINT" => {
                self.entry = Some(command(line)?);
                // What was set for another entry point is not meant for this one.
                self.command = None;
                Ok(())
            }
            // They say something about containers that no sandbox needs.
            "EXPOSE" | "LABEL" | "MAINTAINER" | "STOPSIGNAL" | "HEALTHCHECK" | "VOLUME" => {
                tracing::debug!(
                    line = line.number,
                    word = line.word,
                    "a template has no place for this; left out"
                );
                Ok(())
            }
            "SHELL" | "ONBUILD" => Err(line.unsupported("has no place in a template")),
            _ => Err(line.bad("is no instruction")),
        }
    }

    fn push(&mut self, instruction: Instruction) -> Result<()> {
        if let Some(recipe) = &mut self.recipe {
            recipe.instructions.push(instruction);
        }
        Ok(())
    }

    fn from(&mut self, line: &Line) -> Result<()> {
        if self.recipe.is_some() {
            return Err(line.unsupported("begins another stage; build from the last stage alone"));
        }
        let mut words = line.rest.split_whitespace().filter(|word| !word.starts_with("--platform="));
        let image = words.next().ok_or_else(|| line.bad("names no image"))?;
        match (words.next(), words.next(), words.next()) {
            (None, ..) => {}
            (Some(word), Some(_), None) if word.eq_ignore_ascii_case("AS") => {}
            _ => return Err(line.bad("is not FROM IMAGE [AS NAME]")),
        }
        let image = expand(image, &|name| self.global.get(name).cloned()).map_err(|why| line.bad(why))?;
        if image.is_empty() {
            return Err(line.bad("names no image once its arguments are put in"));
        }
        self.recipe = Some(Recipe::new(From::Image(image)).user("root").workdir("/"));
        Ok(())
    }

    fn arg(&mut self, line: &Line) -> Result<()> {
        for part in words(&line.rest).map_err(|why| line.bad(why))? {
            let (name, default) = match part.split_once('=') {
                Some((name, default)) => (name, Some(self.expand(line, default)?)),
                None => (part.as_str(), None),
            };
            if name.is_empty() || name.contains('$') {
                return Err(line.bad("names no argument"));
            }
            self.declared.push(name.to_owned());
            let inherited = self.recipe.is_some().then(|| self.global.get(name).cloned()).flatten();
            let value = self.given.get(name).cloned().or(default).or(inherited);
            let known = if self.recipe.is_some() { &mut self.arguments } else { &mut self.global };
            if let Some(value) = value {
                known.insert(name.to_owned(), value);
            }
        }
        Ok(())
    }

    fn env(&mut self, line: &Line) -> Result<()> {
        let parts = words(&line.rest).map_err(|why| line.bad(why))?;
        let mut args = Vec::new();
        if parts.first().is_some_and(|first| first.contains('=')) {
            for part in parts {
                let (name, value) = part.split_once('=').ok_or_else(|| line.bad("has a part without ="))?;
                args.push(name.to_owned());
                args.push(self.expand(line, value)?);
            }
        } else {
            // The older form: one name, and all the rest is its value.
            let (name, value) =
                line.rest.split_once(char::is_whitespace).ok_or_else(|| line.bad("has no value"))?;
            args.push(name.to_owned());
            args.push(self.expand(line, value.trim())?);
        }
        for pair in args.chunks(2) {
            if let [name, value] = pair {
                self.env.insert(name.clone(), value.clone());
            }
        }
        self.push(Instruction::Plain(StepKind::Env, args))
    }

    fn run(&mut self, line: &Line) -> Result<()> {
        if line.rest.starts_with("--") {
            return Err(line.unsupported("has options of BuildKit, which a template has not"));
        }
        let mut text = command(line)?;
        if text.is_empty() {
            return Err(line.bad("has no command"));
        }
        // Arguments are variables of commands, unless a variable of the image has the name.
        let hidden = self.arguments.iter().filter(|(name, _)| !self.env.contains_key(*name));
        let exports: Vec<_> = hidden.map(|(name, value)| format!("{name}={}", quoted(value))).collect();
        if !exports.is_empty() {
            text = format!("export {}; {text}", exports.join(" "));
        }
        self.push(Instruction::Plain(StepKind::Run, vec![text]))
    }

    fn copy(&mut self, line: &Line) -> Result<()> {
        let mut options = CopyOptions::default();
        let mut rest = line.rest.as_str();
        while let Some(flag) = rest.strip_prefix("--") {
            let (flag, after) =
                flag.split_once(char::is_whitespace).ok_or_else(|| line.bad("names no files"))?;
            rest = after.trim_start();
            let (name, value) = flag.split_once('=').unwrap_or((flag, ""));
            let value = self.expand(line, value)?;
            match name {
                "chown" => options.user = Some(value),
                "chmod" => {
                    let mode = u32::from_str_radix(&value, 8).ok().filter(|mode| *mode <= 0o7777);
                    options.mode = Some(
                        mode.ok_or_else(|| line.bad(format!("has the mode {value:?}; give octal digits")))?,
                    );
                }
                "link" => {}
                _ => return Err(line.unsupported(format!("has the option --{name}"))),
            }
        }
        let parts = match array(rest) {
            Some(parts) => parts,
            None => words(rest).map_err(|why| line.bad(why))?,
        };
        let mut parts = parts.iter().map(|part| self.expand(line, part)).collect::<Result<Vec<_>>>()?;
        let target = parts
            .pop()
            .filter(|_| !parts.is_empty())
            .ok_or_else(|| line.bad("needs a source and a target"))?;
        if parts.len() > 1 && !target.ends_with('/') {
            return Err(line.bad("has several sources, so that its target must end with a slash"));
        }
        for source in parts {
            if line.word == "ADD" && source.contains("://") {
                return Err(line.unsupported("fetches from the network; fetch it in a RUN"));
            }
            self.push(Instruction::Copy { source, target: target.clone(), options: options.clone() })?;
        }
        Ok(())
    }

    /// Puts variables in: those of the image before arguments.
    fn expand(&self, line: &Line, text: &str) -> Result<String> {
        let lookup = |name: &str| {
            let known = if self.recipe.is_some() { &self.arguments } else { &self.global };
            self.env.get(name).or_else(|| known.get(name)).cloned()
        };
        expand(text, &lookup).map_err(|why| line.bad(why))
    }
}

/// Tells whether a command takes its text from the lines that follow.
fn heredoc(text: &str) -> bool {
    text.match_indices("<<").any(|(at, _)| {
        let after = text[at + 2..].trim_start_matches('-');
        after.starts_with(|c: char| c.is_ascii_alphabetic() || c == '"' || c == '\'' || c == '_')
    })
}

/// Reads the array form, `["program", "argument"]`.
fn array(text: &str) -> Option<Vec<String>> {
    text.starts_with('[').then(|| serde_json::from_str(text).ok()).flatten()
}

/// Returns a command as one line for the shell.
fn command(line: &Line) -> Result<String> {
    match array(&line.rest) {
        Some(parts) if parts.is_empty() => Err(line.bad("has an empty command")),
        Some(parts) => Ok(parts.iter().map(|part| quoted(part)).collect::<Vec<_>>().join(" ")),
        None => Ok(line.rest.clone()),
    }
}

/// Writes a text so that a shell reads it as one word.
fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn unquoted(text: &str) -> &str {
    let inner = |quote| text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote));
    inner('"').or_else(|| inner('\'')).unwrap_or(text)
}

/// Splits at spaces outside of quotes. Single quotes keep `$` from being a variable: it is escaped for the expansion.
fn words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (Some(open), c) if c == open => quote = None,
            (Some('\''), '$') => word.get_or_insert_default().push_str("\\$"),
            (None | Some('"'), '\\') => match chars.next() {
                Some('$') => word.get_or_insert_default().push_str("\\$"),
                Some(next) => word.get_or_insert_default().push(next),
                None => return Err("ends with an escape".to_owned()),
            },
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err("has a quote that does not end".to_owned());
    }
    words.extend(word);
    Ok(words)
}

/// Puts in `$NAME`, `${NAME}`, `${NAME:-default}` and `${NAME:+other}`.
fn expand(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut made = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(['$', '\\']) {
        made.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("\\$") {
            made.push('$');
            rest = after;
        } else if let Some(after) = rest.strip_prefix('\\') {
            made.push('\\');
            rest = after;
        } else if let Some(after) = rest.strip_prefix("${") {
            let (inner, after) = after.split_once('}').ok_or("has a ${ that does not end")?;
            let (name, value) = match inner.split_once(':') {
                None => (inner, lookup(inner).unwrap_or_default()),
                Some((name, form)) => {
                    let known = lookup(name).filter(|value| !value.is_empty());
                    match (form.chars().next(), known) {
                        (Some('-'), known) => (name, known.unwrap_or_else(|| form[1..].to_owned())),
                        (Some('+'), known) => (name, known.map(|_| form[1..].to_owned()).unwrap_or_default()),
                        _ => return Err(format!("has ${{{inner}}}, which is none of the known forms")),
                    }
                }
            };
            if !is_name(name) {
                return Err(format!("has ${{{inner}}}, which names no variable"));
            }
            made.push_str(&value);
            rest = after;
        } else {
            let end = rest[1..]
                .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
                .map_or(rest.len(), |end| end + 1);
            let name = &rest[1..end];
            if is_name(name) {
                made.push_str(&lookup(name).unwrap_or_default());
            } else {
                made.push_str(&rest[..end]);
            }
            rest = &rest[end..];
        }
    }
    made.push_str(rest);
    Ok(made)
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str, arguments: &[(&str, &str)]) -> Result<Recipe> {
        let owned = arguments.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        parse(text, &owned)
    }

    fn steps(recipe: &Recipe) -> Vec<String> {
        let shown = |instruction: &Instruction| match instruction {
            Instruction::Plain(kind, args) => format!("{kind:?} {}", args.join("|")),
            Instruction::Copy { source, target, options } => {
                let mode = options.mode.map(|mode| format!("{mode:o}")).unwrap_or_default();
                format!("Copy {source}|{target}|{}|{mode}", options.user.as_deref().unwrap_or_default())
            }
        };
        recipe.instructions.iter().map(shown).collect()
    }

    #[test]
    fn a_file_becomes_steps_that_begin_as_root_and_end_as_the_user() {
        let text = "# syntax=docker/dockerfile:1\nARG VERSION=12\nFROM --platform=linux/amd64 debian:${VERSION} AS only\n\
            ARG FLAVOUR=plain\nENV A=1 B=\"two words\"\nENV OLD all the rest\nRUN apt-get update && \\\n  # not this\n  \
            apt-get install -y git\nCOPY --chown=app:app --chmod=755 a b /srv/\nRUN [\"echo\", \"it's\"]\nCMD [\"serve\", \"-p\", \"80\"]\n\
            EXPOSE 80\n";
        let recipe = read(text, &[("FLAVOUR", "best one")]).unwrap();
        assert_eq!(recipe.from, From::Image("debian:12".to_owned()));
        assert_eq!(
            steps(&recipe),
            [
                "User root",
                "Workdir /",
                "Env A|1|B|two words",
                "Env OLD|all the rest",
                "Run export FLAVOUR='best one'; apt-get update &&   apt-get install -y git",
                "Copy a|/srv/|app:app|755",
                "Copy b|/srv/|app:app|755",
                "Run export FLAVOUR='best one'; echo 'it'\\''s'",
                "User user",
                "Workdir /home/user",
            ]
        );
        assert_eq!(recipe.start.as_deref(), Some("serve -p 80"));
    }

    #[test]
    fn arguments_stand_where_docker_lets_them() {
        let text = "ARG BASE=debian\nARG TAG\nFROM ${BASE}:${TAG:-12}\nARG BASE\nARG UNSET\nENV X=$BASE-${UNSET:-d}-${BASE:+y}\n\
            WORKDIR /srv/$X\nUSER app:group\n";
        let recipe = read(text, &[("BASE", "alpine"), ("TAG", "3")]).unwrap();
        assert_eq!(recipe.from, From::Image("alpine:3".to_owned()));
        assert_eq!(steps(&recipe)[2..], ["Env X|alpine-d-y", "Workdir /srv/alpine-d-y", "User app"]);
        // Without a declaration of its own the stage does not see what stood before FROM.
        let recipe = read("ARG A=1\nFROM x\nENV B='$A' C=$A D=\\$A\n", &[]).unwrap();
        assert_eq!(steps(&recipe)[2], "Env B|$A|C||D|$A");
    }

    #[test]
    fn what_a_template_cannot_follow_is_refused_by_its_line() {
        for (text, kind) in [
            ("", ErrorKind::InvalidArgument),
            ("RUN x", ErrorKind::InvalidArgument),
            ("FROM", ErrorKind::InvalidArgument),
            ("FROM a b", ErrorKind::InvalidArgument),
            ("FROM $NONE", ErrorKind::InvalidArgument),
            ("FROM a\nNONSENSE x", ErrorKind::InvalidArgument),
            ("FROM a\nCOPY a", ErrorKind::InvalidArgument),
            ("FROM a\nCOPY a b c", ErrorKind::InvalidArgument),
            ("FROM a\nENV A", ErrorKind::InvalidArgument),
            ("FROM a\nENV A=\"x", ErrorKind::InvalidArgument),
            ("FROM a\nWORKDIR ${A", ErrorKind::InvalidArgument),
            ("FROM a\nCOPY --chmod=9 a b", ErrorKind::InvalidArgument),
            ("FROM a\nFROM b", ErrorKind::Unsupported),
            ("FROM a\nCOPY --from=x a b", ErrorKind::Unsupported),
            ("FROM a\nRUN --mount=type=cache,target=/x y", ErrorKind::Unsupported),
            ("FROM a\nRUN <<EOF\nx\nEOF", ErrorKind::Unsupported),
            ("FROM a\nSHELL [\"x\"]", ErrorKind::Unsupported),
            ("FROM a\nADD https://x /y", ErrorKind::Unsupported),
        ] {
            assert_eq!(read(text, &[]).unwrap_err().kind(), kind, "{text}");
        }
        let error = read("FROM a\n\nNONSENSE x", &[]).unwrap_err();
        assert!(error.message().contains("line 3"), "{error}");
        let error = read("FROM a", &[("B", "1")]).unwrap_err();
        assert!(error.message().contains("ARG B"), "{error}");
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_reader(text in "(FROM|RUN|COPY|ENV|ARG|[ $\\\\{}=:'\"\n]|\\PC){0,40}") {
            let _ = read(&format!("FROM a\n{text}"), &[]);
            let _ = read(&text, &[]);
        }
    }
}
