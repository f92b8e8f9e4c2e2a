//! The dynamic table of HPACK as the receiver keeps it (RFC 7541 2.3, 4), and what is needed of the static table: the
//! lengths of its names, since a static name is written as an index. A pure file.

use std::collections::VecDeque;

use super::hpack::{
    Indexing, Malformed, NameText, Reader, Representation, Text, write_integer, write_raw,
};

/// The table size both sides start with, and the largest the server allows (`SETTINGS_HEADER_TABLE_SIZE` is left alone).
pub(super) const TABLE_BYTES_MAX: usize = 4096;

/// The last index of the static table (RFC 7541 Appendix A).
pub(super) const STATIC_LAST: usize = STATIC_NAME_LENGTHS.len();

/// The index of `:authority` in the static table; its value there is empty.
pub(super) const STATIC_AUTHORITY: usize = 1;

/// A field's name as the table keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Name {
    /// The name of this entry of the static table, 1 to 61.
    Static(usize),
    /// Any other name.
    Text(Box<[u8]>),
}

/// A decoded field.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its name.
    pub(super) name: Name,
    /// Its value.
    pub(super) value: Box<[u8]>,
}

/// The receiver's dynamic table (RFC 7541 2.3.2, 4). Holds at most [`TABLE_BYTES_MAX`].
pub(super) struct Table {
    /// The youngest first, as they are counted.
    entries: VecDeque<Entry>,
    bytes: usize,
    bytes_max: usize,
}

impl Name {
    /// Whether the name is `:authority`.
    pub(super) fn is_authority(&self) -> bool {
        match self {
            Self::Static(index) => *index == STATIC_AUTHORITY,
            Self::Text(name) => **name == *b":authority",
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Static(index) => static_name_length(*index),
            Self::Text(name) => name.len(),
        }
    }
}

impl Entry {
    /// The field's size in a table or a header list (RFC 7541 4.1), in bytes.
    pub(super) fn size(&self) -> usize {
        self.name.len() + self.value.len() + 32
    }
}

impl std::fmt::Debug for Entry {
    /// Without the value: it may be a token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Table {
    /// An empty table of the size both sides start with.
    pub(super) fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: 0,
            bytes_max: TABLE_BYTES_MAX,
        }
    }

    /// The entry of an index beyond the static table.
    pub(super) fn entry(&self, index: usize) -> Result<&Entry, Malformed> {
        let place = index.checked_sub(STATIC_LAST + 1).ok_or(Malformed)?;
        self.entries.get(place).ok_or(Malformed)
    }

    /// A literal field, decoded.
    pub(super) fn decode(&self, name: &NameText<'_>, value: &Text<'_>) -> Result<Entry, Malformed> {
        let name = match name {
            NameText::Index(index) if *index <= STATIC_LAST => Name::Static(*index),
            NameText::Index(index) => self.entry(*index)?.name.clone(),
            NameText::Literal(text) => Name::Text(text.decode()?.into_owned().into()),
        };
        let value = value.decode()?.into_owned().into();
        Ok(Entry { name, value })
    }

    /// Inserts a field as the youngest; it is left out, and the table emptied, when it alone is too large (RFC 7541 4.4).
    pub(super) fn insert(&mut self, entry: Entry) {
        let size = entry.size();
        self.evict_to(self.bytes_max.saturating_sub(size));
        if size <= self.bytes_max {
            self.bytes += size;
            self.entries.push_front(entry);
        }
    }

    /// Sets a new size (RFC 7541 4.3).
    pub(super) fn resize(&mut self, bytes_max: usize) -> Result<(), Malformed> {
        if bytes_max > TABLE_BYTES_MAX {
            return Err(Malformed);
        }
        self.bytes_max = bytes_max;
        self.evict_to(bytes_max);
        Ok(())
    }

    /// Carries out what representations of several blocks do to the table.
    pub(super) fn follow(&mut self, representations: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(representations);
        while let Some(representation) = reader.next_of_several()? {
            match representation {
                Representation::TableSize(bytes_max) => self.resize(bytes_max)?,
                Representation::Literal {
                    indexing: Indexing::Incremental,
                    name,
                    value,
                    ..
                } => self.insert(self.decode(&name, &value)?),
                Representation::Literal { .. } | Representation::Indexed(_) => {}
            }
        }
        Ok(())
    }

    fn evict_to(&mut self, bytes: usize) {
        while self.bytes > bytes
            && let Some(oldest) = self.entries.pop_back()
        {
            self.bytes -= oldest.size();
        }
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table")
            .field("entries", &self.entries.len())
            .field("bytes", &self.bytes)
            .field("bytes_max", &self.bytes_max)
            .finish()
    }
}

/// Writes the start of a literal field up to its value (RFC 7541 6.2).
pub(super) fn write_name(out: &mut Vec<u8>, indexing: Indexing, name: &Name) {
    let (pattern, prefix_bits) = indexing.prefix();
    match name {
        Name::Static(index) => write_integer(out, pattern, prefix_bits, *index),
        Name::Text(name) => {
            out.push(pattern);
            write_raw(out, name);
        }
    }
}

/// The length in bytes of a static entry's name; 0 beyond the table.
pub(super) fn static_name_length(index: usize) -> usize {
    let length = index
        .checked_sub(1)
        .and_then(|place| STATIC_NAME_LENGTHS.get(place));
    length.map_or(0, |&length| usize::from(length))
}

/// Name lengths of the static table (RFC 7541 Appendix A), from `:authority` to `www-authenticate`.
#[rustfmt::skip]
const STATIC_NAME_LENGTHS: [u8; 61] = [
    10, 7, 7, 5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    14, 15, 15, 13, 6, 27, 3, 5, 13, 13, 19, 16, 16, 14, 16, 13,
    12, 6, 4, 4, 6, 7, 4, 4, 8, 17, 13, 8, 19, 13, 4, 8,
    12, 18, 19, 5, 7, 7, 11, 6, 10, 25, 17, 10, 4, 3, 16,
];

#[cfg(test)]
mod tests {
    use super::super::test_client::statics;
    use super::*;

    fn entry(name: &[u8], value: &[u8]) -> Entry {
        Entry {
            name: Name::Text(name.into()),
            value: value.into(),
        }
    }

    #[test]
    fn a_table_evicts_the_oldest_and_empties_for_an_entry_too_large() {
        let mut table = Table::new();
        table.resize(3 * 34).unwrap();

        for name in [b"a", b"b", b"c", b"d"] {
            table.insert(entry(name, b"1"));
        }

        assert_eq!(table.entry(62), Ok(&entry(b"d", b"1")));
        assert_eq!(table.entry(64), Ok(&entry(b"b", b"1")));
        assert_eq!(table.entry(65), Err(Malformed));
        table.insert(entry(b"e", &[b'x'; 70]));
        assert_eq!(table.entry(62), Err(Malformed));
        assert_eq!(table.bytes, 0);
    }

    #[test]
    fn a_size_update_evicts_and_is_bounded() {
        let mut table = Table::new();
        table.insert(entry(b"a", b"1"));
        table.insert(entry(b"b", b"1"));

        table.resize(40).unwrap();

        assert_eq!(table.entry(62), Ok(&entry(b"b", b"1")));
        assert_eq!(table.entry(63), Err(Malformed));
        assert_eq!(table.resize(TABLE_BYTES_MAX + 1), Err(Malformed));
    }

    #[test]
    fn static_names_have_the_lengths_of_the_rfc() {
        let names = statics().iter().map(|(name, _)| name.len());

        let lengths = (1..=STATIC_LAST).map(static_name_length);

        assert!(lengths.eq(names));
        assert_eq!((static_name_length(0), static_name_length(62)), (0, 0));
    }
}
