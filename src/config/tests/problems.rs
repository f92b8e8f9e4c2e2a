//! Configurations that are refused, and the words for it.

use super::{BODY, Flags, PLUGINS, bad, check_with, conf, good, without};

/// Lines for the agent block and what is said about them.
const WRONG_LINES: &[(&str, &str)] = &[
    (
        "insecure_bootstrap = true",
        "only one of insecure_bootstrap or trust_bundle_path can be specified, not both",
    ),
    (
        "trust_bundle_url = \"https://x/\"",
        "only one of trust_bundle_url or trust_bundle_path can be specified, not both",
    ),
    (
        "trust_bundle_unix_socket = \"/x\"",
        "if trust_bundle_unix_socket is specified, so must be trust_bundle_url",
    ),
    (
        "trust_bundle_format = \"der\"",
        "invalid value for trust_bundle_format, expected \"pem\" or \"spiffe\"",
    ),
    (
        "join_token = \"a\" join_token_file = \"/b\"",
        "only one of join_token or join_token_file can be specified, not both",
    ),
    (
        "join_token_file = \"/nonexistent\"",
        "unable to read join token file",
    ),
    (
        "x509_svid_cache_max_size = -5",
        "x509_svid_cache_max_size should not be negative",
    ),
    (
        "jwt_svid_cache_max_size = -5",
        "jwt_svid_cache_max_size should not be negative",
    ),
    (
        "experimental { sync_interval = \"abc\" }",
        "could not parse synchronization interval",
    ),
    (
        "experimental { sync_interval = \"10\" }",
        "could not parse synchronization interval",
    ),
    (
        "experimental { jwt_svid_cache_hit_timeout = \"4s\" }",
        "jwt_svid_cache_hit_timeout must be at least 5s",
    ),
    (
        "experimental { jwt_svid_cache_hit_timeout = \"30s\" }",
        "jwt_svid_cache_hit_timeout must be at least 5s",
    ),
    (
        "experimental { feature_flags = [\"nope\"] }",
        "unknown feature flag \"nope\"",
    ),
    (
        "experimental { named_pipe_name = \"x\" }",
        "named_pipe_name is not supported",
    ),
    (
        "experimental { ratelimit { fetch_jwt_svid = -1 } }",
        "ratelimit fetch_jwt_svid should not be negative",
    ),
    (
        "experimental { broker { } }",
        "broker needs at least one of socket_path and bind_address",
    ),
    (
        "experimental { broker { bind_address = \"x\" brokers = [{ }] } }",
        "broker id must be configured",
    ),
    ("log_level = \"loud\"", "could not start logger"),
    ("log_format = \"xml\"", "could not start logger"),
    (
        "log_file = \"/nonexistent/dir/x.log\"",
        "/nonexistent/dir/x.log",
    ),
    (
        "rebootstrap_mode = \"often\"",
        "unknown rebootstrap mode specified: often",
    ),
    (
        "rebootstrap_delay = \"soon\"",
        "error parsing rebootstrap delay duration",
    ),
    (
        "availability_target = \"whenever\"",
        "unable to parse availability_target",
    ),
    (
        "availability_target = \"1h\"",
        "availability_target must be at least 24h0m0s",
    ),
    ("workload_x509_svid_key_type = \"dsa-1024\"", "dsa-1024"),
    (
        "authorized_delegates = [\"spiffe://other/x\"]",
        "error validating authorized delegate",
    ),
    (
        "authorized_delegates = [\"x\"]",
        "error validating authorized delegate",
    ),
    (
        "disable_sds_api = \"true\"",
        "agent.disable_sds_api must be true or false without quotes, not a string",
    ),
    (
        "log_selectors = \"unix\"",
        "agent.log_selectors must be a list of strings, not a string",
    ),
    (
        "log_level = true",
        "agent.log_level must be a string, not a boolean",
    ),
    (
        "x509_svid_cache_max_size = \"many\"",
        "agent.x509_svid_cache_max_size must be an integer",
    ),
    (
        "experimental = 1",
        "agent.experimental must be a block, not a number",
    ),
    (
        "edge { socket_mode = \"0999\" }",
        "socket_mode must be an octal number",
    ),
    (
        "edge { offline_identities = \"on\" }",
        "offline_identities must be off, sealed or plain",
    ),
    (
        "edge { min_remaining = \"x\" }",
        "could not parse min_remaining",
    ),
    ("edge { nothing = 1 }", "unknown configuration detected"),
];

#[test]
fn wrong_values_are_named_with_key_and_place() {
    for (line, message) in WRONG_LINES {
        let said = bad(&conf(&format!("  {line}")));

        assert!(said.contains(message), "{line}: {said}");
        let named = said
            .lines()
            .all(|said| said.contains(" at /etc/agent.conf:"));
        assert!(named, "{line}: {said}");
    }
}

#[test]
fn each_required_value_has_its_own_message() {
    let no_source =
        "trust_bundle_path or trust_bundle_url must be configured unless insecure_bootstrap is set";
    let text = conf("");
    let cases = [
        (
            without("server_address", &text),
            "server_address must be configured",
        ),
        (
            without("server_port", &text),
            "server_port must be configured",
        ),
        (
            text.replace("\"8081\"", "0"),
            "server_port must be configured (agent.server_port at /etc/agent.conf:3:17)",
        ),
        (
            without("trust_domain", &text),
            "trust_domain must be configured",
        ),
        (
            text.replace("domain.test", ""),
            "trust_domain must be configured (agent.trust_domain at /etc/agent.conf:4:18)",
        ),
        (without("trust_bundle_path", &text), no_source),
        (
            format!("agent {{\n{BODY}}}"),
            "plugins section must be configured",
        ),
    ];

    for (text, message) in cases {
        assert_eq!(bad(&text), message);
    }
}

#[test]
fn everything_wrong_is_told_at_once_in_the_order_of_the_reference() {
    let said = bad(
        "agent { log_level = \"loud\" sever_port = 1 }\ntelemetry { Statsd { addres = \"x\" } }",
    );

    let starts: Vec<_> = said
        .lines()
        .map(|line| line.split([':', ' ']).next().unwrap_or_default())
        .collect();
    assert_eq!(
        starts,
        [
            "plugins",
            "server_address",
            "server_port",
            "trust_domain",
            "trust_bundle_path",
            "could",
            "unknown",
            "unknown",
            "telemetry.Statsd"
        ]
    );
}

#[test]
fn bundle_urls_have_rules() {
    let socket = "trust_bundle_unix_socket = \"/x\"";
    let cases = [
        (
            "trust_bundle_url = \"http://x/\"".to_owned(),
            "trust bundle URL must start with https://",
        ),
        (
            format!("trust_bundle_url = \"https://x/\" {socket}"),
            "trust bundle URL must start with http:// when used with trust bundle unix socket",
        ),
        (
            format!("trust_bundle_url = \"http://x/?spiffe-a=1\" {socket}"),
            "trust_bundle_url query params can not start with spiffe-",
        ),
        (
            format!("trust_bundle_url = \"http://x/?b&spire-a=1\" {socket}"),
            "trust_bundle_url query params can not start with spire-",
        ),
        (
            format!("trust_bundle_url = \"http://x/?%73pire-a=1\" {socket}"),
            "trust_bundle_url query params can not start with spire-",
        ),
        (
            "trust_bundle_url = \"https://hush@h:x/?hush\"".to_owned(),
            "trust_bundle_url: port of the URL must be a number from 1 to 65535",
        ),
        (
            "insecure_bootstrap = true edge { trust_bundle_sources = [\"/a\"] }".to_owned(),
            "only one of insecure_bootstrap or trust_bundle_sources can be specified, not both",
        ),
        (
            "insecure_bootstrap = true rebootstrap_mode = \"auto\"".to_owned(),
            "insecure_bootstrap option can not be used with rebootstrapping",
        ),
        (
            "trust_bundle_spiffe_workload_api = \"/run/x.sock\"".to_owned(),
            "must be unix:///path or tcp://ip:port",
        ),
    ];

    for (line, message) in cases {
        let said = bad(&without("trust_bundle_path", &conf(""))
            .replace("agent {", &format!("agent {{ {line}")));

        assert!(
            said.contains(message) && said.lines().count() == 1 && !said.contains("hush"),
            "{line}: {said}"
        );
    }
}

#[test]
fn unknown_keys_are_named_with_line_and_nearest_name() {
    let said = bad(&conf("  sever_port = 1"));

    assert_eq!(
        said,
        "unknown configuration detected: key \"sever_port\" in section \"agent\", did you mean \"server_port\"? (agent.sever_port at /etc/agent.conf:6:3)"
    );
}

#[test]
fn a_key_of_another_block_is_sent_there() {
    let said = bad(&conf("  sync_interval = \"5s\""));

    assert!(
        said.contains("it belongs in block \"agent.experimental\""),
        "{said}"
    );
}

#[test]
fn unknown_keys_stop_the_start_only_where_the_reference_stops() {
    let fatal = [
        conf("x = 1"),
        conf("") + "foo {}",
        conf("") + "telemetry { Prometheus { x = 1 } }",
        conf("") + "telemetry { M3 { address = \"a\" x = 1 } }",
        conf("") + "health_checks { x = 1 }",
        conf("experimental { ratelimit { x = 1 } }"),
        conf("experimental { broker { bind_address = \"a\" x = 1 } }"),
    ];
    let ignored = [
        conf("\"x\" = 1"),
        conf("experimental { x = 1 }"),
        conf("sds { x = 1 }"),
        conf("") + "telemetry { x = 1 }",
        conf("").replace("\"memory\" {", "\"memory\" { x = 1"),
        conf("").replace("\"unix\" { plugin_data {", "\"unix\" { plugin_data { x = 1"),
    ];

    for text in fatal {
        assert!(
            bad(&text).contains("unknown configuration detected"),
            "{text}"
        );
    }
    for text in ignored {
        let warnings = good(&text).warnings;
        assert!(
            warnings
                .iter()
                .any(|warning| warning.message.starts_with("unknown key \"x\"")),
            "{text}: {warnings:?}"
        );
    }
}

#[test]
fn ports_are_checked() {
    for (port, shown) in [("70000", "70000"), ("\"70000\"", "70000"), ("-1", "-1")] {
        let said = bad(&conf("").replace("\"8081\"", port));

        assert!(
            said.contains("server_port") && said.contains(shown),
            "{said}"
        );
    }
    let flags = Flags {
        server_port: Some("x".to_owned()),
        ..Flags::default()
    };
    let said = check_with(&conf(""), &flags)
        .expect_err("no number")
        .to_string();
    assert!(said.contains("-serverPort"), "{said}");
}

#[test]
fn trust_domains_are_checked() {
    for wrong in [
        "Domain.test",
        "domain test",
        "http://domain.test",
        "domain.test:80",
        "spiffe://",
        "$TD",
    ] {
        let said = bad(&conf("").replace("domain.test", wrong));

        assert!(
            said.starts_with("could not parse trust_domain") && said.contains("trust domain")
                || said.contains("scheme"),
            "{said}"
        );
    }
    for fine in [
        "spiffe://domain.test",
        "spiffe://domain.test/path",
        "a_b-c.1",
        &"d".repeat(255),
    ] {
        assert!(
            good(&conf("").replace("domain.test", fine))
                .warnings
                .is_empty()
        );
    }
    let long = good(&conf("").replace("domain.test", &"d".repeat(256)));
    assert_eq!(long.warnings.len(), 1);
}

#[test]
fn the_admin_socket_stays_away_from_the_public_one() {
    let cases = [
        ("/d/pub/api.sock", "/d/pub/admin.sock", false),
        ("/d/pub/api.sock", "/d/pub/deep/er/admin.sock", false),
        ("/d/pub/api.sock", "/d/pub/../pub/x/admin.sock", false),
        ("/d/api.sock", "/d/elsewhere/admin.sock", false),
        ("pub/api.sock", "/cwd/pub/admin.sock", false),
        ("/d/pub/api.sock", "/d/adm/admin.sock", true),
        ("/d/pub/api.sock", "/d/pubx/admin.sock", true),
        ("/d/pub/api.sock", "/d/pub/../admin.sock", true),
    ];
    let message = "admin socket cannot be in the same directory or a subdirectory as that containing the Workload API socket";

    for (public, admin, fine) in cases {
        let text = conf(&format!(
            "socket_path = \"{public}\" admin_socket_path = \"{admin}\""
        ));
        match super::check(&text) {
            Ok(_) => assert!(fine, "{admin}"),
            Err(errors) => assert!(
                !fine && errors.to_string().starts_with(message),
                "{admin}: {errors}"
            ),
        }
    }
    good(&conf(
        "disable_sds_api = true disable_workload_api = true socket_path = \"/a/b\" admin_socket_path = \"/a/c\"",
    ));
}

#[test]
fn socket_paths_that_no_socket_can_have_are_refused() {
    let long = format!("/{}", "l".repeat(107));

    let said = bad(&conf(&format!("socket_path = \"{long}\"")));

    assert!(said.contains(&long) && said.contains("107"), "{said}");
    good(&conf(&format!("socket_path = \"{}\"", &long[..107])));
}

#[test]
fn the_same_plugin_twice_is_one_problem_with_its_line() {
    for (plugin, name) in [
        ("WorkloadAttestor \"unix\"", "WorkloadAttestor \"unix\""),
        ("KeyManager \"memory\"", "KeyManager \"memory\""),
    ] {
        let second = format!("  {plugin} {{ plugin_data {{}} }}\n");
        let body = conf("");
        let twice = body.replace("plugins {\n", &format!("plugins {{\n{second}"));
        let off = second.replace("{ plugin", "{ enabled = false plugin");

        assert_ne!(twice, body, "the sample has a plugins block");
        let said = bad(&twice);
        assert!(
            said.contains(&format!("duplicate plugin: {name}")) && said.contains(" at "),
            "{said}"
        );
        assert!(!said.contains("exactly one"), "{said}");
        good(&body.replace("plugins {\n", &format!("plugins {{\n{off}")));
    }
}

#[test]
fn plugins_are_counted_and_known() {
    let unix = "WorkloadAttestor \"unix\" {}";
    let cases = [
        (
            String::new(),
            "exactly one KeyManager plugin must be configured, found 0",
        ),
        (
            format!(
                "KeyManager \"memory\" {{}} KeyManager \"other\" {{ plugin_cmd = \"/x\" }} {unix}"
            ),
            "exactly one KeyManager plugin must be configured, found 2",
        ),
        (
            "KeyManager \"memory\" { enabled = false }".to_owned(),
            "exactly one KeyManager plugin must be configured, found 0",
        ),
        (
            String::new(),
            "exactly one NodeAttestor plugin must be configured, found 0",
        ),
        (
            String::new(),
            "at least one WorkloadAttestor plugin must be configured",
        ),
        (
            "KeyManger \"memory\" {}".to_owned(),
            "unknown plugin type \"KeyManger\", did you mean \"KeyManager\"?",
        ),
        (
            "KeyManager \"dsk\" {}".to_owned(),
            "KeyManager \"dsk\" is not built in and has no plugin_cmd, did you mean \"disk\"?",
        ),
        (
            "KeyManager \"disk\" {}".to_owned(),
            "KeyManager \"disk\": directory must be configured",
        ),
        (
            "NodeAttestor \"x509pop\" {}".to_owned(),
            "NodeAttestor \"x509pop\": private_key_path must be configured",
        ),
        (
            "NodeAttestor \"x509pop\" {}".to_owned(),
            "NodeAttestor \"x509pop\": certificate_path must be configured",
        ),
        (
            "NodeAttestor \"join_token\" { plugin_cmd = \"/x\" }".to_owned(),
            "cannot be an external plugin",
        ),
        (
            "WorkloadAttestor \"systemd\" { plugin_data { a = 1 } }".to_owned(),
            "plugin_data must be empty",
        ),
        (
            "WorkloadAttestor \"docker\" { plugin_data { dcker = 1 } }".to_owned(),
            "unknown configuration detected",
        ),
        (
            "WorkloadAttestor \"docker\" { plugin_data { podman_socket_path_template = \"x%s\" } }"
                .to_owned(),
            "exactly one %d",
        ),
        (
            "WorkloadAttestor \"mine\" { plugin_cmd = \"/x\" plugin_checksum = \"ab\" }".to_owned(),
            "64 hexadecimal digits",
        ),
        (
            "KeyManager \"memory\" { plugin_data_file = \"/nonexistent\" }".to_owned(),
            "unable to read plugin_data_file /nonexistent: no such file or directory",
        ),
        (
            "KeyManager \"memory\" { plugin_data { a = 1 } plugin_data_file = \"/x\" }".to_owned(),
            "only one of plugin_data or plugin_data_file",
        ),
        (
            "KeyManager = \"memory\"".to_owned(),
            "plugins.KeyManager must be a block, not a string",
        ),
    ];

    for (plugins, message) in cases {
        let said = bad(&format!("agent {{\n{BODY}}}\nplugins {{ {plugins} }}"));

        assert!(said.contains(message), "{plugins}: {said}");
    }
}

#[test]
fn debug_output_and_complaints_hold_no_secret() {
    let secrets = "join_token = \"hush1\" trust_bundle_url = \"https://u:hush2@h/?hush3\"";
    let plugins = PLUGINS.replace("NodeAttestor \"join_token\" { plugin_data {} }", "NodeAttestor \"tpm_devid\" { plugin_data { devid_cert_path = \"a\" devid_priv_path = \"b\" devid_pub_path = \"c\" devid_password = \"hush4\" } } SVIDStore \"aws_secretsmanager\" { plugin_data { secret_access_key = \"hush5\" } }");
    let text = format!(
        "agent {{ {secrets}\n{}}}\n{plugins}",
        without("trust_bundle_path", BODY)
    );

    let config = good(&text);
    let flags = Flags {
        join_token: Some("hush6".to_owned()),
        ..Flags::default()
    };

    let shown = format!("{config:?} {flags:?} {:?}", config.unbuilt());
    assert!(!shown.contains("hush"), "{shown}");
    assert!(shown.contains("https://h/"), "{shown}");
    assert!(
        !bad(&text.replace("server_port = \"8081\"", "join_token = [\"hush\"]")).contains("hush")
    );
}

#[test]
fn a_wrong_entry_of_a_list_is_named_by_its_number_and_line() {
    let list =
        "edge {\n trust_bundle_sources = [\"/a\",\n \"https://hush@h:x/?hush\",\n \"a#b\"]\n}";

    let said = bad(&conf(list));

    let lines: Vec<_> = said.lines().collect();
    assert_eq!(
        lines,
        [
            "trust_bundle_sources[1] port of the URL must be a number from 1 to 65535 (agent.edge.trust_bundle_sources at /etc/agent.conf:8:2)",
            "trust_bundle_sources[2] behind #: a pin must be sha256: and 64 hexadecimal digits; several are separated by commas \
             (agent.edge.trust_bundle_sources at /etc/agent.conf:9:2)",
        ]
    );
}
