//! Cuts HCL 1 text into tokens. Pure; used by [`super::hcl`]. The [`Cursor`] also serves [`super::json`].

use super::ast::{Position, SyntaxError};

/// A token of HCL 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Identifier(String),
    Text(String),
    Heredoc(String),
    Number(String),
    Bool(bool),
    Assign,
    Comma,
    LeftBrace,
    RightBrace,
    LeftBracket,
    RightBracket,
    End,
}

/// Walks over a text and knows its place.
pub(super) struct Cursor<'a> {
    rest: &'a str,
    position: Position,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            rest: text,
            position: Position { line: 1, column: 1 },
        }
    }

    pub(super) fn position(&self) -> Position {
        self.position
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    fn second_is_digit(&self) -> bool {
        self.rest.chars().nth(1).is_some_and(|c| c.is_ascii_digit())
    }

    pub(super) fn starts_with(&self, prefix: &str) -> bool {
        self.rest.starts_with(prefix)
    }

    pub(super) fn bump(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let c = chars.next()?;
        self.rest = chars.as_str();
        if c == '\n' {
            self.position.line = self.position.line.saturating_add(1);
            self.position.column = 1;
        } else {
            self.position.column = self.position.column.saturating_add(1);
        }
        Some(c)
    }

    pub(super) fn bump_if(&mut self, accepts: impl Fn(char) -> bool) -> Option<char> {
        self.peek().filter(|c| accepts(*c))?;
        self.bump()
    }

    pub(super) fn take_while(&mut self, accepts: impl Fn(char) -> bool) -> &'a str {
        let before = self.rest;
        while self.bump_if(&accepts).is_some() {}
        let taken = before.len() - self.rest.len();
        before.get(..taken).unwrap_or_default()
    }

    /// Everything up to the line's end; the newline is passed over but not returned. `None` at the end of the text.
    fn line(&mut self) -> Option<&'a str> {
        self.peek()?;
        let line = self.take_while(|c| c != '\n');
        self.bump();
        Some(line)
    }
}

/// Yields the tokens of a text whose line ends are `\n`.
pub(super) struct Lexer<'a> {
    cursor: Cursor<'a>,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self {
            cursor: Cursor::new(text),
        }
    }

    /// The next token and where it starts; [`Token::End`] for ever at the end.
    pub(super) fn next_token(&mut self) -> Result<(Token, Position), SyntaxError> {
        self.skip_blanks()?;
        let start = self.cursor.position();
        let Some(c) = self.cursor.peek() else {
            return Ok((Token::End, start));
        };
        let token = match c {
            '"' => Token::Text(self.string()?),
            '<' => Token::Heredoc(self.heredoc()?),
            '-' => Token::Number(self.number()?),
            '.' if self.cursor.second_is_digit() => Token::Number(self.number()?),
            c if c.is_ascii_digit() => Token::Number(self.number()?),
            c if is_letter(c) => self.word(),
            _ => {
                self.cursor.bump();
                punctuation(c).ok_or_else(|| SyntaxError::new(start, unexpected(c)))?
            }
        };
        Ok((token, start))
    }

    fn skip_blanks(&mut self) -> Result<(), SyntaxError> {
        loop {
            self.cursor
                .take_while(|c| matches!(c, ' ' | '\t' | '\n' | '\r'));
            if self.cursor.starts_with("#") || self.cursor.starts_with("//") {
                self.cursor.take_while(|c| c != '\n');
            } else if self.cursor.starts_with("/*") {
                self.block_comment()?;
            } else {
                return Ok(());
            }
        }
    }

    fn block_comment(&mut self) -> Result<(), SyntaxError> {
        let start = self.cursor.position();
        self.cursor.bump();
        self.cursor.bump();
        while !self.cursor.starts_with("*/") {
            if self.cursor.bump().is_none() {
                return Err(SyntaxError::new(start, "comment is not closed"));
            }
        }
        self.cursor.bump();
        self.cursor.bump();
        Ok(())
    }

    fn word(&mut self) -> Token {
        let word = self
            .cursor
            .take_while(|c| is_letter(c) || c.is_numeric() || matches!(c, '-' | '.'));
        match word {
            "true" => Token::Bool(true),
            "false" => Token::Bool(false),
            word => Token::Identifier(word.to_owned()),
        }
    }

    fn number(&mut self) -> Result<String, SyntaxError> {
        let start = self.cursor.position();
        let mut literal = String::new();
        literal.extend(self.cursor.bump_if(|c| c == '-'));
        let digits = self.cursor.take_while(|c| c.is_ascii_digit());
        literal.push_str(digits);
        if digits.is_empty() && self.cursor.peek() != Some('.') || literal == "-" {
            return Err(SyntaxError::new(start, "unexpected character \"-\""));
        }
        if digits == "0"
            && let Some(x) = self.cursor.bump_if(|c| matches!(c, 'x' | 'X'))
        {
            let hex = self.cursor.take_while(|c| c.is_ascii_hexdigit());
            if hex.is_empty() {
                return Err(SyntaxError::new(start, "hexadecimal number without digits"));
            }
            literal.push(x);
            literal.push_str(hex);
            return Ok(literal);
        }
        let fraction = self.fraction(&mut literal)?;
        let octal = digits.len() > 1 && digits.starts_with('0');
        if octal && !fraction && digits.contains(['8', '9']) {
            return Err(SyntaxError::new(start, "octal number with a digit above 7"));
        }
        Ok(literal)
    }

    /// Appends fraction and exponent, if any; whether there was one.
    fn fraction(&mut self, literal: &mut String) -> Result<bool, SyntaxError> {
        let mut found = false;
        if let Some(point) = self.cursor.bump_if(|c| c == '.') {
            found = true;
            literal.push(point);
            literal.push_str(self.cursor.take_while(|c| c.is_ascii_digit()));
        }
        if let Some(e) = self.cursor.bump_if(|c| matches!(c, 'e' | 'E')) {
            found = true;
            literal.push(e);
            literal.extend(self.cursor.bump_if(|c| matches!(c, '+' | '-')));
            let digits = self.cursor.take_while(|c| c.is_ascii_digit());
            if digits.is_empty() {
                let place = self.cursor.position();
                return Err(SyntaxError::new(place, "exponent without digits"));
            }
            literal.push_str(digits);
        }
        Ok(found)
    }

    fn string(&mut self) -> Result<String, SyntaxError> {
        let start = self.cursor.position();
        let mut bytes = Vec::new();
        self.cursor.bump();
        loop {
            if self.cursor.starts_with("${") {
                self.interpolation(&mut bytes, start)?;
                continue;
            }
            let place = self.cursor.position();
            match self.cursor.bump() {
                Some('"') => break,
                Some('\\') => self.escape(&mut bytes, place)?,
                Some('\n') => return Err(SyntaxError::new(place, "newline in a string")),
                Some('\0') => return Err(SyntaxError::new(place, "null character in a string")),
                Some(c) => push_char(&mut bytes, c),
                None => return Err(SyntaxError::new(start, "string is not closed")),
            }
        }
        String::from_utf8(bytes)
            .map_err(|_| SyntaxError::new(start, "string escapes do not form UTF-8"))
    }

    /// Copies `${...}` as it stands; quotes and newlines mean nothing inside, escapes stay but must be known ones.
    fn interpolation(&mut self, bytes: &mut Vec<u8>, start: Position) -> Result<(), SyntaxError> {
        let before = self.cursor.rest;
        let mut open = 0_usize;
        loop {
            let place = self.cursor.position();
            match self.cursor.bump() {
                Some('{') => open += 1,
                Some('}') if open == 1 => break,
                Some('}') => open -= 1,
                Some('\\') => self.escape(&mut Vec::new(), place)?,
                Some('\0') => return Err(SyntaxError::new(place, "null character in a string")),
                Some(_) => {}
                None => return Err(SyntaxError::new(start, "\"${\" in a string is not closed")),
            }
        }
        let length = before.len() - self.cursor.rest.len();
        bytes.extend_from_slice(before.get(..length).unwrap_or_default().as_bytes());
        Ok(())
    }

    fn escape(&mut self, bytes: &mut Vec<u8>, place: Position) -> Result<(), SyntaxError> {
        let c = self.cursor.bump();
        let byte = match c {
            Some('a') => 0x07,
            Some('b') => 0x08,
            Some('f') => 0x0c,
            Some('n') => b'\n',
            Some('r') => b'\r',
            Some('t') => b'\t',
            Some('v') => 0x0b,
            Some('\\') => b'\\',
            Some('"') => b'"',
            Some(first @ '0'..='7') => {
                let value = self.digits(first.to_digit(8), 2, 8, place)?;
                u8::try_from(value)
                    .map_err(|_| SyntaxError::new(place, "octal escape above 377"))?
            }
            Some('x') => {
                let value = self.digits(None, 2, 16, place)?;
                u8::try_from(value).map_err(|_| SyntaxError::new(place, "escape out of range"))?
            }
            Some(unicode @ ('u' | 'U')) => {
                let length = if unicode == 'u' { 4 } else { 8 };
                let value = self.digits(None, length, 16, place)?;
                let c = char::from_u32(value)
                    .ok_or_else(|| SyntaxError::new(place, "escape is no Unicode character"))?;
                push_char(bytes, c);
                return Ok(());
            }
            _ => return Err(SyntaxError::new(place, "unknown escape in a string")),
        };
        bytes.push(byte);
        Ok(())
    }

    /// Reads `count` more digits behind `first`.
    fn digits(
        &mut self,
        first: Option<u32>,
        count: usize,
        radix: u32,
        place: Position,
    ) -> Result<u32, SyntaxError> {
        let mut value = first.unwrap_or(0);
        for _ in 0..count {
            let digit = self.cursor.peek().and_then(|c| c.to_digit(radix));
            let next = digit.and_then(|d| value.checked_mul(radix)?.checked_add(d));
            value = next.ok_or_else(|| SyntaxError::new(place, "escape with too few digits"))?;
            self.cursor.bump();
        }
        Ok(value)
    }

    fn heredoc(&mut self) -> Result<String, SyntaxError> {
        let start = self.cursor.position();
        self.cursor.bump();
        if self.cursor.bump_if(|c| c == '<').is_none() {
            return Err(SyntaxError::new(start, "unexpected character \"<\""));
        }
        let indented = self.cursor.bump_if(|c| c == '-').is_some();
        let anchor = self.cursor.take_while(|c| is_letter(c) || c.is_numeric());
        if anchor.is_empty() || self.cursor.bump() != Some('\n') {
            return Err(SyntaxError::new(
                start,
                "heredoc needs a marker and a new line",
            ));
        }
        let mut lines = Vec::new();
        while let Some(line) = self.cursor.line() {
            // HCL 1 takes the marker of `<<-` only with a blank before it.
            let is_marker = line.trim_start().trim_end_matches('\r') == anchor;
            if is_marker && (!indented || line.len() > anchor.len()) {
                let indent = line.len() - line.trim_start().len();
                let margin = line.get(..indent).unwrap_or_default();
                return Ok(join_heredoc(&lines, margin, indented));
            }
            lines.push(line);
        }
        Err(SyntaxError::new(
            start,
            "heredoc is not closed by its marker",
        ))
    }
}

/// The text of a heredoc; `margin` is the blank space before its end marker.
fn join_heredoc(lines: &[&str], margin: &str, indented: bool) -> String {
    let strip = indented && lines.iter().all(|line| line.starts_with(margin));
    let mut text = String::new();
    for line in lines {
        let kept = if strip {
            line.strip_prefix(margin)
        } else {
            None
        };
        text.push_str(kept.unwrap_or(line));
        text.push('\n');
    }
    if !indented {
        text.push_str(margin);
    }
    text
}

fn push_char(bytes: &mut Vec<u8>, c: char) {
    bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
}

fn is_letter(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

fn punctuation(c: char) -> Option<Token> {
    match c {
        '=' => Some(Token::Assign),
        ',' => Some(Token::Comma),
        '{' => Some(Token::LeftBrace),
        '}' => Some(Token::RightBrace),
        '[' => Some(Token::LeftBracket),
        ']' => Some(Token::RightBracket),
        _ => None,
    }
}

fn unexpected(c: char) -> String {
    match c {
        '\'' => "unexpected single quote: strings need double quotes".to_owned(),
        ':' => "unexpected \":\": a value follows \"=\"".to_owned(),
        '\u{feff}' => "unexpected byte order mark".to_owned(),
        c => format!("unexpected character {:?}", c.to_string()),
    }
}
