//! Header blocks (RFC 7541): reading representations one by one, writing integers, strings and literals, and the
//! dynamic table as the receiver keeps it. A pure file; what is done with a field is decided in `block`.
//!
//! Limits are those of the `h2` crate, so that both agree on what is malformed: integers of up to four continuation
//! bytes, table size updates only before the first field and up to the default of 4,096.

use std::borrow::Cow;
use std::collections::VecDeque;

use super::huffman;

/// The table size both sides start with, and the largest the server allows (`SETTINGS_HEADER_TABLE_SIZE` is left alone).
pub(super) const TABLE_BYTES_MAX: usize = 4096;

/// First-byte pattern of an indexed field (RFC 7541 6.1); the index has a 7-bit prefix.
pub(super) const INDEXED: u8 = 0x80;

/// The last index of the static table (RFC 7541 Appendix A).
pub(super) const STATIC_LAST: usize = STATIC_NAME_LENGTHS.len();

/// The index of `:authority` in the static table; its value there is empty.
pub(super) const STATIC_AUTHORITY: usize = 1;

/// A block that is not HPACK, or that `h2` refuses to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// What becomes of a literal field in the dynamic table (RFC 7541 6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Indexing {
    /// The field is inserted.
    Incremental,
    /// The field is not inserted.
    Without,
    /// The field is not inserted, here or at any later hop.
    Never,
}

/// A string as it stands in the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Text<'a> {
    /// Whether `bytes` are Huffman-coded.
    pub(super) is_huffman: bool,
    /// The string's bytes, without the length.
    pub(super) bytes: &'a [u8],
}

/// The name of a literal field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameText<'a> {
    /// The name of an entry of the static or the dynamic table; from 1.
    Index(usize),
    /// The name itself.
    Literal(Text<'a>),
}

/// One representation of a block (RFC 7541 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Representation<'a> {
    /// A field of the static or the dynamic table; from 1.
    Indexed(usize),
    /// A field written out.
    Literal {
        /// Whether it is inserted.
        indexing: Indexing,
        /// Its name.
        name: NameText<'a>,
        /// Offset in the block of the value's length.
        value_at: usize,
        /// Its value.
        value: Text<'a>,
    },
    /// A new size of the dynamic table, in bytes of RFC 7541 4.1.
    TableSize(usize),
}

/// Reads a block's representations in order.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    block: &'a [u8],
    at: usize,
    has_seen_field: bool,
}

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

impl Indexing {
    /// The first byte's pattern and the bits of the name index after it.
    const fn prefix(self) -> (u8, u32) {
        match self {
            Self::Incremental => (0x40, 6),
            Self::Without => (0x00, 4),
            Self::Never => (0x10, 4),
        }
    }
}

impl<'a> Text<'a> {
    /// The decoded string.
    pub(super) fn decode(&self) -> Result<Cow<'a, [u8]>, Malformed> {
        if self.is_huffman {
            let text = huffman::decode(self.bytes).map_err(|huffman::Malformed| Malformed)?;
            Ok(Cow::Owned(text))
        } else {
            Ok(Cow::Borrowed(self.bytes))
        }
    }
}

impl NameText<'_> {
    /// Whether the name is `:authority`, as far as that shows without the dynamic table.
    pub(super) fn is_authority(&self) -> bool {
        /// The one Huffman coding of ":authority".
        const CODED: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
        match *self {
            Self::Index(index) => index == STATIC_AUTHORITY,
            Self::Literal(text) if text.is_huffman => text.bytes == CODED,
            Self::Literal(text) => text.bytes == b":authority",
        }
    }
}

impl<'a> Reader<'a> {
    /// A reader at the start of `block`.
    pub(super) fn new(block: &'a [u8]) -> Self {
        Self {
            block,
            at: 0,
            has_seen_field: false,
        }
    }

    /// Offset of the next representation.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// The next representation; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Representation<'a>>, Malformed> {
        let Some(&first) = self.block.get(self.at) else {
            return Ok(None);
        };
        let representation = match first {
            INDEXED.. => match self.integer(7)? {
                0 => return Err(Malformed),
                index => Representation::Indexed(index),
            },
            0x40.. => self.literal(Indexing::Incremental)?,
            0x20.. if self.has_seen_field => return Err(Malformed),
            0x20.. => return Ok(Some(Representation::TableSize(self.integer(5)?))),
            0x10.. => self.literal(Indexing::Never)?,
            0x00.. => self.literal(Indexing::Without)?,
        };
        self.has_seen_field = true;
        Ok(Some(representation))
    }

    fn literal(&mut self, indexing: Indexing) -> Result<Representation<'a>, Malformed> {
        let (_, prefix_bits) = indexing.prefix();
        let name = match self.integer(prefix_bits)? {
            0 => NameText::Literal(self.text()?),
            index => NameText::Index(index),
        };
        let value_at = self.at;
        let value = self.text()?;
        Ok(Representation::Literal {
            indexing,
            name,
            value_at,
            value,
        })
    }

    fn text(&mut self) -> Result<Text<'a>, Malformed> {
        let is_huffman = self.block.get(self.at).ok_or(Malformed)? & 0x80 != 0;
        let length = self.integer(7)?;
        let rest = self.block.get(self.at..).ok_or(Malformed)?;
        let bytes = rest.get(..length).ok_or(Malformed)?;
        self.at += length;
        Ok(Text { is_huffman, bytes })
    }

    /// An integer whose first byte has `prefix_bits` of it (RFC 7541 5.1), up to four further bytes.
    fn integer(&mut self, prefix_bits: u32) -> Result<usize, Malformed> {
        let mask = (1_usize << prefix_bits) - 1;
        let mut value = usize::from(self.byte()?) & mask;
        if value < mask {
            return Ok(value);
        }
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }

    fn byte(&mut self) -> Result<u8, Malformed> {
        let byte = *self.block.get(self.at).ok_or(Malformed)?;
        self.at += 1;
        Ok(byte)
    }
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

    /// Carries out what the block's representations do to the table.
    pub(super) fn follow(&mut self, block: &[u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(block);
        while let Some(representation) = reader.next()? {
            // A note joins several blocks, so an update may well follow a field.
            reader.has_seen_field = false;
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

/// Writes an integer after the first byte's pattern (RFC 7541 5.1).
pub(super) fn write_integer(out: &mut Vec<u8>, pattern: u8, prefix_bits: u32, value: usize) {
    let low_bits = |value: usize| u8::try_from(value).unwrap_or_default();
    let mask = (1_usize << prefix_bits) - 1;
    if value < mask {
        out.push(pattern | low_bits(value));
        return;
    }
    out.push(pattern | low_bits(mask));
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(0x80 | low_bits(rest & 0x7f));
        rest >>= 7;
    }
    out.push(low_bits(rest));
}

/// Writes a string (RFC 7541 5.2).
pub(super) fn write_text(out: &mut Vec<u8>, text: &Text<'_>) {
    let pattern = if text.is_huffman { 0x80 } else { 0x00 };
    write_integer(out, pattern, 7, text.bytes.len());
    out.extend_from_slice(text.bytes);
}

/// Writes a raw string (RFC 7541 5.2).
pub(super) fn write_raw(out: &mut Vec<u8>, bytes: &[u8]) {
    write_text(
        out,
        &Text {
            is_huffman: false,
            bytes,
        },
    );
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
    use super::*;

    fn read(block: &[u8]) -> Result<Vec<Representation<'_>>, Malformed> {
        let mut reader = Reader::new(block);
        let mut all = Vec::new();
        while let Some(representation) = reader.next()? {
            all.push(representation);
        }
        Ok(all)
    }

    fn entry(name: &[u8], value: &[u8]) -> Entry {
        Entry {
            name: Name::Text(name.into()),
            value: value.into(),
        }
    }

    #[test]
    fn integers_are_read_as_they_are_written() {
        for prefix_bits in 4..=7 {
            for value in [0, 1, 14, 15, 30, 31, 126, 127, 128, 1337, 16_384, 1 << 27] {
                let mut out = Vec::new();

                write_integer(&mut out, 0, prefix_bits, value);

                let mut reader = Reader::new(&out);
                assert_eq!(reader.integer(prefix_bits), Ok(value));
                assert_eq!(reader.position(), out.len());
            }
        }
    }

    #[test]
    fn malformed_blocks_are_refused() {
        let cases: [(&str, &[u8]); 8] = [
            ("index 0", &[0x80]),
            ("integer cut off", &[0xff]),
            ("five continuation bytes", &[0xff, 0x80, 0x80, 0x80, 0x80, 0x00]),
            ("no value", &[0x41]),
            ("value cut off", &[0x41, 0x02, b'x']),
            ("name cut off", &[0x40, 0x05, b'x']),
            ("no value after a name", &[0x40, 0x01, b'x']),
            ("size update after a field", &[0x82, 0x20]),
        ];

        for (what, block) in cases {
            assert_eq!(read(block), Err(Malformed), "{what}");
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
}
