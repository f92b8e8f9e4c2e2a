//! Writes the little DER that certificates need (ITU-T X.690). Pure.

use crate::clock::Seconds;

pub(crate) const BIT_STRING: u8 = 0x03;
pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const OCTET_STRING: u8 = 0x04;
pub(crate) const OBJECT_IDENTIFIER: u8 = 0x06;
pub(crate) const UTF8_STRING: u8 = 0x0c;
pub(crate) const PRINTABLE_STRING: u8 = 0x13;
pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const TRUE: [u8; 3] = [0x01, 0x01, 0xff];

/// One tag, length and value.
pub(crate) fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let mut out = vec![tag];
    let bytes = length.to_be_bytes();
    let significant: Vec<u8> = bytes.into_iter().skip_while(|byte| *byte == 0).collect();
    match significant.as_slice() {
        [] => out.push(0),
        [short] if *short < 0x80 => out.push(*short),
        long => {
            out.push(0x80 | u8::try_from(long.len()).expect("a usize has at most 8 bytes"));
            out.extend_from_slice(long);
        }
    }
    out.extend_from_slice(content);
    out
}

/// A SEQUENCE of already encoded parts.
pub(crate) fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    tlv(SEQUENCE, &parts.concat())
}

/// An OBJECT IDENTIFIER from its encoded content.
pub(crate) fn oid(content: &[u8]) -> Vec<u8> {
    tlv(OBJECT_IDENTIFIER, content)
}

/// A BIT STRING whose last byte has `unused` unused bits.
pub(crate) fn bit_string(unused: u8, content: &[u8]) -> Vec<u8> {
    tlv(BIT_STRING, &[&[unused], content].concat())
}

/// A certificate extension (RFC 5280 4.1.2.9) around its encoded value.
pub(crate) fn extension(id: &[u8], critical: bool, value: &[u8]) -> Vec<u8> {
    let critical: &[u8] = if critical { &TRUE } else { &[] };
    sequence(&[&oid(id), critical, &tlv(OCTET_STRING, value)])
}

/// A DER BOOLEAN that is true.
pub(crate) fn boolean_true() -> &'static [u8] {
    &TRUE
}

/// A time as RFC 5280 4.1.2.5 wants it: `UTCTime` through 2049, `GeneralizedTime` from 2050.
pub(crate) fn time(at: Seconds) -> Vec<u8> {
    let days = at.div_euclid(86_400);
    let second_of_day = at.rem_euclid(86_400);
    let (year, month, day) = civil_date(days);
    let clock = format!(
        "{month:02}{day:02}{:02}{:02}{:02}Z",
        second_of_day / 3600,
        second_of_day / 60 % 60,
        second_of_day % 60
    );
    if (1950..2050).contains(&year) {
        tlv(UTC_TIME, format!("{:02}{clock}", year % 100).as_bytes())
    } else {
        tlv(GENERALIZED_TIME, format!("{year:04}{clock}").as_bytes())
    }
}

/// Year, month and day of a day number counted from 1970-01-01 in the proleptic Gregorian calendar.
fn civil_date(days: i64) -> (i64, i64, i64) {
    // Years are counted from March, so that the leap day is the last one of its year.
    let from_march_0000 = days + 719_468;
    let era = from_march_0000.div_euclid(146_097);
    let day_of_era = from_march_0000.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_takes_as_many_bytes_as_it_needs() {
        for (length, header) in [
            (0, vec![4, 0]),
            (127, vec![4, 127]),
            (128, vec![4, 0x81, 128]),
            (256, vec![4, 0x82, 1, 0]),
        ] {
            let encoded = tlv(OCTET_STRING, &vec![0; length]);

            assert_eq!(encoded[..header.len()], header, "{length}");
            assert_eq!(encoded.len(), header.len() + length);
        }
    }

    #[test]
    fn a_time_is_written_as_rfc_5280_asks() {
        for (at, text) in [
            (0, "700101000000Z"),
            (951_782_399, "000228235959Z"),
            (951_782_400, "000229000000Z"),
            (1_798_761_599, "261231235959Z"),
            (2_524_608_000, "20500101000000Z"),
            (-1, "691231235959Z"),
        ] {
            let encoded = time(at);

            assert_eq!(&encoded[2..], text.as_bytes(), "{at}");
        }
    }
}
