//! From settings to the node attestor, checked: bad files and names end the start at once, not at the first rotation.

use std::rc::Rc;

use actors::attestor::http_challenge::{HttpChallenge, HttpChallengeConfig};
use actors::attestor::join_token::JoinToken;
use actors::attestor::node::NodeAttestor;
use actors::attestor::sshpop::Sshpop;
use actors::attestor::x509pop::{X509pop, X509popSvid};
use anyhow::{Context as _, bail};

use crate::config::{self, Config, Secret};

/// The way in. A join token is taken whatever plugin is configured beside it, as in the reference.
pub(super) fn way_in(config: &Config) -> anyhow::Result<Rc<dyn NodeAttestor>> {
    let node = attestor(config)?;
    if matches!(config.key_manager, config::KeyManager::Memory) && !node.may_attest_again() {
        tracing::warn!(
            node_attestor = node.name(),
            "The memory key manager loses the agent's identity at a restart, and the node cannot attest again; use the disk key manager"
        );
    }
    Ok(node)
}

fn attestor(config: &Config) -> anyhow::Result<Rc<dyn NodeAttestor>> {
    let token = config.join_token.as_ref().map(Secret::expose);
    if token.is_some() {
        return Ok(Rc::new(JoinToken::new(token.map(str::to_owned))));
    }
    Ok(match &config.node_attestor {
        config::NodeAttestor::JoinToken => Rc::new(JoinToken::new(None)),
        config::NodeAttestor::X509pop(config::X509pop::Files {
            private_key_path,
            certificate_path,
            intermediates_path,
        }) => {
            let x509pop = X509pop::new(
                private_key_path.clone(),
                certificate_path.clone(),
                intermediates_path.clone(),
            );
            x509pop
                .check()
                .context("failed to configure NodeAttestor \"x509pop\"")?;
            Rc::new(x509pop)
        }
        config::NodeAttestor::Sshpop {
            host_key_path,
            host_cert_path,
        } => {
            let sshpop = Sshpop::new(host_key_path.clone(), host_cert_path.clone());
            sshpop
                .check()
                .context("failed to configure NodeAttestor \"sshpop\"")?;
            Rc::new(sshpop)
        }
        config::NodeAttestor::HttpChallenge(settings) => {
            let http_challenge = HttpChallenge::new(HttpChallengeConfig {
                hostname: settings.hostname.clone(),
                agentname: settings.agentname.clone(),
                port: settings.port,
                advertised_port: settings.advertised_port,
            });
            http_challenge
                .check()
                .context("failed to configure NodeAttestor \"http_challenge\"")?;
            Rc::new(http_challenge)
        }
        config::NodeAttestor::X509pop(config::X509pop::WorkloadApi {
            spiffe_endpoint_socket,
        }) => Rc::new(X509popSvid::new(spiffe_endpoint_socket.clone())),
        config::NodeAttestor::TpmDevid(_) | config::NodeAttestor::Other(_) => {
            bail!("the configured node attestor is not available in this build yet")
        }
    })
}
