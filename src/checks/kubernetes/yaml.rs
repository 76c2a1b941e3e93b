//! Read access to YAML documents whose values know their places.
//!
//! For: walking down a manifest without a type for every kind of object. A value that is absent and one of another type
//! look alike: Kubernetes' schemas say what a manifest may contain, and this program only reads what it compares.

use std::fmt;
use std::sync::Arc;

use saphyr::{LoadableYamlNode as _, MarkedYaml};

/// A place in a file. Line and column count from 1.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct YamlPlace {
    file: Arc<str>,
    line: usize,
    column: usize,
}

impl fmt::Display for YamlPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// A value of a document.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Node<'a> {
    yaml: &'a MarkedYaml<'a>,
    file: &'a Arc<str>,
}

/// Returns the documents of a text, or its mistake in one line.
pub(crate) fn documents<'a>(file: &str, text: &'a str) -> Result<Vec<MarkedYaml<'a>>, String> {
    MarkedYaml::load_from_str(text).map_err(|error| format!("{file}: {error}; expected YAML"))
}

impl<'a> Node<'a> {
    pub(crate) fn new(file: &'a Arc<str>, yaml: &'a MarkedYaml<'a>) -> Self {
        Node { yaml, file }
    }

    /// Returns the value at a path of keys.
    pub(crate) fn at(self, path: &[&str]) -> Option<Self> {
        path.iter()
            .try_fold(self, |node, key| node.yaml.data.as_mapping_get(key).map(|yaml| Node { yaml, file: node.file }))
    }

    /// Returns the values of the list at a path of keys; none if there is no list.
    pub(crate) fn items(self, path: &[&str]) -> impl Iterator<Item = Self> + use<'a> {
        let list = self.at(path).and_then(|node| node.yaml.data.as_sequence());
        list.into_iter().flatten().map(move |yaml| Node { yaml, file: self.file })
    }

    /// Returns the keys and values of the mapping at a path of keys; none if there is no mapping.
    pub(crate) fn entries(self, path: &[&str]) -> impl Iterator<Item = (&'a str, Self)> + use<'a> {
        let mapping = self.at(path).and_then(|node| node.yaml.data.as_mapping());
        let entries = mapping.into_iter().flatten();
        entries.filter_map(move |(key, yaml)| Some((key.data.as_str()?, Node { yaml, file: self.file })))
    }

    /// Returns the string at a path of keys.
    pub(crate) fn text(self, path: &[&str]) -> Option<&'a str> {
        self.at(path)?.yaml.data.as_str()
    }

    /// Returns the number at a path of keys.
    pub(crate) fn number(self, path: &[&str]) -> Option<u64> {
        self.at(path)?.yaml.data.as_integer()?.try_into().ok()
    }

    /// Returns whether `true` is at a path of keys.
    pub(crate) fn is_true(self, path: &[&str]) -> bool {
        self.at(path).and_then(|node| node.yaml.data.as_bool()) == Some(true)
    }

    /// Returns the strings of the list at a path of keys.
    pub(crate) fn texts(self, path: &[&str]) -> Vec<String> {
        self.items(path).filter_map(|item| item.text(&[])).map(str::to_owned).collect()
    }

    pub(crate) fn place(self) -> YamlPlace {
        let start = self.yaml.span.start;
        YamlPlace { file: self.file.clone(), line: start.line(), column: start.col() + 1 }
    }
}
