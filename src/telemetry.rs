//! The agent's log: where it goes, how much of it there is, and in what form (workload-side 7.3).
//!
//! It takes the events of `tracing` and writes one line for each to standard output or to `log_file`. [`LogHandle`] changes the
//! level and opens the file anew while the agent runs. The forms of a line are in `record.rs`. A destination that cannot be
//! written never stops the agent: the line is lost.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use actors::clock::Clock;
use tracing::level_filters::LevelFilter;
use tracing::span;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::{LookupSpan, Scope};

use crate::config::{LogConfig, LogFormat, LogLevel};

pub(crate) mod date;
pub(crate) mod escape;
mod record;
#[cfg(test)]
mod tests;

use record::{Fields, Record};

/// Mode of a new log file, less the umask.
const LOG_FILE_MODE: u32 = 0o640;

/// Crates whose events follow `log_level`; all others speak only of errors.
const OWN_CRATES: [&str; 4] = ["edge_agent", "actors", "proto", "devserver"];

/// Every level, quietest first: its place is its number in [`Shared::level`].
const LEVELS: [LogLevel; 7] = [
    LogLevel::Panic,
    LogLevel::Fatal,
    LogLevel::Error,
    LogLevel::Warn,
    LogLevel::Info,
    LogLevel::Debug,
    LogLevel::Trace,
];

/// Why there is no log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// The log file cannot be opened.
    #[error("could not start logger: open {}: {}", path.display(), plain_words(source))]
    Open { path: PathBuf, source: io::Error },
    /// The process logs already.
    #[error("could not start logger: there is one already")]
    Twice,
}

/// Changes the log of the running process. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct LogHandle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Place in [`LEVELS`].
    level: AtomicU8,
    launch_level: LogLevel,
    /// `None`: standard output.
    path: Option<PathBuf>,
    destination: Mutex<Destination>,
}

#[derive(Debug)]
enum Destination {
    StandardOutput,
    File(File),
}

/// What `tracing` hands its events to.
struct LogLayer {
    shared: Arc<Shared>,
    format: LogFormat,
    source_location: bool,
    clock: Clock,
}

/// Starts the log of this process.
pub(crate) fn install(config: &LogConfig, clock: Clock) -> Result<LogHandle, LogError> {
    let layer = LogLayer::open(config, clock)?;
    let handle = LogHandle(Arc::clone(&layer.shared));
    let subscriber = tracing_subscriber::registry().with(layer);
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LogError::Twice)?;
    Ok(handle)
}

/// An I/O error in Go's words: lower case, without a number.
pub(crate) fn plain_words(error: &io::Error) -> String {
    let text = error.to_string();
    let words = text.split(" (os error").next().unwrap_or_default();
    match words.chars().next() {
        Some(first) => words.replacen(first, &first.to_lowercase().to_string(), 1),
        None => text,
    }
}

impl LogHandle {
    /// The level now in force.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for the Logger API, which is not built yet")
    )]
    pub(crate) fn level(&self) -> LogLevel {
        self.0.level()
    }

    /// The level of the start.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for the Logger API, which is not built yet")
    )]
    pub(crate) fn launch_level(&self) -> LogLevel {
        self.0.launch_level
    }

    /// Changes the level for the whole process, at once.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for the Logger API, which is not built yet")
    )]
    pub(crate) fn set_level(&self, level: LogLevel) {
        self.0.level.store(number(level), Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
    }

    /// Opens the log file anew, after it was moved away. When that fails the old one stays in use. Does nothing for standard output.
    pub(crate) fn reopen(&self) -> Result<(), LogError> {
        if let Some(path) = &self.0.path {
            let file = open(path)?;
            *self
                .0
                .destination
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Destination::File(file);
        }
        Ok(())
    }
}

impl Shared {
    fn level(&self) -> LogLevel {
        let number = usize::from(self.level.load(Ordering::Relaxed));
        LEVELS.get(number).copied().unwrap_or(self.launch_level)
    }

    fn write(&self, line: &str) {
        let mut destination = self
            .destination
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let written = match &mut *destination {
            Destination::StandardOutput => io::stdout().lock().write_all(line.as_bytes()),
            Destination::File(file) => file.write_all(line.as_bytes()),
        };
        // There is nobody left to tell: a full disk or a closed pipe must not stop the agent.
        drop(written);
    }
}

impl LogLayer {
    fn open(config: &LogConfig, clock: Clock) -> Result<Self, LogError> {
        let destination = match &config.file {
            Some(path) => Destination::File(open(path)?),
            None => Destination::StandardOutput,
        };
        let shared = Shared {
            level: AtomicU8::new(number(config.level)),
            launch_level: config.level,
            path: config.file.clone(),
            destination: Mutex::new(destination),
        };
        Ok(Self {
            shared: Arc::new(shared),
            format: config.format,
            source_location: config.source_location,
            clock,
        })
    }

    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        let limit = filter(self.shared.level());
        if is_own(metadata.target()) {
            *metadata.level() <= limit
        } else {
            *metadata.level() <= limit.min(LevelFilter::ERROR)
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for LogLayer {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        // Cached until `set_level` has all call sites asked again.
        if self.wants(metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.wants(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(filter(self.shared.level()))
    }

    fn on_new_span(
        &self,
        attributes: &span::Attributes<'_>,
        id: &span::Id,
        context: Context<'_, S>,
    ) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        let mut fields = Fields::default();
        for span in context
            .event_scope(event)
            .into_iter()
            .flat_map(Scope::from_root)
        {
            if let Some(outer) = span.extensions().get::<Fields>() {
                fields.extend(outer);
            }
        }
        event.record(&mut fields);
        if let Some(subsystem) = subsystem(metadata.target()) {
            fields.set_default("subsystem_name", subsystem);
        }
        if let (true, Some(file)) = (self.source_location, metadata.file()) {
            fields.set_default(
                "file",
                format!("{file}:{}", metadata.line().unwrap_or_default()),
            );
        }
        let record = Record {
            time: self.clock.wall(),
            level: *metadata.level(),
            fields,
        };
        self.shared.write(&record.to_line(self.format));
    }
}

fn number(level: LogLevel) -> u8 {
    let place = LEVELS
        .iter()
        .position(|known| *known == level)
        .unwrap_or_default();
    u8::try_from(place).unwrap_or_default()
}

/// What `tracing` lets through. Nothing here panics or is fatal: those two levels show errors.
fn filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Panic | LogLevel::Fatal | LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

fn is_own(target: &str) -> bool {
    target
        .split("::")
        .next()
        .is_some_and(|name| OWN_CRATES.contains(&name))
}

/// The part of the agent that speaks, by the name that the reference gives it.
fn subsystem(target: &str) -> Option<&str> {
    let (crate_name, path) = target.split_once("::")?;
    let module = path.split("::").next().unwrap_or(path);
    match (crate_name, module) {
        ("actors", "synchronizer") => Some("manager"),
        ("actors", "cache") => Some("cache_manager"),
        ("actors", "endpoint") => Some("endpoints"),
        ("actors", "selectors") => Some("workload_attestor"),
        ("actors", "readiness") => Some("health"),
        ("actors", module) => Some(module),
        ("edge_agent", "telemetry") => Some("telemetry"),
        _ => None,
    }
}

fn open(path: &Path) -> Result<File, LogError> {
    let opened = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(LOG_FILE_MODE)
        .open(path);
    opened.map_err(|source| LogError::Open {
        path: path.to_owned(),
        source,
    })
}
