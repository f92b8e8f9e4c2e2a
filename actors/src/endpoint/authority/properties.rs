//! Random connections against an encoder with an evicting dynamic table.

use proptest::prelude::*;

use super::Mender;
use super::test_client::{Codec, Field, Framing, HELLO, How, blocks, frame};
use super::tests::{FORBIDDEN, INSERTED, NEVER, NOT_INSERTED, VALID, headers, is_valid, mended};

/// One request of a random connection.
#[derive(Debug, Clone)]
struct Request {
    resize: Option<usize>,
    authority: Option<(Vec<u8>, How)>,
    fields: Vec<(Vec<u8>, Vec<u8>, How)>,
    padding: Option<u8>,
    has_priority: bool,
    cuts: Vec<usize>,
    data: Vec<u8>,
}

fn how() -> impl Strategy<Value = How> {
    let pattern = prop::sample::select(vec![INSERTED, INSERTED, INSERTED, NOT_INSERTED, NEVER]);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (pattern, flags).prop_map(|(pattern, (by_index, name_by_index, is_huffman))| How {
        pattern,
        by_index,
        name_by_index,
        is_huffman,
    })
}

fn authority(with_empty: bool) -> impl Strategy<Value = Vec<u8>> {
    let known = FORBIDDEN
        .into_iter()
        .chain(VALID)
        .map(|value| value.as_bytes().to_vec());
    let empty_weight = u32::from(with_empty);
    prop_oneof![
        8 => prop::sample::select(known.collect::<Vec<_>>()),
        4 => prop::collection::vec(any::<u8>(), 1..40),
        2 => prop::collection::vec(0x20_u8..0x7f, 1..600),
        empty_weight => Just(Vec::new()),
    ]
}

fn requests(with_empty: bool) -> impl Strategy<Value = Vec<Request>> {
    let name = prop::sample::select(vec!["user-agent", "x-a", "x-b", "grpc-timeout", "te"]);
    let value = prop_oneof![
        4 => prop::sample::select(vec![b"".to_vec(), b"trailers".to_vec(), b"10S".to_vec()]),
        2 => prop::collection::vec(0x20_u8..0x7f, 0..30),
        1 => prop::collection::vec(any::<u8>(), 0..1500),
    ];
    let field = (name, value, how()).prop_map(|(name, value, how)| (name.into(), value, how));
    let request = (
        prop::option::weighted(0.1, 0..4097_usize),
        prop::option::weighted(0.9, (authority(with_empty), how())),
        prop::collection::vec(field, 0..6),
        prop::option::weighted(0.3, any::<u8>()),
        prop::bool::weighted(0.3),
        prop::collection::vec(0..40_usize, 0..4),
        prop::collection::vec(any::<u8>(), 0..50),
    )
        .prop_map(
            |(resize, authority, fields, padding, has_priority, cuts, data)| Request {
                resize,
                authority,
                fields,
                padding,
                has_priority,
                cuts,
                data,
            },
        );
    prop::collection::vec(request, 1..25)
}

/// The bytes of a connection, and the fields of its requests.
fn connection(client: &mut Codec, requests: &[Request]) -> (Vec<u8>, Vec<Vec<Field>>) {
    let mut bytes = HELLO.to_vec();
    let mut sent = Vec::new();
    for (place, request) in requests.iter().enumerate() {
        let stream = u32::try_from(place * 2 + 1).unwrap();
        let mut block = Vec::new();
        let mut fields = vec![(b":method".to_vec(), b"POST".to_vec())];
        if let Some(size_max) = request.resize {
            client.resize(&mut block, size_max);
        }
        block.push(0x83);
        let authority = request.authority.iter();
        let authority = authority.map(|(value, how)| (b":authority".to_vec(), value.clone(), *how));
        for (name, value, how) in authority.chain(request.fields.iter().cloned()) {
            client.encode(&mut block, &name, &value, how);
            fields.push((name, value));
        }
        let framing = Framing {
            stream,
            ends_stream: false,
            padding: request.padding,
            has_priority: request.has_priority,
            cuts: request.cuts.clone(),
        };
        framing.frames(&mut bytes, &block);
        frame(&mut bytes, 0x0, 0x1, stream, &request.data);
        sent.push(fields);
    }
    (bytes, sent)
}

/// Pushes the bytes in pieces of these sizes, over and over.
fn push_in_pieces(mender: &mut Mender, mut bytes: &[u8], sizes: &[usize]) -> Vec<u8> {
    let mut out = Vec::new();
    for &size in sizes.iter().cycle() {
        let (piece, rest) = bytes.split_at(size.min(bytes.len()));
        mender.push(piece, &mut out);
        bytes = rest;
        if bytes.is_empty() {
            break;
        }
    }
    out
}

fn assert_mended(sent: &Field, got: &Field) {
    let (name, value) = sent;
    assert_eq!(name, &got.0);
    let is_kept =
        name != b":authority" || is_valid(value) || value.iter().any(u8::is_ascii_control);
    if is_kept {
        assert_eq!(value, &got.1);
    } else {
        assert!(is_valid(&got.1), "{got:?}");
        assert_eq!(value.len().max(1), got.1.len());
    }
}

fn assert_connection_is_mended(requests: &[Request], pieces: &[usize], with_empty: bool) {
    let (mut client, mut server) = (Codec::default(), Codec::default());
    let (bytes, sent) = connection(&mut client, requests);
    let mut mender = Mender::new();

    let out = push_in_pieces(&mut mender, &bytes, pieces);

    let received = blocks(&out[24..]);
    assert_eq!(received.len(), sent.len());
    for (block, sent) in received.iter().zip(&sent) {
        let got = server.decode(block);
        assert_eq!(got.len(), sent.len());
        sent.iter()
            .zip(&got)
            .for_each(|(sent, got)| assert_mended(sent, got));
    }
    if !with_empty {
        assert_eq!(client.size(), server.size());
    }
    assert_eq!(mender.held.capacity(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_block_of_a_connection_decodes_to_what_was_sent(
        requests in requests(false),
        pieces in prop::collection::vec(1..300_usize, 1..6),
    ) {
        assert_connection_is_mended(&requests, &pieces, false);
        assert_connection_is_mended(&requests, &[1], false);
    }

    #[test]
    fn a_connection_with_empty_values_decodes_to_what_was_sent(
        requests in requests(true),
        pieces in prop::collection::vec(1..300_usize, 1..6),
    ) {
        assert_connection_is_mended(&requests, &pieces, true);
    }
}

proptest! {
    #[test]
    fn any_bytes_are_taken_and_splits_make_no_difference(
        start in prop::bool::weighted(0.9),
        tail in prop::collection::vec(prop_oneof![Just(0_u8), Just(1), Just(4), Just(9), any::<u8>()], 0..400),
        pieces in prop::collection::vec(1..50_usize, 1..6),
    ) {
        let mut bytes = if start { HELLO.to_vec() } else { Vec::new() };
        bytes.extend_from_slice(&tail);
        let (mut one, mut other) = (Mender::new(), Mender::new());

        let mut whole = push_in_pieces(&mut one, &bytes, &[bytes.len().max(1)]);
        let mut split = push_in_pieces(&mut other, &bytes, &pieces);

        whole.extend(one.finish());
        split.extend(other.finish());
        prop_assert_eq!(whole, split);
    }

    #[test]
    fn any_blocks_are_taken(
        fragments in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..30), 1..20),
        empties in prop::collection::vec(prop::bool::weighted(0.1), 20),
    ) {
        let mut frames = Vec::new();
        for (fragment, empty) in fragments.iter().zip(&empties) {
            frames.extend(headers(if *empty { &[0x41, 0x00] } else { fragment }));
        }

        let (after, mender) = mended(&frames);

        prop_assert!(!after.is_empty());
        prop_assert_eq!(mender.held.capacity(), 0);
    }
}
