//! Integers as Go writes them, in the configuration and in flags. Pure.

/// Reads an integer as Go does with base 0: decimal, `0x`, `0o` or a leading zero for octal, `0b`; a sign may stand first.
pub(crate) fn parse_integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (digits, radix) = match lower.strip_prefix('0') {
        Some("") | None => (lower.as_str(), 10),
        Some(rest) => match (
            rest.strip_prefix('x'),
            rest.strip_prefix('o'),
            rest.strip_prefix('b'),
        ) {
            (Some(hex), _, _) => (hex, 16),
            (_, Some(octal), _) => (octal, 8),
            (_, _, Some(binary)) => (binary, 2),
            _ => (rest, 8),
        },
    };
    if !digits.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    let magnitude = i128::from_str_radix(digits, radix).ok()?;
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}
