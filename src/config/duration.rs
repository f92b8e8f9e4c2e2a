//! Durations as people write them (`1h30m`, `30d`, `1h 30m`) and as Go prints them (`24h0m0s`). Pure.

use std::time::Duration;

/// Longest duration that is taken: what Go can hold (about 292 years).
const LONGEST: Duration = Duration::from_nanos(i64::MAX.unsigned_abs());

/// A text that is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DurationError {
    /// Neither Go syntax nor words and units.
    #[error("invalid duration {0:?}")]
    Invalid(String),
    /// A number without a unit.
    #[error("missing unit in duration {0:?}")]
    MissingUnit(String),
    /// Below zero.
    #[error("negative duration {0:?}")]
    Negative(String),
    /// More than about 292 years.
    #[error("duration {0:?} is too long")]
    TooLong(String),
}

/// Reads a duration: Go syntax (units ns, us, ms, s, m, h; fractions allowed; a plain `0`), or words such as `30d`, `1h 30m`, `2 weeks`.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let trimmed = text.trim();
    if let Some(rest) = trimmed.strip_prefix('-') {
        return parse_negative(rest, text);
    }
    let unsigned = trimmed.strip_prefix('+').unwrap_or(trimmed);
    if unsigned == "0" {
        return Ok(Duration::ZERO);
    }
    if !unsigned.is_empty() && unsigned.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return Err(DurationError::MissingUnit(text.to_owned()));
    }
    let nanoseconds = parse_go(unsigned);
    let value = match nanoseconds {
        Go::Nanoseconds(value) => u64::try_from(value).ok().map(Duration::from_nanos),
        Go::TooLong => None,
        Go::Unknown => match humantime::parse_duration(unsigned) {
            Ok(value) => Some(value),
            Err(humantime::DurationError::NumberOverflow) => None,
            Err(_) => return Err(DurationError::Invalid(text.to_owned())),
        },
    };
    value
        .filter(|value| *value <= LONGEST)
        .ok_or_else(|| DurationError::TooLong(text.to_owned()))
}

/// Zero may have a minus, as in Go; nothing else may.
fn parse_negative(rest: &str, text: &str) -> Result<Duration, DurationError> {
    if rest.starts_with(['-', '+']) {
        return Err(DurationError::Invalid(text.to_owned()));
    }
    match parse_duration(rest) {
        Ok(Duration::ZERO) => Ok(Duration::ZERO),
        Ok(_) | Err(DurationError::TooLong(_)) => Err(DurationError::Negative(text.to_owned())),
        Err(DurationError::MissingUnit(_)) => Err(DurationError::MissingUnit(text.to_owned())),
        Err(_) => Err(DurationError::Invalid(text.to_owned())),
    }
}

/// What reading by Go's rules gave.
enum Go {
    Nanoseconds(u128),
    TooLong,
    Unknown,
}

fn parse_go(text: &str) -> Go {
    let mut rest = text;
    let mut total = 0_u128;
    while !rest.is_empty() {
        let whole_end = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (whole, tail) = rest.split_at(whole_end);
        let (fraction, tail) = match tail.strip_prefix('.') {
            Some(tail) => tail.split_at(
                tail.find(|c: char| !c.is_ascii_digit())
                    .unwrap_or(tail.len()),
            ),
            None => ("", tail),
        };
        let unit_end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let Some(scale) = unit_nanoseconds(unit) else {
            return Go::Unknown;
        };
        if whole.is_empty() && fraction.is_empty() {
            return Go::Unknown;
        }
        let Some(part) = scaled(whole, fraction, scale) else {
            return Go::TooLong;
        };
        total = total.saturating_add(part);
        rest = tail;
    }
    if text.is_empty() {
        Go::Unknown
    } else {
        Go::Nanoseconds(total)
    }
}

fn unit_nanoseconds(unit: &str) -> Option<u128> {
    match unit {
        "ns" => Some(1),
        "us" | "µs" | "μs" => Some(1_000),
        "ms" => Some(1_000_000),
        "s" => Some(1_000_000_000),
        "m" => Some(60_000_000_000),
        "h" => Some(3_600_000_000_000),
        _ => None,
    }
}

/// `whole.fraction` times `scale`; `None` on overflow. Digits of the fraction beyond the 18th do not count.
fn scaled(whole: &str, fraction: &str, scale: u128) -> Option<u128> {
    let whole: u128 = if whole.is_empty() {
        0
    } else {
        whole.parse().ok()?
    };
    let mut total = whole.checked_mul(scale)?;
    let mut place = scale;
    let mut remainder = 0_u128;
    let mut denominator = 1_u128;
    for digit in fraction.chars().take(18).filter_map(|c| c.to_digit(10)) {
        remainder = remainder * 10 + u128::from(digit);
        denominator *= 10;
    }
    place = place.checked_mul(remainder)? / denominator;
    total = total.checked_add(place)?;
    Some(total)
}

/// Prints a duration in Go's form: `24h0m0s`, `1m30s`, `1.5s`, `300ms`, `0s`.
pub(crate) fn format_duration(value: Duration) -> String {
    let nanoseconds = value.as_nanos();
    if nanoseconds == 0 {
        return "0s".to_owned();
    }
    if nanoseconds < 1_000 {
        return format!("{nanoseconds}ns");
    }
    if nanoseconds < 1_000_000 {
        return format!("{}µs", decimal(nanoseconds, 1_000));
    }
    if nanoseconds < 1_000_000_000 {
        return format!("{}ms", decimal(nanoseconds, 1_000_000));
    }
    let minute = 60_000_000_000;
    let seconds = decimal(nanoseconds % minute, 1_000_000_000);
    let minutes = nanoseconds / minute;
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m{seconds}s"),
        (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// `value / unit` without trailing zeros; `unit` is a power of ten.
fn decimal(value: u128, unit: u128) -> String {
    let whole = value / unit;
    let fraction = value % unit;
    if fraction == 0 {
        return whole.to_string();
    }
    let width = unit.ilog10() as usize;
    let digits = format!("{fraction:0width$}");
    format!("{whole}.{}", digits.trim_end_matches('0'))
}
