//! Commands as a whole: which one is meant, what it prints, how it ends.

use super::output::testing::captured;
use super::*;

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
            "Error: unknown log level \"LOUD\"\n",
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
