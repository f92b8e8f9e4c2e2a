//! Where the binaries are that the tests run.

use std::env;
use std::path::{Path, PathBuf};

/// The agent under test: `AGENT_BIN`, else the release build of this repository.
pub fn agent() -> PathBuf {
    env::var_os("AGENT_BIN").map_or_else(
        || must_exist(target().join("release/edge-agent")),
        |path| must_exist(path.into()),
    )
}

/// The Go agent: `GO_AGENT`, else the one that `tests/interop/setup` built.
pub fn go_agent() -> PathBuf {
    named("GO_AGENT", "bin/spire-agent")
}

/// Whether the agent under test is the Go one (a calibration of the tests), by the file and not by what it says of itself.
pub fn agent_is_the_go_one() -> bool {
    let real = |path: PathBuf| {
        path.canonicalize()
            .expect("an existing file has a canonical path")
    };
    real(agent()) == real(go_agent())
}

/// The real server: `SPIRE_SERVER`, else the one that `tests/interop/setup` built.
pub fn server() -> PathBuf {
    named("SPIRE_SERVER", "bin/spire-server")
}

/// Something that `tests/interop/setup` made, by its path below the tools' folder.
pub fn made(path: &str) -> PathBuf {
    let tools =
        env::var_os("INTEROP_TOOLS").map_or_else(|| target().join("interop"), PathBuf::from);
    must_exist(tools.join(path))
}

/// The folder of this crate's sources.
pub fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| sources().join("../../target"), PathBuf::from)
}

fn named(variable: &str, path: &str) -> PathBuf {
    env::var_os(variable).map_or_else(|| made(path), |path| must_exist(path.into()))
}

fn must_exist(path: PathBuf) -> PathBuf {
    assert!(
        path.exists(),
        "{} does not exist: run ./tests/run, which builds it",
        path.display()
    );
    path
}
