//! Reads HCL 1 text into a tree: recursive descent over the tokens of [`super::lexer`]. Pure.
//!
//! Takes what the HCL 1 library of the reference takes, and refuses what it refuses.

use super::ast::{
    Entry, Key, MAX_BYTES, MAX_DEPTH, MAX_NODES, Object, Position, SyntaxError, Value, ValueKind,
};
use super::lexer::{Lexer, Token};

/// Reads a whole HCL 1 text. Line ends may be `\n` or `\r\n`.
pub(crate) fn parse(text: &str) -> Result<Object, SyntaxError> {
    let first = Position { line: 1, column: 1 };
    if text.len() > MAX_BYTES {
        return Err(SyntaxError::new(first, "text is too long"));
    }
    let text = text.replace("\r\n", "\n");
    let mut lexer = Lexer::new(&text);
    let (token, position) = lexer.next_token()?;
    let mut parser = Parser {
        lexer,
        token,
        position,
        nodes: 0,
    };
    parser.entries(0, None)
}

/// The parser looks ahead by one token.
struct Parser<'a> {
    lexer: Lexer<'a>,
    token: Token,
    position: Position,
    nodes: usize,
}

impl Parser<'_> {
    /// Moves on and returns the token that was ahead.
    fn advance(&mut self) -> Result<Token, SyntaxError> {
        let (token, position) = self.lexer.next_token()?;
        self.position = position;
        Ok(std::mem::replace(&mut self.token, token))
    }

    fn fail<T>(&self, message: impl Into<String>) -> Result<T, SyntaxError> {
        Err(SyntaxError::new(self.position, message))
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

    /// Reads entries up to the closing brace of the block that `opened` at a place, or to the end of the file.
    fn entries(&mut self, depth: usize, opened: Option<Position>) -> Result<Object, SyntaxError> {
        let mut object = Object::default();
        loop {
            match (&self.token, opened) {
                (Token::End, None) => return Ok(object),
                (Token::End, Some(brace)) => {
                    return self.fail(format!("block opened at {brace} is not closed"));
                }
                (Token::RightBrace, Some(_)) => {
                    self.advance()?;
                    return Ok(object);
                }
                _ => object.entries.push(self.entry(depth)?),
            }
            if self.token == Token::Comma {
                self.advance()?;
            }
        }
    }

    fn entry(&mut self, depth: usize) -> Result<Entry, SyntaxError> {
        let first = self.key(depth)?;
        let mut labels = Vec::new();
        while self.token != Token::LeftBrace {
            if self.token == Token::Assign && labels.is_empty() {
                self.advance()?;
                let value = self.value(depth + 1)?;
                return Ok(Entry { key: first, value });
            }
            if !matches!(self.token, Token::Identifier(_) | Token::Text(_)) {
                let found = describe(&self.token);
                let expected = if labels.is_empty() {
                    "\"=\" or \"{\""
                } else {
                    "\"{\""
                };
                return self.fail(format!(
                    "expected {expected} behind {:?}, found {found}",
                    first.text
                ));
            }
            labels.push(self.key(depth + labels.len())?);
        }
        let mut value = self.value(depth + 1 + labels.len())?;
        for key in labels.into_iter().rev() {
            let position = key.position;
            let entries = vec![Entry { key, value }];
            value = Value {
                kind: ValueKind::Object(Object { entries }),
                position,
            };
        }
        Ok(Entry { key: first, value })
    }

    fn key(&mut self, depth: usize) -> Result<Key, SyntaxError> {
        self.count(depth)?;
        let position = self.position;
        let (text, quoted) = if let Token::Identifier(text) = &self.token {
            (text.clone(), false)
        } else if let Token::Text(text) = &self.token {
            (text.clone(), true)
        } else {
            return self.fail(format!("expected a key, found {}", describe(&self.token)));
        };
        self.advance()?;
        Ok(Key {
            text,
            position,
            quoted,
        })
    }

    fn value(&mut self, depth: usize) -> Result<Value, SyntaxError> {
        self.count(depth)?;
        let position = self.position;
        if matches!(self.token, Token::Identifier(_)) {
            return self.fail("a bare word is no value: strings need double quotes");
        }
        let kind = match self.advance()? {
            Token::Bool(value) => ValueKind::Bool(value),
            Token::Number(literal) => ValueKind::Number(literal),
            Token::Text(text) | Token::Heredoc(text) => ValueKind::Text(text),
            Token::LeftBracket => ValueKind::List(self.items(depth, position)?),
            Token::LeftBrace => ValueKind::Object(self.entries(depth, Some(position))?),
            token @ (Token::Identifier(_)
            | Token::Assign
            | Token::Comma
            | Token::RightBrace
            | Token::RightBracket
            | Token::End) => {
                let message = format!("expected a value, found {}", describe(&token));
                return Err(SyntaxError::new(position, message));
            }
        };
        Ok(Value { kind, position })
    }

    fn items(&mut self, depth: usize, opened: Position) -> Result<Vec<Value>, SyntaxError> {
        let mut items = Vec::new();
        let mut needs_comma = false;
        while self.token != Token::RightBracket {
            if self.token == Token::Comma {
                self.advance()?;
                needs_comma = false;
            } else if self.token == Token::End {
                return self.fail(format!("list opened at {opened} is not closed"));
            } else if needs_comma {
                let found = describe(&self.token);
                return self.fail(format!("expected \",\" or \"]\", found {found}"));
            } else {
                items.push(self.value(depth + 1)?);
                needs_comma = true;
            }
        }
        self.advance()?;
        Ok(items)
    }
}

/// A token for messages, without text of the file.
fn describe(token: &Token) -> &'static str {
    match token {
        Token::Identifier(_) => "a bare word",
        Token::Text(_) => "a string",
        Token::Heredoc(_) => "a heredoc",
        Token::Number(_) => "a number",
        Token::Bool(_) => "a boolean",
        Token::Assign => "\"=\"",
        Token::Comma => "\",\"",
        Token::LeftBrace => "\"{\"",
        Token::RightBrace => "\"}\"",
        Token::LeftBracket => "\"[\"",
        Token::RightBracket => "\"]\"",
        Token::End => "the end of the file",
    }
}
