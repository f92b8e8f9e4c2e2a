//! What a server is started with; nearly all of it can be changed while it runs (see `Control::configure`).

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::clock::Seconds;

/// The settings of a server. Changes take effect at the next handshake or call.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The trust domain's name, such as `example.org`. Fixed at the start.
    pub trust_domain: String,
    /// Where to listen; port 0 asks for a free one. Fixed at the start.
    pub bind: SocketAddr,
    /// Lifetime of an X.509 authority made from now on, and of a JWT key.
    pub ca_ttl: Seconds,
    /// Whether authorities made from now on sign through an intermediate.
    pub with_intermediate: bool,
    /// Lifetime of agent SVIDs.
    pub agent_ttl: Seconds,
    /// How long new agent SVIDs have already lived; `agent_ttl` is then what is left.
    pub agent_svid_age: Seconds,
    /// Lifetime of workload X.509-SVIDs whose entry names none.
    pub svid_ttl: Seconds,
    /// How long new workload X.509-SVIDs have already lived; the lifetime is then what is left.
    pub svid_age: Seconds,
    /// Lifetime of JWT-SVIDs whose entry names none.
    pub jwt_ttl: Seconds,
    /// The name in the server's own certificate.
    pub server_name: ServerName,
    /// Lifetime of the server's own certificate; negative for one that is over.
    pub server_ttl: Seconds,
    /// The generation of the CA that signs the server's own certificate; the active one if `None`.
    pub server_generation: Option<usize>,
    /// How far this server's clock is ahead of the real one.
    pub clock_offset: Seconds,
    /// How x509pop judges node certificates.
    pub x509pop: X509pop,
    /// Whether x509pop agents may attest again (3.4: if so, `RenewAgent` is refused with `MUST_REATTEST`).
    pub can_reattest: bool,
    /// The least gap between two attestations; later ones wait, as at a server with its limits on.
    pub attestation_gap: Option<Duration>,
    /// How `PostStatus` is answered.
    pub post_status: PostStatus,
    /// How `SyncAuthorizedEntries` is answered.
    pub sync_shape: SyncShape,
    /// Entries or revisions in one message of `SyncAuthorizedEntries`; 500 at a real server.
    pub page_size: usize,
    /// After which age a connection gets a GOAWAY.
    pub connection_age: Option<Duration>,
    /// The bundle's refresh hint.
    pub refresh_hint: Seconds,
}

impl Settings {
    /// Settings for tests: a free local port, an hour for SVIDs, a day for authorities, five minutes for JWTs.
    pub fn new(trust_domain: &str) -> Self {
        Self {
            trust_domain: trust_domain.to_owned(),
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            ca_ttl: 86_400,
            with_intermediate: false,
            agent_ttl: 3600,
            agent_svid_age: 0,
            svid_ttl: 3600,
            svid_age: 0,
            jwt_ttl: 300,
            server_name: ServerName::Server,
            server_ttl: 3600,
            server_generation: None,
            clock_offset: 0,
            x509pop: X509pop::default(),
            can_reattest: true,
            attestation_gap: None,
            post_status: PostStatus::Denied,
            sync_shape: SyncShape::ByCount,
            page_size: 500,
            connection_age: None,
            refresh_hint: 0,
        }
    }
}

/// The single name in the server's certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerName {
    /// `spiffe://TRUST_DOMAIN/spire/server`.
    Server,
    /// Another URI.
    Uri(String),
    /// A DNS name and no URI at all.
    Dns(String),
}

/// The server half of the x509pop attestor's configuration.
#[derive(Clone, Debug)]
pub struct X509pop {
    /// Which roots count and where the agent's path comes from.
    pub mode: X509popMode,
    /// PEM roots of node certificates; unused in [`X509popMode::Spiffe`].
    pub roots_pem: String,
    /// The last part of the agent's path.
    pub agent_path: AgentPath,
    /// Most certificates after the leaf; no limit at v1.13.3, 4 later.
    pub max_intermediates: Option<usize>,
}

impl Default for X509pop {
    fn default() -> Self {
        Self {
            mode: X509popMode::ExternalPki,
            roots_pem: String::new(),
            agent_path: AgentPath::Fingerprint,
            max_intermediates: None,
        }
    }
}

/// The mode of x509pop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum X509popMode {
    /// Node certificates come from a CA of their own.
    ExternalPki,
    /// Node certificates are SVIDs of this trust domain; their path must start with `prefix`.
    Spiffe {
        /// Such as `/spire-exchange/`.
        prefix: String,
    },
}

/// What `agent_path_template` says in mode `external_pki`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentPath {
    /// The default: `/x509pop/<SHA-1 of the leaf>`.
    Fingerprint,
    /// `/x509pop/<common name>`, which survives a new node certificate.
    CommonName,
}

/// How `PostStatus` is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostStatus {
    /// `PERMISSION_DENIED` without details, as v1.13.3 does.
    Denied,
    /// OK.
    Accepted,
    /// UNIMPLEMENTED.
    Unimplemented,
}

/// How `SyncAuthorizedEntries` is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncShape {
    /// Full entries up to one page, revisions beyond.
    ByCount,
    /// Always full entries in one message.
    Full,
    /// Always revisions first, even for one entry.
    Revisions,
}
