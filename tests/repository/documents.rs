//! Keeps the documents as short as they were made: a page that grows has to drop what it no longer needs.

use std::fs;
use std::path::{Path, PathBuf};

const MAX_WORDS: usize = 32_800;
const FILES: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];
const FOLDERS: [&str; 2] = ["docs", "docs/reference"];

fn documents() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pages = FOLDERS.iter().flat_map(|folder| fs::read_dir(root.join(folder)).unwrap());
    let pages = pages.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|it| it == "md"));
    FILES.iter().map(|file| root.join(file)).chain(pages).collect()
}

#[test]
fn documents_stay_within_their_words() {
    let words: usize =
        documents().iter().map(|path| fs::read_to_string(path).unwrap().split_whitespace().count()).sum();
    assert!(words <= MAX_WORDS, "the documents have {words} words (wc -w), more than {MAX_WORDS}");
}
