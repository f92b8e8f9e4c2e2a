//! Prints a distinguished name as Go's `pkix.Name` does, so that logs and `-output` of both agents read alike. Pure.

use std::fmt::Write as _;

use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// Attributes under 2.5.4 that have a name, in Go's order (1.26); printed last to first.
const NAMED: [(&str, &str); 9] = [
    ("2.5.4.6", "C"),
    ("2.5.4.8", "ST"),
    ("2.5.4.7", "L"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.17", "POSTALCODE"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.3", "CN"),
    ("2.5.4.5", "SERIALNUMBER"),
];

/// The name as text: named attributes grouped by type, then all others as OID and DER, last one first.
pub(super) fn print_name(name: &X509Name<'_>) -> String {
    let attributes: Vec<_> = name
        .iter_attributes()
        .map(|attribute| (oid_of(attribute), attribute))
        .collect();
    let mut groups = Vec::new();
    for (oid, short) in NAMED.iter().rev() {
        let mut values = attributes.iter().filter(|(found, _)| found == oid);
        // Go keeps one of these two, the last.
        let values: Vec<_> = match *short {
            "CN" | "SERIALNUMBER" => values.next_back().into_iter().collect(),
            _ => values.collect(),
        };
        let group: Vec<_> = values
            .iter()
            .map(|(_, attribute)| format!("{short}={}", escape(&text_of(attribute))))
            .collect();
        if !group.is_empty() {
            groups.push(group.join("+"));
        }
    }
    for (oid, attribute) in attributes.iter().rev() {
        if !NAMED.iter().any(|(named, _)| named == oid) {
            groups.push(format!("{oid}=#{}", hex_of_value(&text_of(attribute))));
        }
    }
    groups.join(",")
}

fn oid_of(attribute: &AttributeTypeAndValue<'_>) -> String {
    attribute.attr_type().to_id_string()
}

fn text_of(attribute: &AttributeTypeAndValue<'_>) -> String {
    attribute.as_str().map_or_else(
        |_| String::from_utf8_lossy(attribute.as_slice()).into_owned(),
        str::to_owned,
    )
}

/// RFC 2253 2.4. Control characters are escaped too, since the text goes to terminals.
fn escape(value: &str) -> String {
    let last = value.chars().count().saturating_sub(1);
    let mut escaped = String::with_capacity(value.len());
    for (at, character) in value.chars().enumerate() {
        match character {
            ',' | '+' | '"' | '\\' | '<' | '>' | ';' => escaped.extend(['\\', character]),
            ' ' if at == 0 || at == last => escaped.push_str("\\ "),
            '#' if at == 0 => escaped.push_str("\\#"),
            control if control.is_control() => {
                let _written = write!(escaped, "\\{:02X}", u32::from(control));
            }
            other => escaped.push(other),
        }
    }
    escaped
}

/// The DER of a string in hex: `PrintableString` where its characters allow, else `UTF8String`.
fn hex_of_value(text: &str) -> String {
    let is_printable = |byte: u8| byte.is_ascii_alphanumeric() || b" '()+,-./:=?".contains(&byte);
    let tag = if text.bytes().all(is_printable) {
        0x13
    } else {
        0x0c
    };
    let der = crate::keys::der::element(tag, &[text.as_bytes()]);
    hex(&der)
}

/// Lower-case hex.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _written = write!(text, "{byte:02x}");
            text
        })
}
