//! The client's side for tests: an HPACK encoder with an evicting dynamic table, a plain decoder to compare with, and
//! frames. Written apart from `hpack`, so that the two cannot share a mistake; of `huffman` only the code lengths.

use std::collections::{HashMap, VecDeque};
use std::sync::OnceLock;

use super::huffman::LENGTHS;

/// The client's preface (RFC 9113 3.4) and an empty SETTINGS frame.
pub(crate) const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Name and value.
pub(crate) type Field = (Vec<u8>, Vec<u8>);

/// How the encoder writes a field.
#[derive(Debug, Clone, Copy)]
pub(crate) struct How {
    /// `0x40`: inserted, `0x00`: not, `0x10`: never.
    pub(crate) pattern: u8,
    /// Write the whole field as an index where the tables have it.
    pub(crate) by_index: bool,
    /// Write the name as an index where the tables have it.
    pub(crate) name_by_index: bool,
    /// Huffman-code the strings.
    pub(crate) is_huffman: bool,
}

/// How a header block is cut into frames.
#[derive(Debug, Clone, Default)]
pub(crate) struct Framing {
    pub(crate) stream: u32,
    /// Whether no DATA follows.
    pub(crate) ends_stream: bool,
    pub(crate) padding: Option<u8>,
    pub(crate) has_priority: bool,
    /// Sizes of the first fragments; the rest of the block is the last one.
    pub(crate) cuts: Vec<usize>,
}

/// A dynamic table and what goes with it, for either side.
#[derive(Debug)]
pub(crate) struct Codec {
    table: VecDeque<Field>,
    pub(crate) size_max: usize,
}

/// A frame: kind, flags, stream, payload.
pub(crate) type Frame<'a> = (u8, u8, u32, &'a [u8]);

impl Default for Codec {
    fn default() -> Self {
        Self {
            table: VecDeque::new(),
            size_max: 4096,
        }
    }
}

impl Codec {
    pub(crate) fn encode(&mut self, out: &mut Vec<u8>, name: &[u8], value: &[u8], how: How) {
        let whole = self.find(|(n, v)| n == name && v == value);
        if let Some(index) = whole.filter(|_| how.by_index) {
            return integer(out, 0x80, 7, index);
        }
        let bits = if how.pattern == 0x40 { 6 } else { 4 };
        // The static entry of the name first, as encoders do.
        if let Some(index) = self.find(|(n, _)| n == name).filter(|_| how.name_by_index) {
            integer(out, how.pattern, bits, index);
        } else {
            out.push(how.pattern);
            string(out, name, how.is_huffman);
        }
        string(out, value, how.is_huffman);
        if how.pattern == 0x40 {
            self.insert((name.to_vec(), value.to_vec()));
        }
    }

    pub(crate) fn resize(&mut self, out: &mut Vec<u8>, size_max: usize) {
        integer(out, 0x20, 5, size_max);
        self.size_max = size_max;
        self.evict(size_max);
    }

    /// The fields of a block; panics where it is malformed.
    pub(crate) fn decode(&mut self, mut block: &[u8]) -> Vec<Field> {
        let mut fields = Vec::new();
        while let Some(&first) = block.first() {
            if first & 0x80 != 0 {
                fields.push(self.at(take_integer(&mut block, 7)));
                continue;
            }
            if first & 0xe0 == 0x20 {
                self.size_max = take_integer(&mut block, 5);
                assert!(self.size_max <= 4096 && fields.is_empty());
                self.evict(self.size_max);
                continue;
            }
            let bits = if first & 0x40 == 0 { 4 } else { 6 };
            let name = match take_integer(&mut block, bits) {
                0 => take_string(&mut block),
                index => self.at(index).0,
            };
            let field = (name, take_string(&mut block));
            if first & 0x40 != 0 {
                self.insert(field.clone());
            }
            fields.push(field);
        }
        fields
    }

    /// Bytes of the table (RFC 7541 4.1).
    pub(crate) fn size(&self) -> usize {
        self.table.iter().map(size).sum()
    }

    fn at(&self, index: usize) -> Field {
        let fixed = statics();
        let field = fixed.get(index.checked_sub(1).unwrap());
        field.unwrap_or_else(|| &self.table[index - 62]).clone()
    }

    fn find(&self, matches: impl Fn(&Field) -> bool) -> Option<usize> {
        let fixed = statics();
        let place = fixed.iter().chain(&self.table).position(matches)?;
        Some(place + 1)
    }

    fn insert(&mut self, field: Field) {
        self.evict(self.size_max.saturating_sub(size(&field)));
        if size(&field) <= self.size_max {
            self.table.push_front(field);
        }
    }

    fn evict(&mut self, size_max: usize) {
        while self.size() > size_max {
            self.table.pop_back();
        }
    }
}

impl Framing {
    /// HEADERS and CONTINUATION frames of the block.
    pub(crate) fn frames(&self, out: &mut Vec<u8>, block: &[u8]) {
        let mut fragments = Vec::new();
        let mut rest = block;
        for &cut in &self.cuts {
            let (fragment, after) = rest.split_at(cut.min(rest.len()));
            fragments.push(fragment);
            rest = after;
        }
        while rest.len() > 16_000 {
            let (fragment, after) = rest.split_at(16_000);
            fragments.push(fragment);
            rest = after;
        }
        fragments.push(rest);
        let last = fragments.len() - 1;
        for (place, fragment) in fragments.into_iter().enumerate() {
            let end = if place == last { 0x4 } else { 0 };
            if place > 0 {
                frame(out, 0x9, end, self.stream, fragment);
                continue;
            }
            let mut payload = Vec::new();
            payload.extend(self.padding);
            if self.has_priority {
                payload.extend_from_slice(&[0, 0, 0, 0, 16]);
            }
            payload.extend_from_slice(fragment);
            payload.extend(std::iter::repeat_n(
                0,
                usize::from(self.padding.unwrap_or(0)),
            ));
            let padded = if self.padding.is_some() { 0x8 } else { 0 };
            let priority = if self.has_priority { 0x20 } else { 0 };
            let ends = u8::from(self.ends_stream);
            frame(
                out,
                0x1,
                ends | end | padded | priority,
                self.stream,
                &payload,
            );
        }
    }
}

/// Appends a frame.
pub(crate) fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// Takes a complete frame from the front.
pub(crate) fn take_frame<'a>(bytes: &mut &'a [u8]) -> Option<Frame<'a>> {
    let head = bytes.get(..9)?;
    let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
    let payload = bytes.get(9..9 + length)?;
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    *bytes = &bytes[9 + length..];
    Some((head[3], head[4], stream, payload))
}

/// The header blocks in frames after [`HELLO`], in order.
pub(crate) fn blocks(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut blocks: Vec<Vec<u8>> = Vec::new();
    while let Some((kind, flags, _, mut payload)) = take_frame(&mut bytes) {
        match kind {
            0x1 => {
                if flags & 0x8 != 0 {
                    payload = &payload[1..payload.len() - usize::from(payload[0])];
                }
                if flags & 0x20 != 0 {
                    payload = &payload[5..];
                }
                blocks.push(payload.to_vec());
            }
            0x9 => blocks.last_mut().unwrap().extend_from_slice(payload),
            _ => {}
        }
    }
    assert!(bytes.is_empty(), "out of step");
    blocks
}

/// Appends an integer (RFC 7541 5.1).
pub(crate) fn integer(out: &mut Vec<u8>, pattern: u8, bits: u32, mut value: usize) {
    let full = (1 << bits) - 1;
    if value < full {
        return out.push(pattern | u8::try_from(value).unwrap());
    }
    out.push(pattern | u8::try_from(full).unwrap());
    value -= full;
    while value > 127 {
        out.push(u8::try_from(value % 128).unwrap() + 128);
        value /= 128;
    }
    out.push(u8::try_from(value).unwrap());
}

/// Appends a string (RFC 7541 5.2).
pub(crate) fn string(out: &mut Vec<u8>, text: &[u8], is_huffman: bool) {
    let coded = if is_huffman {
        huffman(text)
    } else {
        text.to_vec()
    };
    integer(out, if is_huffman { 0x80 } else { 0 }, 7, coded.len());
    out.extend_from_slice(&coded);
}

fn take_integer(block: &mut &[u8], bits: u32) -> usize {
    let full = (1 << bits) - 1;
    let mut value = usize::from(block[0]) & full;
    *block = &block[1..];
    if value < full {
        return value;
    }
    let mut unit = 1;
    loop {
        let byte = block[0];
        *block = &block[1..];
        value += usize::from(byte % 128) * unit;
        unit *= 128;
        if byte < 128 {
            return value;
        }
    }
}

fn take_string(block: &mut &[u8]) -> Vec<u8> {
    let is_huffman = block[0] >= 128;
    let length = take_integer(block, 7);
    let (bytes, rest) = block.split_at(length);
    *block = rest;
    if is_huffman {
        unhuffman(bytes)
    } else {
        bytes.to_vec()
    }
}

fn size((name, value): &Field) -> usize {
    name.len() + value.len() + 32
}

/// Each octet's code as ones and zeros.
fn codes() -> &'static [String] {
    static CODES: OnceLock<Vec<String>> = OnceLock::new();
    CODES.get_or_init(build_codes)
}

fn build_codes() -> Vec<String> {
    let mut codes = vec![String::new(); 256];
    let mut next = 0_u32;
    for bits in 1..=30_usize {
        next *= 2;
        for octet in (0..256).filter(|&octet| usize::from(LENGTHS[octet]) == bits) {
            codes[octet] = format!("{next:0bits$b}");
            next += 1;
        }
    }
    codes
}

fn huffman(text: &[u8]) -> Vec<u8> {
    let codes = codes();
    let mut bits: String = text
        .iter()
        .map(|&octet| codes[usize::from(octet)].as_str())
        .collect();
    bits.extend(std::iter::repeat_n(
        '1',
        bits.len().next_multiple_of(8) - bits.len(),
    ));
    let octets = bits.as_bytes().chunks(8);
    octets
        .map(|octet| u8::from_str_radix(std::str::from_utf8(octet).unwrap(), 2).unwrap())
        .collect()
}

fn unhuffman(coded: &[u8]) -> Vec<u8> {
    use std::fmt::Write as _;
    static OCTETS: OnceLock<HashMap<&str, u8>> = OnceLock::new();
    let octets = OCTETS.get_or_init(|| codes().iter().map(String::as_str).zip(0..=255).collect());
    let mut bits = String::new();
    for octet in coded {
        write!(bits, "{octet:08b}").unwrap();
    }
    let (mut text, mut code) = (Vec::new(), String::new());
    for bit in bits.chars() {
        code.push(bit);
        if let Some(&octet) = octets.get(code.as_str()) {
            text.push(octet);
            code.clear();
        }
    }
    assert!(
        code.len() < 8 && !code.contains('0'),
        "wrong padding {code}"
    );
    text
}

/// The static table.
pub(super) fn statics() -> &'static [Field] {
    static FIELDS: OnceLock<Vec<Field>> = OnceLock::new();
    FIELDS.get_or_init(|| {
        let with_values = STATIC_FIELDS.iter().copied();
        let names = STATIC_NAMES.split_whitespace().map(|name| (name, ""));
        let all = with_values.chain(names);
        all.map(|(name, value)| (name.into(), value.into()))
            .collect()
    })
}

/// Entries 1 to 16 of the static table (RFC 7541 Appendix A).
const STATIC_FIELDS: [(&str, &str); 16] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
];

/// Entries 17 to 61, whose values are empty.
const STATIC_NAMES: &str = "\
    accept-language accept-ranges accept access-control-allow-origin age allow authorization \
    cache-control content-disposition content-encoding content-language content-length \
    content-location content-range content-type cookie date etag expect expires from host \
    if-match if-modified-since if-none-match if-range if-unmodified-since last-modified link \
    location max-forwards proxy-authenticate proxy-authorization range referer refresh \
    retry-after server set-cookie strict-transport-security transfer-encoding user-agent vary \
    via www-authenticate";
