//! Reads JSON text into the same tree as HCL, with places. Pure. RFC 8259; a `null` counts as not set.

use super::ast::{
    Entry, Key, MAX_BYTES, MAX_DEPTH, MAX_NODES, Object, Position, SyntaxError, Value, ValueKind,
};
use super::lexer::Cursor;

/// Reads a JSON document whose top is an object.
pub(crate) fn parse(text: &str) -> Result<Object, SyntaxError> {
    let mut parser = Parser {
        cursor: Cursor::new(text),
        nodes: 0,
    };
    if text.len() > MAX_BYTES {
        return parser.fail("text is too long");
    }
    parser.skip_blanks();
    let object = parser.object(0)?;
    parser.skip_blanks();
    if parser.cursor.peek().is_some() {
        return parser.fail("unexpected text behind the document");
    }
    Ok(object)
}

struct Parser<'a> {
    cursor: Cursor<'a>,
    nodes: usize,
}

impl Parser<'_> {
    fn fail<T>(&self, message: impl Into<String>) -> Result<T, SyntaxError> {
        Err(SyntaxError::new(self.cursor.position(), message))
    }

    fn skip_blanks(&mut self) {
        self.cursor
            .take_while(|c| matches!(c, ' ' | '\t' | '\n' | '\r'));
    }

    /// Passes over blanks and, when it comes next, `c`; whether it did.
    fn eat(&mut self, c: char) -> bool {
        self.skip_blanks();
        self.cursor.bump_if(|next| next == c).is_some()
    }

    fn count(&mut self, depth: usize) -> Result<(), SyntaxError> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            return self.fail("too many keys and values");
        }
        if depth > MAX_DEPTH {
            return self.fail("nested too deeply");
        }
        Ok(())
    }

    fn object(&mut self, depth: usize) -> Result<Object, SyntaxError> {
        let mut object = Object::default();
        if !self.eat('{') {
            return self.fail("expected \"{\"");
        }
        if self.eat('}') {
            return Ok(object);
        }
        loop {
            self.skip_blanks();
            self.count(depth)?;
            let position = self.cursor.position();
            let text = self.string()?;
            if !self.eat(':') {
                return self.fail("expected \":\" behind a key");
            }
            if let Some(value) = self.value(depth + 1)? {
                let key = Key {
                    text,
                    position,
                    quoted: false,
                };
                object.entries.push(Entry { key, value });
            }
            if self.eat('}') {
                return Ok(object);
            }
            if !self.eat(',') {
                return self.fail("expected \",\" or \"}\"");
            }
            // Go's reader of such files lets a comma stand last.
            if self.eat('}') {
                return Ok(object);
            }
        }
    }

    /// Reads a value; `None` for `null`.
    fn value(&mut self, depth: usize) -> Result<Option<Value>, SyntaxError> {
        self.skip_blanks();
        self.count(depth)?;
        let position = self.cursor.position();
        let kind = match self.cursor.peek() {
            Some('{') => ValueKind::Object(self.object(depth)?),
            Some('[') => ValueKind::List(self.items(depth)?),
            Some('"') => ValueKind::Text(self.string()?),
            Some('-' | '0'..='9') => ValueKind::Number(self.number()?),
            Some('a'..='z') => match self.cursor.take_while(|c| c.is_ascii_lowercase()) {
                "true" => ValueKind::Bool(true),
                "false" => ValueKind::Bool(false),
                "null" => return Ok(None),
                _ => return Err(SyntaxError::new(position, "a bare word is no value")),
            },
            _ => return self.fail("expected a value"),
        };
        Ok(Some(Value { kind, position }))
    }

    fn items(&mut self, depth: usize) -> Result<Vec<Value>, SyntaxError> {
        let mut items = Vec::new();
        self.cursor.bump();
        if self.eat(']') {
            return Ok(items);
        }
        loop {
            items.extend(self.value(depth + 1)?);
            if self.eat(']') {
                return Ok(items);
            }
            if !self.eat(',') {
                return self.fail("expected \",\" or \"]\"");
            }
            if self.eat(']') {
                return Ok(items);
            }
        }
    }

    fn number(&mut self) -> Result<String, SyntaxError> {
        let mut literal = String::new();
        literal.extend(self.cursor.bump_if(|c| c == '-'));
        let digits = self.digits()?;
        if digits.len() > 1 && digits.starts_with('0') {
            return self.fail("number with a leading zero");
        }
        literal.push_str(&digits);
        if let Some(point) = self.cursor.bump_if(|c| c == '.') {
            literal.push(point);
            literal.push_str(&self.digits()?);
        }
        if let Some(e) = self.cursor.bump_if(|c| matches!(c, 'e' | 'E')) {
            literal.push(e);
            literal.extend(self.cursor.bump_if(|c| matches!(c, '+' | '-')));
            literal.push_str(&self.digits()?);
        }
        Ok(literal)
    }

    fn digits(&mut self) -> Result<String, SyntaxError> {
        let digits = self.cursor.take_while(|c| c.is_ascii_digit());
        if digits.is_empty() {
            return self.fail("expected a digit");
        }
        Ok(digits.to_owned())
    }

    fn string(&mut self) -> Result<String, SyntaxError> {
        let start = self.cursor.position();
        if self.cursor.bump_if(|c| c == '"').is_none() {
            return self.fail("expected a string in double quotes");
        }
        let mut text = String::new();
        loop {
            let place = self.cursor.position();
            match self.cursor.bump() {
                Some('"') => return Ok(text),
                Some('\\') => text.push(self.escape(place)?),
                Some(c) if c < ' ' => {
                    return Err(SyntaxError::new(place, "control character in a string"));
                }
                Some(c) => text.push(c),
                None => return Err(SyntaxError::new(start, "string is not closed")),
            }
        }
    }

    fn escape(&mut self, place: Position) -> Result<char, SyntaxError> {
        match self.cursor.bump() {
            Some(c @ ('"' | '\\' | '/')) => Ok(c),
            Some('b') => Ok('\u{8}'),
            Some('f') => Ok('\u{c}'),
            Some('n') => Ok('\n'),
            Some('r') => Ok('\r'),
            Some('t') => Ok('\t'),
            Some('u') => self.unicode(place),
            _ => Err(SyntaxError::new(place, "unknown escape in a string")),
        }
    }

    /// One `\uXXXX`, or a surrogate pair of two.
    fn unicode(&mut self, place: Position) -> Result<char, SyntaxError> {
        let high = self.four_digits(place)?;
        let mut value = high;
        if (0xd800..0xdc00).contains(&high) && self.cursor.starts_with("\\u") {
            self.cursor.bump();
            self.cursor.bump();
            let low = self.four_digits(place)?;
            if (0xdc00..0xe000).contains(&low) {
                value = 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00);
            }
        }
        char::from_u32(value)
            .ok_or_else(|| SyntaxError::new(place, "escape is no Unicode character"))
    }

    fn four_digits(&mut self, place: Position) -> Result<u32, SyntaxError> {
        let mut value = 0;
        for _ in 0..4 {
            let digit = self.cursor.bump().and_then(|c| c.to_digit(16));
            let digit =
                digit.ok_or_else(|| SyntaxError::new(place, "escape with too few digits"))?;
            value = value * 16 + digit;
        }
        Ok(value)
    }
}
