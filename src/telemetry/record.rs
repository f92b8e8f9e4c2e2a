//! One log record and its three written forms (`log_format`). Pure.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::SystemTime;

use tracing::Level;
use tracing::field::{Field, Visit};

use super::date;
use super::escape::{push_go_quoted, push_json_string};
use crate::config::LogFormat;

/// Longest text of a value; the rest is cut off, so that nobody fills the disk with one field.
const MAX_VALUE_BYTES: usize = 16 * 1024;

/// Keys that every record has; a field of that name is written as `fields.<name>`.
const RESERVED: [&str; 3] = ["time", "level", "msg"];

/// What happened, ready to be written.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) time: SystemTime,
    pub(super) level: Level,
    pub(super) fields: Fields,
}

/// The message and the fields of a record or a span.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields {
    message: String,
    values: BTreeMap<&'static str, Value>,
}

#[derive(Debug, Clone)]
enum Value {
    Text(String),
    /// A number or a truth value, as both forms write it.
    Bare(String),
}

impl Record {
    /// The record as one line with its line feed.
    pub(super) fn to_line(&self, format: LogFormat) -> String {
        let mut line = match format {
            LogFormat::Unset => self.to_logfmt(&date::rfc3339_seconds(self.time)),
            LogFormat::Text => self.to_logfmt(&date::rfc3339_nanoseconds(self.time)),
            LogFormat::Json => self.to_json(&date::rfc3339_nanoseconds(self.time)),
        };
        line.push('\n');
        line
    }

    fn to_logfmt(&self, time: &str) -> String {
        let mut line = format!("time=\"{time}\" level={} msg=", level_name(self.level));
        push_logfmt(&mut line, &self.fields.message);
        for (key, value) in &self.fields.values {
            line.push(' ');
            line.push_str(&written_key(key));
            line.push('=');
            match value {
                Value::Text(text) => push_logfmt(&mut line, text),
                Value::Bare(text) => line.push_str(text),
            }
        }
        line
    }

    fn to_json(&self, time: &str) -> String {
        let mut members = BTreeMap::new();
        for (key, value) in &self.fields.values {
            let text = match value {
                Value::Text(text) => json_string(text),
                Value::Bare(text) => text.clone(),
            };
            members.insert(written_key(key), text);
        }
        members.insert("level".to_owned(), json_string(level_name(self.level)));
        members.insert("msg".to_owned(), json_string(&self.fields.message));
        members.insert("time".to_owned(), json_string(time));

        let mut line = String::from("{");
        for (key, value) in members {
            if line.len() > 1 {
                line.push(',');
            }
            push_json_string(&mut line, &key);
            line.push(':');
            line.push_str(&value);
        }
        line.push('}');
        line
    }
}

impl Fields {
    /// Takes over the fields of `inner`, which win over those already there.
    pub(super) fn extend(&mut self, inner: &Self) {
        self.values.extend(
            inner
                .values
                .iter()
                .map(|(key, value)| (*key, value.clone())),
        );
    }

    /// Sets a text unless the field is there already.
    pub(super) fn set_default(&mut self, key: &'static str, text: impl Into<String>) {
        self.values
            .entry(key)
            .or_insert_with(|| Value::Text(text.into()));
    }

    fn set(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::Text(text) | Value::Bare(text)) => self.message = text,
            (name, value) => {
                self.values.insert(name, value);
            }
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let mut text = Limited::default();
        // The only error is that the limit was reached.
        let is_whole = write!(text, "{value:?}").is_ok();
        self.set(field, Value::Text(text.finish(is_whole)));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let mut text = Limited::default();
        let is_whole = text.write_str(value).is_ok();
        self.set(field, Value::Text(text.finish(is_whole)));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, Value::Bare(value.to_string()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, Value::Bare(value.to_string()));
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.set(field, Value::Bare(value.to_string()));
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.set(field, Value::Bare(value.to_string()));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, Value::Bare(value.to_string()));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no word for infinity or "not a number".
        let value = if value.is_finite() {
            Value::Bare(value.to_string())
        } else {
            Value::Text(value.to_string())
        };
        self.set(field, value);
    }
}

/// A text that stops growing at [`MAX_VALUE_BYTES`].
#[derive(Default)]
struct Limited(String);

impl Limited {
    fn finish(mut self, is_whole: bool) -> String {
        if !is_whole {
            self.0.push('…');
        }
        self.0
    }
}

impl fmt::Write for Limited {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = MAX_VALUE_BYTES.saturating_sub(self.0.len());
        let taken = &text[..text.floor_char_boundary(room)];
        self.0.push_str(taken);
        if taken.len() == text.len() {
            Ok(())
        } else {
            Err(fmt::Error)
        }
    }
}

/// The level as the reference writes it.
fn level_name(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warning",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

fn written_key(key: &str) -> String {
    if RESERVED.contains(&key) {
        format!("fields.{key}")
    } else {
        key.to_owned()
    }
}

fn push_logfmt(line: &mut String, text: &str) {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._/@^+-".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        line.push_str(text);
    } else {
        push_go_quoted(line, text);
    }
}

fn json_string(text: &str) -> String {
    let mut string = String::with_capacity(text.len() + 2);
    push_json_string(&mut string, text);
    string
}
