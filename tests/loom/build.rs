//! Selects loom's primitives in the sources that this crate includes, and in no other crate.

#![allow(clippy::print_stdout, reason = "build scripts speak to cargo by printing")]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=segue_loom");
}
