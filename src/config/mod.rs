//! Turns configuration text (HCL 1 or JSON) and command line flags into a checked [`Config`].
//!
//! Steps: read the file, expand the environment ([`expand`](expand::expand)), parse ([`hcl`], [`json`]) into one tree ([`ast`]),
//! convert ([`raw`]), judge ([`check`]). Only [`load`] and the reading of `join_token_file` and `plugin_data_file` touch the disk; nothing is written.

pub(crate) mod ast;
mod bundle_source;
mod check;
pub(crate) mod duration;
pub(crate) mod error;
mod expand;
mod flags;
mod hcl;
pub(crate) mod integer;
mod json;
mod lexer;
pub(crate) mod model;
mod nearest;
pub(crate) mod plugin;
mod raw;
mod schema;
mod section;
mod unbuilt;

use std::cell::RefCell;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};

use ast::{Object, SyntaxError};
pub(crate) use error::ConfigErrors;
pub(crate) use flags::Flags;
pub(crate) use model::*;

/// Where the public socket is unless told otherwise.
pub(crate) const DEFAULT_SOCKET_PATH: &str = "/tmp/spire-agent/public/api.sock";

/// The file that is read when none is named, relative to the working directory.
pub(crate) const DEFAULT_PATH: &str = "conf/agent/agent.conf";

/// Reads, merges and checks the configuration.
///
/// `path` is the `-config` flag; unset or empty means [`DEFAULT_PATH`]. `env` is asked only with `expand_env`. Relative paths count from `cwd`, which
/// must be absolute. All problems are reported at once.
pub(crate) fn load(
    path: Option<&str>,
    flags: &Flags,
    expand_env: bool,
    env: &dyn Fn(&str) -> Option<String>,
    cwd: &Path,
) -> Result<Config, ConfigErrors> {
    let named = path.filter(|path| !path.is_empty()).unwrap_or(DEFAULT_PATH);
    let path = check::paths::clean(&cwd.join(named));
    let mut text = read_file(&path)?;
    if expand_env {
        text = expand::expand(&text, env);
    }
    from_text(&text, path, flags, cwd)
}

/// Like [`load`], from a text at hand; `path` is only named in messages.
pub(crate) fn from_text(
    text: &str,
    path: PathBuf,
    flags: &Flags,
    cwd: &Path,
) -> Result<Config, ConfigErrors> {
    let tree = match parse(text) {
        Ok(tree) => tree,
        Err(error) => return Err(ConfigErrors::Syntax { path, error }),
    };
    let notes = RefCell::default();
    let raw = raw::RawConfig::read(&tree, &notes);
    check::check(raw, flags, notes, path, cwd)
}

/// Reads JSON if the first character that is not blank is `{`, otherwise HCL 1.
pub(crate) fn parse(text: &str) -> Result<Object, SyntaxError> {
    if text.trim_start().starts_with('{') {
        json::parse(text)
    } else {
        hcl::parse(text)
    }
}

fn read_file(path: &Path) -> Result<String, ConfigErrors> {
    let unreadable = |reason: String| ConfigErrors::Unreadable {
        path: path.to_owned(),
        reason,
    };
    let limit = u64::try_from(ast::MAX_BYTES).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    let result = std::fs::File::open(path)
        .and_then(|file| file.take(limit.saturating_add(1)).read_to_end(&mut bytes));
    match result {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let path = path.to_owned();
            return Err(ConfigErrors::NotFound { path });
        }
        Err(error) => return Err(unreadable(describe_io(&error))),
    }
    if bytes.len() > ast::MAX_BYTES {
        return Err(unreadable(format!("larger than {} bytes", ast::MAX_BYTES)));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let lines = error
            .as_bytes()
            .iter()
            .take(valid)
            .filter(|byte| **byte == b'\n');
        unreadable(format!("line {} is not UTF-8", lines.count() + 1))
    })
}

/// An I/O error in the plain words of Unix.
fn describe_io(error: &std::io::Error) -> String {
    let known = [
        (ErrorKind::NotFound, "no such file or directory"),
        (ErrorKind::PermissionDenied, "permission denied"),
        (ErrorKind::IsADirectory, "is a directory"),
    ];
    let words = known.iter().find(|(kind, _)| *kind == error.kind());
    words.map_or_else(|| error.to_string(), |(_, words)| (*words).to_owned())
}

#[cfg(test)]
mod tests;
