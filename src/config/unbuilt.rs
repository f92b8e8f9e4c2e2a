//! Tells which settings of a configuration this build understands but does not act on yet.

use std::collections::BTreeMap;

use super::ast::Position;
use super::model::{Config, OfflineIdentities};
use super::plugin::{KeyManager, NodeAttestor, OtherPlugin, WorkloadAttestor};

/// A setting that has no effect in this build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unbuilt {
    /// The full name, such as `agent.trust_bundle_url` or `plugins.NodeAttestor.tpm_devid`.
    pub(crate) key: String,
    /// The line in the file; `None` if a flag set it.
    pub(crate) line: Option<u32>,
    /// Whether the agent cannot do its work without it, so that `run` must refuse.
    pub(crate) needed: bool,
}

/// Settings whose mere presence is worth a word: nothing reads them yet.
const SILENT: &[&str] = &[
    "agent.allowed_foreign_jwt_claims",
    "agent.jwt_svid_cache_max_size",
    "agent.log_selectors",
    "agent.experimental.feature_flags",
    "agent.experimental.jwt_svid_cache_hit_timeout",
    "agent.edge.demand_sync",
    "agent.edge.empty_sync_patience",
    "agent.edge.log_explain",
    "agent.edge.min_remaining",
    "agent.edge.offline_key_path",
];

/// Lists them in a fixed order; `seen` tells the places.
pub(super) fn unbuilt(config: &Config, seen: &BTreeMap<String, Position>) -> Vec<Unbuilt> {
    let mut found = Vec::new();
    let mut add = |key: &str, needed: bool, applies: bool| {
        if applies {
            found.push(Unbuilt {
                key: key.to_owned(),
                line: seen.get(key).map(|place| place.line),
                needed,
            });
        }
    };
    add(
        "agent.authorized_delegates",
        false,
        !config.authorized_delegates.is_empty(),
    );
    for key in seen.keys().filter(|key| key.starts_with("agent.sds.")) {
        add(key, false, true);
    }
    add("agent.profiling_enabled", false, config.profiling.is_some());
    let experimental = &config.experimental;
    add(
        "agent.experimental.ratelimit",
        false,
        !experimental.ratelimit.is_empty(),
    );
    add(
        "agent.experimental.broker",
        false,
        experimental.broker.is_some(),
    );
    let edge = &config.edge;
    add(
        "agent.edge.offline_identities",
        false,
        edge.offline_identities != OfflineIdentities::Off,
    );
    add("agent.edge.files", false, !edge.files.is_empty());
    for key in SILENT {
        add(key, false, seen.contains_key(*key));
    }
    // A socket that is open to more callers than its owner asked for is worse than none.
    for key in ["agent.edge.socket_mode", "agent.edge.socket_group"] {
        add(key, true, seen.contains_key(key));
    }
    let telemetry = &config.telemetry;
    add(
        "telemetry.Prometheus",
        false,
        telemetry.prometheus.is_some(),
    );
    add(
        "telemetry.DogStatsd",
        false,
        !telemetry.dog_statsd.is_empty(),
    );
    add("telemetry.Statsd", false, !telemetry.statsd.is_empty());
    add("telemetry.M3", false, !telemetry.m3.is_empty());
    add("telemetry.InMem", false, telemetry.in_mem);
    add(
        "health_checks.listener_enabled",
        false,
        config.health_checks.is_some(),
    );
    for (key, needed) in plugins(config) {
        add(&key, needed, true);
    }
    found
}

/// Plugins that are not built, with whether each is needed.
fn plugins(config: &Config) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    if let KeyManager::Other(plugin) = &config.key_manager {
        found.push((name("KeyManager", &plugin.name), true));
    }
    let attestor = match &config.node_attestor {
        NodeAttestor::X509pop(_)
        | NodeAttestor::JoinToken
        | NodeAttestor::Sshpop { .. }
        | NodeAttestor::HttpChallenge(_) => None,
        NodeAttestor::TpmDevid(_) => Some("tpm_devid"),
        NodeAttestor::Other(OtherPlugin { name, .. }) => Some(name.as_str()),
    };
    // A join token is taken instead of whatever is configured.
    let is_needed = config.join_token.is_none();
    found.extend(attestor.map(|attestor| (name("NodeAttestor", attestor), is_needed)));
    for attestor in &config.workload_attestors {
        let attestor = match attestor {
            WorkloadAttestor::Unix { .. } => continue,
            WorkloadAttestor::Docker(_) => "docker",
            WorkloadAttestor::Systemd => "systemd",
            WorkloadAttestor::Other(plugin) => &plugin.name,
        };
        found.push((name("WorkloadAttestor", attestor), false));
    }
    for store in &config.svid_stores {
        found.push((name("SVIDStore", &store.name), false));
    }
    found
}

fn name(plugin_type: &str, plugin: &str) -> String {
    format!("plugins.{plugin_type}.{plugin}")
}
