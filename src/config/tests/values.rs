//! Configurations that are taken, and what they mean.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use actors::attestor::trust::{BundleSource, PinnedSource};
use actors::bundle::BundleFormat;

use super::super::{
    ConfigErrors, Flags, KeyManager, KeyType, LogFormat, LogLevel, NodeAttestor, OfflineIdentities,
    RebootstrapMode, Secret, WorkloadAttestor, X509pop, load,
};
use super::{PLUGINS, check_with, conf, good, without};

/// Every key there is.
const EVERYTHING: &str = r#"
agent {
  trust_domain = "spiffe://domain.test/x"
  server_address = "server.test"
  server_port = 0x1f91
  data_dir = "data"
  socket_path = "pub/api.sock"
  admin_socket_path = "/adm/admin.sock"
  disable_workload_api = false
  disable_sds_api = true
  log_level = "Warning"
  log_format = "JSON"
  log_source_location = true
  log_selectors = ["unix:uid"]
  log_selectors = ["docker"]
  trust_bundle_url = "http://bundle.test/?a=1"
  trust_bundle_unix_socket = "/b.sock"
  trust_bundle_format = "spiffe"
  join_token = "token"
  rebootstrap_mode = "always"
  rebootstrap_delay = "1h 30m"
  retry_bootstrap = true
  workload_x509_svid_key_type = "EC-P384"
  availability_target = "30d"
  x509_svid_cache_max_size = 5
  jwt_svid_cache_max_size = "0"
  allow_unauthenticated_verifiers = true
  allowed_foreign_jwt_claims = ["a", "b"]
  authorized_delegates = ["spiffe://domain.test/d"]
  sds {
    default_svid_name = "d"
    default_bundle_name = "R"
    default_all_bundles_name = "A"
    disable_spiffe_cert_validation = true
  }
  profiling_enabled = true
  profiling_port = 6060
  profiling_freq = 5
  profiling_names = ["heap"]
  experimental {
    sync_interval = "30d"
    jwt_svid_cache_hit_timeout = "5s"
    use_sync_authorized_entries = false
    require_pq_kem = true
    feature_flags = ["wit-svid"]
    ratelimit {
      fetch_x509_svid = 1
      fetch_jwt_svid = 2
      fetch_x509_bundles = 3
      fetch_jwt_bundles = 4
      stream_secrets = 5
      fetch_secrets = 0
    }
    broker {
      socket_path = "/broker/api.sock"
      bind_address = "127.0.0.1:1"
      brokers = [{
        id = "spiffe://domain.test/b"
        allowed_reference_types = [{ type_url = "t", allow_over_tcp = true }]
      }]
    }
  }
  edge {
    offline_identities = "sealed"
    offline_key_path = "key"
    demand_sync = false
    empty_sync_patience = "forever"
    arrival_spread = "5m"
    min_remaining = "1h"
    trust_bundle_sources = ["/a"]
    files { a = 1 }
    exit_if_unreachable_for = "1d"
    socket_mode = 0770
    socket_group = "spire"
    log_explain = true
  }
}
plugins {
  KeyManager "disk" { plugin_data { directory = "keys" } }
  NodeAttestor "x509pop" {
    plugin_data {
      private_key_path = "/k"
      certificate_path = "/c"
      intermediates_path = "i"
    }
  }
  WorkloadAttestor "unix" { plugin_data { discover_workload_path = true workload_size_limit = -1 } }
  WorkloadAttestor "docker" { plugin_data { docker_socket_path = "unix:///d" sigstore { a = 1 } } }
  WorkloadAttestor "systemd" {}
  WorkloadAttestor "mine" {
    plugin_cmd = "mine" plugin_args = ["a"] plugin_data {} enabled = true
    plugin_checksum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
  }
  WorkloadAttestor "off" { plugin_cmd = "off" enabled = false }
  SVIDStore "aws_secretsmanager" { plugin_data { region = "r" } }
}
telemetry {
  Prometheus { host = "0.0.0.0" port = 9988 tls { cert_file = "/c" key_file = "/k" client_ca_file = "/a" } }
  DogStatsd = [{ address = "a:1" }, { address = "b:1" }]
  Statsd { address = "c:1" }
  M3 { address = "d:1" env = "prod" }
  InMem {}
  MetricPrefix = "p"
  EnableTrustDomainLabel = true
  EnableHostnameLabel = false
  AllowedPrefixes = ["a"]
  BlockedPrefixes = ["b"]
  AllowedLabels = ["c"]
  BlockedLabels = ["d"]
}
health_checks {
  listener_enabled = true
  bind_address = "[::1]"
  bind_port = 8080
  ready_path = "/r"
  live_path = "/l"
}
"#;

#[test]
fn every_key_is_known() {
    let config = good(EVERYTHING);

    let odd: Vec<_> = config
        .warnings
        .iter()
        .filter(|warning| warning.message.contains("unknown"))
        .collect();
    assert!(odd.is_empty(), "{odd:?}");
    for key in super::super::schema::AGENT.keys {
        let left_out = [
            "log_file",
            "trust_bundle_path",
            "trust_bundle_spiffe_workload_api",
            "insecure_bootstrap",
            "join_token_file",
            "retry_rebootstrap",
        ];
        assert!(EVERYTHING.contains(key) || left_out.contains(key), "{key}");
    }
}

#[test]
fn values_arrive_typed_and_paths_absolute() {
    let config = good(EVERYTHING);

    assert_eq!(
        (config.trust_domain.as_str(), config.server_port),
        ("domain.test", 8081)
    );
    assert_eq!(config.data_dir, Path::new("/cwd/data"));
    assert_eq!(config.socket_path, Path::new("/cwd/pub/api.sock"));
    assert_eq!(
        config.admin_socket_path.as_deref(),
        Some(Path::new("/adm/admin.sock"))
    );
    assert_eq!(
        (config.log.level, config.log.format),
        (LogLevel::Warn, LogFormat::Json)
    );
    assert_eq!(config.log.selectors, ["unix:uid", "docker"]);
    assert!(matches!(
        &config.trust_bundle,
        Some(BundleSource::Url {
            unix_socket: Some(_),
            format: Some(BundleFormat::Spiffe),
            ..
        })
    ));
    assert_eq!(config.rebootstrap.mode, RebootstrapMode::Always);
    assert_eq!(config.rebootstrap.delay, Duration::from_mins(90));
    assert_eq!(config.workload_key_type, KeyType::EcP384);
    assert_eq!(config.availability_target, Some(Duration::from_hours(720)));
    assert_eq!(
        (
            config.x509_svid_cache_max_size,
            config.jwt_svid_cache_max_size
        ),
        (5, 1000)
    );
    assert_eq!(config.sync_interval, Duration::from_hours(720));
    assert_eq!(config.experimental.ratelimit.len(), 5);
    assert!(!config.experimental.use_sync_authorized_entries);
    assert_eq!(config.edge.socket_mode, Some(0o770));
    assert_eq!(config.edge.empty_sync_patience, None);
    assert_eq!(config.edge.offline_identities, OfflineIdentities::Sealed);
    assert_eq!(
        config.key_manager,
        KeyManager::Disk {
            directory: PathBuf::from("/cwd/keys")
        }
    );
    assert_eq!(config.workload_attestors.len(), 4);
    assert_eq!(
        config.workload_attestors[0],
        WorkloadAttestor::Unix {
            discover_workload_path: true,
            workload_size_limit: -1
        }
    );
    assert_eq!(config.telemetry.dog_statsd, ["a:1", "b:1"]);
    assert_eq!(config.telemetry.m3[0].env, "prod");
    let health = config.health_checks.expect("health checks");
    assert_eq!(
        (health.bind_address.as_str(), health.bind_port),
        ("::1", 8080)
    );
}

#[test]
fn what_is_not_built_is_listed_with_its_line() {
    let config = good(EVERYTHING);

    let line = |needle: &str| {
        let index = EVERYTHING.lines().position(|line| line.contains(needle));
        index.and_then(|index| u32::try_from(index + 1).ok())
    };
    let found = |key: &str| {
        config
            .unbuilt()
            .iter()
            .find(|unbuilt| unbuilt.key == key)
            .map(|unbuilt| (unbuilt.line, unbuilt.needed))
    };
    assert_eq!(
        found("agent.edge.socket_mode"),
        Some((line("socket_mode"), true))
    );
    assert_eq!(
        found("telemetry.Prometheus"),
        Some((line("Prometheus"), false))
    );
    assert_eq!(
        found("plugins.WorkloadAttestor.docker"),
        Some((line("\"docker\" {"), false))
    );
    assert_eq!(found("plugins.NodeAttestor.x509pop"), None);
    assert!(
        good(&conf("").replace("join_token", "x509pop").replace(
            "\"x509pop\" { plugin_data {",
            "\"x509pop\" { plugin_data { private_key_path = \"k\" certificate_path = \"c\""
        ))
        .unbuilt()
        .is_empty()
    );
}

#[test]
fn a_join_token_makes_do_without_a_node_attestor_that_is_not_built() {
    let needed = |token: &str| {
        let text = conf(token).replace("NodeAttestor \"join_token\"", "NodeAttestor \"k8s_psat\"");
        let config = good(&text);
        let attestor = config.unbuilt().first().expect("it is not built");
        (attestor.key.clone(), attestor.needed)
    };
    let key = "plugins.NodeAttestor.k8s_psat".to_owned();

    assert_eq!(needed(""), (key.clone(), true));
    assert_eq!(needed("  join_token = \"abc\""), (key, false));
}

#[test]
fn defaults_are_those_of_the_reference() {
    let config = good(&conf(
        "  log_level = \"\" experimental { sync_interval = \"0\" }",
    ));

    assert_eq!(config.data_dir, Path::new("/cwd"));
    assert_eq!(
        config.socket_path,
        Path::new("/tmp/spire-agent/public/api.sock")
    );
    assert_eq!(
        (config.admin_socket_path, config.health_checks),
        (None, None)
    );
    assert_eq!(
        (config.log.level, config.log.format, config.log.file),
        (LogLevel::Info, LogFormat::Unset, None)
    );
    assert_eq!(
        config.trust_bundle,
        Some(BundleSource::File {
            path: PathBuf::from("/x.pem"),
            format: Some(BundleFormat::Pem)
        })
    );
    assert_eq!(config.sync_interval, Duration::from_secs(5));
    assert_eq!(
        (
            config.x509_svid_cache_max_size,
            config.jwt_svid_cache_max_size
        ),
        (1000, 1000)
    );
    assert_eq!(
        (
            config.sds.default_svid_name.as_str(),
            config.sds.default_bundle_name.as_str(),
            config.sds.default_all_bundles_name.as_str()
        ),
        ("default", "ROOTCA", "ALL")
    );
    assert_eq!(config.telemetry.metric_prefix, "spire_agent");
    assert!(
        config.telemetry.enable_hostname_label && config.experimental.use_sync_authorized_entries
    );
}

#[test]
fn a_flag_beats_the_file_unless_it_is_empty() {
    let text = conf("  log_level = \"debug\" disable_sds_api = true");
    let some = |text: &str| Some(text.to_owned());
    let flags = Flags {
        log_level: some("error"),
        server_port: some("9"),
        server_address: some("flag.test"),
        socket_path: some("f/api.sock"),
        data_dir: some("/flag"),
        disable_sds_api: Some(false),
        disable_workload_api: Some(true),
        ..Flags::default()
    };
    let empty = Flags {
        log_level: some(""),
        server_port: some("0"),
        ..Flags::default()
    };

    let flagged = check_with(&text, &flags).expect("good");
    let unflagged = check_with(&text, &empty).expect("good");

    assert_eq!(
        (
            flagged.log.level,
            flagged.server_port,
            flagged.server_address.as_str()
        ),
        (LogLevel::Error, 9, "flag.test")
    );
    assert_eq!(
        (flagged.socket_path, flagged.data_dir),
        (PathBuf::from("/cwd/f/api.sock"), PathBuf::from("/flag"))
    );
    assert!(flagged.disable_sds_api && flagged.disable_workload_api);
    assert_eq!(
        (unflagged.log.level, unflagged.server_port),
        (LogLevel::Debug, 8081)
    );
}

#[test]
fn flags_alone_suffice_beside_an_empty_agent_block() {
    let some = |text: &str| Some(text.to_owned());
    let flags = Flags {
        server_address: some("a"),
        server_port: some("1"),
        trust_domain: some("t"),
        trust_bundle: some("b.pem"),
        ..Flags::default()
    };

    let config = check_with(PLUGINS, &flags).expect("good");

    assert_eq!(
        config.trust_bundle,
        Some(BundleSource::File {
            path: PathBuf::from("/cwd/b.pem"),
            format: Some(BundleFormat::Pem)
        })
    );
}

#[test]
fn a_problem_with_a_flag_names_the_flag() {
    let flags = Flags {
        log_level: Some("loud".to_owned()),
        ..Flags::default()
    };

    let said = check_with(&conf(""), &flags)
        .expect_err("bad level")
        .to_string();

    assert_eq!(
        said,
        "could not start logger: unknown log level \"loud\" (from -logLevel)"
    );
}

#[test]
fn keys_match_in_any_case_but_plugin_names_do_not() {
    let text = conf("")
        .replace("trust_domain", "Trust_Domain")
        .replace("agent {", "AGENT {");

    assert_eq!(good(&text).trust_domain, "domain.test");
    assert!(super::bad(&conf("").replace("\"memory\"", "\"Memory\"")).contains("not built in"));
}

#[test]
fn the_last_value_wins_and_repeated_blocks_merge() {
    let text = conf(
        "  server_port = 1 experimental { sync_interval = \"1s\" } experimental { require_pq_kem = true }",
    ) + "agent { server_address = \"later\" }";

    let config = good(&text);

    assert_eq!(
        (config.server_port, config.server_address.as_str()),
        (1, "later")
    );
    assert_eq!(config.sync_interval, Duration::from_secs(1));
    assert!(config.experimental.require_pq_kem);
}

#[test]
fn only_the_first_plugins_section_counts() {
    let config = good(&(conf("") + "plugins { KeyManager \"disk\" {} }"));

    assert_eq!(config.key_manager, KeyManager::Memory);
    assert!(
        config.warnings[0]
            .message
            .contains("only the first plugins section counts")
    );
}

#[test]
fn plugins_may_be_written_in_every_way_of_hcl_1() {
    let x509pop = NodeAttestor::X509pop(X509pop::Files {
        private_key_path: PathBuf::from("/k"),
        certificate_path: PathBuf::from("/c"),
        intermediates_path: None,
    });
    let data = "private_key_path = \"/k\", certificate_path = \"/c\"";
    let json =
        r#"[{"x509pop":[{"plugin_data":[{"private_key_path":"/k","certificate_path":"/c"}]}]}]"#;
    let nested = r#"{"x509pop":{"plugin_data":{"private_key_path":"/k","certificate_path":"/c"}}}"#;
    let hcl = [
        format!("NodeAttestor \"x509pop\" {{ plugin_data {{ {data} }} }}"),
        format!("NodeAttestor \"x509pop\" {{ plugin_data = {{ {data} }} }}"),
        format!("NodeAttestor x509pop {{ plugin_data {{ {data} }} }}"),
        format!("NodeAttestor {{ x509pop {{ plugin_data {{ {data} }} }} }}"),
        format!("NodeAttestor \"x509pop\" plugin_data {{ {data} }}"),
    ];
    let mut texts: Vec<_> = hcl
        .iter()
        .map(|attestor| {
            conf("").replace("NodeAttestor \"join_token\" { plugin_data {} }", attestor)
        })
        .collect();
    for attestor in [json, nested] {
        texts.push(format!(
            r#"{{"agent":{{"server_address":"a","server_port":8081,"trust_domain":"domain.test","trust_bundle_path":"/x"}},
            "plugins":{{"KeyManager":[{{"memory":[{{}}]}}],"NodeAttestor":{attestor},"WorkloadAttestor":{{"unix":{{"plugin_data":{{}}}}}}}}}}"#
        ));
    }

    for text in texts {
        assert_eq!(good(&text).node_attestor, x509pop, "{text}");
    }
}

#[test]
fn experimental_settings_and_old_keys_are_warned_of() {
    let config = good(&conf(
        "  retry_bootstrap = true\n  experimental { require_pq_kem = true }",
    ));

    let warnings: Vec<_> = config.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "deprecated: the agent always retries (agent.retry_bootstrap at 6:3)",
            "experimental features have been enabled (agent.experimental at 7:3)"
        ]
    );
}

/// Loads from a fresh directory that is also the working directory.
fn load_in(directory: &Path, text: &str, expand_env: bool) -> Result<super::Config, ConfigErrors> {
    fs::write(directory.join("agent.conf"), text).expect("a file");
    let env = |name: &str| match name {
        "TD" => Some("domain.test".to_owned()),
        "MIDDLE" => Some("main.te".to_owned()),
        _ => None,
    };
    load(
        Some("agent.conf"),
        &Flags::default(),
        expand_env,
        &env,
        directory,
    )
}

#[test]
fn a_missing_file_is_named_absolutely() {
    let directory = tempfile::tempdir().expect("a directory");
    let load_from = |path| {
        load(path, &Flags::default(), false, &|_| None, directory.path())
            .expect_err("missing")
            .to_string()
    };

    let shown = directory.path().display();
    assert_eq!(
        load_from(Some("x/../none.conf")),
        format!("could not find config file {shown}/none.conf: please use the -config flag")
    );
    assert_eq!(
        load_from(None),
        format!(
            "could not find config file {shown}/conf/agent/agent.conf: please use the -config flag"
        )
    );
    assert_eq!(load_from(Some("")), load_from(None));
    fs::create_dir(directory.path().join("d")).expect("a directory");
    assert!(load_from(Some("d")).contains("is a directory"));
}

#[test]
fn a_file_that_is_not_utf_8_is_named_with_the_line() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("agent.conf"), b"a = 1\n\xff").expect("a file");

    let said = load(
        Some("agent.conf"),
        &Flags::default(),
        false,
        &|_| None,
        directory.path(),
    )
    .expect_err("no text")
    .to_string();

    assert!(said.ends_with("agent.conf: line 2 is not UTF-8"), "{said}");
}

#[test]
fn the_environment_is_expanded_only_when_asked_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let with = |value: &str, expand| {
        load_in(
            directory.path(),
            &conf("").replace("domain.test", value),
            expand,
        )
    };

    for value in ["$TD", "${TD}", "do${MIDDLE}st"] {
        assert_eq!(with(value, true).expect(value).trust_domain, "domain.test");
        assert!(
            with(value, false)
                .expect_err(value)
                .to_string()
                .contains("trust domain")
        );
    }
    assert!(
        with("$UNSET", true)
            .expect_err("unset")
            .to_string()
            .starts_with("trust_domain must be configured")
    );
}

#[test]
fn checking_leaves_no_file_behind() {
    let directory = tempfile::tempdir().expect("a directory");
    let text = conf(
        "  data_dir = \"data\" socket_path = \"pub/api.sock\" admin_socket_path = \"adm/a.sock\" log_file = \"x.log\"",
    );

    let config = load_in(directory.path(), &text, false).expect("good");

    assert_eq!(config.log.file, Some(directory.path().join("x.log")));
    assert_eq!(
        fs::read_dir(directory.path()).expect("a directory").count(),
        1
    );
}

#[test]
fn the_join_token_file_is_read_and_trimmed() {
    let directory = tempfile::tempdir().expect("a directory");
    let token = directory.path().join("token");
    let text = conf("  join_token_file = \"token\"");

    fs::write(&token, " abc \n").expect("a file");
    let config = load_in(directory.path(), &text, false).expect("good");
    fs::write(&token, " \n").expect("a file");
    let empty = load_in(directory.path(), &text, false).expect_err("empty");

    assert_eq!(config.join_token.as_ref().map(Secret::expose), Some("abc"));
    assert!(
        empty.to_string().starts_with("join token file is empty"),
        "{empty}"
    );
}

#[test]
fn plugin_data_may_stand_in_a_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("disk.hcl");
    let text = conf("").replace(
        "\"memory\" { plugin_data {} }",
        "\"disk\" { plugin_data_file = \"disk.hcl\" }",
    );

    fs::write(&data, "directory = \"/keys\"").expect("a file");
    let config = load_in(directory.path(), &text, false).expect("good");
    fs::write(&data, "\ndirectory = true").expect("a file");
    let wrong = load_in(directory.path(), &text, false)
        .expect_err("wrong type")
        .to_string();

    assert_eq!(
        config.key_manager,
        KeyManager::Disk {
            directory: PathBuf::from("/keys")
        }
    );
    assert!(
        wrong.contains(&format!("(in {}:2:13)", data.display())),
        "{wrong}"
    );
}

#[test]
fn the_block_form_of_a_list_makes_one_element_for_each_block() {
    let text = conf("")
        + "telemetry { M3 { address = \"a\" env = \"b\" } M3 { address = \"c\" env = \"d\" } }";

    let sinks = good(&text).telemetry.m3;

    let sinks: Vec<_> = sinks
        .iter()
        .map(|sink| (sink.address.as_str(), sink.env.as_str()))
        .collect();
    assert_eq!(sinks, [("a", "b"), ("c", "d")]);
}

#[test]
fn one_bundle_source_is_enough() {
    let cases = [
        "insecure_bootstrap = true",
        "trust_bundle_url = \"https://x/\"",
        "trust_bundle_url = \"http://x/?a=1\" trust_bundle_unix_socket = \"/x\"",
        "trust_bundle_spiffe_workload_api = \"unix:///x\"",
        "trust_bundle_spiffe_workload_api = \"tcp://127.0.0.1:1\"",
        "edge { trust_bundle_sources = [\"/a\"] }",
    ];

    for line in cases {
        good(
            &without("trust_bundle_path", &conf(""))
                .replace("agent {", &format!("agent {{ {line}")),
        );
    }
}

#[test]
fn a_list_of_bundle_sources_stands_beside_the_classic_one() {
    let pin = format!("sha256:{}", "0a".repeat(32));
    let list = format!("edge {{ trust_bundle_sources = [\"/a#{pin}\", \"unix:///b\"] }}");

    let config = good(&conf(&list));
    let alone = good(&conf("").replace("trust_bundle_path = \"/x.pem\"", &list));

    let sources = &config.edge.trust_bundle_sources;
    assert_ne!(
        *sources,
        [
            PinnedSource::unpinned(sources[0].source.clone()),
            sources[1].clone()
        ]
    );
    assert!(matches!(
        config.trust_bundle,
        Some(BundleSource::File { .. })
    ));
    assert!(matches!(
        sources[1].source,
        BundleSource::WorkloadApi { .. }
    ));
    assert_eq!(
        (alone.trust_bundle, alone.edge.trust_bundle_sources),
        (None, sources.clone())
    );
}
