//! Who the agent is and whom it trusts: server port, trust domain, join token, delegates.

use actors::spiffe_id::{PORTABLE_TRUST_DOMAIN_BYTES, SpiffeId, TrustDomain};

use super::super::integer::parse_integer;
use super::super::model::Secret;
use super::super::raw::RawAgent;
use super::super::section::Spanned;
use super::{Checker, Origin, non_empty, paths, pick, plain};

/// Longest token file that is read, in bytes.
const LONGEST_TOKEN_FILE: u64 = 64 << 10;

impl Checker<'_> {
    pub(super) fn server_port(&mut self, agent: &RawAgent) -> u16 {
        let key = "agent.server_port";
        let given = match non_empty(self.flags.server_port.as_ref()) {
            None => agent.server_port.clone(),
            Some(text) => {
                let origin = Origin::Flag("-serverPort");
                let value = parse_integer(text);
                if value.is_none() {
                    self.problem(key, origin, format!("invalid value {text:?} for flag -serverPort: server_port is not a number"));
                    return 0;
                }
                // Zero counts as not given.
                value
                    .filter(|port| *port != 0)
                    .map(|value| Spanned { value, origin })
                    .or(agent.server_port.clone())
            }
        };
        let given = given.unwrap_or_default();
        if given.value == 0 {
            // A value of the wrong type has been reported already.
            if !self.problems.iter().any(|problem| problem.key == key) {
                self.problem(key, given.origin, "server_port must be configured");
            }
            return 0;
        }
        u16::try_from(given.value).unwrap_or_else(|_| {
            self.problem(
                key,
                given.origin,
                format!("server_port must be from 1 to 65535, not {}", given.value),
            );
            0
        })
    }

    pub(super) fn trust_domain(&mut self, given: &Spanned<String>) -> String {
        let (key, text) = ("agent.trust_domain", &given.value);
        if text.is_empty() {
            return String::new();
        }
        match TrustDomain::parse(text) {
            Ok(domain) => {
                if domain.name().len() > PORTABLE_TRUST_DOMAIN_BYTES {
                    self.warn(key, given.origin, "trust domain name is longer than 255 characters, other implementations may refuse it");
                }
                domain.name().to_owned()
            }
            Err(reason) => {
                self.problem(
                    key,
                    given.origin,
                    format!("could not parse trust_domain {text:?}: {reason}"),
                );
                String::new()
            }
        }
    }

    /// The token from flag or file, and where to read it from otherwise.
    pub(super) fn join_token(&mut self, agent: &RawAgent) -> (Option<Secret>, Spanned<String>) {
        let flag = non_empty(self.flags.join_token.as_ref()).map(|token| Spanned {
            value: Secret::new(token.clone()),
            origin: Origin::Flag("-joinToken"),
        });
        let token = flag
            .or(agent.join_token.clone())
            .filter(|token| !token.value.expose().is_empty());
        let file = pick(
            self.flags.join_token_file.as_ref(),
            "-joinTokenFile",
            agent.join_token_file.as_ref(),
        );
        if token.is_some() && !file.value.is_empty() {
            self.problem(
                "agent.join_token_file",
                file.origin,
                "only one of join_token or join_token_file can be specified, not both",
            );
        }
        (token.map(|token| token.value), file)
    }

    pub(super) fn read_token(&mut self, file: &Spanned<String>) -> Option<Secret> {
        if file.value.is_empty() {
            return None;
        }
        let path = paths::absolute(self.cwd, &file.value);
        let key = "agent.join_token_file";
        match paths::read_text(&path, LONGEST_TOKEN_FILE) {
            Ok(text) if text.trim().is_empty() => {
                self.problem(key, file.origin, "join token file is empty");
            }
            Ok(text) => return Some(Secret::new(text.trim().to_owned())),
            Err(reason) => {
                let message = format!(
                    "unable to read join token file {}: {reason}",
                    path.display()
                );
                self.problem(key, file.origin, message);
            }
        }
        None
    }

    pub(super) fn delegates(&mut self, agent: &RawAgent, trust_domain: &str) -> Vec<String> {
        for id in &agent.authorized_delegates {
            let reason = match SpiffeId::parse(&id.value) {
                Ok(id) if id.trust_domain_name() == trust_domain || trust_domain.is_empty() => {
                    continue;
                }
                Ok(id) => {
                    let domain = id.trust_domain_name();
                    format!("it is of trust domain {domain:?}, not {trust_domain:?}")
                }
                Err(reason) => reason.to_string(),
            };
            let message = format!(
                "error validating authorized delegate {:?}: {reason}",
                id.value
            );
            self.problem("agent.authorized_delegates", id.origin, message);
        }
        plain(agent.authorized_delegates.clone())
    }
}
