//! No code decides anything by the text of an error's message: every source of the workspace is parsed and looked through.
#![allow(clippy::unwrap_used, reason = "a broken rule panics")]

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprBinary, ExprMatch, ExprMethodCall, ItemFn, ItemMod, Local, Pat};

/// What asks a text for its content.
const ASKS: &[&str] = &[
    "contains",
    "starts_with",
    "ends_with",
    "find",
    "rfind",
    "matches",
    "strip_prefix",
    "strip_suffix",
    "split",
    "split_once",
    "rsplit_once",
    "eq_ignore_ascii_case",
    "parse",
];

/// What an error is usually called.
const ERRORS: &[&str] = &["error", "err", "e", "cause", "failure"];

/// Finds the places in one source.
#[derive(Default)]
struct Finder {
    /// Names that hold the text of an error, in the function that is looked at.
    texts: HashSet<String>,
    found: Vec<usize>,
}

impl Finder {
    fn look(source: &str) -> Vec<usize> {
        let mut finder = Self::default();
        finder.visit_file(&syn::parse_file(source).unwrap());
        finder.found.sort_unstable();
        finder.found.dedup();
        finder.found
    }

    fn names(expr: &Expr, names: impl Fn(&str) -> bool) -> bool {
        matches!(expr, Expr::Path(path) if path.path.get_ident().is_some_and(|ident| names(&ident.to_string())))
    }

    /// Says whether an expression is the text of an error, or made of nothing else.
    fn is_text(&self, expr: &Expr) -> bool {
        match expr {
            Expr::MethodCall(call) if call.method == "message" && call.args.is_empty() => true,
            Expr::MethodCall(call) if call.method == "to_string" => {
                let is_error = |name: &str| ERRORS.contains(&name) || self.texts.contains(name);
                Self::names(&call.receiver, is_error) || self.is_text(&call.receiver)
            }
            Expr::MethodCall(call) => self.is_text(&call.receiver),
            Expr::Field(field) => {
                let is_message = matches!(&field.member, syn::Member::Named(name) if name == "message");
                is_message && Self::names(&field.base, |name| name == "own" || ERRORS.contains(&name))
            }
            Expr::Reference(reference) => self.is_text(&reference.expr),
            Expr::Paren(paren) => self.is_text(&paren.expr),
            // `format!("{error}")`
            Expr::Macro(made) if made.mac.path.is_ident("format") => {
                let text = made.mac.tokens.to_string();
                ERRORS.iter().any(|name| text.starts_with(&format!("\"{{{name}}}\"")))
            }
            expr => Self::names(expr, |name| self.texts.contains(name)),
        }
    }

    fn note(&mut self, place: &impl Spanned) {
        self.found.push(place.span().start().line);
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let tokens =
            matches!(&attribute.meta, syn::Meta::List(list) if list.tokens.to_string().contains("test"));
        attribute.path().is_ident("test") || (attribute.path().is_ident("cfg") && tokens)
    })
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast ItemFn) {
        if !is_for_tests(&function.attrs) {
            let outer = std::mem::take(&mut self.texts);
            visit::visit_item_fn(self, function);
            self.texts = outer;
        }
    }

    fn visit_local(&mut self, local: &'ast Local) {
        visit::visit_local(self, local);
        if let (Pat::Ident(name), Some(init)) = (&local.pat, &local.init) {
            let name = name.ident.to_string();
            if self.is_text(&init.expr) {
                self.texts.insert(name);
            } else {
                self.texts.remove(&name);
            }
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        if ASKS.iter().any(|ask| call.method == ask) && self.is_text(&call.receiver) {
            self.note(&call.method);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_binary(&mut self, binary: &'ast ExprBinary) {
        let compares = matches!(binary.op, syn::BinOp::Eq(_) | syn::BinOp::Ne(_));
        if compares && (self.is_text(&binary.left) || self.is_text(&binary.right)) {
            self.note(binary);
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_match(&mut self, chosen: &'ast ExprMatch) {
        if self.is_text(&chosen.expr) {
            self.note(&chosen.match_token);
        }
        visit::visit_expr_match(self, chosen);
    }
}

fn sources(directory: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let is_tests = path.file_name().is_some_and(|name| name == "testing" || name == "tests.rs");
        if path.is_dir() && !is_tests {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_tests {
            into.push(path);
        }
    }
}

#[test]
fn no_source_decides_by_the_text_of_a_message() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(workspace).unwrap() {
        let source = entry.unwrap().path().join("src");
        if source.parent().is_some_and(|of| of.join("Cargo.toml").is_file()) && source.is_dir() {
            sources(&source, &mut files);
        }
    }
    assert!(files.len() > 100, "the sources are not where they were: {files:?}");
    let mut found = Vec::new();
    for file in files {
        let name = file.strip_prefix(workspace).unwrap().display().to_string();
        let lines = Finder::look(&std::fs::read_to_string(&file).unwrap());
        found.extend(lines.iter().map(|line| format!("{name}:{line}")));
    }
    assert!(found.is_empty(), "decided by the text of an error, not by its kind, reason or code: {found:#?}");
}

#[test]
fn every_way_of_looking_into_a_text_is_found() {
    for bad in [
        r#"if error.message().contains("gone") {}"#,
        r#"if error.to_string().starts_with("x") {}"#,
        r#"if own.message.to_lowercase().contains("x") {}"#,
        r#"if error.message() == "x" {}"#,
        r#"match error.message() { "x" => {} _ => {} }"#,
        r#"let text = error.to_string(); let lower = text.to_lowercase(); if lower.contains("x") {}"#,
        r#"if format!("{error}").contains("x") {}"#,
        r#"let found = results.iter().any(|error| error.message().contains("x"));"#,
    ] {
        assert_eq!(Finder::look(&format!("fn f() {{ {bad} }}")), [1], "{bad}");
    }
    for good in [
        r#"if error.kind() == ErrorKind::Gone {}"#,
        r#"let shown = error.message().to_owned(); log(shown);"#,
        r#"if !own.message.is_empty() {}"#,
        r#"if error.reason() == Some("x") {}"#,
    ] {
        assert_eq!(Finder::look(&format!("fn f() {{ {good} }}")), [0; 0], "{good}");
    }
}
