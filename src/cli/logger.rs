//! `logger get`, `logger set` and `logger reset`: the log level of a running agent, over its admin socket.

use actors::wire::Wire;
use proto::spire::api::agent::logger::v1::logger_client::LoggerClient;
use proto::spire::api::agent::logger::v1::{
    GetLoggerRequest, ResetLogLevelRequest, SetLogLevelRequest,
};
use proto::spire::api::types::{LogLevel, Logger};

use super::client::{self, CallError};
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

pub(super) fn get(flags: &Flags, _: &Surroundings<'_>, output: &mut Output) -> u8 {
    call_and_show(flags, output, async |mut client: LoggerClient<Wire>| {
        Ok(client
            .get_logger(client::request(GetLoggerRequest {}))
            .await?
            .into_inner())
    })
}

pub(super) fn reset(flags: &Flags, _: &Surroundings<'_>, output: &mut Output) -> u8 {
    call_and_show(flags, output, async |mut client: LoggerClient<Wire>| {
        Ok(client
            .reset_log_level(client::request(ResetLogLevelRequest {}))
            .await?
            .into_inner())
    })
}

pub(super) fn set(flags: &Flags, _: &Surroundings<'_>, output: &mut Output) -> u8 {
    let new_level = match level_number(flags.text("level")) {
        Ok(level) => level,
        Err(error) => return cli::finish(Err(format!("Error: {error}")), output),
    };
    call_and_show(
        flags,
        output,
        async move |mut client: LoggerClient<Wire>| {
            let request = client::request(SetLogLevelRequest { new_level });
            Ok(client.set_log_level(request).await?.into_inner())
        },
    )
}

fn call_and_show(
    flags: &Flags,
    output: &mut Output,
    call: impl AsyncFnOnce(LoggerClient<Wire>) -> Result<Logger, CallError>,
) -> u8 {
    let socket = flags.text("socketPath");
    let answer = cli::block_on(client::within(Some(client::ADMIN_TIME_LIMIT), async {
        call(LoggerClient::new(client::connect(socket).await?)).await
    }));
    let text = answer.map(|answer| match flags.format() {
        Format::Json => json::to_line(&json::logger(answer)),
        Format::Pretty => render(answer),
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
