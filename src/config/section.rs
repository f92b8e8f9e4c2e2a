//! Reads typed values out of the tree: finds keys, merges repeated blocks, converts, and notes what does not fit. Pure.

use std::cell::RefCell;
use std::collections::BTreeMap;

use super::ast::{Entry, Object, Position, Value, ValueKind};
use super::error::{Origin, Problem, Warning};
use super::integer::parse_integer;
use super::nearest::nearest;
use super::schema::{SECTIONS, Schema};

/// A value as written, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spanned<T> {
    pub(crate) value: T,
    pub(crate) origin: Origin,
}

impl<T> Spanned<T> {
    /// The same place with another value.
    pub(super) fn map<U>(self, convert: impl FnOnce(T) -> U) -> Spanned<U> {
        Spanned {
            value: convert(self.value),
            origin: self.origin,
        }
    }
}

/// What was noticed while reading.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// Values of the wrong type.
    pub(super) types: Vec<Problem>,
    /// Unknown keys that stop the start.
    pub(super) unknown: Vec<Problem>,
    pub(super) warnings: Vec<Warning>,
    /// Every known key that is set, by full name, and where it was set last.
    pub(super) seen: BTreeMap<String, Position>,
}

/// One section: all blocks of one name, taken together.
pub(super) struct Section<'a> {
    schema: &'static Schema,
    path: String,
    objects: Vec<&'a Object>,
    place: Origin,
    notes: &'a RefCell<Notes>,
}

impl<'a> Section<'a> {
    /// Opens the top of a file, or settings that stand alone.
    pub(super) fn top(
        schema: &'static Schema,
        object: &'a Object,
        notes: &'a RefCell<Notes>,
    ) -> Self {
        let path = schema.path.to_owned();
        Self::new(schema, path, vec![object], Origin::Default, notes)
    }

    /// Opens blocks as one section called `path` in messages, and notes their unknown keys.
    pub(super) fn open(
        schema: &'static Schema,
        path: String,
        blocks: Vec<(&'a Object, Position)>,
        notes: &'a RefCell<Notes>,
    ) -> Self {
        let place = blocks.first().map(|(_, place)| Origin::File(*place));
        let objects = blocks.into_iter().map(|(object, _)| object).collect();
        Self::new(schema, path, objects, place.unwrap_or_default(), notes)
    }

    fn new(
        schema: &'static Schema,
        path: String,
        objects: Vec<&'a Object>,
        place: Origin,
        notes: &'a RefCell<Notes>,
    ) -> Self {
        let section = Self {
            schema,
            path,
            objects,
            place,
            notes,
        };
        section.note_keys();
        section
    }

    /// Where its first block starts.
    pub(super) fn place(&self) -> Origin {
        self.place
    }

    fn note_keys(&self) {
        for entry in self.objects.iter().flat_map(|object| &object.entries) {
            let known = self
                .schema
                .keys
                .iter()
                .find(|key| key.eq_ignore_ascii_case(&entry.key.text));
            match known {
                Some(key) => {
                    let mut notes = self.notes.borrow_mut();
                    notes.seen.insert(self.full(key), entry.key.position);
                }
                None => self.note_unknown(entry),
            }
        }
    }

    fn note_unknown(&self, entry: &Entry) {
        let name = &entry.key.text;
        let section = if self.path.is_empty() {
            "top-level"
        } else {
            &self.path
        };
        let what = format!("key {name:?} in section {section:?}{}", self.hint(name));
        let key = self.full(name);
        let origin = Origin::File(entry.key.position);
        let mut notes = self.notes.borrow_mut();
        if self.schema.fatal && !entry.key.quoted {
            let message = format!("unknown configuration detected: {what}");
            notes.unknown.push(Problem {
                message,
                key,
                origin,
            });
        } else {
            let message = format!("unknown {what} (ignored)");
            notes.warnings.push(Warning {
                message,
                key,
                origin,
            });
        }
    }

    /// What the writer of an unknown key most likely meant.
    fn hint(&self, name: &str) -> String {
        let home = SECTIONS.iter().find(|schema| {
            schema.path != self.schema.path
                && schema.keys.iter().any(|key| key.eq_ignore_ascii_case(name))
        });
        match (home, nearest(name, self.schema.keys)) {
            (Some(schema), _) if schema.path.is_empty() => {
                ", it belongs at the top level".to_owned()
            }
            (Some(schema), _) => format!(", it belongs in block {:?}", schema.path),
            (None, Some(known)) => format!(", did you mean {known:?}?"),
            (None, None) => String::new(),
        }
    }

    /// The full name of a key.
    pub(super) fn full(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    /// Notes a value of the wrong type.
    fn note_type(&self, key: &str, value: &Value, expected: &str) {
        let full = self.full(key);
        let found = value.kind.name();
        self.notes.borrow_mut().types.push(Problem {
            message: format!("{full} must be {expected}, not {found}"),
            key: full,
            origin: Origin::File(value.position),
        });
    }

    /// Every entry of the key, in file order.
    pub(super) fn all(&self, key: &str) -> impl Iterator<Item = &'a Entry> {
        debug_assert!(
            self.schema.keys.contains(&key),
            "key {key} is in the schema"
        );
        self.objects
            .iter()
            .flat_map(|object| &object.entries)
            .filter(move |entry| entry.key.text.eq_ignore_ascii_case(key))
    }

    /// The last value of the key.
    pub(super) fn value(&self, key: &str) -> Option<&'a Value> {
        self.all(key).last().map(|entry| &entry.value)
    }

    /// A string; a number is taken as it is written.
    pub(super) fn text(&self, key: &str) -> Option<Spanned<String>> {
        let value = self.value(key)?;
        let Some(text) = text_of(value) else {
            self.note_type(key, value, "a string");
            return None;
        };
        Some(spanned(value, text))
    }

    /// An integer, also one written as a string.
    pub(super) fn integer(&self, key: &str) -> Option<Spanned<i64>> {
        let value = self.value(key)?;
        let number = text_of(value).and_then(|text| parse_integer(&text));
        if number.is_none() {
            let expected = if matches!(value.kind, ValueKind::Text(_)) {
                "an integer, also as a string"
            } else {
                "an integer"
            };
            self.note_type(key, value, expected);
        }
        number.map(|number| spanned(value, number))
    }

    /// A bare `true` or `false`.
    pub(super) fn boolean(&self, key: &str) -> Option<Spanned<bool>> {
        let value = self.value(key)?;
        if let ValueKind::Bool(flag) = value.kind {
            return Some(spanned(value, flag));
        }
        self.note_type(key, value, "true or false without quotes");
        None
    }

    /// A list of strings; repeated lists append.
    pub(super) fn texts(&self, key: &str) -> Vec<Spanned<String>> {
        let mut texts = Vec::new();
        for entry in self.all(key) {
            let ValueKind::List(items) = &entry.value.kind else {
                self.note_type(key, &entry.value, "a list of strings");
                continue;
            };
            for item in items {
                match text_of(item) {
                    Some(text) => texts.push(spanned(item, text)),
                    None => self.note_type(key, item, "a list of strings"),
                }
            }
        }
        texts
    }

    /// Every block of the key, with where it starts; lists of blocks count as blocks.
    pub(super) fn blocks(&self, key: &str) -> Vec<(&'a Object, Position)> {
        let mut blocks = Vec::new();
        for entry in self.all(key) {
            if !collect_blocks(&entry.value, &mut blocks) {
                self.note_type(key, &entry.value, "a block");
            }
        }
        blocks
    }

    /// The section made of all blocks of the key; `None` if there is none.
    pub(super) fn section(&self, key: &str, schema: &'static Schema) -> Option<Section<'a>> {
        let blocks = self.blocks(key);
        (!blocks.is_empty()).then(|| Self::open(schema, self.full(key), blocks, self.notes))
    }

    /// One section for each block of the key.
    pub(super) fn sections(&self, key: &str, schema: &'static Schema) -> Vec<Section<'a>> {
        let blocks = self.blocks(key).into_iter().enumerate();
        blocks
            .map(|(n, block)| {
                let path = format!("{}[{n}]", self.full(key));
                Self::open(schema, path, vec![block], self.notes)
            })
            .collect()
    }
}

/// Adds the block, or the blocks of the list; false if the value is neither.
pub(super) fn collect_blocks<'a>(
    value: &'a Value,
    blocks: &mut Vec<(&'a Object, Position)>,
) -> bool {
    match &value.kind {
        ValueKind::Object(object) => blocks.push((object, value.position)),
        ValueKind::List(items) => return items.iter().all(|item| collect_blocks(item, blocks)),
        ValueKind::Bool(_) | ValueKind::Number(_) | ValueKind::Text(_) => return false,
    }
    true
}

fn spanned<T>(place: &Value, value: T) -> Spanned<T> {
    Spanned {
        value,
        origin: Origin::File(place.position),
    }
}

fn text_of(value: &Value) -> Option<String> {
    match &value.kind {
        ValueKind::Text(text) | ValueKind::Number(text) => Some(text.clone()),
        ValueKind::Bool(_) | ValueKind::List(_) | ValueKind::Object(_) => None,
    }
}
