use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;

const LIMITS: LinkLimits = LinkLimits {
    idle: Duration::from_secs(30),
    farewell: Duration::from_secs(1),
    call: PingLimits {
        after: Duration::from_secs(10),
        answer: Duration::from_secs(5),
    },
    queue: PingLimits {
        after: Duration::from_secs(30),
        answer: Duration::from_secs(15),
    },
};
/// An answer to a ping, and an answer to a call: frames without payload.
const PONG: &[u8; 9] = b"\x00\x00\x00\x06\x01\x00\x00\x00\x00";
const ANSWER: &[u8; 9] = b"\x00\x00\x00\x00\x00\x00\x00\x00\x01";

/// A link whose preface is written, and the server's end.
async fn link() -> (Arc<Link>, LinkStream<DuplexStream>, DuplexStream) {
    let (near, mut far) = duplex(1 << 16);
    let (link, mut stream) = Link::wrap(near, LIMITS, None);
    stream.write_all(&[1; 24]).await.unwrap();
    far.read_exact(&mut [0; 24]).await.unwrap();
    (link, stream, far)
}

/// Reads until the stream ends; how.
async fn drive(stream: &mut LinkStream<DuplexStream>) -> io::Result<()> {
    let mut buffer = [0; 64];
    while stream.read(&mut buffer).await? > 0 {}
    Ok(())
}

/// Answers the first `count` pings, if told so each time with an answer to a call besides; when they came, in seconds.
async fn answer_pings(mut far: DuplexStream, count: usize, besides: bool) -> Vec<u64> {
    let opened = Instant::now();
    let mut pings = Vec::new();
    let mut ping = [0; PING_FRAME.len()];
    while far.read_exact(&mut ping).await.is_ok() {
        assert_eq!(ping, PING_FRAME);
        pings.push(opened.elapsed().as_secs());
        if pings.len() <= count {
            far.write_all(PONG).await.unwrap();
            if besides {
                far.write_all(ANSWER).await.unwrap();
            }
        }
    }
    pings
}

#[tokio::test(start_paused = true)]
async fn d17_a_link_that_nobody_needs_ends_after_its_time() {
    let (link, mut stream, _far) = link().await;
    let opened = Instant::now();
    let need = link.needed(Patience::Queue);
    let dropped_after = Duration::from_secs(20);
    let read = async {
        let count = stream.read(&mut [0; 8]).await.unwrap();
        (count, opened.elapsed().as_secs())
    };

    let (outcome, ()) = tokio::join!(read, async {
        tokio::time::sleep(dropped_after).await;
        drop(need);
    });

    assert_eq!(outcome, (0, 50));
    assert!(link.is_over());
}

#[tokio::test(start_paused = true)]
async fn a_retired_link_does_not_wait_for_its_peer() {
    let (link, mut stream, _far) = link().await;
    let opened = Instant::now();
    let need = link.needed(Patience::Call);
    let read = async {
        drive(&mut stream).await.unwrap();
        opened.elapsed().as_secs()
    };

    let (ended, ()) = tokio::join!(read, async {
        tokio::time::sleep(Duration::from_secs(7)).await;
        drop(need);
        link.retire();
    });

    assert_eq!(ended, 8);
}

#[tokio::test(start_paused = true)]
async fn a_dead_link_is_noticed_15_s_after_the_first_unanswered_call() {
    // The call begins right away, or when the link has been quiet for a while and its timer is set far ahead.
    for idle in [0, 1, 25] {
        let (link, mut stream, far) = link().await;
        let began = async {
            tokio::time::sleep(Duration::from_secs(idle)).await;
            let began = Instant::now();
            let _need = link.needed(Patience::Call);
            // What HTTP/2 does to send the request.
            link.tell(|_| ());
            tokio::time::sleep(Duration::from_secs(100)).await;
            drop(far);
            began
        };
        let ended = async {
            let error = drive(&mut stream).await.unwrap_err();
            (error.kind(), Instant::now())
        };

        let (began, (kind, ended)) = tokio::join!(began, ended);

        assert_eq!(kind, io::ErrorKind::TimedOut);
        assert_eq!((ended - began).as_secs(), 15, "{idle}");
        assert!(link.is_over());
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_server_that_answers_pings_keeps_its_time() {
    let (link, mut stream, far) = link().await;
    let need = link.needed(Patience::Call);
    let client = async {
        let limit = Duration::from_secs(30);
        let outcome = tokio::time::timeout(limit, drive(&mut stream)).await;
        drop((need, stream));
        outcome
    };

    let (pings, outcome) = tokio::join!(answer_pings(far, usize::MAX, false), client);

    assert!(outcome.is_err(), "{outcome:?}");
    assert_eq!(pings, [10, 20]);
}

#[tokio::test(start_paused = true)]
async fn d08_pings_without_answers_to_calls_between_them_are_rare() {
    let (link, mut stream, far) = link().await;
    let _need = link.needed(Patience::Queue);
    let opened = Instant::now();
    let client = async {
        let error = drive(&mut stream).await.unwrap_err();
        drop(stream);
        (error.kind(), opened.elapsed().as_secs())
    };

    let (pings, (kind, ended)) = tokio::join!(answer_pings(far, 3, false), client);

    assert_eq!(kind, io::ErrorKind::TimedOut);
    assert_eq!(pings[..2], [30, 60]);
    assert!(
        pings.len() == 4
            && pings
                .windows(2)
                .skip(1)
                .all(|pair| pair[1] - pair[0] >= 300),
        "{pings:?}"
    );
    assert!((15..=16).contains(&(ended - pings[3])), "{pings:?} {ended}");
}

#[tokio::test(start_paused = true)]
async fn answers_to_calls_bring_new_pings() {
    let (link, mut stream, far) = link().await;
    let _need = link.needed(Patience::Call);
    let client = async {
        drop(drive(&mut stream).await);
        drop(stream);
    };

    let (pings, ()) = tokio::join!(answer_pings(far, 4, true), client);

    assert_eq!(pings, [10, 20, 30, 40, 50]);
}

#[tokio::test(start_paused = true)]
async fn no_ping_goes_out_without_a_call_or_into_a_frame() {
    let (link, mut stream, mut far) = link().await;
    let mut buffer = [0; 64];
    let limit = Duration::from_secs(29);
    assert!(
        tokio::time::timeout(limit, stream.read(&mut buffer))
            .await
            .is_err()
    );

    let _need = link.needed(Patience::Call);
    stream
        .write_all(b"\x00\x00\x04\x00\x00\x00\x00\x00\x01ab")
        .await
        .unwrap();
    let waiting = tokio::time::timeout(Duration::from_secs(100), stream.read(&mut buffer)).await;
    assert!(!matches!(waiting, Ok(Ok(_))));

    let count = far.read(&mut buffer).await.unwrap();
    assert_eq!(buffer[..count], *b"\x00\x00\x04\x00\x00\x00\x00\x00\x01ab");
}

#[tokio::test(start_paused = true)]
async fn a_severed_link_wakes_its_reader() {
    let (link, mut stream, _far) = link().await;
    let _need = link.needed(Patience::Call);
    let mut buffer = [0; 8];

    let (outcome, ()) = tokio::join!(stream.read(&mut buffer), async { link.sever() });

    assert_eq!(
        outcome.unwrap_err().kind(),
        io::ErrorKind::ConnectionAborted
    );
    assert!(stream.write(b"x").await.is_err());
}
