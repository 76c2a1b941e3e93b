//! The executables of the workspace's examples.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// The folder of the examples, which are built once for all tests of a process.
static EXAMPLES: LazyLock<PathBuf> = LazyLock::new(build);

/// Returns the executable of an example.
///
/// # Panics
/// When the examples cannot be built.
pub fn example(name: &str) -> PathBuf {
    EXAMPLES.join(name)
}

/// Builds the examples: cargo does so by itself for a run of all tests only. The whole workspace is named, or its
/// dependencies would be built again with other features.
fn build() -> PathBuf {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--locked", "--workspace", "--examples"]);
    build.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    // Cargo tells a test which package it belongs to. Passed on, that has ring, and all that depends on it, built again.
    for (name, _) in std::env::vars() {
        if ["CARGO_MANIFEST_", "CARGO_PKG_"].iter().any(|prefix| name.starts_with(prefix)) {
            build.env_remove(name);
        }
    }
    if !cfg!(debug_assertions) {
        build.arg("--release");
    }
    assert!(build.status().unwrap().success());
    std::env::current_exe().unwrap().parent().unwrap().join("../examples")
}
