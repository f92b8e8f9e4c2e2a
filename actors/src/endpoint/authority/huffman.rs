//! The Huffman code of header strings (RFC 7541 5.2 and Appendix B), as far as mending needs it: reading text, and
//! writing filler of a wanted size. Owns nothing; a pure file.

/// A string whose bits end in something other than a whole symbol and up to seven one-bits of padding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// Bits of each octet's code. The code is canonical: with the lengths, ascending by octet, the codes follow.
#[rustfmt::skip]
pub(super) const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

const SHORTEST: usize = 5;
const LONGEST: usize = 30;

/// The code sorted by length, for reading.
struct Code {
    /// By length: the first 32-bit window, code at the top, that no code of this length or shorter begins.
    limit: [u32; LONGEST + 1],
    /// By length: the smallest code.
    first: [u32; LONGEST + 1],
    /// By length: where its octets begin in `octets`.
    start: [usize; LONGEST + 1],
    /// All octets by length, then by value.
    octets: [u8; 256],
}

static CODE: Code = Code::new();

impl Code {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "an octet is below 256; `try_from` is not const"
    )]
    const fn new() -> Self {
        let mut code = Self {
            limit: [0; LONGEST + 1],
            first: [0; LONGEST + 1],
            start: [0; LONGEST + 1],
            octets: [0; 256],
        };
        let (mut next, mut sorted, mut bits) = (0_u32, 0, 1);
        while bits <= LONGEST {
            next <<= 1;
            code.first[bits] = next;
            code.start[bits] = sorted;
            let mut octet = 0;
            while octet < LENGTHS.len() {
                if LENGTHS[octet] as usize == bits {
                    code.octets[sorted] = octet as u8;
                    sorted += 1;
                    next += 1;
                }
                octet += 1;
            }
            code.limit[bits] = next << (32 - bits);
            bits += 1;
        }
        code
    }

    /// The octet whose code begins the 32-bit window, and the code's bits; `None` for the end-of-string code.
    fn octet(&self, window: u32) -> Option<(u8, usize)> {
        let bits = (SHORTEST..=LONGEST).find(|&bits| window < self.limit[bits])?;
        let rank = (window >> (32 - bits)).checked_sub(self.first[bits])?;
        let octet = self.octets.get(self.start[bits] + rank as usize)?;
        Some((*octet, bits))
    }
}

/// The text of an encoded string (RFC 7541 5.2). The longest text is 8/5 of the input.
pub(super) fn decode(encoded: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut text = Vec::with_capacity(encoded.len() * 8 / SHORTEST);
    let mut bytes = encoded.iter();
    let (mut window, mut held) = (0_u64, 0_usize);
    loop {
        while held <= 56
            && let Some(&byte) = bytes.next()
        {
            window |= u64::from(byte) << (56 - held);
            held += 8;
        }
        let top = u32::try_from(window >> 32).map_err(|_| Malformed)?;
        match CODE.octet(top) {
            Some((octet, bits)) if bits <= held => {
                text.push(octet);
                window <<= bits;
                held -= bits;
            }
            // Nothing whole is left: only the first bits of the end-of-string code, all ones, may fill the last octet.
            _ if held < 8 && window.leading_ones() as usize >= held => return Ok(text),
            _ => return Err(Malformed),
        }
    }
}

/// An encoded string of exactly `octets` bytes whose text has `symbols` letters and hyphens; `None` when no such
/// string exists, that is outside `octets <= symbols <= octets * 8 / 5`.
pub(super) fn filler(symbols: usize, octets: usize) -> Option<Vec<u8>> {
    /// Codes of `a`, `-`, `B`, `X`: 5, 6, 7 and 8 bits.
    const BY_EXTRA_BITS: [u64; 4] = [0x03, 0x16, 0x5d, 0xfc];
    let mut extra = (octets * 8).checked_sub(symbols * SHORTEST)?;
    if extra > symbols * 3 {
        return None;
    }
    let mut encoded = Vec::with_capacity(octets);
    let (mut window, mut held) = (0_u64, 0_usize);
    for _ in 0..symbols {
        let longer_by = extra.min(3);
        extra -= longer_by;
        window = (window << (SHORTEST + longer_by)) | BY_EXTRA_BITS[longer_by];
        held += SHORTEST + longer_by;
        if held >= 8 {
            held -= 8;
            encoded.push(u8::try_from((window >> held) & 0xff).unwrap_or_default());
        }
    }
    Some(encoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_samples_of_the_rfc_are_read() {
        let samples: [(&[u8], &str); 4] = [
            (
                &[
                    0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff,
                ],
                "www.example.com",
            ),
            (&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf], "no-cache"),
            (
                &[0x25, 0xa8, 0x49, 0xe9, 0x5b, 0xb8, 0xe8, 0xb4, 0xbf],
                "custom-value",
            ),
            (&[], ""),
        ];

        for (encoded, text) in samples {
            assert_eq!(decode(encoded), Ok(text.as_bytes().to_vec()));
        }
    }

    #[test]
    fn wrong_padding_and_the_end_of_string_code_are_refused() {
        let cases: [&[u8]; 5] = [
            // `a` and three zero bits.
            &[0b0001_1000],
            // `X` and eight bits of padding.
            &[0xfc, 0xff],
            &[0xff],
            &[0xff, 0xff, 0xff, 0xff],
            // `a`, then the end-of-string code.
            &[0b0001_1111, 0xff, 0xff, 0xff, 0xff],
        ];

        for encoded in cases {
            assert_eq!(decode(encoded), Err(Malformed), "{encoded:x?}");
        }
    }

    #[test]
    fn filler_has_the_wanted_text_length_and_size() {
        for symbols in 0..200 {
            for octets in 0..250 {
                let filled = filler(symbols, octets);

                let possible = octets <= symbols && symbols * 5 <= octets * 8;
                assert_eq!(filled.is_some(), possible, "{symbols} in {octets}");
                if let Some(encoded) = filled {
                    let text = decode(&encoded).unwrap();
                    assert_eq!((text.len(), encoded.len()), (symbols, octets));
                    assert!(
                        text.iter()
                            .all(|&byte| byte == b'-' || byte.is_ascii_alphabetic())
                    );
                }
            }
        }
    }
}
