//! Reads an entry of `edge.trust_bundle_sources`: where a bundle is, and which of its authorities are taken.
//!
//! | entry | source |
//! |---|---|
//! | `/path`, `file:///path` | a file |
//! | `https://host/path?query` | a server, verified by the Web PKI |
//! | `http+unix:///socket:/path?query` | a server behind a Unix socket, told who asks |
//! | `unix:///socket`, `tcp://ip:port` | another agent's Workload API |
//!
//! Each may end in `#` and pins: `sha256:` and 64 hexadecimal digits, several separated by commas.

use std::path::PathBuf;

use actors::attestor::trust::pins::{PinError, Pins};
use actors::attestor::trust::url::{BundleUrl, Scheme, UrlError};
use actors::attestor::trust::{BundleSource, PinnedSource};
use actors::workload_api::Address;

/// Why a text is no entry. Never repeats it: a URL may hold a password.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum EntryError {
    #[error(
        "must be an absolute path, file:///path, https://host/path, unix:///socket, tcp://ip:port or http+unix:///socket:/path"
    )]
    Form,
    #[error("http:// proves nothing: use https://, or http+unix:///socket:/path for a Unix socket")]
    PlainHttp,
    #[error(transparent)]
    Url(#[from] UrlError),
    #[error("query params can not start with {0}")]
    Reserved(&'static str),
    #[error("behind #: {0}")]
    Pin(#[from] PinError),
}

/// Reads one entry.
pub(super) fn parse(text: &str) -> Result<PinnedSource, EntryError> {
    let (place, pins) = match text.split_once('#') {
        Some((place, pins)) => (place, Pins::parse(pins)?),
        None => (text, Pins::default()),
    };
    let source = source(place)?;
    Ok(PinnedSource { source, pins })
}

/// Names of parameters that only the agent itself may set in a query (node-side 1.1).
pub(super) fn reserved_parameter(url: &BundleUrl) -> impl Iterator<Item = &'static str> {
    let names = url.parameter_names();
    ["spiffe-", "spire-"]
        .into_iter()
        .filter(move |reserved| names.iter().any(|name| name.starts_with(reserved)))
}

fn source(place: &str) -> Result<BundleSource, EntryError> {
    let path = place.strip_prefix("file://").unwrap_or(place);
    if path.starts_with('/') && path.len() > 1 {
        return Ok(BundleSource::File {
            path: PathBuf::from(path),
            format: None,
        });
    }
    if let Some(rest) = place.strip_prefix("http+unix://") {
        return behind_socket(rest);
    }
    if let Some(address) = Address::parse(place) {
        return Ok(BundleSource::WorkloadApi { address });
    }
    if place.starts_with("http://") {
        return Err(EntryError::PlainHttp);
    }
    if !place.starts_with("https://") {
        return Err(EntryError::Form);
    }
    let url = BundleUrl::parse(place)?;
    debug_assert_eq!(url.scheme(), Scheme::Https);
    Ok(BundleSource::Url {
        url,
        unix_socket: None,
        format: None,
    })
}

/// The socket ends at the first colon with a slash behind it.
fn behind_socket(text: &str) -> Result<BundleSource, EntryError> {
    let (socket, path) = text.split_once(":/").ok_or(EntryError::Form)?;
    if !socket.starts_with('/') || socket.len() < 2 {
        return Err(EntryError::Form);
    }
    let url = BundleUrl::parse(&format!("http://localhost/{path}"))?;
    if let Some(reserved) = reserved_parameter(&url).next() {
        return Err(EntryError::Reserved(reserved));
    }
    Ok(BundleSource::Url {
        url,
        unix_socket: Some(PathBuf::from(socket)),
        format: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str, unix_socket: Option<&str>) -> BundleSource {
        BundleSource::Url {
            url: BundleUrl::parse(text).unwrap(),
            unix_socket: unix_socket.map(PathBuf::from),
            format: None,
        }
    }

    fn file(path: &str) -> BundleSource {
        BundleSource::File {
            path: PathBuf::from(path),
            format: None,
        }
    }

    fn workload_api(address: &str) -> BundleSource {
        BundleSource::WorkloadApi {
            address: Address::parse(address).unwrap(),
        }
    }

    #[test]
    fn every_kind_of_source_has_its_form() {
        let table = [
            ("/a/b.pem", file("/a/b.pem")),
            ("file:///a/b.pem", file("/a/b.pem")),
            ("/a:/b", file("/a:/b")),
            ("https://h.test:1/a?b", url("https://h.test:1/a?b", None)),
            ("unix:///run/x.sock", workload_api("unix:///run/x.sock")),
            ("unix:/run/x.sock", workload_api("unix:///run/x.sock")),
            ("tcp://127.0.0.1:1", workload_api("tcp://127.0.0.1:1")),
            (
                "http+unix:///run/x.sock:/a/b?c=d",
                url("http://localhost/a/b?c=d", Some("/run/x.sock")),
            ),
            (
                "http+unix:///run/x:y.sock:/",
                url("http://localhost/", Some("/run/x:y.sock")),
            ),
            (
                "http+unix:///run/x.sock:/a:/b",
                url("http://localhost/a:/b", Some("/run/x.sock")),
            ),
        ];

        for (text, source) in table {
            assert_eq!(parse(text), Ok(PinnedSource::unpinned(source)), "{text}");
        }
    }

    #[test]
    fn pins_stand_behind_the_place() {
        let pin = format!("sha256:{}", "0a".repeat(32));

        for pins in [pin.clone(), format!("{pin},{pin}")] {
            for (place, source) in [
                ("/a", file("/a")),
                ("https://h/?a", url("https://h/?a", None)),
            ] {
                let expected = PinnedSource {
                    source,
                    pins: Pins::parse(&pins).unwrap(),
                };
                assert_eq!(parse(&format!("{place}#{pins}")), Ok(expected));
            }
        }
    }

    #[test]
    fn anything_else_is_refused_with_its_reason() {
        let table = [
            ("", EntryError::Form),
            ("/", EntryError::Form),
            ("a.pem", EntryError::Form),
            ("file://a.pem", EntryError::Form),
            ("file:/a.pem", EntryError::Form),
            ("ftp://h/", EntryError::Form),
            ("HTTPS://h/", EntryError::Form),
            ("unix://run/x.sock", EntryError::Form),
            ("unix:///", EntryError::Form),
            ("tcp://h.test:1", EntryError::Form),
            ("tcp://127.0.0.1", EntryError::Form),
            ("http://h/", EntryError::PlainHttp),
            ("https://", EntryError::Url(UrlError::Host)),
            ("https://h:x/", EntryError::Url(UrlError::Port)),
            ("http+unix:///run/x.sock", EntryError::Form),
            ("http+unix://run/x.sock:/a", EntryError::Form),
            ("http+unix://:/a", EntryError::Form),
            ("http+unix:///x:/?spire-a=1", EntryError::Reserved("spire-")),
            (
                "http+unix:///x:/?%73piffe-a",
                EntryError::Reserved("spiffe-"),
            ),
            ("/a#", EntryError::Pin(PinError::Form)),
            ("/a#b", EntryError::Pin(PinError::Form)),
            ("https://h/#sha265:00", EntryError::Pin(PinError::Form)),
        ];

        for (text, reason) in table {
            assert_eq!(parse(text), Err(reason), "{text}");
        }
    }
}
