//! Which proxy leads to a host, by the environment, as Go's `http.ProxyFromEnvironment` has it (node-side 7.1), and the request for a tunnel.
//! Decisions are in [`rules`].

use std::fmt;
use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use zeroize::Zeroizing;

use self::rules::{Exceptions, Head};

mod rules;

/// Largest answer to `CONNECT`, up to the end of its header, in bytes.
const MAX_HEAD: usize = 16 << 10;
const AGENT: &str = concat!("edge-agent/", env!("CARGO_PKG_VERSION"));

/// The proxies that the environment names. Empty when it names none.
#[derive(Debug, Clone, Default)]
pub struct Proxies {
    /// An error counts where the proxy would be asked, not before.
    https: Option<Result<Proxy, ProxyError>>,
    exceptions: Exceptions,
}

/// One HTTP proxy that is asked to `CONNECT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proxy {
    /// Name or address, IPv6 without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    authorization: Option<Authorization>,
}

/// Value of `Proxy-Authorization`.
#[derive(Clone, PartialEq, Eq)]
struct Authorization(Zeroizing<String>);

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorization")
    }
}

/// Why a variable names no usable proxy. Names the variable, never its value: it may hold a password.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("environment variable {variable}: {reason}")]
pub struct ProxyError {
    /// Such as `HTTPS_PROXY`.
    pub variable: String,
    /// What is wrong with it.
    pub reason: String,
}

impl Proxies {
    /// Reads `HTTPS_PROXY`, `NO_PROXY` and their lower-case forms, which count where the others are unset or empty.
    pub fn from_environment(variable: &dyn Fn(&str) -> Option<String>) -> Self {
        let first_of = |names: [&'static str; 2]| {
            names.into_iter().find_map(|name| {
                let value = variable(name).filter(|value| !value.is_empty())?;
                Some((name, Zeroizing::new(value)))
            })
        };
        let https = first_of(["HTTPS_PROXY", "https_proxy"]).map(|(name, url)| {
            rules::proxy(&url).map_err(|reason| ProxyError {
                variable: name.to_owned(),
                reason,
            })
        });
        let exceptions = first_of(["NO_PROXY", "no_proxy"])
            .map(|(_, list)| Exceptions::parse(&list))
            .unwrap_or_default();
        Self { https, exceptions }
    }

    /// The proxy for TLS connections to `host` (IPv6 without brackets) and `port`; none = go straight. The loopback is never behind one.
    pub fn for_target(&self, host: &str, port: u16) -> Result<Option<&Proxy>, ProxyError> {
        let https = self.https.as_ref();
        let asked = https.filter(|_| !self.exceptions.cover(host, port));
        asked.map(Result::as_ref).transpose().map_err(Clone::clone)
    }
}

impl Proxy {
    /// Asks the proxy at the other end of `stream` for a tunnel to `target` (`host:port`, IPv6 in brackets). The caller limits the time.
    /// An error carries the proxy's status, never what else it says.
    pub async fn tunnel(&self, mut stream: TcpStream, target: &str) -> io::Result<TcpStream> {
        self.ask(&mut stream, target).await?;
        Ok(stream)
    }

    async fn ask(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        target: &str,
    ) -> io::Result<()> {
        if !target.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(io::Error::other("the target is no host and port"));
        }
        stream.write_all(self.request(target).as_bytes()).await?;
        stream.flush().await?;
        let mut head = Head::default();
        loop {
            // Byte by byte: what follows the head belongs to the tunnel.
            let byte = match stream.read_u8().await {
                Ok(byte) => byte,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(io::Error::other(
                        "it hung up before its answer was complete",
                    ));
                }
                Err(error) => return Err(error),
            };
            if head.push(byte) {
                return head.verdict().map_err(io::Error::other);
            }
            if head.len() >= MAX_HEAD {
                return Err(io::Error::other(format!(
                    "the header of its answer is longer than {MAX_HEAD} bytes"
                )));
            }
        }
    }

    fn request(&self, target: &str) -> Zeroizing<String> {
        let authorization = match &self.authorization {
            Some(Authorization(value)) => {
                Zeroizing::new(format!("Proxy-Authorization: {}\r\n", value.as_str()))
            }
            None => Zeroizing::default(),
        };
        Zeroizing::new(format!(
            "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\nUser-Agent: {AGENT}\r\n{}\r\n",
            authorization.as_str()
        ))
    }
}

#[cfg(test)]
mod tests;
