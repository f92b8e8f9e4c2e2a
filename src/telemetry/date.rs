//! Dates as RFC 3339 and as Go prints them, in UTC. Pure; any date that a certificate can hold has a text.

use std::time::SystemTime;

use actors::clock::unix_seconds;

const DAY: i64 = 24 * 60 * 60;

/// Days in 400 years, after which the calendar repeats.
const CYCLE: i64 = 146_097;

/// A date taken apart.
struct Parts {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

/// `2026-01-02T15:04:05Z`
pub(crate) fn rfc3339_seconds(date: SystemTime) -> String {
    let Parts {
        year,
        month,
        day,
        hour,
        minute,
        second,
    } = Parts::of(date);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// `2026-01-02T15:04:05.000000006Z`
pub(crate) fn rfc3339_nanoseconds(date: SystemTime) -> String {
    let nanoseconds = date
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    let seconds = rfc3339_seconds(date);
    format!("{}.{nanoseconds:09}Z", seconds.trim_end_matches('Z'))
}

/// `2026-01-02 15:04:05 +0000 UTC`: the default form of Go's `time.Time`.
pub(crate) fn go_utc(date: SystemTime) -> String {
    let Parts {
        year,
        month,
        day,
        hour,
        minute,
        second,
    } = Parts::of(date);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} +0000 UTC")
}

impl Parts {
    fn of(date: SystemTime) -> Self {
        let seconds = unix_seconds(date);
        let (year, month, day) = calendar(seconds.div_euclid(DAY));
        let in_day = seconds.rem_euclid(DAY);
        Self {
            year,
            month,
            day,
            hour: in_day / 3600,
            minute: in_day / 60 % 60,
            second: in_day % 60,
        }
    }
}

/// Year, month and day of the given day after 1970-01-01.
fn calendar(days: i64) -> (i64, i64, i64) {
    // Counted from 2000-03-01: years that begin in March end with the leap day, cycles begin with a leap century.
    let since_march_2000 = days - 11_017;
    let cycle = since_march_2000.div_euclid(CYCLE);
    let in_cycle = since_march_2000.rem_euclid(CYCLE);
    let century = (in_cycle / 36_524).min(3);
    let in_century = in_cycle - century * 36_524;
    let group = in_century / 1_461;
    let in_group = in_century - group * 1_461;
    let year_in_group = (in_group / 365).min(3);
    let mut rest = in_group - year_in_group * 365;
    let march_year = 2000 + 400 * cycle + 100 * century + 4 * group + year_in_group;

    let mut month = 3;
    for length in [31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 31] {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    if month > 12 {
        (march_year + 1, month - 12, rest + 1)
    } else {
        (march_year, month, rest + 1)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use actors::clock::from_unix_seconds;

    use super::*;

    #[test]
    fn dates_read_like_the_calendar() {
        let table = [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_767_366_245, "2026-01-02T15:04:05Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (253_402_300_799, "9999-12-31T23:59:59Z"),
            (-631_152_000, "1950-01-01T00:00:00Z"),
            (-62_135_596_800, "0001-01-01T00:00:00Z"),
        ];

        for (seconds, text) in table {
            assert_eq!(rfc3339_seconds(from_unix_seconds(seconds)), text);
        }
    }

    #[test]
    fn every_day_of_four_centuries_follows_the_one_before() {
        let mut before = calendar(-200_000);

        for day in -199_999..100_000 {
            let today = calendar(day);
            let (year, month, date) = before;
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let length = match month {
                2 => 28 + i64::from(leap),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            let expected = match (month, date == length) {
                (_, false) => (year, month, date + 1),
                (12, true) => (year + 1, 1, 1),
                (_, true) => (year, month + 1, 1),
            };
            assert_eq!(today, expected);
            before = today;
        }
    }

    #[test]
    fn go_and_nanosecond_forms_show_the_same_date() {
        let date = from_unix_seconds(1_767_366_245) + Duration::from_nanos(6);

        assert_eq!(go_utc(date), "2026-01-02 15:04:05 +0000 UTC");
        assert_eq!(rfc3339_nanoseconds(date), "2026-01-02T15:04:05.000000006Z");
    }
}
