//! Compiles kubelet's interfaces (`proto/`) without an installed protoc.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const INTERFACES: [&str; 2] = ["podresources.proto", "deviceplugin.proto"];
    let directory = Path::new("proto");
    for interface in INTERFACES {
        println!("cargo:rerun-if-changed={}", directory.join(interface).display());
        let described = protox::compile([interface], [directory])?;
        tonic_prost_build::configure().build_transport(false).compile_fds(described)?;
    }
    Ok(())
}
