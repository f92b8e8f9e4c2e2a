//! `run`: reads the configuration, starts the log, and hands over to the agent itself.

use std::path::PathBuf;

use actors::attestor::trust::web::Web;
use actors::proxy::Proxies;

use super::flags::{Flag, Flags, Kind};
use super::{FAILURE, Output, Surroundings};
use crate::config::{self, Config, ConfigErrors};
use crate::system::{self, Host};
use crate::telemetry;

/// Flags of `run` and `validate` (workload-side 9.6).
pub(super) const FLAGS: &[&Flag] = &[
    &Flag::new(
        "allowUnauthenticatedVerifiers",
        Kind::Bool,
        "Serve bundles to workloads without an identity",
    ),
    &Flag::new("config", Kind::Text, "Path of the configuration file").or(config::DEFAULT_PATH),
    &Flag::new("dataDir", Kind::Text, "Directory of the agent's state"),
    &Flag::new("disableSDSAPI", Kind::Bool, "Do not serve Envoy's SDS"),
    &Flag::new(
        "disableWorkloadAPI",
        Kind::Bool,
        "Do not serve the SPIFFE Workload API",
    ),
    &Flag::new(
        "expandEnv",
        Kind::Bool,
        "Expand environment variables in the configuration file",
    ),
    &Flag::new(
        "insecureBootstrap",
        Kind::Bool,
        "Believe the first server without a trust bundle",
    ),
    &Flag::new("joinToken", Kind::Text, "Token to attest with"),
    &Flag::new(
        "joinTokenFile",
        Kind::Text,
        "File that holds the token to attest with",
    ),
    &Flag::new("logFile", Kind::Text, "File to write the log to"),
    &Flag::new("logFormat", Kind::Text, "Form of the log: text or json"),
    &Flag::new(
        "logLevel",
        Kind::Text,
        "How much is logged: error, warn, info, debug or trace",
    ),
    &Flag::new(
        "logSourceLocation",
        Kind::Bool,
        "Add the place in the source to each log line",
    ),
    &Flag::new(
        "rebootstrapDelay",
        Kind::Text,
        "Time to wait before starting over from the bootstrap bundle",
    ),
    &Flag::new(
        "rebootstrapMode",
        Kind::Text,
        "When to start over from the bootstrap bundle: never, auto or always",
    ),
    &Flag::new("serverAddress", Kind::Text, "Address or name of the server"),
    &Flag::new("serverPort", Kind::Integer, "Port of the server"),
    &Flag::new("socketPath", Kind::Text, "Path of the public socket"),
    &Flag::new(
        "trustBundle",
        Kind::Text,
        "File with the trust bundle to begin with",
    ),
    &Flag::new(
        "trustBundleFormat",
        Kind::Text,
        "Form of the trust bundle: pem or spiffe",
    ),
    &Flag::new(
        "trustBundleUrl",
        Kind::Text,
        "URL of the trust bundle to begin with",
    ),
    &Flag::new("trustDomain", Kind::Text, "Trust domain of the agent"),
];

pub(super) fn run(flags: &Flags, surroundings: &Surroundings<'_>, output: &mut Output) -> u8 {
    let config = match load(flags, surroundings) {
        Ok(config) => config,
        Err(errors) => {
            output.complain(errors);
            return FAILURE;
        }
    };
    if let Some(missing) = config.unbuilt().iter().find(|setting| setting.needed) {
        output.complain(format_args!(
            "{} is not available in this build yet",
            missing.key
        ));
        return FAILURE;
    }
    let log = match telemetry::install(&config.log, surroundings.clock.clone()) {
        Ok(log) => log,
        Err(error) => {
            output.complain(error);
            return FAILURE;
        }
    };
    for warning in &config.warnings {
        tracing::warn!(key = %warning.key, "{warning}");
    }
    for setting in config.unbuilt() {
        tracing::warn!(key = %setting.key, line = setting.line, "this build does not act on the setting yet");
    }
    let host = Host {
        proc_root: proc_root(surroundings.variable),
        web: Web::from_environment(surroundings.variable, surroundings.clock.clone()),
        proxies: Proxies::from_environment(surroundings.variable),
    };
    system::run(&config, &log, &host)
}

/// Where the process file system is; an empty variable counts as none.
fn proc_root(variable: &dyn Fn(&str) -> Option<String>) -> PathBuf {
    variable("HOST_PROC")
        .filter(|path| !path.is_empty())
        .map_or_else(|| PathBuf::from("/proc"), PathBuf::from)
}

/// Reads the configuration file with the flags laid over it.
pub(super) fn load(flags: &Flags, surroundings: &Surroundings<'_>) -> Result<Config, ConfigErrors> {
    config::load(
        flags.given("config"),
        &overrides(flags),
        flags.is_set("expandEnv"),
        surroundings.variable,
        &surroundings.directory,
    )
}

fn overrides(flags: &Flags) -> config::Flags {
    let text = |name| flags.given(name).map(str::to_owned);
    let truth = |name| flags.given_bool(name);
    config::Flags {
        data_dir: text("dataDir"),
        join_token: text("joinToken"),
        join_token_file: text("joinTokenFile"),
        log_file: text("logFile"),
        log_format: text("logFormat"),
        log_level: text("logLevel"),
        log_source_location: truth("logSourceLocation"),
        server_address: text("serverAddress"),
        server_port: text("serverPort"),
        socket_path: text("socketPath"),
        trust_domain: text("trustDomain"),
        disable_workload_api: truth("disableWorkloadAPI"),
        disable_sds_api: truth("disableSDSAPI"),
        trust_bundle: text("trustBundle"),
        trust_bundle_url: text("trustBundleUrl"),
        trust_bundle_format: text("trustBundleFormat"),
        allow_unauthenticated_verifiers: truth("allowUnauthenticatedVerifiers"),
        insecure_bootstrap: truth("insecureBootstrap"),
        rebootstrap_mode: text("rebootstrapMode"),
        rebootstrap_delay: text("rebootstrapDelay"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_host_proc_is_none() {
        for (value, expected) in [
            (None, "/proc"),
            (Some(""), "/proc"),
            (Some("/host/proc"), "/host/proc"),
        ] {
            let variable = |name: &str| {
                assert_eq!(name, "HOST_PROC");
                value.map(str::to_owned)
            };

            assert_eq!(proc_root(&variable), PathBuf::from(expected));
        }
    }
}
