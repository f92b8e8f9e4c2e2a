//! Where the first trust bundle comes from (exactly one source, each with its own rules), and when to start over from it.

use std::time::Duration;

use super::super::model::{
    BundleFormat, BundleUrl, Rebootstrap, RebootstrapMode, TrustBundleSource,
};
use super::super::raw::RawAgent;
use super::super::section::Spanned;
use super::{Checker, Origin, paths, pick, pick_bool};

const DEFAULT_REBOOTSTRAP_DELAY: Duration = Duration::from_mins(10);

impl Checker<'_> {
    /// The one source; `None` where there is a problem.
    pub(super) fn trust_bundle(&mut self, agent: &RawAgent) -> Option<TrustBundleSource> {
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
            ("insecure_bootstrap", insecure.value, insecure.origin),
            ("trust_bundle_url", !url.value.is_empty(), url.origin),
            ("trust_bundle_path", !path.value.is_empty(), path.origin),
            (
                "trust_bundle_spiffe_workload_api",
                !workload_api.value.is_empty(),
                workload_api.origin,
            ),
        ];
        self.one_source(&sources);
        let format = self.bundle_format(agent);
        let unix_socket = agent
            .trust_bundle_unix_socket
            .clone()
            .filter(|socket| !socket.value.is_empty());
        if let Some(socket) = unix_socket.as_ref().filter(|_| url.value.is_empty()) {
            let message = "if trust_bundle_unix_socket is specified, so must be trust_bundle_url";
            self.problem("agent.trust_bundle_unix_socket", socket.origin, message);
        }
        if !workload_api.value.is_empty() {
            self.workload_api_address("agent.trust_bundle_spiffe_workload_api", &workload_api);
            return Some(TrustBundleSource::WorkloadApi {
                address: workload_api.value,
            });
        }
        if !url.value.is_empty() {
            self.bundle_url(&url, unix_socket.is_some());
            return Some(TrustBundleSource::Url {
                url: BundleUrl(url.value),
                unix_socket: unix_socket.map(|socket| paths::absolute(self.cwd, &socket.value)),
                format,
            });
        }
        if !path.value.is_empty() {
            let path = paths::absolute(self.cwd, &path.value);
            return Some(TrustBundleSource::Path { path, format });
        }
        insecure.value.then_some(TrustBundleSource::Insecure)
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

    /// Exactly one of the sources, which are (key, set, origin), must be set.
    fn one_source(&mut self, sources: &[(&str, bool, Origin)]) {
        let set: Vec<_> = sources.iter().filter(|source| source.1).collect();
        for (n, (first, _, _)) in set.iter().enumerate() {
            for (second, _, origin) in set.iter().skip(n + 1) {
                let message = format!("only one of {first} or {second} can be specified, not both");
                self.problem(&format!("agent.{second}"), *origin, message);
            }
        }
        if set.is_empty() {
            let message = "trust_bundle_path or trust_bundle_url must be configured unless insecure_bootstrap is set";
            self.problem("agent.trust_bundle_path", Origin::Default, message);
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

    fn bundle_url(&mut self, url: &Spanned<String>, by_socket: bool) {
        let key = "agent.trust_bundle_url";
        if !by_socket {
            if !url.value.starts_with("https://") {
                self.problem(key, url.origin, "trust bundle URL must start with https://");
            }
            return;
        }
        if !url.value.starts_with("http://") {
            let message =
                "trust bundle URL must start with http:// when used with trust bundle unix socket";
            self.problem(key, url.origin, message);
        }
        for reserved in ["spiffe-", "spire-"] {
            if query_names(&url.value).any(|name| name.starts_with(reserved)) {
                let message =
                    format!("trust_bundle_url query params can not start with {reserved}");
                self.problem(key, url.origin, message);
            }
        }
    }

    /// Endpoint URIs are `unix:///path` and `tcp://ip:port` (SPIFFE Workload Endpoint 4).
    fn workload_api_address(&mut self, key: &str, given: &Spanned<String>) {
        let text = given.value.as_str();
        let is_fine = match (text.strip_prefix("unix:"), text.strip_prefix("tcp://")) {
            (Some(path), _) => {
                let path = path.strip_prefix("//").unwrap_or(path);
                path.starts_with('/') && path.len() > 1
            }
            (None, Some(address)) => address.parse::<std::net::SocketAddr>().is_ok(),
            (None, None) => false,
        };
        if !is_fine {
            let message = format!("{key} must be unix:///path or tcp://ip:port");
            self.problem(key, given.origin, message);
        }
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

/// The names of the query parameters, with `%XX` resolved.
fn query_names(url: &str) -> impl Iterator<Item = String> {
    let without_fragment = url.split('#').next().unwrap_or_default();
    let query = without_fragment
        .split_once('?')
        .map_or("", |(_, query)| query);
    query
        .split('&')
        .map(|pair| percent_decoded(pair.split('=').next().unwrap_or_default()))
}

fn percent_decoded(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        let escaped = match (first, tail) {
            (b'%', [high, low, behind @ ..]) => {
                let digits = char::from(*high)
                    .to_digit(16)
                    .zip(char::from(*low).to_digit(16));
                digits.and_then(|(high, low)| Some((u8::try_from(high * 16 + low).ok()?, behind)))
            }
            _ => None,
        };
        match escaped {
            Some((byte, behind)) => {
                out.push(byte);
                rest = behind;
            }
            None => out.push(*first),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
