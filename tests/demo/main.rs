//! `edge-agent demo` as a shell sees it: what it tells, how it ends, what it leaves behind.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use actors::clock::Clock;

/// What the demo promises, and far more than it needs.
const TIME_LIMIT: Duration = Duration::from_secs(30);
const WORKLOADS: [&str; 2] = ["spiffe://demo.test/billing", "spiffe://demo.test/web"];

/// A demo whose directory is made in `parent`.
fn demo(parent: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_edge-agent"));
    command
        .arg("demo")
        .args(flags)
        .env("TMPDIR", parent)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Reads lines until one has `text` in it; all of them.
fn lines_until(child: &mut Child, text: &'static str) -> Vec<String> {
    let (sender, receiver) = mpsc::channel();
    let reader = BufReader::new(child.stdout.take().expect("it is piped"));
    std::thread::spawn(move || {
        for line in reader.lines().map_while(Result::ok) {
            // Read on when nobody looks any more: the demo must not find its output closed.
            drop(sender.send(line));
        }
    });
    let mut lines = Vec::new();
    while let Ok(line) = receiver.recv_timeout(TIME_LIMIT) {
        lines.push(line);
        if lines.last().is_some_and(|line| line.contains(text)) {
            return lines;
        }
    }
    drop(child.kill());
    panic!("no line with {text:?} in {lines:#?}");
}

fn signal(child: &Child, name: &str) {
    let script = format!("kill -{name} {}", child.id());
    let status = Command::new("sh")
        .args(["-c", &script])
        .status()
        .expect("there is a shell");
    assert!(status.success());
}

/// The exit code and the rest of standard error.
fn end_of(mut child: Child) -> (Option<i32>, String) {
    let status = child.wait().expect("it was started here");
    let mut text = String::new();
    let mut stderr = child.stderr.take().expect("it is piped");
    stderr.read_to_string(&mut text).expect("it writes text");
    (status.code(), text)
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory)
        .expect("it is there")
        .next()
        .is_none()
}

/// The words behind every `word` of the text.
fn words_after<'a>(text: &'a str, word: &str) -> Vec<&'a str> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let pairs = words.windows(2).filter(|pair| pair[0] == word);
    pairs.map(|pair| pair[1].trim_end_matches(',')).collect()
}

#[test]
fn it_attests_serves_two_workloads_renews_them_and_cleans_up_within_half_a_minute() {
    let parent = tempfile::tempdir().unwrap();
    let clock = Clock::system();
    let started = clock.now().boot;

    let output = demo(parent.path(), &[]).output().unwrap();

    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(clock.now().boot < started + TIME_LIMIT);
    assert_eq!(
        (output.status.code(), errors.as_str()),
        (Some(0), ""),
        "{text}"
    );
    assert!(is_empty(parent.path()));
    assert!(
        text.contains("spiffe://demo.test/spire/agent/x509pop/"),
        "{text}"
    );
    assert!(text.contains("was asked for 1 attestation, "), "{text}");
    let renewed: BTreeSet<&str> = words_after(&text, "renewed").into_iter().collect();
    assert_eq!(renewed, BTreeSet::from(WORKLOADS), "{text}");
    let old: BTreeSet<&str> = words_after(&text, "serial").into_iter().collect();
    let new: BTreeSet<&str> = words_after(&text, "->").into_iter().collect();
    assert_eq!((old.len(), new.len()), (2, 2), "{text}");
    assert!(old.is_disjoint(&new), "{text}");
    assert!(!text.contains('\u{1b}'), "colour in a pipe: {text}");
}

#[test]
fn with_keep_it_serves_until_a_signal_and_then_cleans_up() {
    let parent = tempfile::tempdir().unwrap();
    let mut child = demo(parent.path(), &["--keep"]).spawn().unwrap();

    let lines = lines_until(&mut child, "Log: ");
    let told = lines.join("\n");
    let (_, rest) = told.split_once("SPIFFE_ENDPOINT_SOCKET=unix://").unwrap();
    let socket = rest.split_whitespace().next().unwrap();
    let fetched = Command::new(env!("CARGO_BIN_EXE_edge-agent"))
        .args(["api", "fetch", "x509", "-socketPath", socket])
        .output()
        .unwrap();
    signal(&child, "TERM");
    let end = end_of(child);

    let fetched = String::from_utf8(fetched.stdout).unwrap();
    for id in WORKLOADS {
        assert!(fetched.contains(id), "{fetched}");
    }
    assert_eq!(end, (Some(0), String::new()));
    assert!(is_empty(parent.path()));
}

#[test]
fn a_signal_before_the_end_is_told_and_cleans_up() {
    let parent = tempfile::tempdir().unwrap();
    let mut child = demo(parent.path(), &[]).spawn().unwrap();

    lines_until(&mut child, "waiting");
    signal(&child, "INT");
    let end = end_of(child);

    let told = "demo failed: stopped by a signal before the end\n";
    assert_eq!(end, (Some(1), told.to_owned()));
    assert!(is_empty(parent.path()));
}

#[test]
fn what_cannot_be_set_up_is_told_in_one_line() {
    let parent = tempfile::tempdir().unwrap();
    let missing = parent.path().join("missing");

    let output = demo(&missing, &[]).output().unwrap();

    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(
        errors.starts_with("demo failed: cannot make a directory in "),
        "{errors}"
    );
}

#[test]
fn the_agents_log_is_shown_on_demand() {
    let parent = tempfile::tempdir().unwrap();
    let mut child = demo(parent.path(), &["-verbose"]).spawn().unwrap();

    let lines = lines_until(&mut child, "Node attestation was successful");
    signal(&child, "INT");
    end_of(child);

    assert!(
        lines
            .iter()
            .any(|line| line.contains("msg=\"Starting agent\""))
    );
}
