//! `log_*`.

use super::super::model::{LogConfig, LogFormat, LogLevel};
use super::super::raw::RawAgent;
use super::{Checker, paths, pick, pick_bool, plain};

impl Checker<'_> {
    pub(super) fn log(&mut self, agent: &RawAgent) -> LogConfig {
        let level = pick(
            self.flags.log_level.as_ref(),
            "-logLevel",
            agent.log_level.as_ref(),
        );
        let format = pick(
            self.flags.log_format.as_ref(),
            "-logFormat",
            agent.log_format.as_ref(),
        );
        let file = pick(
            self.flags.log_file.as_ref(),
            "-logFile",
            agent.log_file.as_ref(),
        );
        let parsed_level = log_level(&level.value).unwrap_or_else(|| {
            let message = format!(
                "could not start logger: unknown log level {:?}",
                level.value
            );
            self.problem("agent.log_level", level.origin, message);
            LogLevel::Info
        });
        let parsed_format = log_format(&format.value).unwrap_or_else(|| {
            let message = format!(
                "could not start logger: unknown log format {:?}",
                format.value
            );
            self.problem("agent.log_format", format.origin, message);
            LogFormat::Unset
        });
        let path = (!file.value.is_empty()).then(|| paths::absolute(self.cwd, &file.value));
        if let Some(path) = &path
            && let Err(reason) = paths::check_appendable(path)
        {
            let message = format!(
                "could not start logger: unable to open log file {}: {reason}",
                path.display()
            );
            self.problem("agent.log_file", file.origin, message);
        }
        LogConfig {
            level: parsed_level,
            format: parsed_format,
            file: path,
            source_location: pick_bool(
                self.flags.log_source_location,
                agent.log_source_location.as_ref(),
            ),
            selectors: plain(agent.log_selectors.clone()),
        }
    }
}

fn log_level(text: &str) -> Option<LogLevel> {
    match text.to_ascii_lowercase().as_str() {
        "panic" => Some(LogLevel::Panic),
        "fatal" => Some(LogLevel::Fatal),
        "error" => Some(LogLevel::Error),
        "warn" | "warning" => Some(LogLevel::Warn),
        "" | "info" => Some(LogLevel::Info),
        "debug" => Some(LogLevel::Debug),
        "trace" => Some(LogLevel::Trace),
        _ => None,
    }
}

fn log_format(text: &str) -> Option<LogFormat> {
    match text.to_ascii_lowercase().as_str() {
        "" => Some(LogFormat::Unset),
        "text" => Some(LogFormat::Text),
        "json" => Some(LogFormat::Json),
        _ => None,
    }
}
