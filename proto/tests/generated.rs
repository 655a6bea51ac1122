//! The code that is made of `proto/fairlead` is in the repository, so that a build needs no compiler of interfaces. This makes it
//! anew and compares. `make generate` writes it.

// Every one of these is a test's; what is unwrapped is what it claims.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use prost::Message as _;

/// Set by `make generate`.
const WRITE: &str = "FAIRLEAD_GENERATE";

fn room(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn the_grpc_code_in_the_repository_is_what_its_proto_says() {
    let described = protox::compile(["fairlead/v1/remote_cni.proto"], [room(".")]).unwrap();
    let made = tempfile::tempdir().unwrap();
    fs::write(made.path().join("descriptors.bin"), described.encode_to_vec()).unwrap();
    tonic_prost_build::configure()
        .build_transport(false)
        .btree_map(".")
        .out_dir(made.path())
        .compile_fds(described)
        .unwrap();
    for entry in fs::read_dir(made.path()).unwrap() {
        let new = entry.unwrap().path();
        let kept = room("src/generated").join(new.file_name().unwrap());
        if std::env::var_os(WRITE).is_some() {
            fs::copy(&new, &kept).unwrap();
        }
        let same = fs::read(&new).unwrap() == fs::read(&kept).unwrap_or_default();
        assert!(same, "{} is not what proto/fairlead says; run: make generate", kept.display());
    }
}
