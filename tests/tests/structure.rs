//! Dependencies point downwards: between crates by a list, and inside a crate without large cycles.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// From the bottom to the top. A crate may use those on the lines before its own.
const LAYERS: &[&[&str]] = &[
    &[
        "child",
        "document",
        "foundationdb-sys",
        "host",
        "testkit",
        "wire",
    ],
    &["listen", "store", "couch", "peer"],
    &["jobs", "docstore", "replication", "seal"],
    &["queue", "scheduler"],
    &["rules"],
    &["api", "bench"],
    &["node"],
    &[
        "davenport",
        "davenport-api-frontend",
        "davenport-replication",
        "git_replication",
        "e2e",
    ],
];
/// Two or three files that import each other are one subject; more are a missing layer.
const CYCLE_FILES_MAX: usize = 5;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The packages of this workspace: directory, name, and the packages of this workspace they depend on.
fn packages() -> Vec<(PathBuf, String, Vec<String>)> {
    let mut packages = Vec::new();
    for folder in ["crates", "bin"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let directory = entry.unwrap().path();
            let Ok(manifest) = fs::read_to_string(directory.join("Cargo.toml")) else {
                continue;
            };
            let section = |name: &'static str| {
                let lines = manifest.lines().skip_while(move |line| *line != name);
                lines.skip(1).take_while(|line| !line.starts_with('['))
            };
            let named = |of| section(of).find_map(|line| line.strip_prefix("name = "));
            // Others use a library by its own name.
            let name = named("[lib]").or_else(|| named("[package]")).unwrap();
            let name = name.trim_matches('"').to_owned();
            let uses =
                section("[dependencies]").filter_map(|line| line.split(['.', ' ', '=']).next());
            packages.push((directory.clone(), name, uses.map(str::to_owned).collect()));
        }
    }
    packages
}

#[test]
fn crates_depend_downwards() {
    let layer = |name: &str| LAYERS.iter().position(|layer| layer.contains(&name));
    for (_, name, uses) in packages() {
        let own = layer(&name).unwrap_or_else(|| panic!("give {name} a place in LAYERS"));
        for used in uses {
            assert!(
                layer(&used).is_none_or(|used| used < own),
                "{name} depends on {used}, which is not below it"
            );
        }
    }
}

#[test]
fn no_cycle_of_files_is_large() {
    let mut found = Vec::new();
    for (directory, name, _) in packages() {
        for cycle in cycles(&imports(&directory.join("src"))) {
            if cycle.len() > CYCLE_FILES_MAX {
                found.push(format!(
                    "{name}: {} files import each other in a circle: {}",
                    cycle.len(),
                    cycle.join(", ")
                ));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

type Imports = BTreeMap<String, BTreeSet<String>>;

/// The imports of each file of a crate from the others. Files are named as modules; tests are left out.
fn imports(source: &Path) -> Imports {
    let mut texts = BTreeMap::new();
    read(source, source, &mut texts);
    let library = texts.get("").cloned().unwrap_or_default();
    let mut exported = BTreeMap::new();
    for path in used(&library) {
        if let Some((name, module)) = path.split_last() {
            exported.insert(name.clone(), module.to_vec());
        }
    }
    let known = |path: &[String]| {
        (1..=path.len())
            .rev()
            .map(|length| path[..length].join("::"))
            .find(|module| texts.contains_key(module))
    };
    let mut imports = Imports::new();
    for (module, text) in texts.iter().filter(|(module, _)| !module.is_empty()) {
        let own = module.split("::").map(str::to_owned).collect::<Vec<_>>();
        let mut of_file = BTreeSet::new();
        for path in used(text) {
            let Some(path) = from_root(&path, &own, |child| {
                texts.contains_key(&format!("{module}::{child}"))
            }) else {
                continue;
            };
            // A re-export counts for the module that defines it.
            let path = match path.first().and_then(|name| exported.get(name)) {
                Some(defined) if known(&path).is_none() => defined,
                _ => &path,
            };
            of_file.extend(known(path).filter(|imported| imported != module));
        }
        imports.insert(module.clone(), of_file);
    }
    imports
}

fn read(source: &Path, directory: &Path, texts: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read(source, &path, texts);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let relative = path.strip_prefix(source).unwrap().with_extension("");
            let module = relative.to_str().unwrap().replace('/', "::");
            if !module.split("::").any(|part| part.starts_with("tests")) {
                let text = fs::read_to_string(&path).unwrap();
                let module = if module == "lib" {
                    String::new()
                } else {
                    module
                };
                texts.insert(module, code(&text));
            }
        }
    }
}

/// A file without comments and without the tests at its end.
fn code(text: &str) -> String {
    let text = text
        .split("#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    text.lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .fold(String::new(), |code, line| code + line + "\n")
}

/// The paths a file names: of its `use` items, and those in code that begin with `crate` or `super`.
fn used(text: &str) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    for (at, _) in text.match_indices("use ") {
        let begins = text[..at]
            .chars()
            .next_back()
            .is_none_or(char::is_whitespace);
        if let (true, Some(end)) = (begins, text[at..].find(';')) {
            tree(&[], &text[at + "use ".len()..at + end], &mut paths);
        }
    }
    for start in ["crate::", "super::"] {
        for (at, _) in text.match_indices(start) {
            if !text[..at].ends_with([':', '_']) {
                let path = text[at..]
                    .split(|c: char| !c.is_alphanumeric() && c != '_' && c != ':')
                    .next()
                    .unwrap_or_default();
                paths.push(parts(path));
            }
        }
    }
    paths
}

fn parts(path: &str) -> Vec<String> {
    path.split("::")
        .map(str::trim)
        .filter(|part| !part.is_empty() && *part != "self")
        .map(str::to_owned)
        .collect()
}

/// The paths of a tree such as `a::{b::C, d}`.
fn tree(before: &[String], text: &str, paths: &mut Vec<Vec<String>>) {
    let text = text.trim();
    let Some((head, inside)) = text.split_once('{') else {
        let path = text.split(" as ").next().unwrap_or_default();
        return paths.push([before, &parts(path)].concat());
    };
    let before = [before, &parts(head)].concat();
    let (mut depth, mut from) = (0, 0);
    let inside = inside.trim_end().strip_suffix('}').unwrap_or(inside);
    for (at, character) in inside.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                tree(&before, &inside[from..at], paths);
                from = at + 1;
            }
            _ => {}
        }
    }
    if !inside[from..].trim().is_empty() {
        tree(&before, &inside[from..], paths);
    }
}

/// A path of this crate from its root; `None` if it names another crate.
fn from_root(
    path: &[String],
    own: &[String],
    is_child: impl Fn(&str) -> bool,
) -> Option<Vec<String>> {
    let ups = path.iter().take_while(|part| *part == "super").count();
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "super" => Some([&own[..own.len().saturating_sub(ups)], &path[ups..]].concat()),
        child if is_child(child) => Some([own, path].concat()),
        _ => None,
    }
}

/// Sets of files of which each reaches all others.
fn cycles(imports: &Imports) -> Vec<Vec<String>> {
    let reaches = |from: &String| {
        let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(file) = next.pop() {
            for imported in imports.get(file).into_iter().flatten() {
                if reached.insert(imported) {
                    next.push(imported);
                }
            }
        }
        reached
    };
    let reached = imports
        .keys()
        .map(|file| (file, reaches(file)))
        .collect::<BTreeMap<_, _>>();
    let mut seen = BTreeSet::new();
    let mut cycles = Vec::new();
    for (file, others) in &reached {
        if others.contains(file) && !seen.contains(file) {
            let cycle = others
                .iter()
                .copied()
                .filter(|other| reached[other].contains(file))
                .cloned()
                .collect::<Vec<_>>();
            seen.extend(others.iter().copied().filter(|other| cycle.contains(other)));
            cycles.push(cycle);
        }
    }
    cycles
}

#[test]
fn cycles_are_found() {
    let text = code(
        "use crate::a::{self, b::{C, D as E}};\nuse super::f; // use crate::no\n  let x = crate::g::h(1);",
    );
    assert_eq!(
        used(&text),
        [
            vec!["crate", "a"],
            vec!["crate", "a", "b", "C"],
            vec!["crate", "a", "b", "D"],
            vec!["super", "f"],
            vec!["crate", "a"],
            vec!["crate", "g", "h"]
        ]
        .map(|path| path.into_iter().map(str::to_owned).collect::<Vec<_>>())
        .into_iter()
        .chain([vec!["super".to_owned(), "f".to_owned()]])
        .collect::<Vec<_>>()
    );
    let graph = [
        ("a", vec!["b"]),
        ("b", vec!["c"]),
        ("c", vec!["a", "d"]),
        ("d", vec![]),
    ]
    .map(|(file, imported)| {
        (
            file.to_owned(),
            imported.into_iter().map(str::to_owned).collect(),
        )
    });
    assert_eq!(cycles(&Imports::from(graph)), [["a", "b", "c"]]);
}
