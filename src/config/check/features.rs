//! `experimental { }` and `edge { }`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use actors::spiffe_id::SpiffeId;

use super::super::ast::Object;
use super::super::model::{
    Broker, BrokerClient, EdgeConfig, Experimental, OfflineIdentities, OpaqueData, ReferenceType,
};
use super::super::raw::{RawBroker, RawBrokerClient, RawEdge, RawExperimental};
use super::super::section::Spanned;
use super::{Checker, paths, plain};

const KNOWN_FEATURE_FLAGS: [&str; 2] = ["wit-svid", "i_am_a_test_flag"];
const DEFAULT_JWT_HIT_TIMEOUT: Duration = Duration::from_secs(30);
const LEAST_JWT_HIT_TIMEOUT: Duration = Duration::from_secs(5);

impl Checker<'_> {
    pub(super) fn feature_flags(&mut self, raw: &RawExperimental) {
        for flag in &raw.feature_flags {
            if !KNOWN_FEATURE_FLAGS.contains(&flag.value.as_str()) {
                let message = format!("unknown feature flag {:?}", flag.value);
                self.problem("agent.experimental.feature_flags", flag.origin, message);
            }
        }
    }

    /// Everything but rate limits and broker, which come later in the order.
    pub(super) fn experimental(&mut self, raw: &RawExperimental) -> Experimental {
        let given = raw.jwt_svid_cache_hit_timeout.clone().unwrap_or_default();
        let key = "agent.experimental.jwt_svid_cache_hit_timeout";
        let timeout = self.duration(key, &given, "could not parse jwt_svid_cache_hit_timeout");
        if timeout.is_some_and(|timeout| {
            !(LEAST_JWT_HIT_TIMEOUT..DEFAULT_JWT_HIT_TIMEOUT).contains(&timeout)
        }) {
            self.problem(
                key,
                given.origin,
                "jwt_svid_cache_hit_timeout must be at least 5s and less than 30s",
            );
        }
        Experimental {
            jwt_svid_cache_hit_timeout: timeout.unwrap_or(DEFAULT_JWT_HIT_TIMEOUT),
            use_sync_authorized_entries: raw
                .use_sync_authorized_entries
                .as_ref()
                .is_none_or(|on| on.value),
            require_pq_kem: raw.require_pq_kem.as_ref().is_some_and(|on| on.value),
            ratelimit: BTreeMap::new(),
            broker: None,
            feature_flags: plain(raw.feature_flags.clone()),
        }
    }

    pub(super) fn ratelimit(&mut self, raw: &RawExperimental) -> BTreeMap<&'static str, u64> {
        let mut limits = BTreeMap::new();
        for (method, limit) in &raw.ratelimit {
            match u64::try_from(limit.value) {
                Ok(0) => {}
                Ok(limit) => {
                    limits.insert(*method, limit);
                }
                Err(_) => {
                    let key = format!("agent.experimental.ratelimit.{method}");
                    self.problem(
                        &key,
                        limit.origin,
                        format!("ratelimit {method} should not be negative"),
                    );
                }
            }
        }
        limits
    }

    pub(super) fn broker(
        &mut self,
        raw: Option<&RawBroker>,
        public_socket: &Path,
        public: bool,
    ) -> Option<Broker> {
        let raw = raw?;
        let key = "agent.experimental.broker";
        let filled =
            |text: &Option<Spanned<String>>| text.clone().filter(|text| !text.value.is_empty());
        let (socket, address) = (filled(&raw.socket_path), filled(&raw.bind_address));
        if socket.is_none() && address.is_none() {
            self.problem(
                key,
                raw.place,
                "broker needs at least one of socket_path and bind_address",
            );
        }
        let socket_path = socket.map(|socket| {
            let path = paths::clean(&self.cwd.join(&socket.value));
            let key = "agent.experimental.broker.socket_path";
            if public && paths::is_beside_or_below(&path, public_socket) {
                let message = "broker socket cannot be in the same directory or a subdirectory as that containing the Workload API socket";
                self.problem(key, socket.origin, message);
            }
            self.socket_length(key, socket.origin, &path);
            path
        });
        let mut ids = BTreeSet::new();
        let brokers = raw
            .brokers
            .iter()
            .map(|client| self.broker_client(client, &mut ids))
            .collect();
        Some(Broker {
            socket_path,
            bind_address: address.map(|address| address.value),
            brokers,
        })
    }

    fn broker_client(&mut self, raw: &RawBrokerClient, ids: &mut BTreeSet<String>) -> BrokerClient {
        let missing = || Spanned {
            value: String::new(),
            origin: raw.place,
        };
        let id = raw.id.clone().unwrap_or_else(missing);
        let key = "agent.experimental.broker.brokers";
        let complaint = match SpiffeId::parse(&id.value) {
            _ if id.value.is_empty() => Some("broker id must be configured".to_owned()),
            Err(reason) => Some(format!(
                "broker id {:?} is no SPIFFE ID: {reason}",
                id.value
            )),
            Ok(_) if !ids.insert(id.value.clone()) => {
                Some(format!("broker id {:?} is configured twice", id.value))
            }
            Ok(_) => None,
        };
        if let Some(complaint) = complaint {
            self.problem(key, id.origin, complaint);
        }
        let types: Vec<_> = raw
            .types
            .iter()
            .map(|(url, tcp)| ReferenceType {
                type_url: url.clone().unwrap_or_default().value,
                allow_over_tcp: tcp.as_ref().is_some_and(|on| on.value),
            })
            .collect();
        let urls: Vec<_> = types.iter().map(|kind| kind.type_url.as_str()).collect();
        if urls.is_empty() {
            self.problem(
                key,
                id.origin,
                format!(
                    "broker {:?} needs at least one of allowed_reference_types",
                    id.value
                ),
            );
        }
        if urls.contains(&"") {
            self.problem(
                key,
                id.origin,
                format!(
                    "broker {:?} has a reference type without type_url",
                    id.value
                ),
            );
        }
        if urls.contains(&"*") && urls.len() > 1 {
            self.problem(
                key,
                id.origin,
                format!("broker {:?} has reference types beside \"*\"", id.value),
            );
        }
        BrokerClient {
            id: id.value,
            allowed_reference_types: types,
        }
    }

    pub(super) fn edge(&mut self, raw: RawEdge) -> EdgeConfig {
        let offline = raw.offline_identities.unwrap_or_default();
        let offline_identities = match offline.value.as_str() {
            "" | "off" => OfflineIdentities::Off,
            "sealed" => OfflineIdentities::Sealed,
            "plain" => OfflineIdentities::Plain,
            other => {
                let message =
                    format!("offline_identities must be off, sealed or plain, not {other:?}");
                self.problem("agent.edge.offline_identities", offline.origin, message);
                OfflineIdentities::Off
            }
        };
        let key_path = raw.offline_key_path.filter(|path| !path.value.is_empty());
        let patience = raw
            .empty_sync_patience
            .filter(|patience| patience.value != "forever");
        EdgeConfig {
            offline_identities,
            offline_key_path: key_path.map(|path| paths::absolute(self.cwd, &path.value)),
            demand_sync: raw.demand_sync.is_none_or(|on| on.value),
            empty_sync_patience: self.edge_duration("empty_sync_patience", patience),
            arrival_spread: self
                .edge_duration("arrival_spread", raw.arrival_spread)
                .unwrap_or_default(),
            min_remaining: self.edge_duration("min_remaining", raw.min_remaining),
            trust_bundle_sources: self.bundle_sources(&raw.trust_bundle_sources),
            files: raw
                .files
                .into_iter()
                .map(|files: Object| OpaqueData(files))
                .collect(),
            exit_if_unreachable_for: self
                .edge_duration("exit_if_unreachable_for", raw.exit_if_unreachable_for),
            socket_mode: self.socket_mode(raw.socket_mode),
            socket_group: raw
                .socket_group
                .map(|group| group.value)
                .filter(|group| !group.is_empty()),
            log_explain: raw.log_explain.is_some_and(|on| on.value),
        }
    }

    fn edge_duration(&mut self, key: &str, given: Option<Spanned<String>>) -> Option<Duration> {
        let given = given.unwrap_or_default();
        self.duration(
            &format!("agent.edge.{key}"),
            &given,
            &format!("could not parse {key}"),
        )
    }

    /// Permission bits in octal, as `chmod` takes them, with or without quotes and leading zero.
    fn socket_mode(&mut self, given: Option<Spanned<String>>) -> Option<u32> {
        let given = given.filter(|mode| !mode.value.is_empty())?;
        let mode = u32::from_str_radix(&given.value, 8)
            .ok()
            .filter(|mode| *mode <= 0o777);
        if mode.is_none() {
            let message = format!(
                "socket_mode must be an octal number up to 0777, not {:?}",
                given.value
            );
            self.problem("agent.edge.socket_mode", given.origin, message);
        }
        mode
    }
}
