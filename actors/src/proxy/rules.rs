//! What a proxy variable means, which hosts `NO_PROXY` covers, and what a proxy's answer says. Pure.

use std::net::{IpAddr, Ipv6Addr};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::{Authorization, Proxy};

/// Port of a proxy whose URL has none.
const DEFAULT_PORT: u16 = 80;
/// Schemes that are known and not spoken; no other text of a URL is repeated in an error.
const OTHER_SCHEMES: [&str; 3] = ["socks5", "socks5h", "socks4"];

/// Hosts that are reached without a proxy: `NO_PROXY`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Exceptions(Vec<Exception>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Exception {
    /// `*`
    Everything,
    /// An address, with or without port.
    Address(IpAddr, Option<u16>),
    /// Addresses with these leading bits.
    Network(IpAddr, u32),
    /// All names under this one, with or without port. `itself` says whether the name alone is meant as well.
    Domain {
        dotted: String,
        itself: bool,
        port: Option<u16>,
    },
}

/// The head of a proxy's answer as it comes in.
#[derive(Debug, Default)]
pub(super) struct Head {
    bytes: Vec<u8>,
}

/// Reads a proxy's URL; the scheme may be missing (golang.org/x/net/http/httpproxy). One of https is asked without TLS, as grpc-go does, but
/// gets no credentials that way. The error names no part of the URL.
pub(super) fn proxy(url: &str) -> Result<Proxy, String> {
    let (may_prove, rest) = match url.split_once("://") {
        None => (true, url),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => (true, rest),
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case("https") => (false, rest),
        Some((scheme, _)) => {
            let scheme = scheme.to_ascii_lowercase();
            return Err(if OTHER_SCHEMES.contains(&scheme.as_str()) {
                format!("{scheme}:// proxies are not supported, only http:// ones")
            } else {
                "its scheme is not http".to_owned()
            });
        }
    };
    let authority = rest
        .split_once(['/', '?', '#'])
        .map_or(rest, |(authority, _)| authority);
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    if user.is_some() && !may_prove {
        return Err("its scheme is https, but it is asked without TLS, which would show its credentials to everybody: use http://, or none".to_owned());
    }
    let (host, port) = host_and_port(host)?;
    Ok(Proxy {
        host,
        port,
        authorization: user.map(basic).transpose()?,
    })
}

fn host_and_port(text: &str) -> Result<(String, u16), String> {
    let (host, port) = match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        Some((address, rest)) => {
            if address.parse::<Ipv6Addr>().is_err() {
                return Err("what stands in brackets is no IPv6 address".to_owned());
            }
            let port = match rest {
                "" => None,
                rest => Some(rest.strip_prefix(':').ok_or("it names no host and port")?),
            };
            (address, port)
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err("it names no host".to_owned());
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    if !host.bytes().all(fits) {
        return Err("its host is neither a name nor an address".to_owned());
    }
    let port = match port {
        None | Some("") => DEFAULT_PORT,
        Some(port) => match port.parse() {
            Ok(number) if number != 0 => number,
            _ => return Err("its port is no number from 1 to 65535".to_owned()),
        },
    };
    Ok((host.to_owned(), port))
}

/// `Basic` credentials (RFC 7617) from the user information of a URL.
fn basic(user_information: &str) -> Result<Authorization, String> {
    let (user, password) = user_information
        .split_once(':')
        .unwrap_or((user_information, ""));
    let mut plain = decoded(user)?;
    plain.push(b':');
    plain.extend_from_slice(&decoded(password)?);
    let encoded = Zeroizing::new(STANDARD.encode(plain.as_slice()));
    Ok(Authorization(Zeroizing::new(format!(
        "Basic {}",
        encoded.as_str()
    ))))
}

/// Undoes percent-encoding.
fn decoded(text: &str) -> Result<Zeroizing<Vec<u8>>, String> {
    let mut plain = Zeroizing::new(Vec::with_capacity(text.len() + 1));
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            plain.push(byte);
            continue;
        }
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        let value = digit()
            .zip(digit())
            .and_then(|(high, low)| u8::try_from(high << 4 | low).ok());
        plain.push(value.ok_or("a % in its user information is not followed by two hex digits")?);
    }
    Ok(plain)
}

impl Exceptions {
    /// Reads the comma list. Entries without meaning are passed over, as Go does.
    pub(super) fn parse(list: &str) -> Self {
        Self(list.split(',').filter_map(Exception::parse).collect())
    }

    /// Whether `host` (IPv6 without brackets) and `port` are reached without a proxy. The loopback always is.
    pub(super) fn cover(&self, host: &str, port: u16) -> bool {
        let host = host.trim().to_ascii_lowercase();
        let address = host
            .parse::<IpAddr>()
            .ok()
            .map(|address| address.to_canonical());
        host == "localhost"
            || address.is_some_and(|address| address.is_loopback())
            || self
                .0
                .iter()
                .any(|exception| exception.covers(&host, address, port))
    }
}

impl Exception {
    fn parse(entry: &str) -> Option<Self> {
        let entry = entry.trim().to_ascii_lowercase();
        if entry == "*" {
            return Some(Self::Everything);
        }
        if let Some((address, bits)) = entry.split_once('/')
            && let (Ok(address), Ok(bits)) = (address.parse::<IpAddr>(), bits.parse())
            && bits <= width(address)
        {
            return Some(Self::Network(address, bits));
        }
        if let Ok(address) = entry.parse::<IpAddr>() {
            return Some(Self::Address(address.to_canonical(), None));
        }
        let (host, port) = match entry.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok()?)),
            None => (entry.as_str(), None),
        };
        let host = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host);
        if let Ok(address) = host.parse::<IpAddr>() {
            return Some(Self::Address(address.to_canonical(), port));
        }
        let host = match host.strip_prefix('*') {
            Some(rest) if rest.starts_with('.') => rest,
            _ => host,
        };
        if host.is_empty() {
            return None;
        }
        let itself = !host.starts_with('.');
        let dotted = if itself {
            format!(".{host}")
        } else {
            host.to_owned()
        };
        Some(Self::Domain {
            dotted,
            itself,
            port,
        })
    }

    fn covers(&self, host: &str, address: Option<IpAddr>, port: u16) -> bool {
        let here = |wanted: &Option<u16>| wanted.is_none_or(|wanted| wanted == port);
        match self {
            Self::Everything => true,
            Self::Address(wanted, at) => address == Some(*wanted) && here(at),
            Self::Network(network, bits) => {
                address.is_some_and(|address| is_within(address, *network, *bits))
            }
            Self::Domain {
                dotted,
                itself,
                port,
            } => {
                let is_it = *itself && dotted.strip_prefix('.') == Some(host);
                (is_it || host.ends_with(dotted)) && here(port)
            }
        }
    }
}

fn width(address: IpAddr) -> u32 {
    match address {
        IpAddr::V4(_) => u32::BITS,
        IpAddr::V6(_) => u128::BITS,
    }
}

/// Whether the leading bits agree.
fn is_within(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    let (difference, width) = match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            (u128::from(address.to_bits() ^ network.to_bits()), u32::BITS)
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            (address.to_bits() ^ network.to_bits(), u128::BITS)
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
    };
    difference.checked_shr(width - bits).unwrap_or(0) == 0
}

impl Head {
    /// Takes one more byte; true at the end of the head.
    pub(super) fn push(&mut self, byte: u8) -> bool {
        self.bytes.push(byte);
        self.bytes.ends_with(b"\r\n\r\n") || self.bytes.ends_with(b"\n\n")
    }

    /// How many bytes there are.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the tunnel stands: the answer is an HTTP/1 one and its status 200.
    pub(super) fn verdict(&self) -> Result<(), String> {
        let line = self.bytes.split(|byte| *byte == b'\n').next();
        let status = line
            .and_then(|line| std::str::from_utf8(line).ok())
            .and_then(|line| {
                let mut words = line.split_ascii_whitespace();
                let version = words.next()?;
                let status: u16 = words.next()?.parse().ok()?;
                (version.starts_with("HTTP/1.") && (100..600).contains(&status)).then_some(status)
            });
        match status {
            Some(200) => Ok(()),
            Some(407) => {
                Err("it refused a tunnel: status 407, it wants other credentials".to_owned())
            }
            Some(status) => Err(format!("it refused a tunnel: status {status}")),
            None => Err("its answer is not that of an HTTP proxy".to_owned()),
        }
    }
}
