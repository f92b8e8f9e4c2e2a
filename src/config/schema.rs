//! Every key that is known, by section, and what an unknown key means there. Data only.

/// One section of the configuration.
pub(super) struct Schema {
    /// Where it stands, keys joined by dots; empty for the top.
    pub(super) path: &'static str,
    /// Its keys in the spelling of the documentation.
    pub(super) keys: &'static [&'static str],
    /// Whether an unknown key stops the start, as it does in the reference.
    pub(super) fatal: bool,
}

const fn schema(path: &'static str, fatal: bool, keys: &'static [&'static str]) -> Schema {
    Schema { path, keys, fatal }
}

pub(super) const TOP: Schema = schema(
    "",
    true,
    &["agent", "plugins", "telemetry", "health_checks"],
);
pub(super) const AGENT: Schema = schema(
    "agent",
    true,
    &[
        "trust_domain",
        "server_address",
        "server_port",
        "data_dir",
        "socket_path",
        "admin_socket_path",
        "disable_workload_api",
        "disable_sds_api",
        "log_level",
        "log_format",
        "log_file",
        "log_source_location",
        "log_selectors",
        "trust_bundle_path",
        "trust_bundle_url",
        "trust_bundle_unix_socket",
        "trust_bundle_format",
        "trust_bundle_spiffe_workload_api",
        "insecure_bootstrap",
        "join_token",
        "join_token_file",
        "rebootstrap_mode",
        "rebootstrap_delay",
        "retry_bootstrap",
        "retry_rebootstrap",
        "workload_x509_svid_key_type",
        "availability_target",
        "x509_svid_cache_max_size",
        "jwt_svid_cache_max_size",
        "allow_unauthenticated_verifiers",
        "allowed_foreign_jwt_claims",
        "authorized_delegates",
        "sds",
        "profiling_enabled",
        "profiling_port",
        "profiling_freq",
        "profiling_names",
        "experimental",
        "edge",
    ],
);
pub(super) const SDS: Schema = schema(
    "agent.sds",
    false,
    &[
        "default_svid_name",
        "default_bundle_name",
        "default_all_bundles_name",
        "disable_spiffe_cert_validation",
    ],
);
pub(super) const EXPERIMENTAL: Schema = schema(
    "agent.experimental",
    false,
    &[
        "sync_interval",
        "jwt_svid_cache_hit_timeout",
        "use_sync_authorized_entries",
        "require_pq_kem",
        "ratelimit",
        "broker",
        "feature_flags",
        "named_pipe_name",
        "admin_named_pipe_name",
    ],
);
pub(super) const RATELIMIT: Schema = schema(
    "agent.experimental.ratelimit",
    true,
    &[
        "fetch_x509_svid",
        "fetch_jwt_svid",
        "fetch_x509_bundles",
        "fetch_jwt_bundles",
        "stream_secrets",
        "fetch_secrets",
    ],
);
pub(super) const BROKER: Schema = schema(
    "agent.experimental.broker",
    true,
    &["socket_path", "bind_address", "brokers"],
);
pub(super) const BROKERS: Schema = schema(
    "agent.experimental.broker.brokers",
    true,
    &["id", "allowed_reference_types"],
);
pub(super) const REFERENCE_TYPES: Schema = schema(
    "agent.experimental.broker.brokers.allowed_reference_types",
    true,
    &["type_url", "allow_over_tcp"],
);
pub(super) const EDGE: Schema = schema(
    "agent.edge",
    true,
    &[
        "offline_identities",
        "offline_key_path",
        "demand_sync",
        "empty_sync_patience",
        "arrival_spread",
        "min_remaining",
        "trust_bundle_sources",
        "files",
        "exit_if_unreachable_for",
        "socket_mode",
        "socket_group",
        "log_explain",
    ],
);
pub(super) const TELEMETRY: Schema = schema(
    "telemetry",
    false,
    &[
        "Prometheus",
        "DogStatsd",
        "Statsd",
        "M3",
        "InMem",
        "MetricPrefix",
        "EnableTrustDomainLabel",
        "EnableHostnameLabel",
        "AllowedPrefixes",
        "BlockedPrefixes",
        "AllowedLabels",
        "BlockedLabels",
    ],
);
pub(super) const PROMETHEUS: Schema =
    schema("telemetry.Prometheus", true, &["host", "port", "tls"]);
pub(super) const PROMETHEUS_TLS: Schema = schema(
    "telemetry.Prometheus.tls",
    false,
    &[
        "cert_file",
        "key_file",
        "client_ca_file",
        "use_spire_svid",
        "authorized_spiffe_ids",
    ],
);
pub(super) const DOG_STATSD: Schema = schema("telemetry.DogStatsd", true, &["address"]);
pub(super) const STATSD: Schema = schema("telemetry.Statsd", true, &["address"]);
pub(super) const M3: Schema = schema("telemetry.M3", true, &["address", "env"]);
pub(super) const IN_MEM: Schema = schema("telemetry.InMem", true, &["enabled"]);
pub(super) const HEALTH_CHECKS: Schema = schema(
    "health_checks",
    true,
    &[
        "listener_enabled",
        "bind_address",
        "bind_port",
        "ready_path",
        "live_path",
    ],
);
pub(super) const PLUGIN: Schema = schema(
    "plugins",
    false,
    &[
        "plugin_cmd",
        "plugin_args",
        "plugin_checksum",
        "plugin_data",
        "plugin_data_file",
        "enabled",
    ],
);
pub(super) const DISK: Schema = schema("KeyManager.disk", false, &["directory"]);
pub(super) const X509POP: Schema = schema(
    "NodeAttestor.x509pop",
    false,
    &[
        "private_key_path",
        "certificate_path",
        "intermediates_path",
        "spiffe_endpoint_socket",
    ],
);
pub(super) const SSHPOP: Schema = schema(
    "NodeAttestor.sshpop",
    false,
    &["host_key_path", "host_cert_path"],
);
pub(super) const HTTP_CHALLENGE: Schema = schema(
    "NodeAttestor.http_challenge",
    false,
    &["hostname", "agentname", "port", "advertised_port"],
);
pub(super) const TPM_DEVID: Schema = schema(
    "NodeAttestor.tpm_devid",
    false,
    &[
        "devid_cert_path",
        "devid_priv_path",
        "devid_pub_path",
        "devid_password",
        "tpm_device_path",
        "owner_hierarchy_password",
        "endorsement_hierarchy_password",
    ],
);
pub(super) const UNIX: Schema = schema(
    "WorkloadAttestor.unix",
    false,
    &["discover_workload_path", "workload_size_limit"],
);
pub(super) const DOCKER: Schema = schema(
    "WorkloadAttestor.docker",
    true,
    &[
        "docker_socket_path",
        "docker_version",
        "podman_socket_path",
        "podman_socket_path_template",
        "container_id_cgroup_matchers",
        "use_new_container_locator",
        "verbose_container_locator_logs",
        "sigstore",
        "experimental",
    ],
);

/// The sections in which a key that is unknown elsewhere is looked for.
pub(super) const SECTIONS: &[&Schema] = &[
    &TOP,
    &AGENT,
    &EXPERIMENTAL,
    &SDS,
    &EDGE,
    &RATELIMIT,
    &BROKER,
    &BROKERS,
    &REFERENCE_TYPES,
    &TELEMETRY,
    &PROMETHEUS,
    &PROMETHEUS_TLS,
    &M3,
    &HEALTH_CHECKS,
    &PLUGIN,
    &DISK,
    &X509POP,
    &SSHPOP,
    &HTTP_CHALLENGE,
    &TPM_DEVID,
    &UNIX,
    &DOCKER,
];
