//! The server's address as it is configured, in the forms that name resolution, TLS, HTTP and messages want it in. Pure.

use std::net::{IpAddr, Ipv6Addr};

use http::uri::Authority;
use rustls::pki_types::ServerName;

use super::status::clean;

/// Why the configured address of the server leads nowhere.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("server address \"{address}\" {problem}")]
pub struct AddressError {
    /// The address, with odd characters escaped.
    pub address: String,
    /// What is wrong with it.
    pub problem: &'static str,
}

/// Where the server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerAddress {
    /// A name or an address, IPv6 without brackets.
    pub(super) host: String,
    /// Its port.
    pub(super) port: u16,
    /// Address and port for messages and proxies, IPv6 in brackets.
    pub(super) peer: String,
    /// `:authority` of the requests.
    pub(super) authority: Authority,
    /// What TLS is told; no SNI is sent for an IP address (node-side 1.3).
    pub(super) name: ServerName<'static>,
}

impl ServerAddress {
    /// Reads an address (a name or an IP address, IPv6 with or without brackets).
    pub(super) fn parse(address: &str, port: u16) -> Result<Self, AddressError> {
        let wrong = |problem| AddressError {
            address: clean(address),
            problem,
        };
        let inner = address
            .strip_prefix('[')
            .and_then(|inner| inner.strip_suffix(']'));
        let host = inner.unwrap_or(address);
        let ip = host.parse::<IpAddr>().ok();
        if host.is_empty() {
            return Err(wrong("is empty"));
        }
        if host.contains('%') {
            return Err(wrong(
                "has a zone: link-local addresses are not supported, a name for the address in /etc/hosts is",
            ));
        }
        if (inner.is_some() || host.contains(':')) && host.parse::<Ipv6Addr>().is_err() {
            return Err(wrong("is no IPv6 address (a port belongs in server_port)"));
        }
        let peer = if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        };
        let name = match ip {
            Some(ip) => ServerName::IpAddress(ip.into()),
            None => ServerName::try_from(host.to_owned())
                .map_err(|_| wrong("is neither a host name nor an IP address"))?,
        };
        let authority = Authority::from_maybe_shared(peer.clone())
            .map_err(|_| wrong("is neither a host name nor an IP address"))?;
        Ok(Self {
            host: host.to_owned(),
            port,
            peer,
            authority,
            name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_in_all_its_forms() {
        let table = [
            ("server.test", "server.test", "server.test:8081", true),
            ("server.test.", "server.test.", "server.test.:8081", true),
            ("spire_server", "spire_server", "spire_server:8081", true),
            ("192.0.2.1", "192.0.2.1", "192.0.2.1:8081", false),
            ("2001:db8::1", "2001:db8::1", "[2001:db8::1]:8081", false),
            ("[2001:db8::1]", "2001:db8::1", "[2001:db8::1]:8081", false),
        ];

        for (address, host, peer, has_name) in table {
            let parsed = ServerAddress::parse(address, 8081).unwrap();

            assert_eq!((parsed.host.as_str(), parsed.peer.as_str()), (host, peer));
            assert_eq!(parsed.authority.as_str(), peer);
            assert_eq!(matches!(parsed.name, ServerName::DnsName(_)), has_name);
        }
    }

    #[test]
    fn an_address_that_leads_nowhere_is_refused_by_name() {
        let long = "a".repeat(300);
        let table = [
            ("", "empty"),
            ("[]", "empty"),
            ("fe80::1%eth0", "zone"),
            ("[fe80::1%eth0]", "zone"),
            ("server.test:8081", "server_port"),
            ("[2001:db8::1]:8081", "server_port"),
            ("[server.test]", "server_port"),
            ("2001:db8::1::", "server_port"),
            ("server test", "neither"),
            ("server\ntest", "neither"),
            ("user@server.test", "neither"),
            ("https://server.test", "server_port"),
            ("servér.test", "neither"),
            (long.as_str(), "neither"),
            (".", "neither"),
        ];

        for (address, problem) in table {
            let error = ServerAddress::parse(address, 8081).unwrap_err();

            let text = error.to_string();
            assert!(text.contains(problem), "{address:?}: {text}");
            assert!(!text.contains('\n'));
        }
    }
}
