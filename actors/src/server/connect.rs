//! Opens connections to the server: name, address, TCP, TLS, HTTP/2. Every step has a time limit of its own.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::uri::Authority;
use rustix::net::sockopt;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::ServerError;
use super::link::{Link, LinkLimits, Need};
use super::status::{is_about_certificates, rejected, unreachable};
use super::verify::{Rejection, ServerVerifier, Verdict};
use crate::clock::Clock;
use crate::credentials::ServerTrust;
use crate::random::Random;
use crate::spiffe_id::SpiffeId;
use crate::svid::X509Svid;
use crate::wire::Wire;

/// The one application protocol that gRPC servers take.
const ALPN: &[u8] = b"h2";
/// Dead peers: probes after this time without traffic, this far apart; sent bytes that nobody acknowledges for that long.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;
const USER_TIMEOUT_MS: u32 = 30_000;

/// How long the steps to a connection may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectLimits {
    /// Resolving the name.
    pub(super) resolve: Duration,
    /// TCP, for each address.
    pub(super) connect: Duration,
    /// TLS.
    pub(super) handshake: Duration,
}

/// Opens connections to one server.
#[derive(Debug)]
pub(super) struct Dialer {
    host: String,
    port: u16,
    /// Address and port for messages, IPv6 in brackets.
    peer: String,
    authority: Authority,
    server_name: ServerName<'static>,
    server_id: SpiffeId,
    clock: Clock,
    random: RefCell<Random>,
    provider: Arc<CryptoProvider>,
    limits: ConnectLimits,
    link_limits: LinkLimits,
}

/// An open connection. Ends when the last owner of its wire is gone and nothing runs on it.
#[derive(Debug)]
pub(super) struct Connection {
    link: Arc<Link>,
    wire: Wire,
}

impl Dialer {
    /// Prepares for the server at `host` (a name or an address, IPv6 with or without brackets).
    pub(super) fn new(
        (host, port): (&str, u16),
        server_id: SpiffeId,
        clock: Clock,
        random: Random,
        (limits, link_limits): (ConnectLimits, LinkLimits),
    ) -> Self {
        let host = host
            .strip_prefix('[')
            .and_then(|inner| inner.strip_suffix(']'))
            .unwrap_or(host)
            .to_owned();
        let peer = if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        };
        Self {
            authority: Authority::from_maybe_shared(peer.clone())
                .unwrap_or_else(|_| Authority::from_static("spire-server")),
            // A name that TLS cannot carry goes without: the server ignores it (node-side 1.3).
            server_name: ServerName::try_from(host.clone()).unwrap_or(ServerName::IpAddress(
                IpAddr::V4(Ipv4Addr::UNSPECIFIED).into(),
            )),
            provider: Arc::new(rustls::crypto::ring::default_provider()),
            random: RefCell::new(random),
            host,
            port,
            peer,
            server_id,
            clock,
            limits,
            link_limits,
        }
    }

    /// Address and port for messages.
    pub(super) fn peer(&self) -> &str {
        &self.peer
    }

    /// Opens a connection, with the agent's certificate where one is given.
    pub(super) async fn dial(
        &self,
        trust: ServerTrust,
        svid: Option<&X509Svid>,
    ) -> Result<Connection, ServerError> {
        let verdict = Verdict::default();
        let config = self.tls_config(trust, svid, verdict.clone())?;
        let tcp = self.connect().await?;
        let handshake = TlsConnector::from(Arc::new(config)).connect(self.server_name.clone(), tcp);
        let tls = match timeout(self.limits.handshake, handshake).await {
            Ok(Ok(tls)) => tls,
            Ok(Err(error)) => {
                return Err(self.handshake_error(&error, verdict.take(), svid.is_some()));
            }
            Err(_) => {
                return Err(self.unreachable(format!(
                    "TLS handshake took longer than {:?}",
                    self.limits.handshake
                )));
            }
        };
        if tls.get_ref().1.alpn_protocol() != Some(ALPN) {
            return Err(self.unreachable("it does not speak HTTP/2 (no ALPN protocol h2)"));
        }
        self.open(tls).await
    }

    async fn open(&self, tls: TlsStream<TcpStream>) -> Result<Connection, ServerError> {
        let (link, stream) = Link::wrap(tls, self.link_limits);
        let wire = Wire::open(stream, self.authority.clone())
            .await
            .map_err(|error| self.unreachable(error.to_string()))?;
        Ok(Connection { link, wire })
    }

    /// Tries all addresses in random order, one after the other.
    async fn connect(&self) -> Result<TcpStream, ServerError> {
        let lookup = timeout(
            self.limits.resolve,
            tokio::net::lookup_host((self.host.as_str(), self.port)),
        )
        .await;
        let mut addresses: Vec<SocketAddr> = match lookup {
            Ok(Ok(found)) => found.collect(),
            Ok(Err(error)) => {
                return Err(self.unreachable(format!("unable to resolve its name: {error}")));
            }
            Err(_) => {
                return Err(self.unreachable(format!(
                    "resolving its name took longer than {:?}",
                    self.limits.resolve
                )));
            }
        };
        self.random.borrow_mut().shuffle(&mut addresses);
        let mut failures = Vec::new();
        for address in addresses {
            match timeout(self.limits.connect, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    if let Err(error) = tune(&stream) {
                        tracing::debug!(%error, "unable to set socket options");
                    }
                    return Ok(stream);
                }
                Ok(Err(error)) => failures.push(format!("{address}: {error}")),
                Err(_) => failures.push(format!(
                    "{address}: no connection within {:?}",
                    self.limits.connect
                )),
            }
        }
        if failures.is_empty() {
            failures.push("its name has no address".to_owned());
        }
        Err(self.unreachable(failures.join("; ")))
    }

    fn tls_config(
        &self,
        trust: ServerTrust,
        svid: Option<&X509Svid>,
        verdict: Verdict,
    ) -> Result<rustls::ClientConfig, ServerError> {
        let verifier = ServerVerifier {
            trust,
            expected: self.server_id.clone(),
            clock: self.clock.clone(),
            algorithms: self.provider.signature_verification_algorithms,
            verdict,
        };
        let builder = rustls::ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| self.unreachable(error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match svid {
            None => builder.with_no_client_auth(),
            Some(svid) => {
                let chain = svid
                    .chain()
                    .iter()
                    .map(|certificate| CertificateDer::from(certificate.der().to_vec()))
                    .collect();
                let signer = svid
                    .key
                    .tls_signer()
                    .map_err(|error| self.unreachable(format!("agent key is unusable: {error}")))?;
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(
                    CertifiedKey::new(chain, signer),
                )))
            }
        };
        config.alpn_protocols = vec![ALPN.to_vec()];
        // Both sides' certificates are to be looked at in each handshake.
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    fn handshake_error(
        &self,
        error: &io::Error,
        rejection: Option<Rejection>,
        with_certificate: bool,
    ) -> ServerError {
        let peer = self.peer.clone();
        match rejection {
            Some(Rejection::UnknownAuthority) => return ServerError::UnknownAuthority { peer },
            Some(Rejection::Untrusted(reason)) => return ServerError::Untrusted { peer, reason },
            None => {}
        }
        match error.get_ref().and_then(|inner| inner.downcast_ref()) {
            Some(rustls::Error::AlertReceived(alert))
                if with_certificate && is_about_certificates(*alert) =>
            {
                rejected(&peer, *alert)
            }
            Some(rustls::Error::InvalidCertificate(reason)) => ServerError::Untrusted {
                peer,
                reason: reason.to_string(),
            },
            _ => self.unreachable(format!("TLS handshake failed: {error}")),
        }
    }

    fn unreachable(&self, reason: impl Into<String>) -> ServerError {
        unreachable(&self.peer, reason)
    }
}

impl Connection {
    /// What tonic's clients send over.
    pub(super) fn wire(&self) -> Wire {
        self.wire.clone()
    }

    /// Whether a new call has a chance.
    pub(super) fn is_usable(&self) -> bool {
        !self.link.is_over() && !self.wire.is_closed()
    }

    /// Keeps the connection open until the result is dropped.
    pub(super) fn needed(&self, in_silence: bool) -> Need {
        self.link.needed(in_silence)
    }

    /// Ends the connection at once.
    pub(super) fn sever(&self) {
        self.link.sever();
    }

    /// The TLS alert that ended the connection.
    pub(super) fn alert(&self) -> Option<rustls::AlertDescription> {
        self.link.alert()
    }

    /// Returns once nothing has been read for `limit`, counted from now.
    pub(super) async fn silence(&self, limit: Duration) {
        let mut quiet_since = Instant::now();
        loop {
            tokio::time::sleep_until(quiet_since + limit).await;
            match self.link.last_read() {
                Some(last_read) if last_read > quiet_since => quiet_since = last_read,
                _ => return,
            }
        }
    }

    /// Returns if the server has not sent a single byte `limit` from now.
    pub(super) async fn stillbirth(&self, limit: Duration) {
        tokio::time::sleep(limit).await;
        if self.link.last_read().is_some() {
            std::future::pending::<()>().await;
        }
    }
}

/// Socket options. The kernel notices a dead peer without waking us.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(stream, USER_TIMEOUT_MS)?;
    Ok(())
}
