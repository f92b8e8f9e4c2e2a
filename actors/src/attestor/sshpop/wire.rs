//! As much of SSH's binary encoding as keys and signatures need (RFC 4251 5). Pure.

use crate::keys::der::without_leading_zeros;

/// Reads values one after another; each is none when it does not lie within the input.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// A `string`.
    pub(super) fn string(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.uint32()?).ok()?;
        let (content, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(content)
    }

    /// A `uint32`.
    pub(super) fn uint32(&mut self) -> Option<u32> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u32::from_be_bytes(*bytes))
    }

    /// A `uint64`.
    pub(super) fn uint64(&mut self) -> Option<u64> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u64::from_be_bytes(*bytes))
    }

    /// An `mpint` that is not negative, big-endian without leading zeros.
    pub(super) fn unsigned(&mut self) -> Option<&'a [u8]> {
        let content = self.string()?;
        if content.first().is_some_and(|byte| byte & 0x80 != 0) {
            return None;
        }
        Some(without_leading_zeros(content))
    }

    /// What is not read yet.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

/// Appends a big-endian number as an `mpint`.
pub(super) fn put_unsigned(out: &mut Vec<u8>, number: &[u8]) {
    let number = without_leading_zeros(number);
    let sign: &[u8] = match number.first() {
        Some(first) if first & 0x80 != 0 => &[0],
        _ => &[],
    };
    let length = u32::try_from(sign.len() + number.len()).expect("halves of signatures are short");
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(sign);
    out.extend_from_slice(number);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_rfc_4251_shows_them() {
        for (number, encoding) in [
            (&[0u8][..], &[0u8, 0, 0, 0][..]),
            (&[0, 0x7f], &[0, 0, 0, 1, 0x7f]),
            (&[0x80], &[0, 0, 0, 2, 0, 0x80]),
        ] {
            let mut out = Vec::new();

            put_unsigned(&mut out, number);

            assert_eq!(out, encoding);
            assert_eq!(
                Reader::new(&out).unsigned(),
                Some(without_leading_zeros(number))
            );
        }
    }

    #[test]
    fn what_reaches_past_the_input_or_below_zero_is_refused() {
        for bytes in [
            &[][..],
            &[0, 0, 0],
            &[0, 0, 0, 1],
            &[0xff, 0xff, 0xff, 0xff, 1],
            &[0, 0, 0, 1, 0x80],
        ] {
            assert_eq!(Reader::new(bytes).unsigned(), None, "{bytes:?}");
        }
    }
}
