//! Tests of the whole: from text to configuration or complaint.

mod problems;
mod sample;
mod syntax;
mod units;
mod values;

use std::path::{Path, PathBuf};

use super::ast::{Object, Position, Value, ValueKind};
use super::{Config, ConfigErrors, Flags, from_text};

const BODY: &str = "  server_address = \"127.0.0.1\"\n  server_port = \"8081\"\n  trust_domain = \"domain.test\"\n  trust_bundle_path = \"/x.pem\"\n";
const PLUGINS: &str = "plugins {\n  KeyManager \"memory\" { plugin_data {} }\n  NodeAttestor \"join_token\" { plugin_data {} }\n  WorkloadAttestor \"unix\" { plugin_data {} }\n}\n";

/// A whole configuration with `more` in the agent block, from line 6 on.
fn conf(more: &str) -> String {
    format!("agent {{\n{BODY}{more}\n}}\n{PLUGINS}")
}

/// The same without the line that holds `key`.
fn without(key: &str, text: &str) -> String {
    let lines = text.lines().filter(|line| !line.contains(key));
    lines.flat_map(|line| [line, "\n"]).collect()
}

fn check_with(text: &str, flags: &Flags) -> Result<Config, ConfigErrors> {
    from_text(
        text,
        PathBuf::from("/etc/agent.conf"),
        flags,
        Path::new("/cwd"),
    )
}

fn check(text: &str) -> Result<Config, ConfigErrors> {
    check_with(text, &Flags::default())
}

/// The configuration of a text that must be good.
#[track_caller]
fn good(text: &str) -> Config {
    check(text).unwrap_or_else(|errors| panic!("{errors}\nin\n{text}"))
}

/// The complaints about a text that must be bad, one a line.
#[track_caller]
fn bad(text: &str) -> String {
    check(text).expect_err(text).to_string()
}

/// A tree without places, for comparing.
fn placeless(object: &Object) -> Object {
    let mut object = object.clone();
    for entry in &mut object.entries {
        entry.key.position = Position::default();
        strip(&mut entry.value);
    }
    object
}

fn strip(value: &mut Value) {
    value.position = Position::default();
    match &mut value.kind {
        ValueKind::Object(object) => *object = placeless(object),
        ValueKind::List(items) => items.iter_mut().for_each(strip),
        ValueKind::Bool(_) | ValueKind::Number(_) | ValueKind::Text(_) => {}
    }
}
