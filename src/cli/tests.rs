//! Commands as a whole: which one is meant, what it prints, how it ends.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::{Duration, SystemTime};

use actors::testing::certificates::Ca;
use proto::grpc::health::v1::health_check_response::ServingStatus;
use proto::workload::{
    JwtBundlesResponse, Jwtsvid, JwtsvidResponse, ValidateJwtsvidResponse, X509svid,
    X509svidResponse,
};
use tonic::Status;

use super::output::testing::captured;
use super::*;

mod agent;

use agent::Agent;

/// Runs a command line in this process: exit code, standard output, standard error.
fn command(line: &str) -> (u8, String, String) {
    let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let surroundings = Surroundings {
        variable: &|_| None,
        directory: PathBuf::from("/"),
        clock: Clock::system(),
    };
    let (mut output, standard, error) = captured();
    let code = main(&arguments, &surroundings, &mut output);
    (code, standard.text(), error.text())
}

#[test]
fn arguments_select_a_command_its_help_or_the_overview() {
    let overview = "Usage: edge-agent [--version]";
    let table = [
        ("", 127, overview),
        ("bogus", 127, overview),
        ("runn", 127, overview),
        ("bogus -h", 127, overview),
        ("-foo", 127, overview),
        ("-- run", 127, overview),
        ("-h", 0, overview),
        ("--help", 0, overview),
        ("-help", 0, overview),
        ("-v", 0, env!("CARGO_PKG_VERSION")),
        ("-version", 0, env!("CARGO_PKG_VERSION")),
        ("--version run", 0, env!("CARGO_PKG_VERSION")),
        ("-h -v", 0, env!("CARGO_PKG_VERSION")),
        ("run -h", 0, "Usage of run:"),
        ("run -logLevel debug --help", 0, "Usage of run:"),
        ("-h validate", 0, "Usage of validate:"),
        ("api fetch jwt -help", 0, "Usage of api fetch jwt:"),
        ("api fetch wit -h", 0, "Usage of api fetch:"),
        ("api", 1, "Usage: edge-agent api <subcommand>"),
        ("api -h", 0, "Usage: edge-agent api <subcommand>"),
        ("api bogus", 1, "Usage: edge-agent api <subcommand>"),
        (
            "api validate",
            1,
            "Usage: edge-agent api validate <subcommand>",
        ),
        ("logger", 1, "Usage: edge-agent logger <subcommand>"),
        ("debug", 1, "Usage: edge-agent debug <subcommand>"),
        ("-foo run", 1, "Invalid flags before the subcommand."),
        (
            "healthcheck -bogus",
            1,
            "flag provided but not defined: -bogus\nUsage of healthcheck:",
        ),
        (
            "run -version",
            1,
            "flag provided but not defined: -version\nUsage of run:",
        ),
        (
            "run -serverPort x",
            1,
            "invalid value \"x\" for flag -serverPort: parse error\n",
        ),
        (
            "validate -serverPort",
            1,
            "flag needs an argument: -serverPort\n",
        ),
        (
            "api fetch x509 -output yaml",
            1,
            "invalid value \"yaml\" for flag -output:",
        ),
        ("api fetch jwt", 1, "audience must be specified\n"),
        (
            "api fetch jwt -audience a,",
            1,
            "audience must be specified\n",
        ),
        (
            "api validate jwt -svid x",
            1,
            "audience must be specified\n",
        ),
        (
            "api validate jwt -audience x",
            1,
            "svid must be specified\n",
        ),
        (
            "logger set -level loud",
            1,
            "Error: unknown log level \"loud\"\n",
        ),
        (
            "healthcheck -instance a",
            1,
            "-instance needs the environment variable",
        ),
    ];

    for (line, code, beginning) in table {
        let (ended, standard, error) = command(line);

        assert_eq!((ended, standard.as_str()), (code, ""), "{line}");
        assert!(error.starts_with(beginning), "{line}: {error}");
    }
}

#[test]
fn the_overview_names_every_command_and_exit_code() {
    let (_, _, text) = command("-h");

    for word in COMMANDS
        .iter()
        .map(|command| command.words)
        .chain(["127", "70"])
    {
        assert!(text.contains(&format!("\n    {word} ")), "{word}");
    }
}

#[test]
fn run_and_validate_list_every_flag_of_the_reference() {
    let flags = "allowUnauthenticatedVerifiers config dataDir disableSDSAPI disableWorkloadAPI expandEnv insecureBootstrap joinToken \
                 joinTokenFile logFile logFormat logLevel logSourceLocation rebootstrapDelay rebootstrapMode serverAddress serverPort \
                 socketPath trustBundle trustBundleFormat trustBundleUrl trustDomain";

    for line in ["run -h", "validate -h"] {
        let (_, _, text) = command(line);

        let listed = text.lines().filter_map(|line| line.strip_prefix("  -"));
        let listed = listed.map(|line| line.split(' ').next().unwrap());
        assert_eq!(
            listed.collect::<Vec<_>>(),
            flags.split_whitespace().collect::<Vec<_>>()
        );
    }
}

#[test]
fn the_table_of_commands_holds_no_contradiction() {
    for command in COMMANDS {
        let same = COMMANDS.iter().filter(|other| other.words == command.words);
        assert_eq!(same.count(), 1, "{}", command.words);
        for flag in command.flags {
            let same = command.flags.iter().filter(|other| other.name == flag.name);
            assert_eq!(same.count(), 1, "{} -{}", command.words, flag.name);
            let defaults = [format!("-{}={}", flag.name, flag.default)];
            assert!(flag.default.is_empty() || Flags::parse(command.flags, &defaults).is_ok());
        }
    }
}

#[test]
fn validate_names_the_file_that_is_missing() {
    let (code, standard, error) = command("validate -config /nonexistent/agent.conf");

    assert_eq!((code, standard.as_str()), (1, ""));
    assert_eq!(
        error,
        "SPIRE agent configuration file is invalid: could not find config file /nonexistent/agent.conf: please use the -config flag\n"
    );
}

#[test]
fn a_missing_agent_is_reported_by_every_client() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("none.sock");
    let socket = socket.to_str().unwrap();
    let dial = format!(
        "rpc error: code = Unavailable desc = connection error: desc = \"transport: Error while dialing: dial unix {socket}: connect: \
         no such file or directory\"\n"
    );
    let table = [
        ("api fetch", dial.clone()),
        ("api fetch x509 -output json", dial.clone()),
        ("api fetch jwt -audience x", dial.clone()),
        (
            "api validate jwt -audience x -svid y",
            format!("unable to validate JWT SVID: {dial}"),
        ),
        ("debug getinfo", format!("Error: {dial}")),
        ("logger get", format!("Error: {dial}")),
        ("logger set -level debug", format!("Error: {dial}")),
        ("logger reset", format!("Error: {dial}")),
        (
            "healthcheck",
            "Agent is unhealthy: unable to determine health\n".to_owned(),
        ),
        (
            "healthcheck -shallow",
            "Agent is unhealthy: unable to determine health\n".to_owned(),
        ),
    ];

    for (line, expected) in table {
        let reply = command(&format!("{line} -socketPath {socket}"));

        assert_eq!(reply, (1, String::new(), expected), "{line}");
    }
}

#[test]
fn a_verbose_healthcheck_says_what_it_does_and_why_it_fails() {
    let (code, standard, error) = command("healthcheck -verbose -socketPath /nonexistent/api.sock");

    assert_eq!((code, standard.as_str()), (1, "Checking agent health...\n"));
    assert!(error.starts_with("Failed to check health: rpc error: code = Unavailable desc = "));
    assert!(error.ends_with("\nAgent is unhealthy: unable to determine health\n"));
}

/// An answer with one identity, signed just now.
fn x509_answer(now: SystemTime) -> X509svidResponse {
    let ca = Ca::new(now);
    let svid = ca.svid("spiffe://domain.test/w", now, now + Duration::from_hours(1));
    let message = X509svid {
        spiffe_id: svid.id.to_string(),
        x509_svid: svid.chain_der().clone(),
        x509_svid_key: svid.key.expose_pkcs8_shared(),
        bundle: ca.bundle("domain.test").x509_der().clone(),
        hint: "front".to_owned(),
    };
    X509svidResponse {
        svids: vec![message],
        federated_bundles: HashMap::from([(
            "spiffe://other.test".to_owned(),
            Ca::new(now).bundle("other.test").x509_der().clone(),
        )]),
        ..X509svidResponse::default()
    }
}

#[test]
fn a_refusal_of_the_agent_is_all_that_is_shown() {
    let directory = Agent::that_denies().serve();
    let socket = directory.path().join("api.sock");
    let denied = "rpc error: code = PermissionDenied desc = no identity issued\n";
    let table = [
        ("api fetch", denied.to_owned()),
        ("api fetch x509 -silent", denied.to_owned()),
        ("api fetch x509 -output json", denied.to_owned()),
        ("api fetch jwt -audience x", denied.to_owned()),
        (
            "api validate jwt -audience x -svid y",
            format!("unable to validate JWT SVID: {denied}"),
        ),
        (
            "healthcheck",
            "Agent is unhealthy: agent returned status \"NOT_SERVING\"\n".to_owned(),
        ),
    ];

    for (line, expected) in table {
        let reply = command(&format!("{line} -socketPath {}", socket.display()));

        assert_eq!(reply, (1, String::new(), expected), "{line}");
    }
}

#[test]
fn an_x509_answer_is_shown_in_the_form_asked_for() {
    let agent = Agent {
        x509: Ok(x509_answer(Clock::system().wall())),
        ..Agent::that_denies()
    };
    let directory = agent.serve();
    let socket = directory.path().join("api.sock").display().to_string();

    let (code, pretty, error) = command(&format!("api fetch -socketPath {socket}"));
    let silent = command(&format!(
        "api fetch x509 -silent -timeout 0 -socketPath={socket}"
    ));
    let (_, json, _) = command(&format!("api fetch x509 -output json -socketPath {socket}"));

    assert_eq!((code, error.as_str()), (0, ""));
    assert!(pretty.starts_with("Received 1 svid after "));
    assert!(pretty.contains(
        "s\n\nSPIFFE ID:\t\tspiffe://domain.test/w\nHint:\t\t\tfront\nSVID Valid After:\t"
    ));
    assert!(pretty.contains("\n[spiffe://other.test] CA #1 Valid After:\t"));
    assert_eq!(silent, (0, String::new(), String::new()));
    assert!(json.starts_with("{\"crl\":[],\"federated_bundles\":{\"spiffe://other.test\":\""));
    assert_eq!(json.lines().count(), 1);
}

#[test]
fn an_x509_answer_is_written_to_files_with_the_key_for_its_owner_only() {
    let agent = Agent {
        x509: Ok(x509_answer(Clock::system().wall())),
        ..Agent::that_denies()
    };
    let directory = agent.serve();
    let socket = directory.path().join("api.sock").display().to_string();
    let target = tempfile::tempdir().unwrap();
    let place = target.path().display();

    let reply = command(&format!(
        "api fetch x509 -silent -write {place} -socketPath {socket}"
    ));

    let said = format!(
        "Writing SVID #0 to file {place}/svid.0.pem.
Writing key #0 to file {place}/svid.0.key.
Writing bundle #0 to file {place}/bundle.0.pem.
Writing federated bundle #0 for trust domain spiffe://other.test to file {place}/federated_bundle.0.0.pem.
"
    );
    assert_eq!(reply, (0, said, String::new()));
    let mode = fs::metadata(target.path().join("svid.0.key"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let certificate = fs::read_to_string(target.path().join("svid.0.pem")).unwrap();
    assert!(certificate.starts_with("-----BEGIN CERTIFICATE-----\n"));
    assert_eq!(fs::read_dir(target.path()).unwrap().count(), 4);
}

#[test]
fn a_jwt_answer_is_shown_for_every_audience() {
    let svid = Jwtsvid {
        spiffe_id: "spiffe://domain.test/w".to_owned(),
        ..Jwtsvid::default()
    };
    let bundles = HashMap::from([("spiffe://domain.test".to_owned(), b"{}".to_vec().into())]);
    let agent = Agent {
        jwt: Ok(JwtsvidResponse { svids: vec![svid] }),
        jwt_bundles: Ok(JwtBundlesResponse { bundles }),
        validated: Ok(ValidateJwtsvidResponse {
            spiffe_id: "spiffe://domain.test/w".to_owned(),
            claims: None,
        }),
        health: Ok(ServingStatus::Serving),
        ..Agent::that_denies()
    };
    let directory = agent.serve();
    let socket = directory.path().join("api.sock").display().to_string();

    let fetched = command(&format!(
        "api fetch jwt -audience one,two -socketPath {socket}"
    ));
    let validated = command(&format!(
        "api validate jwt -audience one -svid a.b.c -output json -socketPath {socket}"
    ));
    let health = command(&format!("healthcheck -socketPath {socket}"));

    let text = "token(spiffe://domain.test/w):\n\tone+two\nbundle(spiffe://domain.test):\n\t{}\n";
    assert_eq!(fetched, (0, text.to_owned(), String::new()));
    assert_eq!(
        validated,
        (
            0,
            "{\"spiffe_id\":\"spiffe://domain.test/w\"}\n".to_owned(),
            String::new()
        )
    );
    assert_eq!(health, (0, "Agent is healthy.\n".to_owned(), String::new()));
}

#[test]
fn a_token_that_the_agent_finds_bad_is_not_valid() {
    let agent = Agent {
        validated: Err(Status::invalid_argument("token has expired")),
        ..Agent::that_denies()
    };
    let directory = agent.serve();
    let socket = directory.path().join("api.sock").display().to_string();

    let reply = command(&format!(
        "api validate jwt -audience one -svid a.b.c -socketPath {socket}"
    ));

    assert_eq!(
        reply,
        (
            1,
            String::new(),
            "SVID is not valid: token has expired\n".to_owned()
        )
    );
}
