//! Trust domains and SPIFFE IDs. Text is checked once, here; inside the agent a value is valid (SPIFFE-ID 2).

use std::fmt;
use std::sync::Arc;

/// Longest SPIFFE ID in bytes (SPIFFE-ID 2.3).
pub const MAX_ID_BYTES: usize = 2048;
/// Longest trust domain name in bytes that every implementation takes (SPIFFE-ID 2.3). Longer ones are read: `spire-server` has them.
pub const PORTABLE_TRUST_DOMAIN_BYTES: usize = 255;
/// Longest trust domain name in bytes: the server's own ID must fit into [`MAX_ID_BYTES`].
const MAX_TRUST_DOMAIN_BYTES: usize = MAX_ID_BYTES - SCHEME.len() - SERVER_PATH.len();
const SCHEME: &str = "spiffe://";
const SERVER_PATH: &str = "/spire/server";

/// Why a text is no SPIFFE ID or trust domain name. The text itself is not repeated: it may be hostile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Nothing was given.
    #[error("cannot be empty")]
    Empty,
    /// The text is longer than SPIFFE-ID 2.3 allows.
    #[error("is longer than {0} bytes")]
    TooLong(usize),
    /// The text does not begin with `spiffe://`.
    #[error("scheme is missing or invalid")]
    Scheme,
    /// No trust domain name stands behind the scheme.
    #[error("trust domain is missing")]
    MissingTrustDomain,
    /// The trust domain name has a character other than `a-z0-9.-_`.
    #[error(
        "trust domain characters are limited to lowercase letters, numbers, dots, dashes, and underscores"
    )]
    TrustDomainCharacter,
    /// The path has a character other than letters, digits and `.-_`.
    #[error(
        "path segment characters are limited to letters, numbers, dots, dashes, and underscores"
    )]
    PathCharacter,
    /// A path segment is empty.
    #[error("path cannot contain empty segments")]
    EmptySegment,
    /// A path segment is `.` or `..`.
    #[error("path cannot contain dot segments")]
    DotSegment,
    /// The path ends with a slash.
    #[error("path cannot have a trailing slash")]
    TrailingSlash,
    /// The path does not begin with a slash.
    #[error("path must have a leading slash")]
    NoLeadingSlash,
}

/// The name of a trust domain, such as `example.org`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrustDomain(Arc<str>);

/// A SPIFFE ID, such as `spiffe://example.org/web`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SpiffeId {
    text: Arc<str>,
    /// Byte offset at which the path begins.
    path_at: usize,
}

impl TrustDomain {
    /// Reads a name, or the trust domain of a SPIFFE ID.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        if text.is_empty() {
            return Err(IdError::Empty);
        }
        if text.contains(':') {
            return SpiffeId::parse(text).map(|id| id.trust_domain());
        }
        check_trust_domain(text)?;
        Ok(Self(text.into()))
    }

    /// The bare name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// The name as a SPIFFE ID without a path: the key of bundle maps in the Workload API.
    pub fn id_string(&self) -> String {
        format!("{SCHEME}{}", self.0)
    }
}

impl SpiffeId {
    /// Reads `spiffe://trust-domain[/path]`.
    pub fn parse(text: &str) -> Result<Self, IdError> {
        if text.is_empty() {
            return Err(IdError::Empty);
        }
        if text.len() > MAX_ID_BYTES {
            return Err(IdError::TooLong(MAX_ID_BYTES));
        }
        let rest = text.strip_prefix(SCHEME).ok_or(IdError::Scheme)?;
        let name_end = rest.find('/').unwrap_or(rest.len());
        let (name, path) = rest.split_at(name_end);
        check_trust_domain(name)?;
        check_path(path)?;
        Ok(Self {
            text: text.into(),
            path_at: SCHEME.len() + name_end,
        })
    }

    /// Joins a trust domain and a path (empty, or beginning with a slash).
    pub fn from_parts(trust_domain: &TrustDomain, path: &str) -> Result<Self, IdError> {
        if !path.is_empty() && !path.starts_with('/') {
            return Err(IdError::NoLeadingSlash);
        }
        Self::parse(&format!("{SCHEME}{}{path}", trust_domain.0))
    }

    /// The ID that the server of a trust domain proves (SPIRE convention).
    pub fn of_server(trust_domain: &TrustDomain) -> Self {
        let text = format!("{}{SERVER_PATH}", trust_domain.id_string());
        let path_at = text.len() - SERVER_PATH.len();
        Self {
            text: text.into(),
            path_at,
        }
    }

    /// The trust domain's part.
    pub fn trust_domain(&self) -> TrustDomain {
        TrustDomain(self.trust_domain_name().into())
    }

    /// The trust domain's name.
    pub fn trust_domain_name(&self) -> &str {
        &self.text[SCHEME.len()..self.path_at]
    }

    /// The path with its leading slash, or nothing.
    pub fn path(&self) -> &str {
        &self.text[self.path_at..]
    }

    /// The whole ID.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

fn check_trust_domain(name: &str) -> Result<(), IdError> {
    if name.is_empty() {
        return Err(IdError::MissingTrustDomain);
    }
    if name.len() > MAX_TRUST_DOMAIN_BYTES {
        return Err(IdError::TooLong(MAX_TRUST_DOMAIN_BYTES));
    }
    let allowed =
        |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'.' | b'-' | b'_');
    if name.bytes().all(allowed) {
        Ok(())
    } else {
        Err(IdError::TrustDomainCharacter)
    }
}

fn check_path(path: &str) -> Result<(), IdError> {
    let Some(segments) = path.strip_prefix('/') else {
        return Ok(());
    };
    if segments.ends_with('/') || segments.is_empty() {
        return Err(IdError::TrailingSlash);
    }
    for segment in segments.split('/') {
        let allowed = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'-' | b'_');
        match segment {
            "" => return Err(IdError::EmptySegment),
            "." | ".." => return Err(IdError::DotSegment),
            other if !other.bytes().all(allowed) => return Err(IdError::PathCharacter),
            _ => {}
        }
    }
    Ok(())
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_split_into_trust_domain_and_path() {
        let id = SpiffeId::parse("spiffe://example.org/a/b").unwrap();

        assert_eq!((id.trust_domain_name(), id.path()), ("example.org", "/a/b"));
        assert_eq!(
            SpiffeId::from_parts(&id.trust_domain(), "/a/b").unwrap(),
            id
        );
        assert_eq!(SpiffeId::parse("spiffe://example.org").unwrap().path(), "");
    }

    #[test]
    fn text_outside_the_specification_is_refused_with_its_reason() {
        let long_name = "d".repeat(MAX_TRUST_DOMAIN_BYTES + 1);
        let table = [
            ("", IdError::Empty),
            ("http://example.org", IdError::Scheme),
            ("spiffe://", IdError::MissingTrustDomain),
            ("spiffe:///path", IdError::MissingTrustDomain),
            ("spiffe://Example.org/a", IdError::TrustDomainCharacter),
            ("spiffe://example.org:80/a", IdError::TrustDomainCharacter),
            ("spiffe://td/a//b", IdError::EmptySegment),
            ("spiffe://td//a", IdError::EmptySegment),
            ("spiffe://td/../a", IdError::DotSegment),
            ("spiffe://td/./a", IdError::DotSegment),
            ("spiffe://td/a/", IdError::TrailingSlash),
            ("spiffe://td/", IdError::TrailingSlash),
            ("spiffe://td/a b", IdError::PathCharacter),
            ("spiffe://td/%2e", IdError::PathCharacter),
            ("spiffe://td/a\u{1b}[31m", IdError::PathCharacter),
        ];

        for (text, reason) in table {
            assert_eq!(SpiffeId::parse(text), Err(reason), "{text:?}");
        }
        assert_eq!(
            TrustDomain::parse(&long_name),
            Err(IdError::TooLong(MAX_TRUST_DOMAIN_BYTES))
        );
        let longest = TrustDomain::parse(&long_name[1..]).unwrap();
        assert!(SpiffeId::parse(&SpiffeId::of_server(&longest).to_string()).is_ok());
        assert_eq!(
            SpiffeId::parse(&format!("spiffe://td/{}", "x".repeat(2048))),
            Err(IdError::TooLong(2048))
        );
    }

    #[test]
    fn a_trust_domain_may_be_given_as_an_id() {
        for text in [
            "domain.test",
            "spiffe://domain.test",
            "spiffe://domain.test/path",
        ] {
            assert_eq!(TrustDomain::parse(text).unwrap().name(), "domain.test");
        }
        assert_eq!(TrustDomain::parse("domain.test:80"), Err(IdError::Scheme));
        assert_eq!(
            TrustDomain::parse("a_b-c.1").unwrap().id_string(),
            "spiffe://a_b-c.1"
        );
    }
}
