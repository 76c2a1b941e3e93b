//! Compiles `pods.proto` without protoc: to Rust, and to a descriptor set.
#![allow(missing_docs)]

use std::path::PathBuf;
use std::{env, fs};

use prost::Message as _;

const FILE: &str = "segue/v1/pods.proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={FILE}");
    let descriptors = protox::compile([FILE], ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let mut bare = descriptors.clone();
    bare.file.iter_mut().for_each(|file| file.source_code_info = None);
    fs::write(out.join("pods.binpb"), bare.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
