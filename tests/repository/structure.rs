//! Checks the structure that ARCHITECTURE.md draws: within a crate, a folder imports only from those named before it,
//! no files of a folder import from each other in a circle, and no file is too long. Also checks that what the
//! simulation runs leaves no choice to chance.
//!
//! Imports are found in the text, without a parser: rustfmt writes one `use` for each module, and a path elsewhere
//! begins with `crate` or `super` as well. Tests inside the sources and loom's models may import what they like.
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::imports::{Files, ModulePath};

const MAX_LINES: usize = 450;
const LIST: &str = "## Folders";

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The lists of ARCHITECTURE.md: a source folder, and the modules of its crate from the bottom up.
fn lists() -> Vec<(String, Vec<String>)> {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let section = text.split(LIST).nth(1).unwrap_or_else(|| panic!("ARCHITECTURE.md has no section {LIST:?}"));
    let section = section.split("\n## ").next().unwrap();
    let item = |line: &str| {
        let mut names = line.strip_prefix("* ")?.split('`').skip(1).step_by(2).map(str::to_owned);
        Some((names.next()?, names.collect()))
    };
    section.lines().filter_map(item).collect()
}

pub(crate) fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_for_tests = ["tests", "tests.rs", "loom"].iter().any(|name| path.ends_with(name));
        if path.is_dir() && !is_for_tests {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") && !is_for_tests {
            into.push(path);
        }
    }
}

/// A file's text without its tests and comments.
pub(crate) fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    text.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

/// The names of the modules that a file stands in, from the crate's root.
fn modules(folder: &Path, path: &Path) -> Vec<String> {
    let relative = path.strip_prefix(folder).unwrap().with_extension("");
    let mut names: Vec<String> = relative.iter().map(|name| name.to_str().unwrap().to_owned()).collect();
    names.pop_if(|name| ["mod", "lib", "main"].contains(&name.as_str()));
    names
}

/// The top-level modules that code in a module at this depth imports from.
fn imports(code: &str, depth: usize) -> BTreeSet<String> {
    let from_root = "super::".repeat(depth);
    let mut found = BTreeSet::new();
    for prefix in ["crate::", from_root.as_str()] {
        if prefix.is_empty() {
            continue;
        }
        for (at, _) in code.match_indices(prefix) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|character| character.is_alphanumeric() || "_:$".contains(character)) {
                continue;
            }
            let rest = &code[at + prefix.len()..];
            let end =
                rest.find(|character: char| !character.is_alphanumeric() && character != '_').unwrap_or(rest.len());
            found.insert(rest[..end].to_owned());
        }
    }
    found
}

#[test]
fn folders_import_only_from_those_that_architecture_names_before_them() {
    let lists = lists();
    assert!(lists.len() >= 4, "the lists of ARCHITECTURE.md: {lists:?}");
    let mut wrong = Vec::new();
    for (source, order) in &lists {
        let folder = root().join(source);
        let mut files = Vec::new();
        sources(&folder, &mut files);
        assert!(!files.is_empty(), "{source}");
        let place = |module: &str| order.iter().position(|name| name == module);
        for file in &files {
            let modules = modules(&folder, file);
            // The crate's root names all of them.
            let Some(own) = modules.first() else { continue };
            let shown = file.strip_prefix(root()).unwrap().display();
            let Some(rank) = place(own) else {
                wrong.push(format!("{shown}: ARCHITECTURE.md does not name `{own}` of {source}"));
                continue;
            };
            for import in imports(&code(file), modules.len()) {
                // Items of the crate's root are no module; one that is misspelt does not compile.
                if place(&import).is_some_and(|its| its > rank) {
                    wrong.push(format!("{shown}: `{own}` imports from `{import}`, which stands above it"));
                }
            }
        }
        for name in order {
            let exists = folder.join(name).is_dir() || folder.join(format!("{name}.rs")).is_file();
            assert!(exists, "ARCHITECTURE.md names `{name}`, which {source} does not have");
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn no_files_of_a_folder_import_from_each_other_in_a_circle() {
    let mut wrong = Vec::new();
    for (source, _) in lists() {
        let folder = root().join(&source);
        let mut files = Vec::new();
        sources(&folder, &mut files);
        let mut each: BTreeMap<ModulePath, String> = BTreeMap::new();
        for file in files {
            each.entry(modules(&folder, &file)).or_default().push_str(&code(&file));
        }
        for circle in Files::new(&each).circles() {
            let place = [std::slice::from_ref(&source), circle.folder.as_slice()].concat().join("/");
            let imports =
                circle.imports.iter().map(|(from, to, what)| format!("\n  `{from}` imports from `{to}`: {what}"));
            wrong.push(format!("{place} has a circle of files:{}", imports.collect::<String>()));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn no_file_is_longer_than_what_is_read_in_one_go() {
    let mut long = Vec::new();
    for (source, _) in lists() {
        let mut files = Vec::new();
        sources(&root().join(source), &mut files);
        for file in files {
            let text = fs::read_to_string(&file).unwrap();
            let lines = text.split("#[cfg(test)]\nmod tests {").next().unwrap().lines().count();
            if lines > MAX_LINES {
                long.push(format!("{}: {lines} lines", file.strip_prefix(root()).unwrap().display()));
            }
        }
    }
    assert!(long.is_empty(), "more than {MAX_LINES} lines without tests:\n{}", long.join("\n"));
}

/// tokio begins with a random branch otherwise, and a seed of the simulation would not repeat.
#[test]
fn what_the_simulation_runs_polls_branches_in_order() {
    let mut files = Vec::new();
    for folder in ["coordination/src", "proxy/src/routing", "tests/simulation/src"] {
        sources(&root().join(folder), &mut files);
    }
    let is_random = |branches: &str| !branches.trim_start().starts_with("biased;");
    let random: Vec<_> = files.iter().filter(|file| code(file).split("select! {").skip(1).any(is_random)).collect();
    assert!(random.is_empty(), "select! without biased: {random:#?}");
}

#[test]
fn an_import_is_found_wherever_it_stands() {
    let code = "use crate::one::A;\nfn f() { super::super::two::g(crate::three::h()); }\nuse super::near::B;";
    let found: Vec<_> = imports(code, 2).into_iter().collect();
    assert_eq!(found, ["one", "three", "two"]);
}
