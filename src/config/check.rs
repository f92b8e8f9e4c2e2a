//! Judges the configuration as written together with the flags, and fills in defaults. All problems are collected, in the order in which the reference checks.

mod bundle;
mod features;
mod identity;
mod log;
pub(super) mod paths;
mod plugins;
mod sockets;
mod telemetry;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::duration::{format_duration, parse_duration};
use super::error::{ConfigErrors, Origin, Problem, Warning};
use super::flags::Flags;
use super::model::{Config, KeyType, Profiling, SdsConfig};
use super::raw::{RawAgent, RawConfig, RawSds};
use super::section::{Notes, Spanned};
use super::unbuilt;

const DEFAULT_SYNC_INTERVAL: Duration = Duration::from_secs(5);
const LEAST_AVAILABILITY_TARGET: Duration = Duration::from_hours(24);
const DEFAULT_CACHE_SIZE: usize = 1000;

/// Makes the checked configuration, or tells everything that is wrong.
pub(super) fn check(
    raw: RawConfig,
    flags: &Flags,
    notes: RefCell<Notes>,
    path: PathBuf,
    cwd: &Path,
) -> Result<Config, ConfigErrors> {
    let notes = notes.into_inner();
    let mut checker = Checker {
        flags,
        cwd,
        problems: notes.types,
        unknown: notes.unknown,
        warnings: notes.warnings,
    };
    let config = checker.config(raw, &notes.seen, path.clone());
    match config {
        Some(config) if checker.problems.is_empty() => Ok(Config {
            warnings: checker.warnings,
            unbuilt: unbuilt::unbuilt(&config, &notes.seen),
            ..config
        }),
        _ => Err(ConfigErrors::Invalid {
            path,
            problems: checker.problems,
        }),
    }
}

type Seen = std::collections::BTreeMap<String, super::ast::Position>;

/// Collects what is found. Its methods return a stand-in where they found a problem; the result is then thrown away.
struct Checker<'a> {
    flags: &'a Flags,
    cwd: &'a Path,
    problems: Vec<Problem>,
    /// Unknown keys; reported at their place in the order.
    unknown: Vec<Problem>,
    warnings: Vec<Warning>,
}

impl Checker<'_> {
    fn problem(&mut self, key: &str, origin: Origin, message: impl Into<String>) {
        self.problems.push(Problem {
            message: message.into(),
            key: key.to_owned(),
            origin,
        });
    }

    fn warn(&mut self, key: &str, origin: Origin, message: impl Into<String>) {
        self.warnings.push(Warning {
            message: message.into(),
            key: key.to_owned(),
            origin,
        });
    }

    /// Checks everything in order; `None` where a problem leaves nothing to stand in.
    fn config(&mut self, raw: RawConfig, seen: &Seen, file: PathBuf) -> Option<Config> {
        let agent = raw.agent;
        self.feature_flags(&agent.experimental);
        if raw.plugins.is_none() {
            self.problem(
                "plugins",
                Origin::Default,
                "plugins section must be configured",
            );
        }
        let (token, token_file) = self.join_token(&agent);
        let server_address = self.required(
            "server_address",
            self.flags.server_address.as_ref(),
            "-serverAddress",
            agent.server_address.as_ref(),
        );
        let server_port = self.server_port(&agent);
        let trust_domain = self.required(
            "trust_domain",
            self.flags.trust_domain.as_ref(),
            "-trustDomain",
            agent.trust_domain.as_ref(),
        );
        let trust_bundle = self.trust_bundle(&agent);
        let rebootstrap = self.rebootstrap(&agent);
        let sync_interval = self.sync_interval(&agent);
        let log = self.log(&agent);
        let mut experimental = self.experimental(&agent.experimental);
        let x509_svid_cache_max_size = self.cache_size(
            "x509_svid_cache_max_size",
            agent.x509_svid_cache_max_size.as_ref(),
        );
        let jwt_svid_cache_max_size = self.cache_size(
            "jwt_svid_cache_max_size",
            agent.jwt_svid_cache_max_size.as_ref(),
        );
        let trust_domain = self.trust_domain(&trust_domain);
        let disable_workload_api = pick_bool(
            self.flags.disable_workload_api,
            agent.disable_workload_api.as_ref(),
        );
        let disable_sds_api = pick_bool(self.flags.disable_sds_api, agent.disable_sds_api.as_ref());
        let public = !(disable_workload_api && disable_sds_api);
        let (socket_path, admin_socket_path) = self.sockets(&agent, public);
        let join_token = token.or_else(|| self.read_token(&token_file));
        let workload_key_type = self.key_type(&agent);
        let plugins = self.plugins(raw.plugins.as_deref().unwrap_or_default());
        let unknown = std::mem::take(&mut self.unknown);
        self.problems.extend(unknown);
        let authorized_delegates = self.delegates(&agent, &trust_domain);
        experimental.broker = self.broker(agent.experimental.broker.as_ref(), &socket_path, public);
        let availability_target = self.availability_target(&agent);
        experimental.ratelimit = self.ratelimit(&agent.experimental);
        let profiling = self.profiling(&agent);
        let edge = self.edge(agent.edge);
        let telemetry = self.telemetry(raw.telemetry);
        let health_checks = self.health_checks(&raw.health_checks);
        self.warn_of_keys(seen);
        Some(Config {
            file,
            trust_domain,
            server_address: server_address.value,
            server_port,
            data_dir: self.data_dir(agent.data_dir.as_ref()),
            socket_path,
            admin_socket_path,
            disable_workload_api,
            disable_sds_api,
            log,
            trust_bundle,
            rebootstrap,
            join_token,
            workload_key_type,
            availability_target,
            x509_svid_cache_max_size,
            jwt_svid_cache_max_size,
            allow_unauthenticated_verifiers: pick_bool(
                self.flags.allow_unauthenticated_verifiers,
                agent.allow_unauthenticated_verifiers.as_ref(),
            ),
            allowed_foreign_jwt_claims: plain(agent.allowed_foreign_jwt_claims),
            authorized_delegates,
            sync_interval,
            sds: sds(agent.sds),
            profiling,
            experimental,
            edge,
            key_manager: plugins.key_manager?,
            node_attestor: plugins.node_attestor?,
            workload_attestors: plugins.workload_attestors,
            svid_stores: plugins.svid_stores,
            telemetry,
            health_checks,
            warnings: Vec::new(),
            unbuilt: Vec::new(),
        })
    }

    /// A value that must be there, from its flag or the file.
    fn required(
        &mut self,
        key: &str,
        flag: Option<&String>,
        name: &'static str,
        file: Option<&Spanned<String>>,
    ) -> Spanned<String> {
        let picked = pick(flag, name, file);
        if picked.value.is_empty() {
            self.problem(
                &format!("agent.{key}"),
                picked.origin,
                format!("{key} must be configured"),
            );
        }
        picked
    }

    fn data_dir(&self, file: Option<&Spanned<String>>) -> PathBuf {
        let picked = pick(self.flags.data_dir.as_ref(), "-dataDir", file);
        paths::absolute(self.cwd, &picked.value)
    }

    /// A duration; `None` when empty or wrong.
    fn duration(
        &mut self,
        key: &str,
        given: &Spanned<String>,
        complaint: &str,
    ) -> Option<Duration> {
        if given.value.is_empty() {
            return None;
        }
        match parse_duration(&given.value) {
            Ok(value) => Some(value),
            Err(error) => {
                self.problem(key, given.origin, format!("{complaint}: {error}"));
                None
            }
        }
    }

    fn sync_interval(&mut self, agent: &RawAgent) -> Duration {
        let given = agent.experimental.sync_interval.clone().unwrap_or_default();
        let key = "agent.experimental.sync_interval";
        let interval = self.duration(key, &given, "could not parse synchronization interval");
        interval
            .filter(|interval| !interval.is_zero())
            .unwrap_or(DEFAULT_SYNC_INTERVAL)
    }

    fn cache_size(&mut self, key: &str, given: Option<&Spanned<i64>>) -> usize {
        let Some(given) = given.filter(|given| given.value != 0) else {
            return DEFAULT_CACHE_SIZE;
        };
        usize::try_from(given.value).unwrap_or_else(|_| {
            self.problem(
                &format!("agent.{key}"),
                given.origin,
                format!("{key} should not be negative"),
            );
            DEFAULT_CACHE_SIZE
        })
    }

    fn key_type(&mut self, agent: &RawAgent) -> KeyType {
        let given = agent
            .workload_x509_svid_key_type
            .clone()
            .unwrap_or_default();
        match given.value.to_ascii_lowercase().as_str() {
            "" | "ec-p256" => KeyType::EcP256,
            "ec-p384" => KeyType::EcP384,
            "rsa-2048" => KeyType::Rsa2048,
            _ => {
                let message = format!(
                    "key type {:?} is unknown; must be one of [ec-p256, ec-p384, rsa-2048]",
                    given.value
                );
                self.problem("agent.workload_x509_svid_key_type", given.origin, message);
                KeyType::EcP256
            }
        }
    }

    fn availability_target(&mut self, agent: &RawAgent) -> Option<Duration> {
        let given = agent.availability_target.clone().unwrap_or_default();
        let key = "agent.availability_target";
        let target = self.duration(key, &given, "unable to parse availability_target")?;
        if target < LEAST_AVAILABILITY_TARGET {
            let least = format_duration(LEAST_AVAILABILITY_TARGET);
            self.problem(
                key,
                given.origin,
                format!("availability_target must be at least {least}"),
            );
        }
        Some(target)
    }

    fn profiling(&mut self, agent: &RawAgent) -> Option<Profiling> {
        let enabled = agent.profiling_enabled.as_ref().is_some_and(|on| on.value);
        let port = self.port("agent.profiling_port", agent.profiling_port.as_ref());
        let frequency = agent.profiling_freq.clone().unwrap_or_default();
        let seconds = u64::try_from(frequency.value).unwrap_or_else(|_| {
            self.problem(
                "agent.profiling_freq",
                frequency.origin,
                "profiling_freq should not be negative",
            );
            0
        });
        enabled.then(|| Profiling {
            port,
            every: Duration::from_secs(seconds),
            names: plain(agent.profiling_names.clone()),
        })
    }

    /// A port that may be 0 or not given.
    fn port(&mut self, key: &str, given: Option<&Spanned<i64>>) -> u16 {
        let Some(given) = given else { return 0 };
        u16::try_from(given.value).unwrap_or_else(|_| {
            self.problem(
                key,
                given.origin,
                format!("{key} must be from 0 to 65535, not {}", given.value),
            );
            0
        })
    }

    /// Warns of keys that have no future.
    fn warn_of_keys(&mut self, seen: &Seen) {
        let keys = [
            (
                "agent.retry_bootstrap",
                "deprecated: the agent always retries",
            ),
            (
                "agent.retry_rebootstrap",
                "deprecated: the agent always retries",
            ),
            (
                "agent.experimental.use_sync_authorized_entries",
                "deprecated: entries are synchronized incrementally",
            ),
            (
                "agent.experimental",
                "experimental features have been enabled",
            ),
        ];
        for (key, message) in keys {
            if let Some(place) = seen.get(key) {
                self.warn(key, Origin::File(*place), message);
            }
        }
    }
}

fn sds(raw: RawSds) -> SdsConfig {
    let name = |given: Option<Spanned<String>>, default: &str| {
        let given = given
            .map(|given| given.value)
            .filter(|name| !name.is_empty());
        given.unwrap_or_else(|| default.to_owned())
    };
    SdsConfig {
        default_svid_name: name(raw.default_svid_name, "default"),
        default_bundle_name: name(raw.default_bundle_name, "ROOTCA"),
        default_all_bundles_name: name(raw.default_all_bundles_name, "ALL"),
        disable_spiffe_cert_validation: raw
            .disable_spiffe_cert_validation
            .is_some_and(|on| on.value),
    }
}

fn non_empty(text: Option<&String>) -> Option<&String> {
    text.filter(|text| !text.is_empty())
}

/// The flag unless empty, else what the file says; empty if neither.
fn pick(
    flag: Option<&String>,
    name: &'static str,
    file: Option<&Spanned<String>>,
) -> Spanned<String> {
    match non_empty(flag) {
        Some(value) => Spanned {
            value: value.clone(),
            origin: Origin::Flag(name),
        },
        None => file.cloned().unwrap_or_default(),
    }
}

/// True if either says so: a flag of `false` counts as not given.
fn pick_bool(flag: Option<bool>, file: Option<&Spanned<bool>>) -> bool {
    flag == Some(true) || file.is_some_and(|file| file.value)
}

fn plain(texts: Vec<Spanned<String>>) -> Vec<String> {
    texts.into_iter().map(|text| text.value).collect()
}
