//! `logger get`, `logger set` and `logger reset`: the log level of a running agent, over its admin socket.

use prost::Message;
use proto::spire::api::agent::logger::v1::{
    GetLoggerRequest, ResetLogLevelRequest, SetLogLevelRequest,
};
use proto::spire::api::types::{LogLevel, Logger};

use super::client;
use super::flags::{Flag, Flags, Format, Kind};
use super::{Output, Surroundings, json};
use crate::cli;

static LEVEL: Flag = Flag::new(
    "level",
    Kind::Text,
    "panic, fatal, error, warn, info, debug or trace",
);

pub(super) const FLAGS: &[&Flag] = &[&cli::OUTPUT, &cli::ADMIN_SOCKET_PATH];

pub(super) const SET_FLAGS: &[&Flag] = &[&LEVEL, &cli::OUTPUT, &cli::ADMIN_SOCKET_PATH];

const GET: &str = "/spire.api.agent.logger.v1.Logger/GetLogger";
const SET: &str = "/spire.api.agent.logger.v1.Logger/SetLogLevel";
const RESET: &str = "/spire.api.agent.logger.v1.Logger/ResetLogLevel";

pub(super) fn get(flags: &Flags, _: &Surroundings<'_>, output: &mut Output) -> u8 {
    call_and_show(flags, output, GET, GetLoggerRequest {})
}

pub(super) fn reset(flags: &Flags, _: &Surroundings<'_>, output: &mut Output) -> u8 {
    call_and_show(flags, output, RESET, ResetLogLevelRequest {})
}

pub(super) fn set(flags: &Flags, _: &Surroundings<'_>, output: &mut Output) -> u8 {
    let new_level = match level_number(flags.text("level")) {
        Ok(level) => level,
        Err(error) => return cli::finish(Err(format!("Error: {error}")), output),
    };
    call_and_show(flags, output, SET, SetLogLevelRequest { new_level })
}

fn call_and_show(
    flags: &Flags,
    output: &mut Output,
    path: &'static str,
    message: impl Message,
) -> u8 {
    let socket = flags.text("socketPath");
    let limit = Some(client::ADMIN_TIME_LIMIT);
    let answer = cli::block_on(client::unary(socket, limit, path, message));
    let text = answer.map(|answer| {
        let answer: Logger = answer.into_inner();
        match flags.format() {
            Format::Json => json::to_line(&json::logger(answer)),
            Format::Pretty => render(answer),
        }
    });
    cli::finish(text.map_err(|error| format!("Error: {error}")), output)
}

fn level_number(name: &str) -> Result<i32, String> {
    let level = match name.to_ascii_uppercase().as_str() {
        "" => return Err("a log level must be given: -level".to_owned()),
        "WARNING" => Some(LogLevel::Warn),
        name => LogLevel::from_str_name(name).filter(|level| *level != LogLevel::Unspecified),
    };
    level
        .map(i32::from)
        .ok_or_else(|| format!("unknown log level {name:?}"))
}

fn render(answer: Logger) -> String {
    let [current, launch] = [answer.current_level, answer.launch_level]
        .map(|level| json::level_name(level).to_ascii_lowercase());
    format!("Logger Level : {current}\nLaunch Level : {launch}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_known_by_name_in_any_case() {
        let table = [
            ("panic", Ok(1)),
            ("Error", Ok(3)),
            ("warning", Ok(4)),
            ("TRACE", Ok(7)),
            ("", Err("a log level must be given: -level".to_owned())),
            (
                "unspecified",
                Err("unknown log level \"unspecified\"".to_owned()),
            ),
            ("loud", Err("unknown log level \"loud\"".to_owned())),
        ];

        for (name, expected) in table {
            assert_eq!(level_number(name), expected);
        }
    }

    #[test]
    fn levels_are_shown_in_both_forms() {
        let answer = Logger {
            current_level: 6,
            launch_level: 5,
        };

        assert_eq!(
            render(answer),
            "Logger Level : debug\nLaunch Level : info\n\n"
        );
        assert_eq!(
            json::to_line(&json::logger(answer)),
            "{\"current_level\":\"DEBUG\",\"launch_level\":\"INFO\"}\n"
        );
    }
}
