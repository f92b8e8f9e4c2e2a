//! What the agent proves itself with, as the attestor publishes it and the server connection reads it at each handshake.

use std::sync::Arc;

use tokio::sync::watch;

use crate::bundle::Bundle;
use crate::svid::X509Svid;

/// The agent's own identity and the anchors that its server is verified by.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// The agent SVID with its key.
    pub svid: Arc<X509Svid>,
    /// Whether a new one comes by attesting again (true) or by renewal (false).
    pub reattestable: bool,
    /// Authorities of the agent's trust domain.
    pub bundle: Arc<Bundle>,
}

/// How the server is verified before the agent has credentials.
#[derive(Debug, Clone)]
pub enum ServerTrust {
    /// Full verification by this bundle.
    Bundle(Arc<Bundle>),
    /// Only the ID in the certificate is compared (`insecure_bootstrap`).
    Insecure,
}

/// The reading end of the attestor's credentials; `None` until attested.
pub type CredentialsReader = watch::Receiver<Option<Arc<Credentials>>>;
/// The writing end, held by the attestor alone.
pub type CredentialsWriter = watch::Sender<Option<Arc<Credentials>>>;
