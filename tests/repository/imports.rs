//! Follows the imports of a crate's files to the files that they lead to, and finds circles of files.
//!
//! Imports are found in the text, as in [`structure`](super::structure). An import that leads through the `use` of another
//! file is followed to where its item is. Methods are not seen: two files with parts of one type's methods make no circle
//! by that alone.
use std::collections::{BTreeMap, BTreeSet};

/// The modules from a crate's root to an item or a file.
pub(crate) type ModulePath = Vec<String>;

/// A path that begins with `crate`, `self` or `super`, or with a name that stands in a `use`.
#[derive(Debug, PartialEq, Eq)]
struct Import {
    path: ModulePath,
    /// The name that it gets where it is imported.
    name: String,
}

/// The files of a crate, each with the names that it imports.
pub(crate) struct Files {
    imports: BTreeMap<ModulePath, Vec<Import>>,
    /// What each file's `use` statements bring in, by name.
    uses: BTreeMap<ModulePath, BTreeMap<String, ModulePath>>,
}

/// Some files or folders in one folder that import from each other.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Circle {
    pub(crate) folder: ModulePath,
    /// Who imports what from whom.
    pub(crate) imports: Vec<(String, String, String)>,
}

fn is_in_name(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

fn name_at(text: &str) -> (&str, &str) {
    text.split_at(text.find(|character| !is_in_name(character)).unwrap_or(text.len()))
}

/// Reads a path, or a tree of paths in braces, from the beginning of a text. Returns the text after it.
fn read<'text>(text: &'text str, before: &[String], found: &mut Vec<Import>) -> &'text str {
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start();
            match rest.chars().next() {
                None => return rest,
                Some('}') => return &rest[1..],
                Some(character) if is_in_name(character) => rest = read(rest, before, found),
                Some(character) => rest = &rest[character.len_utf8()..],
            }
        }
    }
    let (name, rest) = name_at(text);
    let path = [before, &[name.to_owned()]].concat();
    if let Some(next) = rest.strip_prefix("::").filter(|next| next.starts_with(|next| next == '{' || is_in_name(next)))
    {
        return read(next, &path, found);
    }
    let renamed = rest.strip_prefix(" as ").map(name_at);
    let (name, rest) = renamed.unwrap_or((name, rest));
    found.push(Import { path, name: name.to_owned() });
    rest
}

/// Returns the paths from `crate`, `self` and `super`.
fn imports(code: &str) -> Vec<Import> {
    let mut found = Vec::new();
    for prefix in ["crate::", "self::", "super::"] {
        for (at, _) in code.match_indices(prefix) {
            let before = code[..at].chars().next_back();
            if !before.is_some_and(|character| is_in_name(character) || ":$".contains(character)) {
                read(&code[at..], &[], &mut found);
            }
        }
    }
    found
}

/// Returns what `use` brings in.
fn uses(code: &str) -> Vec<Import> {
    let mut found = Vec::new();
    for (at, text) in code.match_indices("use ") {
        if !code[..at].ends_with(is_in_name) {
            read(&code[at + text.len()..], &[], &mut found);
        }
    }
    found
}

impl Files {
    /// Reads files, each given by its modules and its code.
    pub(crate) fn new(code: &BTreeMap<ModulePath, String>) -> Self {
        let mut files = Files { imports: BTreeMap::new(), uses: BTreeMap::new() };
        for (file, code) in code {
            files.imports.insert(file.clone(), imports(code));
        }
        for (file, code) in code {
            let brought = uses(code).into_iter().filter_map(|import| {
                let target = files.resolve(file, &import.path)?;
                Some((import.name, target))
            });
            let brought = brought.collect();
            files.uses.insert(file.clone(), brought);
        }
        files
    }

    /// Returns a path of a file from the crate's root. `None` if it leads out of the crate.
    fn resolve(&self, file: &[String], path: &[String]) -> Option<ModulePath> {
        let mut base = file.to_vec();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => (base, rest) = (Vec::new(), &path[1..]),
            "self" => rest = &path[1..],
            "super" => {
                while let Some(("super", more)) = rest.split_first().map(|(first, more)| (first.as_str(), more)) {
                    base.pop()?;
                    rest = more;
                }
            }
            child => {
                let child = [file, &[child.to_owned()]].concat();
                self.imports.contains_key(&child).then_some(())?;
            }
        }
        base.extend(rest.iter().filter(|name| *name != "self").cloned());
        Some(base)
    }

    /// Returns the file that an item is in.
    fn file_of(&self, item: &[String], left: usize) -> ModulePath {
        let depth = (0..=item.len()).rev().find(|depth| self.imports.contains_key(&item[..*depth])).unwrap_or(0);
        let (file, rest) = item.split_at(depth);
        let brought = rest.first().and_then(|name| self.uses.get(file)?.get(name));
        match brought.filter(|_| left > 0) {
            Some(target) => self.file_of(&[target.as_slice(), &rest[1..]].concat(), left - 1),
            None => file.to_vec(),
        }
    }

    /// Returns the circles among the files and folders of each folder. The file `mod.rs` stands for its folder.
    pub(crate) fn circles(&self) -> Vec<Circle> {
        type Edges = BTreeMap<String, BTreeMap<String, String>>;
        let mut folders: BTreeMap<ModulePath, Edges> = BTreeMap::new();
        for (file, imports) in &self.imports {
            for import in imports {
                let Some(item) = self.resolve(file, &import.path) else { continue };
                let target = self.file_of(&item, 8);
                let shared = file.iter().zip(&target).take_while(|(one, other)| one == other).count();
                if let (Some(from), Some(to)) = (file.get(shared), target.get(shared)) {
                    let edges = folders.entry(file[..shared].to_vec()).or_default();
                    edges.entry(from.clone()).or_default().insert(to.clone(), import.path.join("::"));
                }
            }
        }
        folders.into_iter().flat_map(|(folder, edges)| circles_of(&folder, &edges)).collect()
    }
}

fn circles_of(folder: &[String], edges: &BTreeMap<String, BTreeMap<String, String>>) -> Vec<Circle> {
    let reached = |from: &str| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from.to_owned()]);
        while let Some(name) = next.pop() {
            for to in edges.get(&name).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(to.clone()) {
                    next.push(to.clone());
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> = edges.keys().map(|name| (name, reached(name))).collect();
    let mut circles = BTreeSet::new();
    for (name, names) in &reached {
        let back = |other: &&String| reached.get(*other).is_some_and(|names| names.contains(*name));
        let circle: BTreeSet<&String> = names.iter().filter(back).collect();
        circles.insert(circle);
    }
    let circles = circles.into_iter().filter(|circle| !circle.is_empty());
    let imports = |circle: BTreeSet<&String>| {
        let from =
            |from: &String| edges[from].iter().map(|(to, what)| (from.clone(), to.clone(), what.clone())).collect();
        let all = circle.iter().flat_map(|name| -> Vec<_> { from(name) });
        all.filter(|(_, to, _)| circle.contains(to)).collect()
    };
    circles.map(|circle| Circle { folder: folder.to_vec(), imports: imports(circle) }).collect()
}

#[cfg(test)]
fn circles(files: &[(&str, &str)]) -> Vec<String> {
    let path = |file: &str| file.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let code = files.iter().map(|(file, code)| (path(file), (*code).to_owned())).collect();
    let shown = |circle: Circle| {
        let names: BTreeSet<String> = circle.imports.into_iter().map(|(from, ..)| from).collect();
        format!("{}: {}", circle.folder.join("/"), names.into_iter().collect::<Vec<_>>().join(" "))
    };
    Files::new(&code).circles().into_iter().map(shown).collect()
}

#[test]
fn files_that_import_from_each_other_are_a_circle() {
    let one_way = [("a/x", "use super::y::Y;"), ("a/y", "struct Y;"), ("a", "mod x; mod y; use x::X;")];
    assert_eq!(circles(&one_way), [""; 0]);
    let both = [("a/x", "use super::y::Y;"), ("a/y", "fn f() { crate::a::x::g() }"), ("a", "mod x; mod y;")];
    assert_eq!(circles(&both), ["a: x y"]);
    let three = [
        ("a/x", "use super::{w::W, y::{self, Y}};"),
        ("a/y", "use super::z;"),
        ("a/z", "use super::x::X;"),
        ("a/w", ""),
    ];
    assert_eq!(circles(&three), ["a: x y z"]);
}

#[test]
fn a_circle_through_what_a_folder_passes_on_is_one() {
    let passed_on =
        [("a", "pub use self::x::{X as Other, f};"), ("a/x", "use super::y::Y;"), ("a/y", "use crate::a::Other;")];
    assert_eq!(circles(&passed_on), ["a: x y"]);
    let by_child = [("a", "pub use x::X;"), ("a/x", "use super::y::Y;"), ("a/y", "use super::X;")];
    assert_eq!(circles(&by_child), ["a: x y"]);
    let own = [("a", "pub use self::x::X;\npub struct Own;"), ("a/x", "use super::y::Y;"), ("a/y", "use super::Own;")];
    assert_eq!(circles(&own), [""; 0]);
}

#[test]
fn a_file_in_a_folder_counts_as_the_folder_outside_of_it() {
    let files = [("a/x", ""), ("a/x/inner", "use crate::a::y::Y;"), ("a/y", "use super::x::inner::Z;"), ("a", "")];
    assert_eq!(circles(&files), ["a: x y"]);
}
