//! Replaces `$NAME` and `${NAME}` in the raw configuration text (`-expandEnv`). Pure: the environment is handed in.

/// Expands the text as the reference does. Unset names become empty and `$$` becomes `$`; a `$` before a character that
/// cannot start a name stays; shell specials such as `$1` or `$@` are looked up as names of one character; `${}` and an
/// unclosed `${` are dropped. Comments are expanded like everything else.
pub(crate) fn expand(text: &str, lookup: &dyn Fn(&str) -> Option<String>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('$') {
        out.push_str(before);
        let (name, tail) = match next_name(behind) {
            Reference::Name(name, tail) => (name, tail),
            Reference::Bad(tail) => {
                rest = tail;
                continue;
            }
            Reference::None => {
                out.push('$');
                rest = behind;
                continue;
            }
        };
        if name == "$" {
            out.push('$');
        } else {
            out.push_str(&lookup(name).unwrap_or_default());
        }
        rest = tail;
    }
    out.push_str(rest);
    out
}

/// What stands behind a `$`.
enum Reference<'a> {
    /// A name, and the text behind it.
    Name(&'a str, &'a str),
    /// Wrong syntax to be dropped, and the text behind it.
    Bad(&'a str),
    /// Nothing that a name could start with.
    None,
}

fn next_name(text: &str) -> Reference<'_> {
    if let Some(inner) = text.strip_prefix('{') {
        return match inner.split_once('}') {
            Some(("", tail)) => Reference::Bad(tail),
            Some((name, tail)) => Reference::Name(name, tail),
            None => Reference::Bad(inner),
        };
    }
    let is_special =
        |c: char| c.is_ascii_digit() || matches!(c, '*' | '#' | '$' | '@' | '!' | '?' | '-');
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let length = if text.starts_with(is_special) {
        1
    } else {
        text.find(|c| !is_plain(c)).unwrap_or(text.len())
    };
    match text.split_at_checked(length) {
        Some((name, tail)) if !name.is_empty() => Reference::Name(name, tail),
        _ => Reference::None,
    }
}
