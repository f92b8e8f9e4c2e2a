//! `http_challenge`: the server fetches its nonce from the node over HTTP, which proves that the node answers under its name (node-side 2.6).
//!
//! Owns the names and ports as configured. The port is open for one attestation alone: [`listener`] opens it before the payload is made and closes
//! it with the proof. What is said and which names are good is in [`messages`].

use std::future::ready;
use std::rc::Rc;

use super::node::{Answer, Evidence, EvidenceError, NodeAttestor, Proof};
use listener::Listener;

mod listener;
mod messages;
#[cfg(test)]
mod tests;

/// Type string of the attestor.
const NAME: &str = "http_challenge";
/// Stands in for an empty response, which the server's plugin facade refuses.
const RESPONSE: &[u8] = b"\n";

/// Settings of `http_challenge`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpChallengeConfig {
    /// The name under which the server reaches this node; without one it is the name of the host.
    pub hostname: Option<String>,
    /// Tells agents of one host apart.
    pub agentname: String,
    /// The TCP port to listen on; 0: any that is free.
    pub port: u16,
    /// The TCP port that the server connects to; without one it is the port listened on.
    pub advertised_port: Option<u16>,
}

/// Attestation by an answer over HTTP.
#[derive(Debug)]
pub struct HttpChallenge {
    config: HttpChallengeConfig,
}

/// An open port with a name for it.
#[derive(Debug)]
struct Answering {
    payload: Vec<u8>,
    listener: Listener,
}

impl HttpChallenge {
    /// Takes the settings as they are; [`HttpChallenge::check`] judges them.
    pub fn new(config: HttpChallengeConfig) -> Self {
        Self { config }
    }

    /// Whether a server would take the names, so that a mistake ends the start and not the first attestation.
    pub fn check(&self) -> Result<(), EvidenceError> {
        self.hostname().map(drop)
    }

    /// The name for the payload, once both names are found good.
    fn hostname(&self) -> Result<String, EvidenceError> {
        let hostname = match &self.config.hostname {
            Some(hostname) => hostname.clone(),
            None => rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
        };
        messages::check_hostname(&hostname)
            .and_then(|()| messages::check_agentname(&self.config.agentname))
            .map_err(EvidenceError::Unprepared)?;
        Ok(hostname)
    }

    fn listen(&self) -> Result<Answering, EvidenceError> {
        let hostname = self.hostname()?;
        let HttpChallengeConfig {
            agentname,
            port,
            advertised_port,
            ..
        } = &self.config;
        let listener = Listener::open(*port, messages::path(agentname)).map_err(|error| {
            EvidenceError::Unprepared(format!("could not listen on port {port}: {error}"))
        })?;
        let port = advertised_port.unwrap_or(listener.port());
        tracing::debug!(port = listener.port(), "waiting for the server's challenge");
        Ok(Answering {
            payload: messages::payload(&hostname, agentname, port),
            listener,
        })
    }
}

impl NodeAttestor for HttpChallenge {
    fn name(&self) -> &'static str {
        NAME
    }

    /// A server that trusts on first use says no by itself, until an operator evicts the agent.
    fn may_attest_again(&self) -> bool {
        true
    }

    /// Called on the actors' thread: the port is served by a task there.
    fn prepare(self: Rc<Self>) -> Evidence {
        Box::pin(async move {
            let answering = self.listen()?;
            Ok(Box::new(answering) as Box<dyn Proof>)
        })
    }
}

impl Proof for Answering {
    fn attestor_name(&self) -> &'static str {
        NAME
    }

    fn payload(&self) -> Vec<u8> {
        self.payload.clone()
    }

    fn respond<'a>(&'a mut self, challenge: &'a [u8]) -> Answer<'a> {
        let answer = messages::challenge(challenge)
            .and_then(|nonce| self.listener.publish(nonce))
            .map(|()| RESPONSE.to_vec())
            .map_err(EvidenceError::Challenge);
        Box::pin(ready(answer))
    }
}
