//! Queries in form encoding, as Go's `url.Values` reads and writes them. Pure.

use std::time::{Duration, SystemTime};

use super::Asking;
use crate::store::Purpose;

/// The last second that RFC 3339 can write.
const LAST_SECOND: Duration = Duration::from_secs(253_402_300_799);

/// A parameter: name and value, decoded.
pub(super) type Parameter = (Vec<u8>, Vec<u8>);

/// Takes a query apart; pairs with a semicolon or a wrong escape are left out.
pub(super) fn decode(query: &str) -> Vec<Parameter> {
    let pairs = query
        .split('&')
        .filter(|pair| !pair.is_empty() && !pair.contains(';'));
    pairs
        .filter_map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decoded = |text: &str| percent_decoded(&text.replace('+', " "));
            Some((decoded(name)?, decoded(value)?))
        })
        .collect()
}

/// Writes parameters sorted by name; those of one name stay in their order.
pub(super) fn encode(mut parameters: Vec<Parameter>) -> String {
    let stays = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~ ".contains(&byte);
    let encoded = |bytes: &[u8]| percent_encoded(bytes, stays).replace(' ', "+");
    parameters.sort_by(|one, other| one.0.cmp(&other.0));
    let pairs: Vec<_> = parameters
        .iter()
        .map(|(name, value)| format!("{}={}", encoded(name), encoded(value)))
        .collect();
    pairs.join("&")
}

/// The query that tells a bundle server who asks, and what it had of its own (node-side 1.1).
pub(super) fn told(query: Option<&str>, asking: &Asking) -> String {
    let mode = match asking.purpose {
        Purpose::Bootstrap => "bootstrap",
        Purpose::Rebootstrap => "rebootstrap",
    };
    let started = asking
        .started
        .clamp(SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + LAST_SECOND);
    let told = [
        ("spire-attest-mode", mode.to_owned()),
        ("spire-connection-attempts", asking.attempts.to_string()),
        (
            "spire-attest-start-time",
            humantime::format_rfc3339_seconds(started).to_string(),
        ),
        ("spire-server-address", asking.server_address.clone()),
        ("spire-server-port", asking.server_port.to_string()),
        ("spiffe-trust-domain", asking.trust_domain.name().to_owned()),
    ];
    let mut parameters = decode(query.unwrap_or_default());
    parameters.retain(|(name, _)| !told.iter().any(|(own, _)| own.as_bytes() == name));
    parameters.extend(told.map(|(name, value)| (name.into(), value.into())));
    encode(parameters)
}

/// Resolves `%XX`; none if an escape is wrong.
pub(super) fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let mut digit = || char::from(bytes.next()?).to_digit(16);
            out.push(u8::try_from(digit()? * 16 + digit()?).ok()?);
        } else {
            out.push(byte);
        }
    }
    Some(out)
}

/// Writes `%XX` for every byte that does not stay as it is; only ASCII may stay.
pub(super) fn percent_encoded(bytes: &[u8], stays: impl Fn(u8) -> bool) -> String {
    let mut out = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii() && stays(*byte) {
            out.push(char::from(*byte));
        } else {
            let digit = |half: u8| {
                let digit = char::from_digit(u32::from(half), 16).unwrap_or_default();
                digit.to_ascii_uppercase()
            };
            out.extend(['%', digit(byte >> 4), digit(byte & 0x0f)]);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spiffe_id::TrustDomain;

    #[test]
    fn a_query_is_written_as_go_writes_it() {
        let table = [
            ("", ""),
            ("b=2&a=1", "a=1&b=2"),
            ("b=2&a=2&b=1", "a=2&b=2&b=1"),
            ("a", "a="),
            ("a=b=c&&", "a=b%3Dc"),
            ("a+b=c%20d", "a+b=c+d"),
            ("a=%2b%41~-_.%c3%bc%ff", "a=%2BA~-_.%C3%BC%FF"),
            ("a=1;b=2&c=%zz&d=%4&e=%&f", "f="),
            ("a=/:@!*'()", "a=%2F%3A%40%21%2A%27%28%29"),
        ];

        for (query, expected) in table {
            assert_eq!(encode(decode(query)), expected, "{query}");
        }
    }

    #[test]
    fn a_bundle_server_is_told_who_asks() {
        let asking = Asking {
            purpose: Purpose::Rebootstrap,
            attempts: 3,
            started: SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000),
            server_address: "2001:db8::1".to_owned(),
            server_port: 8081,
            trust_domain: TrustDomain::parse("domain.test").unwrap(),
        };

        let query = told(Some("z=1&spiffe-trust-domain=evil.test&a=%20"), &asking);

        assert_eq!(
            query,
            "a=+&spiffe-trust-domain=domain.test&spire-attest-mode=rebootstrap&spire-attest-start-time=2026-09-21T14%3A13%3A20Z\
             &spire-connection-attempts=3&spire-server-address=2001%3Adb8%3A%3A1&spire-server-port=8081&z=1"
        );
    }

    #[test]
    fn dates_that_cannot_be_written_are_brought_into_range() {
        let far = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40);
        let early = SystemTime::UNIX_EPOCH
            .checked_sub(Duration::from_hours(1))
            .unwrap();

        for (started, expected) in [
            (far, "9999-12-31T23%3A59%3A59Z"),
            (early, "1970-01-01T00%3A00%3A00Z"),
        ] {
            let asking = Asking {
                purpose: Purpose::Bootstrap,
                attempts: 1,
                started,
                server_address: "s".to_owned(),
                server_port: 1,
                trust_domain: TrustDomain::parse("domain.test").unwrap(),
            };
            assert!(told(None, &asking).contains(expected));
        }
    }
}
