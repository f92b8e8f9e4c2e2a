//! Generates `src/gen` from `proto/` and compares it with what is checked in.
//!
//! The generated code is part of the repository, so that a build needs neither `protoc` nor a build script. After a
//! change of a `.proto` file, `PROTO_REGENERATE=1 cargo test -p proto --test bootstrap` writes `src/gen` anew.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use prost::Message as _;
use prost_types::FileDescriptorSet;
use tonic_prost_build::Builder;

/// Messages that hold a private key or a bearer token. Their `Debug` is written by hand in `src/redact.rs`.
const SECRET_MESSAGES: [&str; 12] = [
    ".JWTSVID",
    ".ValidateJWTSVIDRequest",
    ".WITSVID",
    ".X509SVID",
    ".spiffe.broker.JWTSVID",
    ".spiffe.broker.X509SVID",
    ".spire.api.agent.delegatedidentity.v1.X509SVIDWithKey",
    ".spire.api.server.agent.v1.CreateJoinTokenRequest",
    ".spire.api.types.AttestationData",
    ".spire.api.types.JWTSVID",
    ".spire.api.types.JoinToken",
    ".spire.api.types.WITSVID",
];

/// Workload API messages whose bytes are shared with the cache instead of being copied for each response.
const SHARED_MESSAGES: [&str; 4] = [
    ".JWTBundlesResponse",
    ".X509BundlesResponse",
    ".X509SVID",
    ".X509SVIDResponse",
];

#[test]
fn the_checked_in_code_is_what_the_proto_files_generate() {
    let fresh = tempfile::tempdir().expect("a temporary directory");
    generate(fresh.path());
    let checked_in = crate_path("src/gen");

    if env::var_os("PROTO_REGENERATE").is_some_and(|value| value == "1") {
        replace_files(
            &checked_in,
            &files_under(fresh.path()).expect("generated files"),
        )
        .expect("src/gen is writable");
    }

    let expected = files_under(fresh.path()).expect("generated files");
    let actual = files_under(&checked_in).expect("checked-in files");
    assert_eq!(
        actual.keys().collect::<Vec<_>>(),
        expected.keys().collect::<Vec<_>>(),
        "src/gen holds other files than generated: run with PROTO_REGENERATE=1"
    );
    for (name, content) in &expected {
        assert!(
            actual.get(name) == Some(content),
            "src/gen/{} is out of date: run with PROTO_REGENERATE=1",
            name.display()
        );
    }
}

/// Writes the code of every package and `descriptors.bin` to `out`.
fn generate(out: &Path) {
    let root = crate_path("proto");
    let sources: Vec<PathBuf> = files_under(&root)
        .expect("the .proto files")
        .into_keys()
        .collect();
    let mut compiler = protox::Compiler::new([&root]).expect("the include path");
    compiler
        .include_imports(true)
        .include_source_info(true)
        .open_files(&sources)
        .expect("valid .proto files");
    let mut descriptors = compiler.file_descriptor_set();

    let builder = tonic_prost_build::configure().build_transport(false);
    SHARED_MESSAGES
        .iter()
        .fold(builder, Builder::bytes)
        .skip_debug(SECRET_MESSAGES)
        .out_dir(out)
        .compile_fds(descriptors.clone())
        .expect("code for every package");

    write_descriptors(out, &mut descriptors);
}

/// Writes the descriptors without positions and comments, which reflection has no use for.
fn write_descriptors(out: &Path, descriptors: &mut FileDescriptorSet) {
    for file in &mut descriptors.file {
        file.source_code_info = None;
    }

    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec()).expect("a written file");
}

/// An absolute path inside this crate.
fn crate_path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

/// The files below `root` and their contents, by path relative to `root`.
fn files_under(root: &Path) -> io::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_path_buf()];

    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            if path.is_dir() {
                pending.push(path);
            } else {
                let relative = path.strip_prefix(root).expect("a path below the root");
                found.insert(relative.to_path_buf(), fs::read(&path)?);
            }
        }
    }

    Ok(found)
}

/// Makes `directory` hold exactly `files`.
fn replace_files(directory: &Path, files: &BTreeMap<PathBuf, Vec<u8>>) -> io::Result<()> {
    if directory.exists() {
        fs::remove_dir_all(directory)?;
    }
    fs::create_dir_all(directory)?;

    for (name, content) in files {
        fs::write(directory.join(name), content)?;
    }

    Ok(())
}
