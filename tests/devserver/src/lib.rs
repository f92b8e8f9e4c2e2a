//! A SPIRE-compatible server for tests and for `edge-agent demo`: real attestation, real certificates, and a script
//! for everything that can go wrong.
//!
//! It owns a thread with a runtime of its own, so it runs beside any agent or test. What it does is in
//! [`Settings`]; what is done to it, and what it has seen, goes through [`Control`]. It shares no code with the agent,
//! so that both cannot be wrong in the same way.
//!
//! Pure files: `authorize` (who may call), `entries` (whose entries), `x509pop` (node attestation), `script` (faults and
//! counters), `generations`, `certificate` and `der`. The rest carries their decisions out: `transport` and `tls` (connections),
//! `dispatch` (one request), `services` (one file per API), `state` (one lock around all of it).

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

mod authorize;
mod ca;
mod certificate;
mod clock;
mod control;
mod conversation;
mod der;
mod dispatch;
mod entries;
mod generations;
mod jwt;
mod node_ca;
mod script;
mod services;
mod settings;
mod state;
mod tls;
mod transport;
mod x509pop;

pub use authorize::AgentRecord;
pub use clock::Seconds;
pub use control::Control;
pub use entries::{Entry, Parent};
pub use node_ca::{KeyKind, NodeCa, NodeFiles, NodeLeaf};
pub use proto::spire::api::types::permission_denied_details::Reason;
pub use script::{AttestTwist, Call, Fault, FederatedBundle, JwtTwist, SignTwist, SvidTwist, rpc};
pub use settings::{AgentPath, PostStatus, ServerName, Settings, SyncShape, X509pop, X509popMode};
pub use tonic::Code;
pub use transport::ConnectionFault;

use crate::state::{Shared, State};

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub struct DevServer {
    control: Control,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl DevServer {
    /// Starts a server; the port is open when this returns.
    ///
    /// # Errors
    /// When the port cannot be bound or the thread cannot be started.
    pub fn start(settings: Settings) -> io::Result<Self> {
        let bind = settings.bind;
        let shared = Arc::new(Shared::new(State::new(settings)));
        let (address, thread) = transport::start(Arc::clone(&shared), bind)?;
        Ok(Self {
            control: Control::new(shared),
            address,
            thread: Some(thread),
        })
    }

    /// Where the server listens, also after a restart.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// The X.509 authorities as PEM: what an agent takes as its bootstrap bundle.
    pub fn bundle_pem(&self) -> String {
        self.control.bundle_pem()
    }

    /// The handle that controls this server.
    pub fn control(&self) -> Control {
        self.control.clone()
    }
}

impl Drop for DevServer {
    fn drop(&mut self) {
        if self.control.end()
            && let Some(thread) = self.thread.take()
        {
            // A panic of the thread has been reported by the panic hook already.
            drop(thread.join());
        }
    }
}
