//! Reads the representations of a header block one by one, and writes integers and strings (RFC 7541 5, 6). A pure
//! file; what is done with a field is decided in `block`.
//!
//! Limits are those of the `h2` crate, so that both agree on what is malformed: integers of up to four continuation
//! bytes, and table size updates only before the first field.

use std::borrow::Cow;

use super::huffman;
use super::table::STATIC_AUTHORITY;

/// First-byte pattern of an indexed field (RFC 7541 6.1); the index has a 7-bit prefix.
pub(super) const INDEXED: u8 = 0x80;

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
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Text<'a> {
    /// Whether `bytes` are Huffman-coded.
    pub(super) is_huffman: bool,
    /// The string's bytes, without the length.
    pub(super) bytes: &'a [u8],
}

/// The name of a literal field.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NameText<'a> {
    /// The name of an entry of the static or the dynamic table; from 1.
    Index(usize),
    /// The name itself.
    Literal(Text<'a>),
}

/// One representation of a block (RFC 7541 6).
#[derive(Clone, Copy, PartialEq, Eq)]
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
pub(super) struct Reader<'a> {
    block: &'a [u8],
    at: usize,
    has_seen_field: bool,
}

impl Indexing {
    /// The first byte's pattern and the bits of the name index after it.
    pub(super) const fn prefix(self) -> (u8, u32) {
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
    fn is_authority(&self) -> bool {
        /// The one Huffman coding of ":authority".
        const CODED: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];
        match *self {
            Self::Index(index) => index == STATIC_AUTHORITY,
            Self::Literal(text) if text.is_huffman => text.bytes == CODED,
            Self::Literal(text) => text.bytes == b":authority",
        }
    }
}

impl Representation<'_> {
    /// Whether it inserts into or resizes the dynamic table.
    pub(super) fn changes_table(&self) -> bool {
        match self {
            Self::Indexed(_) => false,
            Self::Literal { indexing, .. } => *indexing == Indexing::Incremental,
            Self::TableSize(_) => true,
        }
    }

    /// Whether it is an `:authority`, as far as that shows without the dynamic table.
    pub(super) fn is_authority(&self) -> bool {
        match self {
            Self::Indexed(index) => *index == STATIC_AUTHORITY,
            Self::Literal { name, .. } => name.is_authority(),
            Self::TableSize(_) => false,
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

    /// The same for representations taken from several blocks, where a size update may well follow a field.
    pub(super) fn next_of_several(&mut self) -> Result<Option<Representation<'a>>, Malformed> {
        self.has_seen_field = false;
        self.next()
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
            (
                "five continuation bytes",
                &[0xff, 0x80, 0x80, 0x80, 0x80, 0x00],
            ),
            ("no value", &[0x41]),
            ("value cut off", &[0x41, 0x02, b'x']),
            ("name cut off", &[0x40, 0x05, b'x']),
            ("no value after a name", &[0x40, 0x01, b'x']),
            ("size update after a field", &[0x82, 0x20]),
        ];

        for (what, block) in cases {
            assert!(read(block) == Err(Malformed), "{what}");
        }
    }
}
