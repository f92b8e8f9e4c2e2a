//! URLs of trust bundles: taken apart once, followed from redirect to redirect, never shown with user, path or query. Pure.

use std::fmt;
use std::net::Ipv6Addr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use http::uri::PathAndQuery;

use super::form;

/// Longest URL in bytes.
const MAX_URL_BYTES: usize = 8 * 1024;
/// Longest host name in bytes (RFC 1035 2.3.4).
const MAX_HOST_BYTES: usize = 253;

/// How a URL is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// Without TLS: over a Unix socket only.
    Http,
    /// With TLS.
    Https,
}

/// An `http` or `https` URL. Its user and query may be secrets: `Display` and `Debug` show scheme, host and port alone.
#[derive(Clone, PartialEq, Eq)]
pub struct BundleUrl {
    scheme: Scheme,
    /// Name or address, IPv6 without brackets.
    host: String,
    port: u16,
    /// Basic authentication by the URL's user; marked as sensitive.
    authorization: Option<HeaderValue>,
    /// Percent-encoded, with its leading slash.
    path: String,
    /// Percent-encoded, without the question mark.
    query: Option<String>,
}

/// Why a text is no URL of a bundle. Never repeats the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Something else than `http://` or `https://` stands in front.
    #[error("URL must start with https:// or http://")]
    Scheme,
    /// The host is missing, or neither a DNS name nor an IP address.
    #[error("host of the URL must be a DNS name or an IP address (IPv6 in brackets)")]
    Host,
    /// The port is no number from 1 to 65535.
    #[error("port of the URL must be a number from 1 to 65535")]
    Port,
    /// User and password cannot be decoded.
    #[error("user of the URL is not percent-encoded correctly")]
    User,
    /// It is longer than any URL needs to be.
    #[error("URL is longer than {MAX_URL_BYTES} bytes")]
    TooLong,
    /// It has control characters in it.
    #[error("URL has control characters in it")]
    Control,
}

impl Scheme {
    fn of(name: &str) -> Option<Self> {
        if name.eq_ignore_ascii_case("https") {
            Some(Self::Https)
        } else if name.eq_ignore_ascii_case("http") {
            Some(Self::Http)
        } else {
            None
        }
    }

    fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

impl BundleUrl {
    /// Reads an absolute URL. A fragment is dropped; what may not stand in a path or query as it is gets percent-encoded.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        check(text)?;
        let (scheme, rest) = text.split_once("://").ok_or(UrlError::Scheme)?;
        Self::parse_rest(Scheme::of(scheme).ok_or(UrlError::Scheme)?, rest)
    }

    /// The URL that a reference in it leads to (RFC 3986 5.2). The user goes along to the same host only, as in Go.
    pub fn resolve(&self, reference: &str) -> Result<Self, UrlError> {
        check(reference)?;
        if has_scheme(reference) {
            return Self::parse(reference);
        }
        if let Some(rest) = reference.strip_prefix("//") {
            return Self::parse_rest(self.scheme, rest);
        }
        let (path, query) = path_and_query(reference);
        let path = match path.as_str() {
            "" if query.is_none() => return Ok(self.clone()),
            "" => self.path.clone(),
            absolute if absolute.starts_with('/') => without_dots(absolute),
            relative => {
                let (directory, _) = self.path.rsplit_once('/').unwrap_or_default();
                without_dots(&format!("{directory}/{relative}"))
            }
        };
        Ok(Self {
            path,
            query,
            ..self.clone()
        })
    }

    fn parse_rest(scheme: Scheme, rest: &str) -> Result<Self, UrlError> {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (user, host),
            None => ("", authority),
        };
        let (host, port) = host_and_port(host, scheme)?;
        let (path, query) = path_and_query(rest);
        Ok(Self {
            scheme,
            host,
            port,
            authorization: basic(user)?,
            path: if path.is_empty() {
                "/".to_owned()
            } else {
                path
            },
            query,
        })
    }

    /// How it is spoken to.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Name or address, IPv6 without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Port, also when it is the scheme's own.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The names of the query's parameters, decoded; pairs that cannot be decoded are left out.
    pub fn parameter_names(&self) -> Vec<String> {
        let pairs = form::decode(self.query.as_deref().unwrap_or_default()).into_iter();
        pairs
            .map(|(name, _)| String::from_utf8_lossy(&name).into_owned())
            .collect()
    }

    /// Host and port, IPv6 in brackets.
    pub(super) fn peer(&self) -> String {
        format!("{}:{}", self.bracketed_host(), self.port)
    }

    /// What stands in the `Host` header: the port only if it is not the scheme's own.
    pub(super) fn authority(&self) -> String {
        if self.port == self.scheme.default_port() {
            self.bracketed_host()
        } else {
            self.peer()
        }
    }

    /// Basic authentication by the URL's user.
    pub(super) fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    /// What stands in the request line.
    pub(super) fn target(&self) -> Result<PathAndQuery, UrlError> {
        let target = match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        };
        PathAndQuery::from_maybe_shared(target).map_err(|_| UrlError::TooLong)
    }

    /// The query as it stands.
    pub(super) fn query(&self) -> Option<&str> {
        self.query.as_deref()
    }

    /// The same with another query, which is percent-encoded.
    pub(super) fn with_query(&self, query: String) -> Self {
        Self {
            query: Some(query),
            ..self.clone()
        }
    }

    fn bracketed_host(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]", self.host)
        } else {
            self.host.clone()
        }
    }
}

impl fmt::Display for BundleUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = match self.scheme {
            Scheme::Http => "http",
            Scheme::Https => "https",
        };
        write!(f, "{scheme}://{}", self.authority())
    }
}

impl fmt::Debug for BundleUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BundleUrl({self}/..)")
    }
}

fn check(text: &str) -> Result<(), UrlError> {
    if text.len() > MAX_URL_BYTES {
        return Err(UrlError::TooLong);
    }
    if text.bytes().any(|byte| byte.is_ascii_control()) {
        return Err(UrlError::Control);
    }
    Ok(())
}

/// Whether a scheme of whatever name stands in front (RFC 3986 3.1).
fn has_scheme(reference: &str) -> bool {
    let name = reference.split(['/', '?', '#']).next().unwrap_or_default();
    name.split_once(':')
        .is_some_and(|(name, _)| name.starts_with(|first: char| first.is_ascii_alphabetic()))
}

fn host_and_port(text: &str, scheme: Scheme) -> Result<(String, u16), UrlError> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, behind) = rest.split_once(']').ok_or(UrlError::Host)?;
        if host.parse::<Ipv6Addr>().is_err() || !(behind.is_empty() || behind.starts_with(':')) {
            return Err(UrlError::Host);
        }
        (host, behind.strip_prefix(':').unwrap_or_default())
    } else {
        let (host, port) = text.split_once(':').unwrap_or((text, ""));
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        if host.is_empty() || host.len() > MAX_HOST_BYTES || !host.bytes().all(allowed) {
            return Err(UrlError::Host);
        }
        (host, port)
    };
    let port = match port {
        "" => scheme.default_port(),
        text if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            text.parse().map_err(|_| UrlError::Port)?
        }
        _ => return Err(UrlError::Port),
    };
    if port == 0 {
        return Err(UrlError::Port);
    }
    Ok((host.to_owned(), port))
}

/// The header that proves who asks, as Go makes it of a URL's user.
fn basic(user: &str) -> Result<Option<HeaderValue>, UrlError> {
    if user.is_empty() {
        return Ok(None);
    }
    let (name, password) = user.split_once(':').unwrap_or((user, ""));
    let decode = |text| form::percent_decoded(text).ok_or(UrlError::User);
    let pair = [decode(name)?, b":".to_vec(), decode(password)?].concat();
    let mut value = HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(pair)))
        .map_err(|_| UrlError::User)?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// Takes path and query apart, drops the fragment, and encodes what may not stand there.
fn path_and_query(text: &str) -> (String, Option<String>) {
    let text = text.split('#').next().unwrap_or_default();
    match text.split_once('?') {
        Some((path, query)) => (encoded(path), Some(encoded(query))),
        None => (encoded(text), None),
    }
}

/// Leaves escapes as they are.
fn encoded(text: &str) -> String {
    let stays =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/?%[]".contains(&byte);
    form::percent_encoded(text.as_bytes(), stays)
}

/// Resolves `.` and `..` in an absolute path (RFC 3986 5.2.4).
fn without_dots(path: &str) -> String {
    let mut kept = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        match segment {
            "." => {}
            ".." => {
                kept.pop();
            }
            other => {
                kept.push(other);
                continue;
            }
        }
        if segments.peek().is_none() {
            kept.push("");
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scheme, host, port, request target.
    fn parts(url: &BundleUrl) -> (bool, &str, u16, String) {
        let target = url.target().unwrap().to_string();
        (url.scheme == Scheme::Https, &url.host, url.port, target)
    }

    #[test]
    fn a_url_is_taken_apart() {
        let table = [
            ("https://h.test", (true, "h.test", 443, "/")),
            ("HTTPS://h.test:", (true, "h.test", 443, "/")),
            (
                "https://h.test:8443/a/b?c=d#e",
                (true, "h.test", 8443, "/a/b?c=d"),
            ),
            ("https://h.test?c", (true, "h.test", 443, "/?c")),
            ("https://h.test#e", (true, "h.test", 443, "/")),
            ("https://10.0.0.1/x", (true, "10.0.0.1", 443, "/x")),
            ("https://[::1]:1/x", (true, "::1", 1, "/x")),
            ("http://[fe80::1]", (false, "fe80::1", 80, "/")),
            ("https://u:p@ss@h.test/", (true, "h.test", 443, "/")),
            (
                "https://h/a b/%41/ü?\"{}",
                (true, "h", 443, "/a%20b/%41/%C3%BC?%22%7B%7D"),
            ),
        ];

        for (text, expected) in table {
            let url = BundleUrl::parse(text).unwrap();
            let (scheme, host, port, target) = expected;
            assert_eq!(
                parts(&url),
                (scheme, host, port, target.to_owned()),
                "{text}"
            );
        }
    }

    #[test]
    fn text_that_is_no_url_is_refused_with_its_reason() {
        let long = format!("https://h/{}", "x".repeat(MAX_URL_BYTES));
        let long_name = format!("https://{}/", "x".repeat(MAX_HOST_BYTES + 1));
        let table = [
            ("", UrlError::Scheme),
            ("h.test/x", UrlError::Scheme),
            ("ftp://h.test/", UrlError::Scheme),
            ("https:/h.test/", UrlError::Scheme),
            ("https://", UrlError::Host),
            ("https:///x", UrlError::Host),
            ("https://u@/x", UrlError::Host),
            ("https://a b/", UrlError::Host),
            ("https://h\u{fc}/", UrlError::Host),
            ("https://[::1/", UrlError::Host),
            ("https://[::1]x/", UrlError::Host),
            ("https://[h]/", UrlError::Host),
            ("https://h:0/", UrlError::Port),
            ("https://h:+1/", UrlError::Port),
            ("https://h:65536/", UrlError::Port),
            ("https://::1/", UrlError::Host),
            ("https://h::1/", UrlError::Port),
            ("https://%zz@h/", UrlError::User),
            ("https://h/\r\nX: y", UrlError::Control),
            (&long, UrlError::TooLong),
            (&long_name, UrlError::Host),
        ];

        for (text, reason) in table {
            assert_eq!(BundleUrl::parse(text), Err(reason), "{text:?}");
        }
    }

    #[test]
    fn a_reference_is_resolved_as_a_browser_does() {
        let base = BundleUrl::parse("https://u@h.test:1/a/b/c?d").unwrap();
        let table = [
            ("", "https://h.test:1", "/a/b/c?d"),
            ("#e", "https://h.test:1", "/a/b/c?d"),
            ("?e", "https://h.test:1", "/a/b/c?e"),
            ("e", "https://h.test:1", "/a/b/e"),
            ("e?a:b", "https://h.test:1", "/a/b/e?a:b"),
            ("./e/.", "https://h.test:1", "/a/b/e/"),
            ("../e", "https://h.test:1", "/a/e"),
            ("../../../../e", "https://h.test:1", "/e"),
            ("..", "https://h.test:1", "/a/"),
            ("/e", "https://h.test:1", "/e"),
            ("//o.test/e", "https://o.test", "/e"),
            ("http://o.test:2/../e", "http://o.test:2", "/../e"),
        ];

        for (reference, shown, target) in table {
            let url = base.resolve(reference).unwrap();
            let found = (url.to_string(), url.target().unwrap().to_string());
            assert_eq!(
                found,
                (shown.to_owned(), target.to_owned()),
                "{reference:?}"
            );
        }
        for reference in ["data:x", "javascript://h/", "x:y", "https:e"] {
            assert_eq!(
                base.resolve(reference),
                Err(UrlError::Scheme),
                "{reference}"
            );
        }
    }

    #[test]
    fn the_user_proves_itself_to_its_own_host_alone() {
        let url = BundleUrl::parse("https://us%20er:p%3Aw@h.test/a").unwrap();

        let header = |url: &BundleUrl| {
            url.authorization()
                .map(|value| value.to_str().unwrap().to_owned())
        };
        let expected = format!("Basic {}", STANDARD.encode("us er:p:w"));
        assert_eq!(header(&url), Some(expected.clone()));
        assert_eq!(header(&url.resolve("/b").unwrap()), Some(expected));
        assert_eq!(header(&url.resolve("https://h.test/b").unwrap()), None);
        assert_eq!(header(&url.resolve("//o.test/b").unwrap()), None);
    }

    #[test]
    fn neither_user_nor_query_is_shown() {
        let url = BundleUrl::parse("https://hush1:hush2@h.test:1/hush3?hush4").unwrap();

        assert_eq!(
            format!("{url} {url:?}"),
            "https://h.test:1 BundleUrl(https://h.test:1/..)"
        );
        assert!(!format!("{:?}", url.authorization()).contains("hush"));
    }
}
