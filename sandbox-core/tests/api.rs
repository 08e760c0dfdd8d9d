//! The list of what users call in the three languages, held against the sources of Rust. Node.js and Python have their own tests.
#![allow(clippy::unwrap_used, reason = "a broken rule panics")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use sandhold_core as core;
use serde_json::Value;
use syn::{Fields, ImplItem, Item, Type, UseTree, Visibility};

type Names = BTreeSet<String>;

/// What the sources have: the names of every public type, as `core::Sandbox`, and the public types of every crate.
#[derive(Default)]
struct Sources {
    /// Of structs, and the methods of traits.
    fields: BTreeMap<String, Names>,
    methods: BTreeMap<String, Names>,
    variants: BTreeMap<String, Names>,
    exported: Names,
}

static SOURCES: LazyLock<Sources> = LazyLock::new(Sources::read);

const CRATES: &[&str] = &["core", "e2b", "local", "persist", "registry"];

impl Sources {
    fn read() -> Self {
        let mut sources = Self::default();
        for name in CRATES {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../sandbox-{name}/src"));
            sources.read_dir(name, &root);
            for item in syn::parse_file(&std::fs::read_to_string(root.join("lib.rs")).unwrap()).unwrap().items
            {
                if let Item::Use(used) = item
                    && matches!(used.vis, Visibility::Public(_))
                {
                    sources.export(name, &used.tree);
                }
            }
        }
        sources
    }

    fn read_dir(&mut self, name: &str, directory: &Path) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                // Messages of a protocol, and what the tests of others use.
                if !path.ends_with("wire") && !path.ends_with("testing") {
                    self.read_dir(name, &path);
                }
            } else if path.extension().is_some_and(|ext| ext == "rs") && !path.ends_with("wire.rs") {
                for item in syn::parse_file(&std::fs::read_to_string(&path).unwrap()).unwrap().items {
                    self.note(name, item);
                }
            }
        }
    }

    fn note(&mut self, name: &str, item: Item) {
        let is_public = |vis: &Visibility| matches!(vis, Visibility::Public(_));
        match item {
            Item::Struct(item) if is_public(&item.vis) => {
                let Fields::Named(fields) = item.fields else { return };
                let public = fields.named.iter().filter(|field| is_public(&field.vis));
                let names = public.filter_map(|field| field.ident.as_ref()).map(ToString::to_string);
                self.fields.entry(format!("{name}::{}", item.ident)).or_default().extend(names);
            }
            Item::Enum(item) if is_public(&item.vis) => {
                let names = item.variants.iter().map(|variant| snake(&variant.ident.to_string()));
                self.variants.entry(format!("{name}::{}", item.ident)).or_default().extend(names);
            }
            Item::Trait(item) if is_public(&item.vis) => {
                let names = item.items.iter().filter_map(|item| match item {
                    syn::TraitItem::Fn(method) => Some(method.sig.ident.to_string()),
                    _ => None,
                });
                self.fields.entry(format!("{name}::{}", item.ident)).or_default().extend(names);
            }
            Item::Impl(item) if item.trait_.is_none() => {
                let Type::Path(path) = &*item.self_ty else { return };
                let of = format!("{name}::{}", path.path.segments.last().unwrap().ident);
                let names = item.items.iter().filter_map(|item| match item {
                    ImplItem::Fn(method) if is_public(&method.vis) => Some(method.sig.ident.to_string()),
                    _ => None,
                });
                self.methods.entry(of).or_default().extend(names);
            }
            _ => {}
        }
    }

    fn export(&mut self, name: &str, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => self.export(name, &path.tree),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.export(name, tree)),
            UseTree::Name(used) => {
                let used = used.ident.to_string();
                if used.chars().any(char::is_lowercase) && used.starts_with(char::is_uppercase) {
                    self.exported.insert(format!("{name}::{used}"));
                }
            }
            _ => {}
        }
    }

    /// What these types have: their fields, with their methods or their setters.
    fn names(&self, of: &str, setters: bool) -> Names {
        let mut names = Names::new();
        for of in of.split_whitespace() {
            let known = [&self.fields, &self.methods].map(|known| known.get(of));
            assert!(known.iter().any(Option::is_some), "there is no type {of}");
            let [fields, methods] = known.map(|names| names.into_iter().flatten());
            names.extend(fields.cloned());
            names.extend(methods.filter_map(|method| match (method.strip_prefix("with_"), setters) {
                (Some(set), true) => Some(set.to_owned()),
                (None, false) => Some(method.clone()),
                _ => None,
            }));
        }
        names.remove("new");
        names
    }
}

/// The word of a variant.
fn snake(name: &str) -> String {
    let mut word = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !word.is_empty() {
            word.push('_');
        }
        word.extend(letter.to_lowercase());
    }
    word
}

fn table() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/api.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Words of a text, or of the names of an object.
fn words(value: &Value) -> Names {
    let split = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    match value {
        Value::String(text) => split(text).into_iter().collect(),
        Value::Object(named) => named.keys().flat_map(|text| split(text)).collect(),
        _ => Names::new(),
    }
}

#[test]
fn every_public_name_of_the_faces_is_in_the_list_or_is_said_to_be_of_rust_alone() {
    let table = table();
    for part in ["classes", "options", "values"] {
        for (entry, said) in table[part].as_object().unwrap() {
            let found = SOURCES.names(said["is"].as_str().unwrap(), part == "options");
            let wanted: Names = words(&said["all"]).union(&words(&said["rust"])).cloned().collect();
            let inherited = &table["options"][said["with"].as_str().unwrap_or_default()];
            let mut known = wanted.clone();
            known.extend(words(&inherited["all"]));
            known.extend(words(&inherited["bindings"]));
            let forgotten: Names = found.difference(&known).cloned().collect();
            assert!(forgotten.is_empty(), "{entry} in docs/api.json lacks {forgotten:?}");
            let missing: Names = wanted.difference(&found).cloned().collect();
            assert!(missing.is_empty(), "{entry} has no {missing:?} in Rust");
        }
    }
}

#[test]
fn every_public_type_is_in_the_list() {
    let table = table();
    let mut named = Names::new();
    for part in ["classes", "options", "values"] {
        named.extend(table[part].as_object().unwrap().values().flat_map(|said| words(&said["is"])));
    }
    named.extend(table["words"].as_object().unwrap().values().flat_map(|said| words(&said["is"])));
    named.extend(table["rust_types"].as_object().unwrap().values().flat_map(words));
    let forgotten: Names = SOURCES.exported.difference(&named).cloned().collect();
    assert!(forgotten.is_empty(), "docs/api.json says nothing of {forgotten:?}");
    let unknown: Names = named.difference(&SOURCES.exported).cloned().collect();
    assert!(unknown.is_empty(), "docs/api.json names {unknown:?}, which no crate exports");
}

#[test]
fn the_words_are_the_variants() {
    let table = table();
    for (name, said) in table["words"].as_object().unwrap() {
        let of = said["is"].as_str().unwrap();
        assert_eq!(SOURCES.variants[of], words(&said["are"]), "{name}");
    }
}

#[test]
fn the_defaults_are_those_of_the_list() {
    let acquire = core::AcquireOptions::default();
    let exec = core::ExecOptions::default();
    let seconds = |time: Duration| serde_json::json!({ "seconds": time.as_secs() });
    let found = serde_json::json!({
        "AcquireOptions.deadline": seconds(acquire.deadline),
        "AcquireOptions.call_deadline": seconds(acquire.call_deadline),
        "Hooks.hook_deadline": seconds(acquire.hook_deadline),
        "ExecOptions.timeout": seconds(exec.timeout),
        "ExecOptions.output_limit": { "bytes": exec.output_limit },
        "HostOptions.record_lease": seconds(core::DEFAULT_RECORD_LEASE),
        "HostOptions.event_capacity": { "count": core::DEFAULT_EVENT_CAPACITY },
    });
    assert_eq!(found, table()["defaults"]);
}
