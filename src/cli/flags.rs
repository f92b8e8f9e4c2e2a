//! Reads a command's flags by the rules of Go's `flag` package. Pure.
//!
//! `-f v`, `-f=v` and `--f=v` mean the same; a truth value takes no separate word (`-x`, `-x=false`); reading ends at the first
//! word that is no flag, and what follows is ignored. The last of several values counts.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::config::duration::parse_duration;
use crate::config::integer::parse_integer;

/// What a flag takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Integer,
    Bool,
    Duration,
    /// `pretty` or `json`.
    Output,
}

/// A flag that a command knows.
#[derive(Debug)]
pub(crate) struct Flag {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// The value when it is not given; empty = none.
    pub(crate) default: &'static str,
    pub(crate) help: &'static str,
}

/// The flags that were given.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    given: BTreeMap<&'static str, String>,
    defaults: BTreeMap<&'static str, &'static str>,
}

/// How a command shows its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Pretty,
    Json,
}

/// Why flags cannot be read, in Go's words.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FlagError {
    #[error("bad flag syntax: {0}")]
    Syntax(String),
    #[error("flag provided but not defined: -{0}")]
    Unknown(String),
    #[error("flag needs an argument: -{0}")]
    NoValue(&'static str),
    #[error("invalid boolean value {value:?} for -{name}: parse error")]
    Bool { name: &'static str, value: String },
    #[error("invalid value {value:?} for flag -{name}: {reason}")]
    Value {
        name: &'static str,
        value: String,
        reason: String,
    },
}

impl Flag {
    /// A flag without a default value.
    pub(crate) const fn new(name: &'static str, kind: Kind, help: &'static str) -> Self {
        Self {
            name,
            kind,
            default: "",
            help,
        }
    }

    /// The same flag with a default value.
    pub(crate) const fn or(self, default: &'static str) -> Self {
        Self { default, ..self }
    }
}

impl Flags {
    /// Reads `arguments`, those behind the command's words.
    pub(crate) fn parse(known: &[&'static Flag], arguments: &[String]) -> Result<Self, FlagError> {
        let defaults = known.iter().map(|flag| (flag.name, flag.default));
        let mut flags = Self {
            given: BTreeMap::new(),
            defaults: defaults.collect(),
        };
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let Some((name, value)) = split(argument)? else {
                break;
            };
            let flag = known
                .iter()
                .find(|flag| flag.name == name)
                .ok_or_else(|| FlagError::Unknown(name.to_owned()))?;
            let value = match (value, flag.kind) {
                (Some(value), _) => value.to_owned(),
                (None, Kind::Bool) => "true".to_owned(),
                (None, _) => rest.next().cloned().ok_or(FlagError::NoValue(flag.name))?,
            };
            flags.set(flag, value)?;
        }
        Ok(flags)
    }

    /// The value if it was given.
    pub(crate) fn given(&self, name: &str) -> Option<&str> {
        self.given.get(name).map(String::as_str)
    }

    /// The value, or the default.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.given(name).unwrap_or_else(|| self.default(name))
    }

    /// The truth value if it was given.
    pub(crate) fn given_bool(&self, name: &str) -> Option<bool> {
        self.given(name).and_then(parse_bool)
    }

    /// The truth value; not given = false.
    pub(crate) fn is_set(&self, name: &str) -> bool {
        self.given_bool(name).unwrap_or_default()
    }

    /// The duration, or the default; `None` for zero, which stands for "no limit".
    pub(crate) fn time_limit(&self, name: &str) -> Option<Duration> {
        parse_duration(self.text(name))
            .ok()
            .filter(|limit| !limit.is_zero())
    }

    /// The form of the result; flags that were given as another name for `-output` count as it.
    pub(crate) fn format(&self) -> Format {
        let named = self.given("output").or_else(|| self.given("format"));
        named.and_then(parse_format).unwrap_or(Format::Pretty)
    }

    fn default(&self, name: &str) -> &str {
        self.defaults.get(name).copied().unwrap_or_default()
    }

    fn set(&mut self, flag: &Flag, value: String) -> Result<(), FlagError> {
        let name = flag.name;
        match self.refusal(flag, &value) {
            None => {
                self.given.insert(name, value);
                Ok(())
            }
            Some(_) if flag.kind == Kind::Bool => Err(FlagError::Bool { name, value }),
            Some(reason) => Err(FlagError::Value {
                name,
                value,
                reason,
            }),
        }
    }

    /// Why the value is not taken.
    fn refusal(&self, flag: &Flag, value: &str) -> Option<String> {
        let parse_error = || "parse error".to_owned();
        match flag.kind {
            Kind::Text => None,
            Kind::Bool => parse_bool(value).is_none().then(parse_error),
            Kind::Integer => parse_integer(value).is_none().then(parse_error),
            Kind::Duration => parse_duration(value).err().map(|error| error.to_string()),
            Kind::Output => match (
                parse_format(value),
                self.given("output").or(self.given("format")),
            ) {
                (None, _) => Some("must be one of: pretty, json".to_owned()),
                (Some(new), Some(old)) if parse_format(old) != Some(new) => {
                    Some("another form was asked for before".to_owned())
                }
                (Some(_), _) => None,
            },
        }
    }
}

/// The name and, behind `=`, the value of a flag; `None` for a word that is no flag.
fn split(argument: &str) -> Result<Option<(&str, Option<&str>)>, FlagError> {
    let Some(word) = argument.strip_prefix('-').filter(|word| !word.is_empty()) else {
        return Ok(None);
    };
    let name = word.strip_prefix('-').unwrap_or(word);
    if name.is_empty() {
        return Ok(None);
    }
    if name.starts_with(['-', '=']) {
        return Err(FlagError::Syntax(argument.to_owned()));
    }
    Ok(Some(match name.split_once('=') {
        Some((name, value)) => (name, Some(value)),
        None => (name, None),
    }))
}

/// The forms of Go's `strconv.ParseBool`.
fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

fn parse_format(text: &str) -> Option<Format> {
    match text.to_ascii_lowercase().as_str() {
        "pretty" | "prettyprint" => Some(Format::Pretty),
        "json" => Some(Format::Json),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static NAME: Flag = Flag::new("name", Kind::Text, "").or("nobody");
    static PORT: Flag = Flag::new("port", Kind::Integer, "");
    static QUIET: Flag = Flag::new("quiet", Kind::Bool, "");
    static LIMIT: Flag = Flag::new("limit", Kind::Duration, "").or("5s");
    static OUTPUT: Flag = Flag::new("output", Kind::Output, "");
    static KNOWN: [&Flag; 5] = [&NAME, &PORT, &QUIET, &LIMIT, &OUTPUT];

    fn parse(line: &str) -> Result<Flags, FlagError> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        Flags::parse(&KNOWN, &words)
    }

    #[test]
    fn go_spellings_mean_the_same() {
        for line in [
            "-name a",
            "--name a",
            "-name=a",
            "--name=a",
            "-name b -name a",
            "-name a -- -name b",
        ] {
            assert_eq!(parse(line).unwrap().text("name"), "a", "{line}");
        }
        assert_eq!(parse("-name=a=b").unwrap().text("name"), "a=b");
        assert_eq!(parse("-name= -quiet").unwrap().given("name"), Some(""));
        assert_eq!(parse("-name -quiet").unwrap().text("name"), "-quiet");
    }

    #[test]
    fn a_truth_value_takes_no_separate_word() {
        let table = [
            ("-quiet", Some(true)),
            ("-quiet=F", Some(false)),
            ("-quiet=0", Some(false)),
            ("--quiet=TRUE", Some(true)),
            ("-quiet false", Some(true)),
            ("x -quiet", None),
        ];

        for (line, value) in table {
            assert_eq!(parse(line).unwrap().given_bool("quiet"), value, "{line}");
        }
    }

    #[test]
    fn reading_ends_at_the_first_word_that_is_no_flag() {
        for line in [
            "-quiet word -bogus",
            "-quiet - -bogus",
            "-quiet -- -bogus",
            "-quiet=1 x -name",
        ] {
            let flags = parse(line).unwrap();

            assert!(flags.is_set("quiet"));
            assert_eq!(flags.text("name"), "nobody");
        }
    }

    #[test]
    fn an_integer_may_have_any_base_that_go_takes() {
        for port in ["8081", "0x1F91", "0o17621", "017621", "0b1", "-1", "+1"] {
            let flags = parse(&format!("-port {port}")).unwrap();

            assert_eq!(flags.given("port"), Some(port));
        }
        for port in ["08", "0x", "8081.0", "1e3", "", "9223372036854775808"] {
            assert!(parse(&format!("-port={port}")).is_err(), "{port}");
        }
    }

    #[test]
    fn wrong_use_names_the_flag() {
        let table = [
            ("-bogus", "flag provided but not defined: -bogus"),
            ("--bogus=1", "flag provided but not defined: -bogus"),
            ("-Name x", "flag provided but not defined: -Name"),
            ("-port", "flag needs an argument: -port"),
            ("-port x", "invalid value \"x\" for flag -port: parse error"),
            (
                "-quiet=maybe",
                "invalid boolean value \"maybe\" for -quiet: parse error",
            ),
            ("---name x", "bad flag syntax: ---name"),
            ("-=x", "bad flag syntax: -=x"),
            (
                "-output yaml",
                "invalid value \"yaml\" for flag -output: must be one of: pretty, json",
            ),
            (
                "-output json -output pretty",
                "invalid value \"pretty\" for flag -output: another form was asked for before",
            ),
        ];

        for (line, message) in table {
            assert_eq!(parse(line).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn durations_and_forms_have_their_defaults() {
        assert_eq!(
            parse("-quiet").unwrap().time_limit("limit"),
            Some(Duration::from_secs(5))
        );
        assert_eq!(parse("-limit 0").unwrap().time_limit("limit"), None);
        assert_eq!(
            parse("-limit 1m").unwrap().time_limit("limit"),
            Some(Duration::from_mins(1))
        );
        assert!(
            parse("-limit soon")
                .unwrap_err()
                .to_string()
                .contains("flag -limit")
        );
        assert_eq!(parse("-quiet").unwrap().format(), Format::Pretty);
        assert_eq!(
            parse("-output PrettyPrint").unwrap().format(),
            Format::Pretty
        );
        assert_eq!(
            parse("-output JSON -output json").unwrap().format(),
            Format::Json
        );
    }
}
