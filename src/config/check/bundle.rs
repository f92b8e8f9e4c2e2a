//! Where the first trust bundle comes from (one classic source, each with its own rules, and a list), and when to start over from it.

use std::time::Duration;

use actors::attestor::trust::url::BundleUrl;
use actors::attestor::trust::{BundleSource, PinnedSource};
use actors::bundle::BundleFormat;
use actors::workload_api::Address;

use super::super::bundle_source;
use super::super::model::{Rebootstrap, RebootstrapMode};
use super::super::raw::RawAgent;
use super::super::section::Spanned;
use super::{Checker, Origin, paths, pick, pick_bool};

const INSECURE: &str = "insecure_bootstrap";
const DEFAULT_REBOOTSTRAP_DELAY: Duration = Duration::from_mins(10);

impl Checker<'_> {
    /// The classic source; `None` where a list stands alone, or where there is a problem.
    pub(super) fn trust_bundle(&mut self, agent: &RawAgent) -> Option<BundleSource> {
        let flags = self.flags;
        let path = pick(
            flags.trust_bundle.as_ref(),
            "-trustBundle",
            agent.trust_bundle_path.as_ref(),
        );
        let url = pick(
            flags.trust_bundle_url.as_ref(),
            "-trustBundleUrl",
            agent.trust_bundle_url.as_ref(),
        );
        let workload_api = agent
            .trust_bundle_spiffe_workload_api
            .clone()
            .unwrap_or_default();
        let insecure = Spanned {
            value: pick_bool(flags.insecure_bootstrap, agent.insecure_bootstrap.as_ref()),
            origin: agent
                .insecure_bootstrap
                .as_ref()
                .map_or(Origin::Flag("-insecureBootstrap"), |on| on.origin),
        };
        let sources = [
            (INSECURE, insecure.value, insecure.origin),
            ("trust_bundle_url", !url.value.is_empty(), url.origin),
            ("trust_bundle_path", !path.value.is_empty(), path.origin),
            (
                "trust_bundle_spiffe_workload_api",
                !workload_api.value.is_empty(),
                workload_api.origin,
            ),
        ];
        self.one_source(&sources, !agent.edge.trust_bundle_sources.is_empty());
        let format = Some(self.bundle_format(agent));
        let unix_socket = agent
            .trust_bundle_unix_socket
            .clone()
            .filter(|socket| !socket.value.is_empty());
        if let Some(socket) = unix_socket.as_ref().filter(|_| url.value.is_empty()) {
            let message = "if trust_bundle_unix_socket is specified, so must be trust_bundle_url";
            self.problem("agent.trust_bundle_unix_socket", socket.origin, message);
        }
        if !workload_api.value.is_empty() {
            return self.workload_api(&workload_api);
        }
        if !url.value.is_empty() {
            let unix_socket = unix_socket.map(|socket| paths::absolute(self.cwd, &socket.value));
            return Some(BundleSource::Url {
                url: self.bundle_url(&url, unix_socket.is_some())?,
                unix_socket,
                format,
            });
        }
        if !path.value.is_empty() {
            let path = paths::absolute(self.cwd, &path.value);
            return Some(BundleSource::File { path, format });
        }
        insecure.value.then_some(BundleSource::Insecure)
    }

    /// The list of `edge.trust_bundle_sources`; what cannot be used is left out.
    pub(super) fn bundle_sources(&mut self, entries: &[Spanned<String>]) -> Vec<PinnedSource> {
        let key = "agent.edge.trust_bundle_sources";
        let mut sources = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            match bundle_source::parse(&entry.value) {
                Ok(source) => sources.push(source),
                Err(error) => {
                    let message = format!("trust_bundle_sources[{index}] {error}");
                    self.problem(key, entry.origin, message);
                }
            }
        }
        sources
    }

    pub(super) fn rebootstrap(&mut self, agent: &RawAgent) -> Rebootstrap {
        let flags = self.flags;
        let given = pick(
            flags.rebootstrap_mode.as_ref(),
            "-rebootstrapMode",
            agent.rebootstrap_mode.as_ref(),
        );
        let key = "agent.rebootstrap_mode";
        let mode = rebootstrap_mode(&given.value).unwrap_or_else(|| {
            let message = format!("unknown rebootstrap mode specified: {}", given.value);
            self.problem(key, given.origin, message);
            RebootstrapMode::Never
        });
        let insecure = pick_bool(flags.insecure_bootstrap, agent.insecure_bootstrap.as_ref());
        if insecure && mode != RebootstrapMode::Never {
            let message = "insecure_bootstrap option can not be used with rebootstrapping";
            self.problem(key, given.origin, message);
        }
        let delay = pick(
            flags.rebootstrap_delay.as_ref(),
            "-rebootstrapDelay",
            agent.rebootstrap_delay.as_ref(),
        );
        let complaint = "error parsing rebootstrap delay duration";
        let delay = self.duration("agent.rebootstrap_delay", &delay, complaint);
        Rebootstrap {
            mode,
            delay: delay.unwrap_or(DEFAULT_REBOOTSTRAP_DELAY),
        }
    }

    /// At most one of the sources, which are (key, set, origin); none only if a list stands in for it.
    fn one_source(&mut self, sources: &[(&str, bool, Origin)], has_list: bool) {
        let set: Vec<_> = sources.iter().filter(|source| source.1).collect();
        for (n, (first, _, _)) in set.iter().enumerate() {
            for (second, _, origin) in set.iter().skip(n + 1) {
                let message = format!("only one of {first} or {second} can be specified, not both");
                self.problem(&format!("agent.{second}"), *origin, message);
            }
        }
        if set.is_empty() && !has_list {
            let message = "trust_bundle_path or trust_bundle_url must be configured unless insecure_bootstrap is set";
            self.problem("agent.trust_bundle_path", Origin::Default, message);
        }
        // Whoever lists sources must not get a server that none of them vouches for.
        if let Some((insecure, _, origin)) = set.iter().find(|source| source.0 == INSECURE)
            && has_list
        {
            let message = format!(
                "only one of {insecure} or trust_bundle_sources can be specified, not both"
            );
            self.problem(&format!("agent.{insecure}"), *origin, message);
        }
    }

    fn bundle_format(&mut self, agent: &RawAgent) -> BundleFormat {
        let given = pick(
            self.flags.trust_bundle_format.as_ref(),
            "-trustBundleFormat",
            agent.trust_bundle_format.as_ref(),
        );
        match given.value.as_str() {
            "" | "pem" => BundleFormat::Pem,
            "spiffe" => BundleFormat::Spiffe,
            _ => {
                let message =
                    "invalid value for trust_bundle_format, expected \"pem\" or \"spiffe\"";
                self.problem("agent.trust_bundle_format", given.origin, message);
                BundleFormat::Pem
            }
        }
    }

    fn bundle_url(&mut self, given: &Spanned<String>, by_socket: bool) -> Option<BundleUrl> {
        let key = "agent.trust_bundle_url";
        let (scheme, complaint) = if by_socket {
            (
                "http://",
                "trust bundle URL must start with http:// when used with trust bundle unix socket",
            )
        } else {
            ("https://", "trust bundle URL must start with https://")
        };
        if !given.value.starts_with(scheme) {
            self.problem(key, given.origin, complaint);
            return None;
        }
        match BundleUrl::parse(&given.value) {
            Ok(url) => {
                let reserved = bundle_source::reserved_parameter(&url).filter(|_| by_socket);
                for prefix in reserved {
                    let message =
                        format!("trust_bundle_url query params can not start with {prefix}");
                    self.problem(key, given.origin, message);
                }
                Some(url)
            }
            Err(error) => {
                self.problem(key, given.origin, format!("trust_bundle_url: {error}"));
                None
            }
        }
    }

    fn workload_api(&mut self, given: &Spanned<String>) -> Option<BundleSource> {
        let address = Address::parse(&given.value);
        if address.is_none() {
            let key = "agent.trust_bundle_spiffe_workload_api";
            let message = format!("{key} must be unix:///path or tcp://ip:port");
            self.problem(key, given.origin, message);
        }
        address.map(|address| BundleSource::WorkloadApi { address })
    }
}

fn rebootstrap_mode(text: &str) -> Option<RebootstrapMode> {
    match text {
        "" | "never" => Some(RebootstrapMode::Never),
        "auto" => Some(RebootstrapMode::Auto),
        "always" => Some(RebootstrapMode::Always),
        _ => None,
    }
}
