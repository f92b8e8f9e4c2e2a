//! The tree that HCL and JSON texts are read into, with the place of every key and value, and its writer.
//!
//! Labels are nesting: `A "b" { c = 1 }` and `A { b { c = 1 } }` give the same tree.

use std::fmt::{self, Write as _};

/// A place in a text; both numbers count from 1, columns count characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) line: u32,
    pub(crate) column: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A text that cannot be read. The message never repeats text of the file, which may be secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{position}: {message}")]
pub(crate) struct SyntaxError {
    pub(crate) position: Position,
    pub(crate) message: String,
}

impl SyntaxError {
    pub(super) fn new(position: Position, message: impl Into<String>) -> Self {
        Self {
            position,
            message: message.into(),
        }
    }
}

/// Deepest nesting of blocks, labels and lists that is read.
pub(super) const MAX_DEPTH: usize = 100;
/// Most keys and values one text may hold.
pub(super) const MAX_NODES: usize = 200_000;
/// Longest text that is read, in bytes.
pub(crate) const MAX_BYTES: usize = 4 << 20;

/// A block, or a whole file. Keys may repeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) entries: Vec<Entry>,
}

/// One `key = value` or `key { }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: Key,
    pub(crate) value: Value,
}

/// A key, or a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) text: String,
    pub(crate) position: Position,
    /// Whether it stood in quotes in HCL; never set for JSON.
    pub(crate) quoted: bool,
}

/// A value and where it starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) kind: ValueKind,
    pub(crate) position: Position,
}

/// What a value is. Numbers keep their literal, because a string setting takes it as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ValueKind {
    Bool(bool),
    Number(String),
    Text(String),
    List(Vec<Value>),
    Object(Object),
}

impl ValueKind {
    /// The kind with its article, for messages.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Object(_) => "a block",
        }
    }
}

impl Object {
    /// Renders the tree as HCL 1 text that reads back as the same tree.
    pub(crate) fn to_hcl(&self) -> String {
        let mut out = String::new();
        write_entries(&mut out, self, 0);
        out
    }
}

fn write_entries(out: &mut String, object: &Object, depth: usize) {
    for entry in &object.entries {
        out.extend(std::iter::repeat_n("  ", depth));
        write_key(out, &entry.key);
        if let ValueKind::Object(inner) = &entry.value.kind {
            out.push_str(" {\n");
            write_entries(out, inner, depth + 1);
            out.extend(std::iter::repeat_n("  ", depth));
            out.push_str("}\n");
        } else {
            out.push_str(" = ");
            write_value(out, &entry.value.kind, depth);
            out.push('\n');
        }
    }
}

fn write_key(out: &mut String, key: &Key) {
    if key.quoted || !is_identifier(&key.text) {
        write_text(out, &key.text);
    } else {
        out.push_str(&key.text);
    }
}

/// Whether HCL reads the text as a bare key.
fn is_identifier(text: &str) -> bool {
    let mut chars = text.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
        && !matches!(text, "true" | "false")
}

fn write_value(out: &mut String, kind: &ValueKind, depth: usize) {
    match kind {
        ValueKind::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        ValueKind::Number(literal) => out.push_str(literal),
        ValueKind::Text(text) => write_text(out, text),
        ValueKind::List(items) => {
            out.push('[');
            for (n, item) in items.iter().enumerate() {
                if n > 0 {
                    out.push_str(", ");
                }
                write_value(out, &item.kind, depth);
            }
            out.push(']');
        }
        ValueKind::Object(object) => {
            out.push_str("{\n");
            write_entries(out, object, depth + 1);
            out.extend(std::iter::repeat_n("  ", depth));
            out.push('}');
        }
    }
}

/// Writes a quoted string; `${` is written escaped, so that it is never taken for the start of an interpolation.
fn write_text(out: &mut String, text: &str) {
    out.push('"');
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '$' if chars.peek() == Some(&'{') => out.push_str("\\x24"),
            c if c.is_control() || matches!(c, '\u{feff}' | '\u{e123}') => {
                // Writing into a String cannot fail.
                write!(out, "\\u{:04x}", u32::from(c)).unwrap_or_default();
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
