//! What the log looks like from outside: lines in a file.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use actors::clock::from_unix_seconds;

use super::*;

/// A log in a file of its own, for the events of one closure.
struct Scene {
    directory: tempfile::TempDir,
    config: LogConfig,
}

impl Scene {
    fn new(level: LogLevel, format: LogFormat) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = Some(directory.path().join("agent.log"));
        let config = LogConfig {
            level,
            format,
            file,
            source_location: false,
            selectors: vec![],
        };
        Self { directory, config }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("agent.log")
    }

    /// Runs the closure with the log in place; gives the lines that were written.
    fn lines(&self, events: impl FnOnce(&LogHandle)) -> Vec<String> {
        let layer = LogLayer::open(&self.config, Clock::system()).unwrap();
        let handle = LogHandle(Arc::clone(&layer.shared));
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::with_default(subscriber, || events(&handle));
        fs::read_to_string(self.path())
            .unwrap()
            .lines()
            .map(str::to_owned)
            .collect()
    }
}

/// A logfmt line without its time.
fn body(line: &str) -> &str {
    line.strip_prefix("time=\"")
        .unwrap()
        .split_once("\" ")
        .unwrap()
        .1
}

#[test]
fn a_logfmt_line_has_sorted_keys_and_quotes_what_is_not_plain() {
    let scene = Scene::new(LogLevel::Trace, LogFormat::Unset);

    let lines = scene.lines(|_| {
        tracing::info!(target: "actors::endpoint::public", network = "unix", address = "/run/a-b/api.sock", "Starting agent APIs");
        tracing::warn!(target: "edge_agent", count = 3, done = true, ratio = 0.5, offset = -1, "again");
        tracing::error!(target: "edge_agent", error = %io::Error::other("disk full"), empty = "", "failed");
        tracing::debug!(target: "actors::synchronizer", pid = ?Some(7), "x");
        tracing::trace!(target: "actors::cache", subsystem_name = "own", "x");
    });

    let bodies: Vec<&str> = lines.iter().map(|line| body(line)).collect();
    assert_eq!(
        bodies,
        [
            r#"level=info msg="Starting agent APIs" address=/run/a-b/api.sock network=unix subsystem_name=endpoints"#,
            r"level=warning msg=again count=3 done=true offset=-1 ratio=0.5",
            r#"level=error msg=failed empty="" error="disk full""#,
            r#"level=debug msg=x pid="Some(7)" subsystem_name=manager"#,
            r"level=trace msg=x subsystem_name=own",
        ]
    );
}

#[test]
fn a_hostile_field_cannot_break_out_of_its_line() {
    let hostile = "a\nlevel=error msg=\"forged\"\r\0\u{1b}[2J\u{7f}\u{85}\u{2028}\\";
    let logfmt = Scene::new(LogLevel::Info, LogFormat::Text);
    let json = Scene::new(LogLevel::Info, LogFormat::Json);
    let event = |_: &LogHandle| {
        tracing::info!(target: "edge_agent", value = hostile, debug = ?hostile, shown = %hostile, "{hostile}");
    };

    let (logfmt, json) = (logfmt.lines(event), json.lines(event));

    let quoted = r#""a\nlevel=error msg=\"forged\"\r\x00\x1b[2J\x7f\u0085\u2028\\""#;
    assert_eq!(logfmt.len(), 1);
    assert!(body(&logfmt[0]).starts_with(&format!("level=info msg={quoted} debug=\"")));
    assert!(body(&logfmt[0]).ends_with(&format!(" shown={quoted} value={quoted}")));
    assert_eq!(json.len(), 1);
    for line in logfmt.iter().chain(&json) {
        assert!(
            !line.contains(|c: char| c.is_control() || c == '\u{2028}'),
            "{line:?}"
        );
    }
    let record: serde_json::Value = serde_json::from_str(&json[0]).unwrap();
    assert_eq!(
        (&record["msg"], &record["value"]),
        (&hostile.into(), &hostile.into())
    );
}

#[test]
fn a_json_line_has_its_fields_beside_level_message_and_time() {
    let scene = Scene::new(LogLevel::Info, LogFormat::Json);

    let lines = scene.lines(|_| {
        tracing::warn!(target: "actors::attestor", ttl = 60_u64, ok = false, huge = f64::INFINITY, time = "mine", "No identity issued");
    });

    let time: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
    let time = time["time"].as_str().unwrap().to_owned();
    assert_eq!(
        lines[0],
        format!(
            r#"{{"fields.time":"mine","huge":"inf","level":"warning","msg":"No identity issued","ok":false,"subsystem_name":"attestor","time":"{time}","ttl":60}}"#
        )
    );
    assert_eq!((time.len(), &time[19..20], &time[29..]), (30, ".", "Z"));
}

#[test]
fn the_time_has_seconds_or_nanoseconds_by_format() {
    let table = [
        (
            LogFormat::Unset,
            "time=\"2026-01-02T15:04:05Z\" level=info msg=\"\"\n",
        ),
        (
            LogFormat::Text,
            "time=\"2026-01-02T15:04:05.000000006Z\" level=info msg=\"\"\n",
        ),
        (
            LogFormat::Json,
            "{\"level\":\"info\",\"msg\":\"\",\"time\":\"2026-01-02T15:04:05.000000006Z\"}\n",
        ),
    ];

    for (format, line) in table {
        let record = Record {
            time: from_unix_seconds(1_767_366_245) + Duration::from_nanos(6),
            level: tracing::Level::INFO,
            fields: Fields::default(),
        };
        assert_eq!(record.to_line(format), line);
    }
}

#[test]
fn an_endless_value_is_cut_off() {
    let scene = Scene::new(LogLevel::Info, LogFormat::Unset);

    let lines = scene.lines(|_| {
        tracing::info!(target: "edge_agent", value = "ü".repeat(1_000_000), "long");
    });

    assert!(lines[0].len() < 20_000 && lines[0].ends_with("ü…\""));
}

#[test]
fn each_level_shows_itself_and_what_is_louder() {
    let table = [
        (LogLevel::Panic, 1),
        (LogLevel::Fatal, 1),
        (LogLevel::Error, 1),
        (LogLevel::Warn, 2),
        (LogLevel::Info, 3),
        (LogLevel::Debug, 4),
        (LogLevel::Trace, 5),
    ];

    for (level, count) in table {
        let lines = Scene::new(level, LogFormat::Unset).lines(|_| {
            tracing::error!(target: "actors::cache", "x");
            tracing::warn!(target: "actors::cache", "x");
            tracing::info!(target: "actors::cache", "x");
            tracing::debug!(target: "actors::cache", "x");
            tracing::trace!(target: "actors::cache", "x");
        });
        assert_eq!(lines.len(), count, "{level:?}");
    }
}

#[test]
fn libraries_speak_of_errors_only() {
    let lines = Scene::new(LogLevel::Trace, LogFormat::Unset).lines(|_| {
        tracing::debug!(target: "h2::codec", "noise");
        tracing::warn!(target: "rustls::conn", "noise");
        tracing::debug!(target: "actors_of_others", "noise");
        tracing::error!(target: "hyper::proto", "loud");
    });

    assert_eq!(
        lines.iter().map(|line| body(line)).collect::<Vec<_>>(),
        ["level=error msg=loud"]
    );
}

#[test]
fn the_level_changes_at_run_time() {
    let scene = Scene::new(LogLevel::Info, LogFormat::Unset);
    let speak = || tracing::debug!(target: "edge_agent", "whisper");

    let lines = scene.lines(|log| {
        speak();
        log.set_level(LogLevel::Debug);
        speak();
        assert_eq!(
            (log.level(), log.launch_level()),
            (LogLevel::Debug, LogLevel::Info)
        );
        log.set_level(log.launch_level());
        speak();
    });

    assert_eq!(lines.len(), 1);
}

#[test]
fn fields_of_spans_stand_in_the_line_and_inner_ones_win() {
    let scene = Scene::new(LogLevel::Info, LogFormat::Unset);

    let lines = scene.lines(|_| {
        let outer = tracing::info_span!(target: "actors::endpoint", "rpc", method = "FetchX509SVID", pid = 1, uid = tracing::field::Empty);
        let outer = outer.entered();
        let _inner = tracing::info_span!(target: "actors::endpoint", "try", pid = 2).entered();
        outer.record("uid", 0);
        tracing::info!(target: "edge_agent", method = "own", "x");
    });

    assert_eq!(body(&lines[0]), "level=info msg=x method=own pid=2 uid=0");
}

#[test]
fn the_place_in_the_source_is_added_when_asked_for() {
    let mut scene = Scene::new(LogLevel::Info, LogFormat::Unset);
    scene.config.source_location = true;

    let lines = scene.lines(|_| tracing::info!(target: "edge_agent", "x"));

    assert!(body(&lines[0]).starts_with("level=info msg=x file=\"src/telemetry/tests.rs:"));
}

#[test]
fn a_log_file_is_continued_and_a_moved_one_is_made_anew() {
    let scene = Scene::new(LogLevel::Info, LogFormat::Unset);
    fs::write(scene.path(), "from before\n").unwrap();
    let moved = scene.directory.path().join("agent.log.1");

    let lines = scene.lines(|log| {
        tracing::info!(target: "edge_agent", "one");
        fs::rename(scene.path(), &moved).unwrap();
        tracing::info!(target: "edge_agent", "two");
        log.reopen().unwrap();
        tracing::info!(target: "edge_agent", "three");
    });

    let old = fs::read_to_string(&moved).unwrap();
    let old: Vec<&str> = old.lines().collect();
    assert_eq!(
        (old[0], body(old[1]), body(old[2])),
        ("from before", "level=info msg=one", "level=info msg=two")
    );
    assert_eq!((lines.len(), body(&lines[0])), (1, "level=info msg=three"));
    let mode = fs::metadata(scene.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777 & !0o640, 0);
}

#[test]
fn a_file_that_cannot_be_opened_again_leaves_the_old_one_in_use() {
    let scene = Scene::new(LogLevel::Info, LogFormat::Unset);
    let moved = scene.directory.path().join("agent.log.1");

    let layer = LogLayer::open(&scene.config, Clock::system()).unwrap();
    let log = LogHandle(Arc::clone(&layer.shared));
    fs::rename(scene.path(), &moved).unwrap();
    fs::create_dir(scene.path()).unwrap();
    let outcome = log.reopen();
    log.0.write("still here\n");

    assert!(outcome.is_err());
    assert_eq!(fs::read_to_string(&moved).unwrap(), "still here\n");
}

#[test]
fn a_log_file_that_cannot_be_opened_is_named() {
    let mut scene = Scene::new(LogLevel::Info, LogFormat::Unset);
    let path = scene.directory.path().join("none/agent.log");
    scene.config.file = Some(path.clone());

    let error = LogLayer::open(&scene.config, Clock::system())
        .err()
        .unwrap();

    let expected = format!(
        "could not start logger: open {}: no such file or directory",
        path.display()
    );
    assert_eq!(error.to_string(), expected);
}
