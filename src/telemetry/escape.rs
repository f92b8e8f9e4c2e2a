//! Escapes text from outside so that a record stays one line and a terminal obeys nobody. Pure.

use std::fmt::Write as _;

/// Whether a character shows as itself: no control, no separator but the space, nothing that turns the writing direction.
pub(crate) fn is_printable(character: char) -> bool {
    match character {
        '"' | '\'' | '\\' => true,
        other => other.escape_debug().len() == 1,
    }
}

/// Text for a terminal: what does not print becomes an escape.
pub(crate) fn printable(text: &str) -> String {
    escape_where(text, |character| !is_printable(character))
}

/// Like [`printable`], with line feeds and tabs kept.
pub(crate) fn printable_lines(text: &str) -> String {
    escape_where(text, |character| {
        !is_printable(character) && !matches!(character, '\n' | '\t')
    })
}

/// Appends a double-quoted string as Go's `strconv.Quote` makes it.
pub(crate) fn push_go_quoted(line: &mut String, text: &str) {
    line.push('"');
    for character in text.chars() {
        match character {
            '"' => line.push_str("\\\""),
            '\\' => line.push_str("\\\\"),
            other if is_printable(other) => line.push(other),
            other => push_go_escape(line, other),
        }
    }
    line.push('"');
}

/// Appends a JSON string (RFC 8259 7); characters that do not print are escaped too.
pub(crate) fn push_json_string(line: &mut String, text: &str) {
    line.push('"');
    for character in text.chars() {
        match character {
            '"' => line.push_str("\\\""),
            '\\' => line.push_str("\\\\"),
            '\n' => line.push_str("\\n"),
            '\r' => line.push_str("\\r"),
            '\t' => line.push_str("\\t"),
            other if is_printable(other) => line.push(other),
            other => {
                for unit in other.encode_utf16(&mut [0; 2]) {
                    push(line, format_args!("\\u{unit:04x}"));
                }
            }
        }
    }
    line.push('"');
}

fn escape_where(text: &str, is_refused: impl Fn(char) -> bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if is_refused(character) {
            push_go_escape(&mut escaped, character);
        } else {
            escaped.push(character);
        }
    }
    escaped
}

fn push_go_escape(line: &mut String, character: char) {
    match (character, u32::from(character)) {
        ('\u{7}', _) => line.push_str("\\a"),
        ('\u{8}', _) => line.push_str("\\b"),
        ('\u{c}', _) => line.push_str("\\f"),
        ('\n', _) => line.push_str("\\n"),
        ('\r', _) => line.push_str("\\r"),
        ('\t', _) => line.push_str("\\t"),
        ('\u{b}', _) => line.push_str("\\v"),
        (_, code @ (..=0x1f | 0x7f)) => push(line, format_args!("\\x{code:02x}")),
        (_, code @ ..=0xffff) => push(line, format_args!("\\u{code:04x}")),
        (_, code) => push(line, format_args!("\\U{code:08x}")),
    }
}

fn push(line: &mut String, text: std::fmt::Arguments<'_>) {
    line.write_fmt(text).expect("a string takes any text");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_character_becomes_gos_escape_and_a_json_escape() {
        let table = [
            ("plain", r#""plain""#, r#""plain""#),
            ("a\"b\\c", r#""a\"b\\c""#, r#""a\"b\\c""#),
            ("it's", r#""it's""#, r#""it's""#),
            ("a\nb\rc\td", r#""a\nb\rc\td""#, r#""a\nb\rc\td""#),
            (
                "\0\u{1b}[31m\u{7f}",
                r#""\x00\x1b[31m\x7f""#,
                r#""\u0000\u001b[31m\u007f""#,
            ),
            (
                "\u{7}\u{8}\u{b}\u{c}",
                r#""\a\b\v\f""#,
                r#""\u0007\u0008\u000b\u000c""#,
            ),
            ("\u{85}\u{9b}", r#""\u0085\u009b""#, r#""\u0085\u009b""#),
            (
                "\u{2028}\u{202e}\u{feff}",
                r#""\u2028\u202e\ufeff""#,
                r#""\u2028\u202e\ufeff""#,
            ),
            ("\u{e0001}", r#""\U000e0001""#, r#""\udb40\udc01""#),
            ("zürich 東京 🙂", "\"zürich 東京 🙂\"", "\"zürich 東京 🙂\""),
        ];

        for (text, go, json) in table {
            let (mut quoted, mut string) = (String::new(), String::new());
            push_go_quoted(&mut quoted, text);
            push_json_string(&mut string, text);

            assert_eq!((quoted.as_str(), string.as_str()), (go, json), "{text:?}");
            assert_eq!(serde_json::from_str::<String>(&string).unwrap(), text);
        }
    }

    #[test]
    fn terminal_text_keeps_line_feeds_only_where_they_belong() {
        assert_eq!(printable("a\n\u{1b}b"), "a\\n\\x1bb");
        assert_eq!(printable_lines("a\n\t\u{1b}b"), "a\n\t\\x1bb");
    }
}
