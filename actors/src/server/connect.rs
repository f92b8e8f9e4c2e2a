//! Opens connections to the server: TLS and HTTP/2 over what [`route`](super::route) opens. Every step has a time limit of its own, and there
//! are never more than [`MAX_CONNECTIONS`].

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::SupportedProtocolVersion;
use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::ServerError;
use super::link::{Link, LinkLimits, Need, Patience};
use super::post_quantum;
use super::route::Route;
use super::status::{is_about_certificates, rejected, unreachable};
use super::verify::{Rejection, ServerVerifier, Verdict};
use crate::clock::Clock;
use crate::credentials::ServerTrust;
use crate::spiffe_id::SpiffeId;
use crate::svid::X509Svid;
use crate::wire::Wire;

/// The one application protocol that gRPC servers take.
const ALPN: &[u8] = b"h2";
/// The one version that carries a post-quantum key exchange.
const ONLY_TLS_13: &[&SupportedProtocolVersion] = &[&TLS13];
/// Connections to the server at any time: the shared one, and that of an attestation. One that is to replace another waits for its end.
const MAX_CONNECTIONS: usize = 2;

/// Opens connections to one server.
#[derive(Debug)]
pub(super) struct Dialer {
    route: Route,
    server_id: SpiffeId,
    clock: Clock,
    provider: Arc<CryptoProvider>,
    require_pq_kem: bool,
    handshake_limit: Duration,
    link_limits: LinkLimits,
    places: Arc<Semaphore>,
}

/// An open connection. Ends when the last owner of its wire is gone and nothing runs on it.
#[derive(Debug)]
pub(super) struct Connection {
    link: Arc<Link>,
    wire: Wire,
}

impl Dialer {
    /// Prepares for the server at the other end of `route`.
    pub(super) fn new(
        route: Route,
        server_id: SpiffeId,
        clock: Clock,
        require_pq_kem: bool,
        (handshake_limit, link_limits): (Duration, LinkLimits),
    ) -> Self {
        Self {
            route,
            server_id,
            clock,
            provider: Arc::new(post_quantum::provider(require_pq_kem)),
            require_pq_kem,
            handshake_limit,
            link_limits,
            places: Arc::new(Semaphore::new(MAX_CONNECTIONS)),
        }
    }

    /// Address and port for messages.
    pub(super) fn peer(&self) -> &str {
        &self.route.address().peer
    }

    /// Whether another connection has to wait for the end of one of those that there are.
    pub(super) fn is_full(&self) -> bool {
        self.places.available_permits() == 0
    }

    /// Opens a connection, with the agent's certificate where one is given.
    pub(super) async fn dial(
        &self,
        trust: ServerTrust,
        svid: Option<&X509Svid>,
    ) -> Result<Connection, ServerError> {
        let verdict = Verdict::default();
        let config = self.tls_config(trust, svid, verdict.clone())?;
        // Dropped on each way out, else with the stream: never closed, so that the error is none.
        let place = Arc::clone(&self.places).acquire_owned().await.ok();
        let tcp = self
            .route
            .connect()
            .await
            .map_err(|problem| self.unreachable(problem))?;
        let handshake =
            TlsConnector::from(Arc::new(config)).connect(self.route.address().name.clone(), tcp);
        let tls = match timeout(self.handshake_limit, handshake).await {
            Ok(Ok(tls)) => tls,
            Ok(Err(error)) => {
                return Err(self.handshake_error(&error, verdict.take(), svid.is_some()));
            }
            Err(_) => {
                return Err(self.unreachable(format!(
                    "TLS handshake took longer than {:?}",
                    self.handshake_limit
                )));
            }
        };
        if tls.get_ref().1.alpn_protocol() != Some(ALPN) {
            return Err(self.unreachable("it does not speak HTTP/2 (no ALPN protocol h2)"));
        }
        let (link, stream) = Link::wrap(tls, self.link_limits, place);
        let wire = Wire::open(stream, self.route.address().authority.clone())
            .await
            .map_err(|error| self.unreachable(error.to_string()))?;
        Ok(Connection { link, wire })
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
        let versions = if self.require_pq_kem {
            ONLY_TLS_13
        } else {
            rustls::DEFAULT_VERSIONS
        };
        let builder = rustls::ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(versions)
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
        let peer = self.peer().to_owned();
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
            // Whatever the server says, that it has no such key exchange is the likeliest reason.
            _ if self.require_pq_kem => self.unreachable(format!(
                "TLS handshake failed: {error} (require_pq_kem is set: does the server have the post-quantum key exchange X25519MLKEM768?)"
            )),
            _ => self.unreachable(format!("TLS handshake failed: {error}")),
        }
    }

    fn unreachable(&self, reason: impl AsRef<str>) -> ServerError {
        unreachable(self.peer(), self.route.reason(reason.as_ref()))
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
    pub(super) fn needed(&self, patience: Patience) -> Need {
        self.link.needed(patience)
    }

    /// Ends the connection at once.
    pub(super) fn sever(&self) {
        self.link.sever();
    }

    /// The TLS alert that ended the connection.
    pub(super) fn alert(&self) -> Option<rustls::AlertDescription> {
        self.link.alert()
    }

    /// Returns if the server has not sent a single byte `limit` from now.
    pub(super) async fn stillbirth(&self, limit: Duration) {
        tokio::time::sleep(limit).await;
        if self.link.last_read().is_some() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.link.retire();
    }
}
