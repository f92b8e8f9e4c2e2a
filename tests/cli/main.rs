//! The built program as a shell sees it: exit codes, streams, and streams that are closed.

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const CONFIG: &str = r#"agent {
  server_address = "127.0.0.1"
  server_port = "8081"
  trust_domain = "domain.test"
  trust_bundle_path = "/x.pem"
}
plugins {
  KeyManager "memory" { plugin_data {} }
  NodeAttestor "x509pop" { plugin_data { private_key_path = "/node.key" certificate_path = "/node.pem" } }
  WorkloadAttestor "unix" { plugin_data {} }
}
"#;

fn agent(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_edge-agent"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = agent(arguments).output().expect("the program starts");
    let [stdout, stderr] =
        [stdout, stderr].map(|bytes| String::from_utf8(bytes).expect("it writes text"));
    (status.code(), stdout, stderr)
}

fn validate(directory: &Path, text: &str) -> (Option<i32>, String, String) {
    let file = directory.join("agent.conf");
    fs::write(&file, text).expect("the directory is ours");
    let file = file.to_str().expect("temporary paths are text");
    run(&["validate", "-config", file])
}

#[test]
fn usage_and_version_go_to_standard_error_with_their_exit_codes() {
    let table: [(&[&str], i32, &str); 6] = [
        (&[], 127, "Usage: edge-agent"),
        (&["bogus"], 127, "Usage: edge-agent"),
        (&["-help"], 0, "Usage: edge-agent"),
        (&["run", "-h"], 0, "Usage of run:"),
        (&["-version"], 0, env!("CARGO_PKG_VERSION")),
        (&["api"], 1, "Usage: edge-agent api"),
    ];

    for (arguments, code, beginning) in table {
        let (ended, stdout, stderr) = run(arguments);

        assert_eq!((ended, stdout.as_str()), (Some(code), ""), "{arguments:?}");
        assert!(stderr.starts_with(beginning), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_valid_file_passes_and_nothing_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().display();
    let text = CONFIG.replace(
        "agent {",
        &format!("agent {{\n  data_dir = \"{path}/data\"\n  socket_path = \"{path}/pub/api.sock\"\n  log_file = \"{path}/agent.log\""),
    );

    let reply = validate(directory.path(), &text);

    assert_eq!(
        reply,
        (
            Some(0),
            "SPIRE agent configuration file is valid.\n".to_owned(),
            String::new()
        )
    );
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[test]
fn an_invalid_file_is_refused_by_validate_and_by_run() {
    let directory = tempfile::tempdir().unwrap();
    let text = CONFIG.replace("server_port", "sever_port");

    let (code, stdout, stderr) = validate(directory.path(), &text);
    let file = directory.path().join("agent.conf");
    let (run_code, _, run_stderr) = run(&["run", "-config", file.to_str().unwrap()]);

    assert_eq!((code, run_code, stdout.as_str()), (Some(1), Some(1), ""));
    assert!(stderr.starts_with("SPIRE agent configuration file is invalid: "));
    assert!(
        stderr.contains("server_port must be configured")
            && run_stderr.contains("server_port must be configured")
    );
}

#[test]
fn what_is_odd_is_told_before_the_verdict() {
    let directory = tempfile::tempdir().unwrap();
    let text = CONFIG.replace(
        "agent {",
        "agent {\n  experimental { sinc_interval = \"5s\" }",
    );

    let (code, stdout, stderr) = validate(directory.path(), &text);

    assert_eq!((code, stderr.as_str()), (Some(0), ""));
    let (warnings, verdict) = stdout.trim_end().rsplit_once('\n').unwrap();
    assert!(warnings.lines().all(|line| line.starts_with("warning: ")));
    assert!(warnings.contains("sinc_interval"));
    assert_eq!(verdict, "SPIRE agent configuration file is valid.");
}

#[test]
fn a_closed_output_is_an_error_and_no_panic() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("agent.conf");
    fs::write(&file, CONFIG).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child = agent(&["validate", "-config", file.to_str().unwrap()])
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();

    let mut stderr = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut stderr)
        .unwrap();
    let status = child.wait().unwrap();

    assert_eq!((status.code(), stderr.as_str()), (Some(1), ""));
}

#[test]
fn an_argument_that_is_no_text_is_an_error() {
    use std::os::unix::ffi::OsStrExt as _;
    let argument = std::ffi::OsStr::from_bytes(b"\xff");

    let output = agent(&["run"]).arg(argument).output().unwrap();

    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stderr, b"argument 2 is not UTF-8\n");
}
