//! The two state files as Go `spire-agent` writes and reads them (node-side 3.7). Pure.
//!
//! Both directions hold: a file of Go's is read here, a file written here is read by Go. Reading follows Go's `encoding/json`: names match
//! in any case, unknown names are passed over, `null` is empty, a missing name is its zero value, the last of several equal names wins.

use std::fmt;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use serde::de::{Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use zeroize::Zeroizing;

use super::{BootstrapState, Purpose};
use crate::clock::unix_seconds;
use crate::svid::{Certificate, PemPolicy};

mod keys;

pub use keys::{Keys, decode_keys, encode_keys};

/// Name of the file with the agent SVID and the own bundle.
pub const AGENT_DATA: &str = "agent-data.json";
/// Name of the file with the agent's keys.
pub const KEYS: &str = "keys.json";

/// Go's zero time: no bootstrap is under way.
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";
/// The end of the year 9998 in Unix seconds.
const LAST_SECOND: i64 = 253_370_764_800;
/// `bootstrap_use` before the first attestation (node-side 1.4).
const USE_BOOTSTRAP: i64 = 1;
/// `bootstrap_use` once an attestation has succeeded (node-side 1.4).
const USE_REBOOTSTRAP: i64 = 2;

/// Go's decoder takes non-zero trailing bits, and so do we.
const GO_BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

/// What `agent-data.json` holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentData {
    /// The agent SVID, leaf first; empty if there is none.
    pub svid: Vec<Certificate>,
    /// X.509 authorities of the own trust domain.
    pub bundle: Vec<Certificate>,
    /// Whether the agent renews by attesting again.
    pub reattestable: bool,
    /// How far a bootstrap is.
    pub bootstrap: BootstrapState,
}

/// Why a file's text is of no use. Never repeats the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileError {
    /// Not JSON, or cut short.
    #[error("not valid JSON (line {line}, column {column})")]
    Json {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
    },
    /// JSON, but a value is of another kind than expected.
    #[error("{field} is not {expected}")]
    Kind {
        /// The value's name.
        field: &'static str,
        /// What belongs there.
        expected: &'static str,
    },
    /// A certificate cannot be parsed.
    #[error("certificate {index} of {field}: {reason}")]
    Certificate {
        /// `svid` or `bundle`.
        field: &'static str,
        /// Counted from 0.
        index: usize,
        /// The parser's words.
        reason: String,
    },
    /// A key cannot be parsed or used.
    #[error("key {id}: {reason}")]
    Key {
        /// `agent-svid-A` or `agent-svid-B`.
        id: &'static str,
        /// The parser's words.
        reason: String,
    },
}

impl AgentData {
    /// Reads the text of the file.
    pub fn decode(text: &[u8]) -> Result<Self, FileError> {
        let fields: Option<Fields> = serde_json::from_slice(text)
            .map_err(|error| kind_or_syntax(&error, "the file", "an object"))?;
        let mut data = Self::default();
        for (name, value) in fields.map(|fields| fields.0).unwrap_or_default() {
            data.take(&name.to_ascii_lowercase(), value)?;
        }
        Ok(data)
    }

    /// The text of the file, on one line as Go's `json.Marshal` gives it.
    #[expect(
        clippy::missing_panics_doc,
        reason = "text, numbers and flags always have a JSON form"
    )]
    pub fn encode(&self) -> Vec<u8> {
        let text = AgentDataText {
            svid: certificates_as_text(&self.svid),
            bundle: certificates_as_text(&self.bundle),
            reattestable: self.reattestable,
            bootstrap_use: match self.bootstrap.purpose {
                None => 0,
                Some(Purpose::Bootstrap) => USE_BOOTSTRAP,
                Some(Purpose::Rebootstrap) => USE_REBOOTSTRAP,
            },
            bootstrap_start_time: self.bootstrap.started.map_or_else(
                || ZERO_TIME.to_owned(),
                |started| humantime::format_rfc3339_nanos(started).to_string(),
            ),
            connection_attempts: self.bootstrap.attempts,
        };
        serde_json::to_vec(&text).expect("text, numbers and flags always have a JSON form")
    }

    /// Records that the server has accepted the agent: nothing is left to bootstrap (node-side 1.4).
    pub fn attested(&mut self) {
        self.bootstrap = BootstrapState::succeeded();
    }

    fn take(&mut self, name: &str, value: Value) -> Result<(), FileError> {
        match (name, value) {
            ("svid", value) => self.svid = certificates("svid", value)?,
            ("bundle", value) => self.bundle = certificates("bundle", value)?,
            (_, Value::Null) => {}
            ("reattestable", value) => {
                self.reattestable = value.as_bool().ok_or(FileError::Kind {
                    field: "reattestable",
                    expected: "true or false",
                })?;
            }
            ("bootstrap_use", value) => {
                self.bootstrap.purpose = match integer("bootstrap_use", &value)? {
                    USE_BOOTSTRAP => Some(Purpose::Bootstrap),
                    USE_REBOOTSTRAP => Some(Purpose::Rebootstrap),
                    _ => None,
                };
            }
            ("connection_attempts", value) => {
                self.bootstrap.attempts = integer("connection_attempts", &value)?;
            }
            ("bootstrap_start_time", Value::String(time)) if is_rfc3339(&time) => {
                self.bootstrap.started = started_at(&time);
            }
            ("bootstrap_start_time", _) => {
                return Err(FileError::Kind {
                    field: "bootstrap_start_time",
                    expected: "a time in RFC 3339",
                });
            }
            _ => {}
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct AgentDataText {
    svid: Option<Vec<String>>,
    bundle: Option<Vec<String>>,
    reattestable: bool,
    bootstrap_use: i64,
    bootstrap_start_time: String,
    connection_attempts: i64,
}

/// An object's members in the order of the text.
struct Fields(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

/// Go passes over line ends inside base64.
fn from_base64(text: &str) -> Option<Vec<u8>> {
    if text.contains(['\r', '\n']) {
        let joined = Zeroizing::new(text.replace(['\r', '\n'], ""));
        return GO_BASE64.decode(joined.as_bytes()).ok();
    }
    GO_BASE64.decode(text).ok()
}

/// The parser's own words may repeat the text, which may be a key: only the place is kept.
fn kind_or_syntax(
    error: &serde_json::Error,
    field: &'static str,
    expected: &'static str,
) -> FileError {
    match error.classify() {
        serde_json::error::Category::Data => FileError::Kind { field, expected },
        serde_json::error::Category::Io
        | serde_json::error::Category::Syntax
        | serde_json::error::Category::Eof => FileError::Json {
            line: error.line(),
            column: error.column(),
        },
    }
}

fn certificates(field: &'static str, value: Value) -> Result<Vec<Certificate>, FileError> {
    let items = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(items) => items,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            return Err(FileError::Kind {
                field,
                expected: "a list of certificates",
            });
        }
    };
    items
        .iter()
        .enumerate()
        .map(|(index, item)| certificate(field, index, item))
        .collect()
}

fn certificate(field: &'static str, index: usize, item: &Value) -> Result<Certificate, FileError> {
    let failed = |reason: String| FileError::Certificate {
        field,
        index,
        reason,
    };
    let text = item.as_str().ok_or_else(|| failed("not text".to_owned()))?;
    let pem = from_base64(text).ok_or_else(|| failed("not base64".to_owned()))?;
    let found = Certificate::list_from_pem(&pem, PemPolicy::CertificatesOnly)
        .map_err(|error| failed(error.to_string()))?;
    found
        .into_iter()
        .next()
        .ok_or_else(|| failed("no certificate".to_owned()))
}

fn certificates_as_text(certificates: &[Certificate]) -> Option<Vec<String>> {
    let texts = certificates
        .iter()
        .map(|certificate| STANDARD.encode(certificate.to_pem()))
        .collect();
    (!certificates.is_empty()).then_some(texts)
}

fn integer(field: &'static str, value: &Value) -> Result<i64, FileError> {
    value.as_i64().ok_or(FileError::Kind {
        field,
        expected: "a whole number",
    })
}

/// The instant that a text in RFC 3339 names, with any offset; none for Go's zero time and whatever lies before 1970.
fn started_at(text: &str) -> Option<SystemTime> {
    let (date, zone) = text.split_at(text.len() - if text.ends_with('Z') { 1 } else { 6 });
    let at = humantime::parse_rfc3339(&format!("{date}Z")).ok()?;
    // What has a form in the file: the years 1970 to 9998, whatever the offset.
    let is_shown = |at: &SystemTime| (0..LAST_SECOND).contains(&unix_seconds(*at));
    let Some((sign, offset)) = zone.split_at_checked(1).filter(|(sign, _)| *sign != "Z") else {
        return Some(at).filter(is_shown);
    };
    let (hours, minutes) = offset.split_once(':')?;
    let minutes = hours.parse::<u64>().ok()? * 60 + minutes.parse::<u64>().ok()?;
    let offset = Duration::from_mins(minutes);
    let at = if sign == "+" {
        at.checked_sub(offset)
    } else {
        at.checked_add(offset)
    };
    at.filter(is_shown)
}

/// Whether Go's `time.Time` would take the text: `2006-01-02T15:04:05[.fraction](Z|+hh:mm|-hh:mm)`.
fn is_rfc3339(text: &str) -> bool {
    const SHAPE: &[u8] = b"dddd-dd-ddTdd:dd:dd";
    let fits = |text: &[u8], shape: &[u8]| {
        text.len() == shape.len()
            && text.iter().zip(shape).all(|(byte, place)| {
                if *place == b'd' {
                    byte.is_ascii_digit()
                } else {
                    byte == place
                }
            })
    };
    let Some((date, rest)) = text.as_bytes().split_at_checked(SHAPE.len()) else {
        return false;
    };
    let zone = match rest.strip_prefix(b".") {
        None => rest,
        Some(fraction) => {
            let digits = fraction
                .iter()
                .take_while(|byte| byte.is_ascii_digit())
                .count();
            if digits == 0 {
                return false;
            }
            fraction.get(digits..).unwrap_or_default()
        }
    };
    fits(date, SHAPE) && (zone == b"Z" || fits(zone, b"+dd:dd") || fits(zone, b"-dd:dd"))
}

#[cfg(test)]
mod tests;
