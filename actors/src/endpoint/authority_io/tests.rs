use std::cell::RefCell;
use std::rc::Rc;

use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::{Bytes, Incoming};
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::endpoint::authority::test_client::{Codec, Framing, HELLO, How, frame, take_frame};

/// The values of a call that real clients send, and others that Go servers answer.
const ANSWERED: [Option<&str>; 25] = [
    None,
    Some("localhost"),
    Some(""),
    Some("spire_agent"),
    Some("run%2Fa1%2Fpub%2Fapi.sock"),
    Some("%2Frun%2Fa1%2Fpub%2Fapi.sock"),
    Some("/run/a1/pub/api.sock"),
    Some("unix:/run/a1/pub/api.sock"),
    Some("localhost:0"),
    Some("[::1]:1"),
    Some("a-host-name.of.some.length.a-host-name.of.some.length"),
    Some("x y"),
    Some("a@b"),
    Some("%zz"),
    Some("["),
    Some("localhost:99999"),
    Some("a/b?c#d"),
    Some("\u{e9}"),
    Some("a,b"),
    Some("?"),
    Some("//"),
    Some("*"),
    Some("a:b:c"),
    Some("a@"),
    Some("\u{65e5}\u{672c}"),
];

/// Of these, those that a plain `h2` server refuses.
const REFUSED_BY_H2: usize = 15;

const PLAIN: How = How {
    pattern: 0x40,
    by_index: true,
    name_by_index: true,
    is_huffman: true,
};

/// What the server makes of a request: path, authority, `x-a`.
type Seen = (String, Option<String>, Vec<u8>);

/// What becomes of the streams, in the order of the answers: the stream, and the frame that answers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Response(u32),
    Reset(u32),
    GoAway,
}

/// Runs hyper's tasks on the test's own thread.
#[derive(Clone, Copy)]
struct Local;

impl<F: Future + 'static> Executor<F> for Local {
    fn execute(&self, task: F) {
        tokio::task::spawn_local(async move {
            task.await;
        });
    }
}

/// One client: writes `bytes`, and reads until `streams` are answered or the connection is over.
async fn call(io: DuplexStream, bytes: &[u8], streams: usize) -> Vec<Answer> {
    let (mut reader, mut writer) = tokio::io::split(io);
    let (mut answers, mut received, mut written) = (Vec::new(), Vec::new(), 0);
    while answers.len() < streams && answers.last() != Some(&Answer::GoAway) {
        tokio::select! {
            gone = writer.write(&bytes[written..]), if written < bytes.len() => {
                written += gone.unwrap();
                continue;
            }
            read = reader.read_buf(&mut received) => {
                if read.unwrap() == 0 {
                    break;
                }
            }
        }
        let mut rest = received.as_slice();
        while let Some((kind, _, stream, _)) = take_frame(&mut rest) {
            match kind {
                0x1 => answers.push(Answer::Response(stream)),
                0x3 => answers.push(Answer::Reset(stream)),
                0x7 => answers.push(Answer::GoAway),
                _ => {}
            }
        }
        received = rest.to_vec();
    }
    answers
}

/// A hyper server over `io`; what it is asked goes to `seen`.
async fn serve<T: AsyncRead + AsyncWrite + Unpin + 'static>(io: T, seen: &Rc<RefCell<Vec<Seen>>>) {
    let answer = service_fn(|request: Request<Incoming>| {
        let path = request.uri().path().to_owned();
        let authority = request.uri().authority().map(ToString::to_string);
        let field = request.headers().get("x-a");
        let field = field.map_or_else(Vec::new, |value| value.as_bytes().to_vec());
        seen.borrow_mut().push((path, authority, field));
        async { Ok::<_, std::convert::Infallible>(Response::new(Empty::<Bytes>::new())) }
    });
    let connection = http2::Builder::new(Local).serve_connection(TokioIo::new(io), answer);
    // The client hangs up without a word.
    drop(connection.await);
}

/// Both ends over a pipe of `room` bytes, mended or not.
fn talk(bytes: &[u8], streams: usize, room: usize, is_mended: bool) -> (Vec<Answer>, Vec<Seen>) {
    let seen = Rc::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let answers = tokio::task::LocalSet::new().block_on(&runtime, async {
        let (client, server) = duplex(room);
        let client = call(client, bytes, streams);
        if is_mended {
            tokio::join!(client, serve(MendedIo::new(server), &seen)).0
        } else {
            tokio::join!(client, serve(server, &seen)).0
        }
    });
    (answers, seen.take())
}

/// Appends the request on `stream`, whose path is the stream's number.
fn request(
    codec: &mut Codec,
    out: &mut Vec<u8>,
    stream: u32,
    authority: Option<&[u8]>,
    how: How,
    field: &[u8],
) {
    let mut block = vec![0x83, 0x86];
    let path = format!("/{stream}");
    codec.encode(&mut block, b":path", path.as_bytes(), how);
    if let Some(value) = authority {
        codec.encode(&mut block, b":authority", value, how);
    }
    codec.encode(&mut block, b"x-a", field, how);
    let framing = Framing {
        stream,
        ends_stream: true,
        ..Framing::default()
    };
    framing.frames(out, &block);
}

/// A connection's bytes with one request.
fn single(authority: Option<&[u8]>, how: How) -> Vec<u8> {
    let mut bytes = HELLO.to_vec();
    request(&mut Codec::default(), &mut bytes, 1, authority, how, b"");
    bytes
}

#[test]
fn every_authority_is_answered() {
    for authority in ANSWERED {
        for is_huffman in [false, true] {
            for name_by_index in [false, true] {
                for by_index in [false, true] {
                    let how = How {
                        by_index,
                        name_by_index,
                        is_huffman,
                        ..PLAIN
                    };
                    let bytes = single(authority.map(str::as_bytes), how);

                    let (answers, seen) = talk(&bytes, 1, 65_536, true);

                    assert_eq!(answers, [Answer::Response(1)], "{authority:?} {how:?}");
                    assert_eq!(seen[0].1.is_some(), authority.is_some());
                }
            }
        }
    }
}

#[test]
fn a_plain_server_refuses_what_is_mended() {
    let refused = ANSWERED.into_iter().filter(|authority| {
        let bytes = single(authority.map(str::as_bytes), PLAIN);
        talk(&bytes, 1, 65_536, false).0 != [Answer::Response(1)]
    });

    assert_eq!(refused.count(), REFUSED_BY_H2);
}

#[test]
fn long_values_are_answered() {
    for value in [vec![b'a'; 300], vec![b'a'; 8000], vec![b'/'; 8000]] {
        for room in [100, 65_536] {
            let (answers, seen) = talk(&single(Some(&value), PLAIN), 1, room, true);

            assert_eq!(answers, [Answer::Response(1)]);
            assert_eq!(seen[0].1.as_ref().unwrap().len(), value.len());
        }
    }
}

#[test]
fn a_control_character_is_refused_on_its_stream_alone() {
    let (mut codec, mut bytes) = (Codec::default(), HELLO.to_vec());
    request(&mut codec, &mut bytes, 1, Some(b"\x01"), PLAIN, b"");
    request(&mut codec, &mut bytes, 3, Some(b"localhost"), PLAIN, b"");

    let (answers, seen) = talk(&bytes, 2, 65_536, true);

    assert!(answers.contains(&Answer::Reset(1)) && answers.contains(&Answer::Response(3)));
    assert_eq!(seen.len(), 1);
}

#[test]
fn a_block_that_cannot_be_read_after_an_empty_value_ends_the_connection() {
    let mut bytes = single(
        Some(b""),
        How {
            by_index: false,
            ..PLAIN
        },
    );
    frame(&mut bytes, 0x1, 0x5, 3, &[0xff, 0x00]);

    let (answers, _) = talk(&bytes, 2, 65_536, true);

    assert_eq!(answers.last(), Some(&Answer::GoAway));
}

#[tokio::test]
async fn a_read_is_empty_only_at_the_end_and_an_incomplete_block_comes_before_it() {
    let bytes = single(Some(b"/run"), PLAIN);
    let cut = &bytes[..bytes.len() - 12];
    for room in [1, 3, 1000] {
        let (mut client, server) = duplex(room);
        let mut server = MendedIo::new(server);
        let (mut received, mut buffer) = (Vec::new(), [0; 5]);

        let write = async {
            client.write_all(cut).await.unwrap();
            drop(client);
        };
        let read = async {
            loop {
                let length = server.read(&mut buffer).await.unwrap();
                if length == 0 {
                    break;
                }
                received.extend_from_slice(&buffer[..length]);
            }
        };
        tokio::join!(write, read);

        assert_eq!(received, cut);
    }
}

#[tokio::test]
async fn mended_bytes_come_in_order_through_small_reads() {
    let mut bytes = single(
        Some(b"/run"),
        How {
            is_huffman: false,
            ..PLAIN
        },
    );
    frame(&mut bytes, 0x0, 0, 1, b"after");
    let (mut client, server) = duplex(1000);
    client.write_all(&bytes).await.unwrap();
    drop(client);
    let mut server = MendedIo::new(server);
    let (mut received, mut buffer) = (Vec::new(), [0; 7]);

    while let Ok(length @ 1..) = server.read(&mut buffer).await {
        received.extend_from_slice(&buffer[..length]);
    }

    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace("/run", "-run");
    assert_eq!(String::from_utf8_lossy(&received), text(&bytes));
    assert_eq!(server.waiting.bytes.capacity(), 0);
}

fn how() -> impl Strategy<Value = How> {
    let pattern = prop::sample::select(vec![0x40, 0x40, 0x40, 0x00, 0x10]);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (pattern, flags).prop_map(|(pattern, (by_index, name_by_index, is_huffman))| How {
        pattern,
        by_index,
        name_by_index,
        is_huffman,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn a_server_sees_all_requests_of_a_connection_as_they_were_sent(
        requests in prop::collection::vec(
            (prop::sample::select(ANSWERED.to_vec()), how(), "[a-z ]{0,20}|[a-z]{500,1500}"),
            1..60,
        ),
        room in prop::sample::select(vec![1, 7, 100, 65_536]),
    ) {
        let (mut codec, mut bytes) = (Codec::default(), HELLO.to_vec());
        for (stream, (authority, how, field)) in (1..).step_by(2).zip(&requests) {
            let authority = authority.map(str::as_bytes);
            request(&mut codec, &mut bytes, stream, authority, *how, field.as_bytes());
        }

        let (answers, seen) = talk(&bytes, requests.len(), room, true);

        let all_answered = answers.iter().all(|answer| matches!(answer, Answer::Response(_)));
        prop_assert!(all_answered, "{:?}", answers);
        prop_assert_eq!(seen.len(), requests.len());
        for ((path, authority, field), (stream, sent)) in seen.iter().zip((1..).step_by(2).zip(&requests)) {
            let stream: u32 = stream;
            prop_assert_eq!(path, &format!("/{stream}"));
            prop_assert_eq!(field.as_slice(), sent.2.as_bytes());
            let (got, sent) = (authority.as_deref(), sent.0);
            prop_assert_eq!(got.map(str::len), sent.map(|sent| sent.len().max(1)));
        }
    }
}
