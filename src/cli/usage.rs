//! Finds the command in the arguments, and writes the help texts. Pure.

use super::Command;
use super::flags::{Flag, Kind};

/// What the arguments ask for.
#[derive(Debug)]
pub(super) enum Selection<'a> {
    Version,
    Help,
    /// No command, or one that does not exist.
    Unknown,
    /// Words that begin commands but are none, such as `api`.
    Group {
        words: &'static str,
        wants_help: bool,
    },
    CommandHelp(&'static Command),
    /// Flags before the command that mean nothing there.
    MisplacedFlags,
    Run(&'static Command, &'a [String]),
}

const EXIT_CODES: &str = "
Exit codes:
    0      success
    1      error
    70     a part of the agent died; a service manager should start it again
    127    unknown command
";

/// Reads the arguments up to the command's last word, and looks for a request for help anywhere.
pub(super) fn select<'a>(commands: &'static [Command], arguments: &'a [String]) -> Selection<'a> {
    let before_dashes = || arguments.iter().take_while(|argument| *argument != "--");
    let first =
        before_dashes().position(|argument| !argument.starts_with('-') && !argument.is_empty());
    let top = &arguments[..first.unwrap_or_else(|| before_dashes().count())];
    if top
        .iter()
        .any(|flag| matches!(flag.as_str(), "-v" | "-version" | "--version"))
    {
        return Selection::Version;
    }
    let wants_help = before_dashes().any(|flag| matches!(flag.as_str(), "-h" | "-help" | "--help"));
    let words = first.map_or(&[][..], |first| &arguments[first..]);
    if words.is_empty() && wants_help {
        return Selection::Help;
    }
    let longest = commands
        .iter()
        .filter(|command| begins_with(words, command.words))
        .max_by_key(|command| command.words.len());
    let group = commands
        .iter()
        .filter_map(|command| group_in(words, command.words))
        .max_by_key(|group| group.len());
    match (longest, group) {
        (Some(command), group) if group.is_none_or(|group| group.len() <= command.words.len()) => {
            if wants_help {
                Selection::CommandHelp(command)
            } else if top.is_empty() {
                Selection::Run(command, &words[command.words.split(' ').count()..])
            } else {
                Selection::MisplacedFlags
            }
        }
        (_, Some(words)) => Selection::Group { words, wants_help },
        (_, None) => Selection::Unknown,
    }
}

/// The text that tells of all commands.
pub(super) fn overview(program: &str, commands: &[Command]) -> String {
    let mut text = format!(
        "Usage: {program} [--version] [--help] <command> [<args>]\n\nAvailable commands are:\n"
    );
    text.push_str(&command_lines(commands, ""));
    text.push_str(EXIT_CODES);
    text
}

/// The text that tells of the commands that begin with the same words.
pub(super) fn group_help(program: &str, commands: &[Command], group: &str) -> String {
    let mut text = format!("Usage: {program} {group} <subcommand> [<args>]\n\nSubcommands:\n");
    text.push_str(&command_lines(commands, group));
    text
}

/// The text that tells of one command and its flags.
pub(super) fn command_help(program: &str, command: &Command) -> String {
    let mut text = format!("Usage of {}:\n", command.words);
    for flag in command.flags {
        text.push_str(&flag_lines(flag));
    }
    text.push_str(&format_about(program, command));
    text.push_str(EXIT_CODES);
    text
}

fn format_about(program: &str, command: &Command) -> String {
    format!("\n`{program} {}`: {}.\n", command.words, command.about)
}

fn command_lines(commands: &[Command], group: &str) -> String {
    let listed = commands
        .iter()
        .filter(|command| command.words.starts_with(group));
    let width = listed
        .clone()
        .map(|command| command.words.len())
        .max()
        .unwrap_or_default();
    let lines: Vec<String> = listed
        .map(|command| format!("    {:width$}    {}\n", command.words, command.about))
        .collect();
    lines.concat()
}

fn flag_lines(flag: &Flag) -> String {
    let kind = match flag.kind {
        Kind::Text => " string",
        Kind::Integer => " int",
        Kind::Bool => "",
        Kind::Duration => " duration",
        Kind::Output => " pretty|json",
    };
    let default = match (flag.default, flag.kind) {
        ("", _) => String::new(),
        (default, Kind::Text) => format!(" (default {default:?})"),
        (default, _) => format!(" (default {default})"),
    };
    format!("  -{}{kind}\n    \t{}{default}\n", flag.name, flag.help)
}

fn begins_with(arguments: &[String], words: &str) -> bool {
    let mut arguments = arguments.iter();
    words
        .split(' ')
        .all(|word| arguments.next().is_some_and(|argument| argument == word))
}

/// The longest part of a command's words, short of all of them, that the arguments begin with.
fn group_in(arguments: &[String], words: &'static str) -> Option<&'static str> {
    let mut ends = words.match_indices(' ').map(|(at, _)| &words[..at]);
    ends.rfind(|group| begins_with(arguments, group))
}
