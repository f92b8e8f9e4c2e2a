//! Durations, expansion, nearest names, integers.

use std::time::Duration;

use proptest::prelude::*;

use super::super::duration::{DurationError, format_duration, parse_duration};
use super::super::expand::expand;
use super::super::integer::parse_integer;
use super::super::nearest::nearest;

#[test]
fn durations_in_go_syntax_and_in_words() {
    let cases = [
        ("0", 0),
        ("0s", 0),
        ("-0s", 0),
        ("300ms", 300_000_000),
        ("10m", 600_000_000_000),
        ("1h30m", 5_400_000_000_000),
        ("1.5h", 5_400_000_000_000),
        (".5s", 500_000_000),
        ("1.s", 1_000_000_000),
        ("+2s", 2_000_000_000),
        ("7us", 7_000),
        ("7µs", 7_000),
        ("9ns", 9),
        ("30d", 2_592_000_000_000_000),
        ("1h 30m", 5_400_000_000_000),
        ("2 weeks", 1_209_600_000_000_000),
        (" 5s ", 5_000_000_000),
        ("1.0000000000000000000000000000001s", 1_000_000_000),
    ];

    for (text, nanoseconds) in cases {
        assert_eq!(
            parse_duration(text),
            Ok(Duration::from_nanos(nanoseconds)),
            "{text:?}"
        );
    }
}

#[test]
fn texts_that_are_no_durations() {
    let own = str::to_owned;
    let cases = [
        ("10", DurationError::MissingUnit(own("10"))),
        ("1.5", DurationError::MissingUnit(own("1.5"))),
        ("", DurationError::Invalid(own(""))),
        ("abc", DurationError::Invalid(own("abc"))),
        ("s", DurationError::Invalid(own("s"))),
        (".s", DurationError::Invalid(own(".s"))),
        ("1h30", DurationError::Invalid(own("1h30"))),
        ("--", DurationError::Invalid(own("--"))),
        ("-5s", DurationError::Negative(own("-5s"))),
        ("9999999999h", DurationError::TooLong(own("9999999999h"))),
        (
            "99999999999999999999999999999999999999999999h",
            DurationError::TooLong(own("99999999999999999999999999999999999999999999h")),
        ),
        ("1000y", DurationError::TooLong(own("1000y"))),
        (
            "99999999999999999999d",
            DurationError::TooLong(own("99999999999999999999d")),
        ),
    ];

    for (text, expected) in cases {
        assert_eq!(parse_duration(text), Err(expected), "{text:?}");
    }
}

#[test]
fn durations_print_as_go_prints_them() {
    let cases = [
        (0, "0s"),
        (9, "9ns"),
        (1_500, "1.5µs"),
        (300_000_000, "300ms"),
        (1_500_000_000, "1.5s"),
        (90_000_000_000, "1m30s"),
        (86_400_000_000_000, "24h0m0s"),
        (3_600_000_000_001, "1h0m0.000000001s"),
    ];

    for (nanoseconds, expected) in cases {
        assert_eq!(format_duration(Duration::from_nanos(nanoseconds)), expected);
    }
}

#[test]
fn expansion_follows_the_reference() {
    let lookup = |name: &str| match name {
        "X" => Some("x".to_owned()),
        "A_1" => Some("under".to_owned()),
        "a b" => Some("odd".to_owned()),
        "R" => Some("$X".to_owned()),
        _ => None,
    };
    let cases = [
        ("$X", "x"),
        ("${X}", "x"),
        ("a${X}b$X/c", "axbx/c"),
        ("$A_1!", "under!"),
        ("$UNSET|${UNSET}|", "||"),
        ("$$X", "$X"),
        ("ta$$x", "ta$x"),
        ("$", "$"),
        ("a$", "a$"),
        ("$ x", "$ x"),
        ("$/x", "$/x"),
        ("$\"", "$\""),
        ("$é", "$é"),
        ("$1$@$?$*$#$!$-", ""),
        ("$12", "2"),
        ("${1}", ""),
        ("${}x", "x"),
        ("${X", "X"),
        ("${a b}", "odd"),
        ("$R", "$X"),
        ("# $X", "# x"),
    ];

    for (text, expected) in cases {
        assert_eq!(expand(text, &lookup), expected, "{text:?}");
    }
}

#[test]
fn the_nearest_name_is_the_one_that_was_meant() {
    let known = ["server_port", "server_address", "log_level", "sds"];
    let cases = [
        ("sever_port", Some("server_port")),
        ("Server_Prot", Some("server_port")),
        ("loglevel", Some("log_level")),
        ("completely_else", None),
        ("x", None),
        ("", None),
    ];

    for (name, expected) in cases {
        assert_eq!(nearest(name, &known), expected, "{name:?}");
    }
}

#[test]
fn integers_are_read_as_go_reads_them_with_base_zero() {
    let cases = [
        ("0", Some(0)),
        ("8081", Some(8081)),
        ("-5", Some(-5)),
        ("+5", Some(5)),
        ("0755", Some(493)),
        ("0x1F", Some(31)),
        ("0o17", Some(15)),
        ("0b101", Some(5)),
        ("-9223372036854775808", Some(i64::MIN)),
        ("9223372036854775808", None),
        ("", None),
        ("-", None),
        ("--5", None),
        ("0x", None),
        ("0x+1", None),
        ("08", None),
        ("1.5", None),
        ("1e3", None),
        ("x", None),
        (" 1", None),
    ];

    for (text, expected) in cases {
        assert_eq!(parse_integer(text), expected, "{text:?}");
    }
}

proptest! {
    #[test]
    fn durations_in_go_form_read_back_the_same(nanoseconds in 0..=i64::MAX.unsigned_abs()) {
        let value = Duration::from_nanos(nanoseconds);

        prop_assert_eq!(parse_duration(&format_duration(value)), Ok(value));
    }

    #[test]
    fn no_text_makes_these_panic(text in any::<String>(), spelt in "[0-9.smhdunµ +-]{0,30}") {
        for text in [text, spelt] {
            let _ = (parse_duration(&text).is_ok(), parse_integer(&text), nearest(&text, &["server_port"]));
            prop_assert!(expand(&text, &|_| None).len() <= text.len());
        }
    }
}
