//! As much DER as private keys need: definite lengths, one-byte tags (X.690 8.1, 10.1). Pure.

use zeroize::Zeroizing;

/// Tag of `INTEGER`.
pub(crate) const INTEGER: u8 = 0x02;
/// Tag of `BIT STRING`.
pub(crate) const BIT_STRING: u8 = 0x03;
/// Tag of `OCTET STRING`.
pub(crate) const OCTET_STRING: u8 = 0x04;
/// Tag of `OBJECT IDENTIFIER`.
pub(crate) const OBJECT_IDENTIFIER: u8 = 0x06;
/// Tag of `SEQUENCE`.
pub(crate) const SEQUENCE: u8 = 0x30;
/// Tag of a constructed `[0]`.
pub(crate) const CONTEXT_0: u8 = 0xa0;
/// The element `NULL`.
pub(crate) const NULL: [u8; 2] = [0x05, 0x00];

/// Reads elements one after another.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The content of the next element if it has this tag and lies within the input; else nothing is consumed.
    pub(crate) fn read(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (&found, after_tag) = self.rest.split_first()?;
        if found != tag {
            return None;
        }
        let (&first, after_first) = after_tag.split_first()?;
        let (length, body) = match first {
            0..=0x7f => (usize::from(first), after_first),
            0x81..=0x83 => {
                let (bytes, body) = after_first.split_at_checked(usize::from(first & 0x7f))?;
                (
                    bytes
                        .iter()
                        .fold(0, |length, byte| length << 8 | usize::from(*byte)),
                    body,
                )
            }
            _ => return None,
        };
        let (content, rest) = body.split_at_checked(length)?;
        self.rest = rest;
        Some(content)
    }

    /// An unsigned `INTEGER`, big-endian without leading zeros.
    pub(crate) fn read_unsigned(&mut self) -> Option<&'a [u8]> {
        let content = self.read(INTEGER)?;
        if content.first().is_none_or(|byte| byte & 0x80 != 0) {
            return None;
        }
        Some(without_leading_zeros(content))
    }

    /// Whether everything is read.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

/// The bytes of a big-endian number that count.
pub(crate) fn without_leading_zeros(number: &[u8]) -> &[u8] {
    let start = number
        .iter()
        .position(|byte| *byte != 0)
        .unwrap_or(number.len());
    number.get(start..).unwrap_or_default()
}

/// One element around the concatenated `parts`. The buffer is zeroised, since it may hold a key.
pub(crate) fn element(tag: u8, parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut header = vec![tag];
    let bytes = length.to_be_bytes();
    let significant = without_leading_zeros(&bytes);
    if length > 0x7f {
        header
            .push(0x80 | u8::try_from(significant.len()).expect("a usize has at most eight bytes"));
    }
    header.extend_from_slice(if length == 0 { &[0] } else { significant });
    // Reserved in one piece: growing would leave copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(header.len() + length));
    bytes.extend_from_slice(&header);
    for part in parts {
        bytes.extend_from_slice(part);
    }
    bytes
}

/// An unsigned big-endian number as `INTEGER`.
pub(crate) fn unsigned(number: &[u8]) -> Zeroizing<Vec<u8>> {
    let number = without_leading_zeros(number);
    let is_positive = number.first().is_some_and(|byte| byte & 0x80 == 0);
    let sign: &[u8] = if is_positive { &[] } else { &[0] };
    element(INTEGER, &[sign, number])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        for length in [0, 1, 127, 128, 255, 256, 65_535, 65_536] {
            let content = vec![7; length];

            let written = element(OCTET_STRING, &[&content]);

            let mut reader = Reader::new(&written);
            assert_eq!(
                reader.read(OCTET_STRING),
                Some(content.as_slice()),
                "{length}"
            );
            assert!(reader.is_empty());
        }
    }

    #[test]
    fn numbers_stay_positive() {
        for (number, encoding) in [
            (&[0u8, 0, 0x7f][..], &[2u8, 1, 0x7f][..]),
            (&[0x80], &[2, 2, 0, 0x80]),
            (&[0], &[2, 1, 0]),
        ] {
            assert_eq!(unsigned(number).as_slice(), encoding);
        }
        assert_eq!(Reader::new(&[2, 1, 0x80]).read_unsigned(), None);
        assert_eq!(
            Reader::new(&[2, 2, 0, 0x80]).read_unsigned(),
            Some(&[0x80][..])
        );
    }

    #[test]
    fn an_element_that_reaches_past_the_input_is_refused() {
        for bytes in [
            &[][..],
            &[4],
            &[4, 1],
            &[4, 0x81],
            &[4, 0x82, 1],
            &[4, 0x84, 0, 0, 0, 1, 0],
            &[4, 0x80, 0, 0],
        ] {
            assert_eq!(Reader::new(bytes).read(OCTET_STRING), None, "{bytes:?}");
        }
    }
}
