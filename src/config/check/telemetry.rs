//! `telemetry { }` and `health_checks { }`.

use actors::spiffe_id::SpiffeId;

use super::super::integer::parse_integer;
use super::super::model::{HealthChecks, M3, Prometheus, PrometheusTls, TelemetryConfig};
use super::super::raw::{RawHealthChecks, RawPrometheus, RawPrometheusTls, RawTelemetry};
use super::super::section::Spanned;
use super::{Checker, paths, plain};

impl Checker<'_> {
    pub(super) fn telemetry(&mut self, raw: RawTelemetry) -> TelemetryConfig {
        let m3 = raw.m3.into_iter().map(|(address, env)| M3 {
            address: self.sink_address("telemetry.M3", address),
            env: env.unwrap_or_default().value,
        });
        let m3 = m3.collect();
        let prefix = raw.metric_prefix.unwrap_or_default().value;
        TelemetryConfig {
            prometheus: raw.prometheus.map(|prometheus| self.prometheus(prometheus)),
            dog_statsd: self.sink_addresses("telemetry.DogStatsd", raw.dog_statsd),
            statsd: self.sink_addresses("telemetry.Statsd", raw.statsd),
            m3,
            in_mem: raw.in_mem,
            metric_prefix: if prefix.is_empty() {
                "spire_agent".to_owned()
            } else {
                prefix
            },
            enable_trust_domain_label: raw.enable_trust_domain_label.is_some_and(|on| on.value),
            enable_hostname_label: raw.enable_hostname_label.is_none_or(|on| on.value),
            allowed_prefixes: plain(raw.allowed_prefixes),
            blocked_prefixes: plain(raw.blocked_prefixes),
            allowed_labels: plain(raw.allowed_labels),
            blocked_labels: plain(raw.blocked_labels),
        }
    }

    fn sink_addresses(&mut self, key: &str, sinks: Vec<Spanned<String>>) -> Vec<String> {
        sinks
            .into_iter()
            .map(|address| self.sink_address(key, address))
            .collect()
    }

    fn sink_address(&mut self, key: &str, address: Spanned<String>) -> String {
        if address.value.is_empty() {
            self.problem(key, address.origin, format!("{key} needs an address"));
        }
        address.value
    }

    fn prometheus(&mut self, raw: RawPrometheus) -> Prometheus {
        let host = raw.host.unwrap_or_default();
        if !matches!(host.value.as_str(), "" | "localhost") {
            self.warn(
                "telemetry.Prometheus.host",
                host.origin,
                "metrics are served without authentication beyond this host",
            );
        }
        Prometheus {
            host: if host.value.is_empty() {
                "localhost".to_owned()
            } else {
                host.value
            },
            port: self.port("telemetry.Prometheus.port", raw.port.as_ref()),
            tls: raw.tls.map(|tls| self.prometheus_tls(tls)),
        }
    }

    fn prometheus_tls(&mut self, raw: RawPrometheusTls) -> PrometheusTls {
        let filled = |text: Option<Spanned<String>>| text.filter(|text| !text.value.is_empty());
        let (cert, key) = (filled(raw.cert_file), filled(raw.key_file));
        let client_ca = filled(raw.client_ca_file);
        let own_svid = raw.use_spire_svid.is_some_and(|on| on.value);
        let section = "telemetry.Prometheus.tls";
        if own_svid && (cert.is_some() || key.is_some()) {
            self.problem(
                section,
                raw.place,
                format!(
                    "{section} takes either cert_file and key_file or use_spire_svid, not both"
                ),
            );
        } else if !own_svid && (cert.is_none() || key.is_none()) {
            self.problem(
                section,
                raw.place,
                format!("{section} needs cert_file and key_file, or use_spire_svid"),
            );
        }
        if client_ca.is_some() && !raw.authorized_spiffe_ids.is_empty() {
            self.problem(
                section,
                raw.place,
                format!("{section} takes only one of client_ca_file and authorized_spiffe_ids"),
            );
        }
        for id in &raw.authorized_spiffe_ids {
            if let Err(reason) = SpiffeId::parse(&id.value) {
                self.problem(
                    section,
                    id.origin,
                    format!("authorized_spiffe_ids holds {:?}: {reason}", id.value),
                );
            }
        }
        let path = |text: Spanned<String>| paths::absolute(self.cwd, &text.value);
        PrometheusTls {
            certificate: cert.zip(key).map(|(cert, key)| (path(cert), path(key))),
            client_ca_file: client_ca.map(path),
            authorized_spiffe_ids: plain(raw.authorized_spiffe_ids),
        }
    }

    pub(super) fn health_checks(&mut self, raw: &RawHealthChecks) -> Option<HealthChecks> {
        let text = |given: &Option<Spanned<String>>, default: &str| {
            let given = given.as_ref().map(|given| given.value.as_str());
            given
                .filter(|text| !text.is_empty())
                .unwrap_or(default)
                .to_owned()
        };
        let port = raw.bind_port.clone().filter(|port| !port.value.is_empty());
        let bind_port = port.map_or(80, |port| {
            let number = parse_integer(&port.value).and_then(|number| u16::try_from(number).ok());
            number.unwrap_or_else(|| {
                let message = format!(
                    "health_checks.bind_port must be from 0 to 65535, not {:?}",
                    port.value
                );
                self.problem("health_checks.bind_port", port.origin, message);
                0
            })
        });
        let address = text(&raw.bind_address, "localhost");
        raw.listener_enabled
            .as_ref()
            .is_some_and(|on| on.value)
            .then(|| HealthChecks {
                bind_address: address.trim_matches(['[', ']']).to_owned(),
                bind_port,
                ready_path: text(&raw.ready_path, "/ready"),
                live_path: text(&raw.live_path, "/live"),
            })
    }
}
