//! Compiles the client of `pods.proto` without protoc.
#![allow(missing_docs)]

const INCLUDE: &str = "../../coordination/proto";
const FILE: &str = "segue/v1/pods.proto";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed={INCLUDE}/{FILE}");
    let descriptors = protox::compile([FILE], [INCLUDE])?;
    tonic_prost_build::configure().build_server(false).compile_fds(descriptors)?;
    Ok(())
}
