//! TLS as a SPIRE server does it: its own SVID, and a client certificate that is asked for but not required.

use std::sync::Arc;
use std::time::Duration;

use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use crate::authorize::PeerCertificate;
use crate::ca::{Authorities, Leaf, NOT_BEFORE_CUSHION, Signer};
use crate::certificate::{Issuer, hex};
use crate::clock::{self, Seconds};
use crate::entries;
use crate::settings::ServerName;
use crate::state::State;
use crate::x509pop::uris;

/// The server's clock for TLS.
#[derive(Debug)]
struct ServerClock {
    offset: Seconds,
}

impl TimeProvider for ServerClock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = clock::unix_now(self.offset).try_into().ok()?;
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

/// The configuration for one handshake, with a new key and a certificate that follows the settings of this moment.
///
/// # Errors
/// A message where the settings make no working certificate.
pub(crate) fn server_config(
    state: &State,
    refuses_certificates: bool,
) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server_clock = Arc::new(ServerClock {
        offset: state.settings.clock_offset,
    });
    let (chain, key) = server_certificate(state);
    // An authority made for this handshake alone has signed nobody's certificate.
    let stranger = refuses_certificates
        .then(|| Authorities::new(&state.settings.trust_domain, 3600, false, state.now()));
    let roots = stranger
        .as_ref()
        .unwrap_or(&state.authorities)
        .client_roots(state.now());
    let builder = ServerConfig::builder_with_details(Arc::clone(&provider), server_clock)
        .with_safe_default_protocol_versions()?;
    let builder = match client_verifier(roots, provider)? {
        Some(verifier) => builder.with_client_cert_verifier(verifier),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Verifies client certificates against `roots`; nothing where no root is left.
fn client_verifier(
    roots: Vec<Vec<u8>>,
    provider: Arc<rustls::crypto::CryptoProvider>,
) -> Result<Option<Arc<dyn ClientCertVerifier>>, rustls::Error> {
    let mut store = RootCertStore::empty();
    for root in roots {
        store.add(CertificateDer::from(root))?;
    }
    if store.is_empty() {
        return Ok(None);
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(store), provider)
        .allow_unauthenticated()
        .build()
        .map(Some)
        .map_err(|error| rustls::Error::General(error.to_string()))
}

fn server_certificate(state: &State) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let settings = &state.settings;
    let now = state.now();
    let holder = Issuer::generate(Vec::new());
    let (uris, dns_names) = match &settings.server_name {
        ServerName::Server => (vec![entries::server_id(&settings.trust_domain)], Vec::new()),
        ServerName::Uri(uri) => (vec![uri.clone()], Vec::new()),
        ServerName::Dns(name) => (Vec::new(), vec![name.clone()]),
    };
    let leaf = Leaf {
        public_key: holder.public_key(),
        uris,
        dns_names,
        not_before: now - NOT_BEFORE_CUSHION,
        not_after: now + settings.server_ttl,
    };
    let signer = settings
        .server_generation
        .map_or(Signer::Active, Signer::Generation);
    let issued = state.authorities.issue(signer, leaf);
    let chain = issued.chain.into_iter().map(CertificateDer::from).collect();
    let key = PrivatePkcs8KeyDer::from(holder.expose_pkcs8().to_vec());
    (chain, PrivateKeyDer::Pkcs8(key))
}

/// What matters of a client's certificate; nothing where it has not exactly one URI.
pub(crate) fn peer_certificate(leaf: &CertificateDer<'_>) -> Option<PeerCertificate> {
    let (_, leaf) = X509Certificate::from_der(leaf).ok()?;
    let [id] = <[String; 1]>::try_from(uris(&leaf)).ok()?;
    let serial = leaf.raw_serial();
    Some(PeerCertificate {
        id,
        serial: hex(serial.strip_prefix(&[0]).unwrap_or(serial)),
        not_after: leaf.validity().not_after.timestamp(),
    })
}
