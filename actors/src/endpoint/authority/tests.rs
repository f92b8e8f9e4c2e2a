use http::uri::Authority;

use super::test_client::{Codec, Framing, HELLO, How, blocks, frame, integer, string};
use super::{Mender, Step};

pub(super) const INSERTED: u8 = 0x40;
pub(super) const NOT_INSERTED: u8 = 0x00;
pub(super) const NEVER: u8 = 0x10;

/// Values that Go servers answer and `h2` refuses.
pub(super) const FORBIDDEN: [&str; 14] = [
    "run%2Fa1%2Fpub%2Fapi.sock",
    "%2Frun%2Fapi.sock",
    "/run/a1/pub/api.sock",
    "unix:/run/api.sock",
    "x y",
    "%zz",
    "[",
    "a/b?c#d",
    "\u{e9}",
    "?",
    "//",
    "a:b:c",
    "a@",
    "\u{20ac}\u{20ac}",
];

/// Values that `h2` accepts as they are.
pub(super) const VALID: [&str; 9] = [
    "localhost",
    "spire_agent",
    "localhost:0",
    "[::1]:1",
    "a@b",
    "localhost:99999",
    "a,b",
    "*",
    "user:pw%20@host:1",
];

/// A HEADERS frame of one block on stream 1.
pub(super) fn headers(block: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame(&mut out, 0x1, 0x5, 1, block);
    out
}

/// What goes on for `frames` on a new connection, and the mender.
pub(super) fn mended(frames: &[u8]) -> (Vec<u8>, Mender) {
    let mut mender = Mender::new();
    let mut out = Vec::new();
    mender.push(HELLO, &mut out);
    assert_eq!(out, HELLO);
    out.clear();
    mender.push(frames, &mut out);
    (out, mender)
}

/// The block that goes on for `block`, and the mender.
fn mended_block(block: &[u8]) -> (Vec<u8>, Mender) {
    let (out, mender) = mended(&headers(block));
    let block = blocks(&out).pop().unwrap();
    (block, mender)
}

/// A block of a request with `:authority` between other fields.
fn request(pattern: u8, name_by_index: bool, is_huffman: bool, value: &[u8]) -> Vec<u8> {
    let how = How {
        pattern,
        by_index: false,
        name_by_index,
        is_huffman,
    };
    let mut codec = Codec::default();
    let mut block = vec![0x83, 0x86];
    codec.encode(&mut block, b":authority", value, how);
    codec.encode(&mut block, b"x-after", b"y", how);
    block
}

/// The values of `:authority` in a first block of a connection.
fn authorities(block: &[u8]) -> Vec<Vec<u8>> {
    let fields = Codec::default().decode(block).into_iter();
    let named = fields.filter(|(name, _)| name == b":authority");
    named.map(|(_, value)| value).collect()
}

pub(super) fn is_valid(value: &[u8]) -> bool {
    Authority::try_from(value).is_ok()
}

fn every_form() -> impl Iterator<Item = (u8, bool, bool)> {
    let patterns = [INSERTED, NOT_INSERTED, NEVER].into_iter();
    let forms = [(true, true), (true, false), (false, true), (false, false)];
    patterns.flat_map(move |pattern| forms.map(|(by_index, huffman)| (pattern, by_index, huffman)))
}

#[test]
fn a_forbidden_value_becomes_valid_text_of_the_same_length_in_every_form() {
    for value in FORBIDDEN {
        for (pattern, by_index, huffman) in every_form() {
            assert!(!is_valid(value.as_bytes()), "{value}");
            let block = request(pattern, by_index, huffman, value.as_bytes());

            let (after, _) = mended_block(&block);

            let found = authorities(&after);
            assert!(is_valid(&found[0]), "{value}: {found:?}");
            assert_eq!((found.len(), found[0].len()), (1, value.len()));
            assert_eq!(after[..3], block[..3], "same representation");
            assert_eq!(
                Codec::default().decode(&after)[3],
                (b"x-after".to_vec(), b"y".to_vec())
            );
        }
    }
}

#[test]
fn a_realistic_value_keeps_its_encoded_length() {
    for value in &FORBIDDEN[..4] {
        for (pattern, by_index, huffman) in every_form() {
            let block = request(pattern, by_index, huffman, value.as_bytes());

            let (after, _) = mended_block(&block);

            assert_eq!(after.len(), block.len());
        }
    }
}

#[test]
fn a_value_of_long_codes_is_written_raw_and_the_frame_shrinks() {
    let block = request(INSERTED, true, true, "\u{e9}".as_bytes());

    let (after, _) = mended_block(&block);

    assert!(after.len() < block.len());
    assert_eq!(authorities(&after), [b"--"]);
}

#[test]
fn valid_values_and_control_characters_pass_untouched() {
    let control = ["\u{1}", "a/\u{1f}", "/\u{7f}", "%2F\t"];
    for value in VALID.into_iter().chain(control) {
        for (pattern, by_index, huffman) in every_form() {
            let frames = headers(&request(pattern, by_index, huffman, value.as_bytes()));

            let (after, _) = mended(&frames);

            assert_eq!(after, frames, "{value}");
        }
    }
}

#[test]
fn eight_thousand_letters_pass_and_as_many_forbidden_ones_are_mended() {
    let long = vec![b'a'; 8000];
    let block = request(INSERTED, true, true, &long);
    assert_eq!(mended_block(&block).0, block);

    for huffman in [true, false] {
        let block = request(INSERTED, true, huffman, &[b'/'; 8000]);

        let (after, _) = mended_block(&block);

        let found = authorities(&after);
        assert!(is_valid(&found[0]));
        assert_eq!((found[0].len(), after.len()), (8000, block.len()));
    }
}

#[test]
fn an_empty_value_that_is_not_inserted_becomes_x() {
    // A frame before, so that the length that grows is the block's own.
    let cases: [(&[u8], &[u8]); 6] = [
        (&[0x83, 0x81, 0x86], &[0x83, 0x01, 0x01, b'x', 0x86]),
        (&[0x01, 0x00, 0x86], &[0x01, 0x01, b'x', 0x86]),
        (&[0x01, 0x80], &[0x01, 0x01, b'x']),
        (&[0x11, 0x00], &[0x11, 0x01, b'x']),
        (b"\x00\x0a:authority\x00", b"\x00\x0a:authority\x01x"),
        (
            b"\x10\x88\xb8\x3b\x53\x39\xec\x32\x7d\x7f\x80\x86",
            b"\x10\x88\xb8\x3b\x53\x39\xec\x32\x7d\x7f\x01x\x86",
        ),
    ];

    for (block, expected) in cases {
        assert_eq!(mended_block(block).0, expected);
    }
}

#[test]
fn after_an_empty_value_is_inserted_blocks_are_written_without_indexing() {
    let insert = How {
        pattern: INSERTED,
        by_index: true,
        name_by_index: true,
        is_huffman: true,
    };
    let mut client = Codec::default();
    let (mut first, mut second, mut third) = (vec![0x83], vec![0x83], Vec::new());
    client.encode(&mut first, b"x-a", b"1", insert);
    client.encode(
        &mut second,
        b":authority",
        b"",
        How {
            by_index: false,
            ..insert
        },
    );
    client.encode(&mut second, b"x-a", b"1", insert);
    client.resize(&mut third, 100);
    // Both from the table: the empty value, and a field from before it.
    integer(&mut third, 0x80, 7, 62);
    client.encode(&mut third, b"x-a", b"1", insert);
    let frames = [first.as_slice(), &second, &third].map(headers).concat();

    let (after, mender) = mended(&frames);

    let after = blocks(&after);
    assert_eq!(after[0], first);
    assert_eq!(after[1], b"\x83\x01\x01x\x00\x03x-a\x011");
    assert_eq!(after[2], b"\x01\x01x\x00\x03x-a\x011");
    assert!(format!("{mender:?}").contains("Decoding"));
}

#[test]
fn without_indexing_a_block_that_cannot_be_read_ends_the_connection() {
    // 1,500 bytes inserted, then the empty value.
    let mut large = vec![0x40, 0x01, b'a'];
    string(&mut large, &[b'v'; 1500], false);
    let before = [headers(&large), headers(b"\x41\x00\x40\x01b\x00")].concat();
    let mut continued = Vec::new();
    frame(&mut continued, 0x1, 0, 1, &[0x83]);
    frame(&mut continued, 0x9, 4, 3, &[0x83]);
    let mut padded = Vec::new();
    frame(&mut padded, 0x1, 0xc, 1, &[9, 0x83]);
    let unreadable = [
        headers(&[0xc1]),
        headers(&[0x41]),
        headers(&[0xc0; 2000]),
        headers(&vec![0x83; 16_385]),
        continued,
        padded,
    ];

    for bad in unreadable {
        let (known, _) = mended(&before);

        let (after, _) = mended(&[before.as_slice(), &bad, &[7; 20]].concat());

        let mut refusal = Vec::new();
        frame(&mut refusal, 0x1, 0x4, 1, &[0x80]);
        let (same, rest) = after.split_at(known.len());
        assert_eq!(
            (same, &rest[..refusal.len()]),
            (known.as_slice(), refusal.as_slice())
        );
        assert!(rest.ends_with(&[7; 20]));
    }
}

#[test]
fn only_the_first_authority_is_mended() {
    let (after, _) = mended_block(b"\x01\x01/\x01\x01/\x81");

    assert_eq!(after, b"\x01\x01-\x01\x01/\x81");
}

#[test]
fn padding_goes_and_priority_stays() {
    let block = b"\x01\x01/".as_slice();
    for padding in [None, Some(0), Some(7)] {
        for has_priority in [false, true] {
            for cuts in [vec![], vec![0], vec![1, 0, 1]] {
                let framing = Framing {
                    stream: 5,
                    ends_stream: false,
                    padding,
                    has_priority,
                    cuts,
                };
                let mut frames = Vec::new();
                framing.frames(&mut frames, block);

                let (after, _) = mended(&frames);

                let mut expected = Vec::new();
                let flags = if has_priority { 0x24 } else { 0x04 };
                let priority: &[u8] = if has_priority { &[0, 0, 0, 0, 16] } else { &[] };
                frame(
                    &mut expected,
                    0x1,
                    flags,
                    5,
                    &[priority, b"\x01\x01-"].concat(),
                );
                assert_eq!(after, expected);
            }
        }
    }
}

#[test]
fn a_block_that_outgrows_its_frame_is_continued() {
    let mut block = vec![0x81];
    block.resize(16_384, 0x83);

    let (after, _) = mended(&headers(&block));

    let mut expected = vec![0x01, 0x01, b'x'];
    expected.extend_from_slice(&block[1..]);
    let (mut whole, mut rest) = (Vec::new(), after.as_slice());
    let sizes: Vec<_> = std::iter::from_fn(|| super::test_client::take_frame(&mut rest))
        .map(|(kind, flags, _, payload)| {
            whole.extend_from_slice(payload);
            (kind, flags, payload.len())
        })
        .collect();
    assert_eq!(sizes, [(0x1, 0x1, 16_384), (0x9, 0x4, 2)]);
    assert_eq!(whole, expected);
}

#[test]
fn what_is_not_understood_passes_and_the_next_block_is_mended() {
    let mut foreign_within = Vec::new();
    frame(&mut foreign_within, 0x1, 0, 1, b"\x01\x01/");
    frame(&mut foreign_within, 0x0, 0, 1, b"data");
    let mut other_stream = Vec::new();
    frame(&mut other_stream, 0x1, 0, 1, b"\x01\x01/");
    frame(&mut other_stream, 0x9, 4, 3, b"");
    let mut too_long = Vec::new();
    let long = Framing {
        stream: 1,
        cuts: vec![3, 16_000],
        ..Framing::default()
    };
    long.frames(
        &mut too_long,
        &[b"\x01\x01/".as_slice(), &vec![0x83; 17_000]].concat(),
    );
    let mut padded = Vec::new();
    frame(&mut padded, 0x1, 0xc, 1, b"\x04\x01\x01/");
    let mut no_room_for_priority = Vec::new();
    frame(&mut no_room_for_priority, 0x1, 0x24, 1, b"\x01\x01/");
    let mut empty_padded = Vec::new();
    frame(&mut empty_padded, 0x1, 0xc, 1, b"");
    let mut large_data = Vec::new();
    frame(&mut large_data, 0x0, 0, 1, &vec![1; 70_000]);
    let cases = [
        foreign_within,
        other_stream,
        too_long,
        padded,
        no_room_for_priority,
        empty_padded,
        large_data,
        headers(&[&b"\x01\x01/"[..], &[0x83; 16_382]].concat()),
        headers(b"\x01\x01/\x80"),
        headers(b"\x01\x01/\x7f\x80\x80\x80\x80\x00\x00"),
        headers(b"\x01\x82\xff\xff"),
        headers(b"\x01\x01/\x3f\xe1\x1f"),
        headers(b"\x01\x05/"),
        headers(b""),
    ];

    for case in cases {
        let (mut after, mut mender) = mended(&case);
        assert_eq!(after, case);

        after.clear();
        mender.push(&headers(b"\x41\x01/"), &mut after);

        assert_eq!(after, headers(b"\x41\x01-"));
    }
}

#[test]
fn once_a_block_went_by_unread_an_inserted_empty_value_passes() {
    let frames = [headers(b"\x01\x05/"), headers(b"\x41\x00")].concat();

    let (after, _) = mended(&frames);

    assert_eq!(after, frames);
}

#[test]
fn bytes_that_are_not_http2_pass() {
    let http1 = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".as_slice();
    let nearly = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r!\x00\x00\x03\x01\x04\x00\x00\x00\x01\x01\x01/";
    for bytes in [http1, nearly] {
        let mut mender = Mender::new();
        let (mut whole, mut single) = (Vec::new(), Vec::new());

        mender.push(bytes, &mut whole);
        let mut mender = Mender::new();
        for byte in bytes {
            mender.push(&[*byte], &mut single);
        }

        assert_eq!((whole.as_slice(), single.as_slice()), (bytes, bytes));
    }
}

#[test]
fn what_passes_is_not_copied_and_nothing_is_kept() {
    let block = request(INSERTED, true, true, b"localhost");
    let mut frames = headers(&block);
    frame(&mut frames, 0x0, 0x1, 1, &[0; 1000]);
    let mut mender = Mender::new();
    assert_eq!(mender.step(HELLO), Step::Pass(24));
    assert_eq!(mender.step(&HELLO[24..]), Step::Pass(9));

    let steps = [
        mender.step(&frames),
        mender.step(&frames[9 + block.len()..][..500]),
        mender.step(&frames[9 + block.len() + 500..]),
    ];

    assert_eq!(
        steps,
        [
            Step::Pass(9 + block.len()),
            Step::Pass(500),
            Step::Pass(509)
        ]
    );
    assert_eq!(mender.held.capacity(), 0);
}

#[test]
fn held_bytes_are_bounded_and_freed() {
    let mut mender = Mender::new();
    let (mut frames, mut out) = (HELLO.to_vec(), Vec::new());
    frame(&mut frames, 0x1, 0, 1, b"\x01\x01/");
    for _ in 0..5000 {
        frame(&mut frames, 0x9, 0, 1, b"\x83");
    }
    let mut most = 0;

    for byte in &frames {
        mender.push(&[*byte], &mut out);
        most = most.max(mender.held.len());
    }

    assert_eq!(out, frames);
    assert!(
        (16_000..=super::HELD_BYTES_MAX + super::HEAD_BYTES).contains(&most),
        "{most}"
    );
    assert_eq!(mender.held.capacity(), 0);
}

#[test]
fn an_incomplete_block_goes_on_at_the_end() {
    let frames = headers(b"\x01\x01/");
    let (out, mut mender) = mended(&frames[..frames.len() - 1]);

    let rest = mender.finish();

    assert_eq!(
        (out.as_slice(), rest.as_slice()),
        (&[][..], &frames[..frames.len() - 1])
    );
}
