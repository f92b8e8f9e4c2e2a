//! The byte stream under one connection to the server. Owns the knowledge of life and death on it: when something was
//! last read, which TLS alert ended it, whether anybody needs it. Pings while a caller waits in silence, and ends the
//! stream when nobody has needed it for a while, both from within the task that drives the connection. Decisions are in
//! [`frames`].

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustls::AlertDescription;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use super::frames::{FrameTracker, PING_FRAME, PingBudget};

/// How long things may be quiet.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinkLimits {
    /// A stream that no call needs is closed after this time (design D17).
    pub(super) idle: Duration,
    /// Silence before a ping goes out (design D8).
    pub(super) before_ping: Duration,
    /// How long the answer to a ping may take.
    pub(super) ping_answer: Duration,
}

/// What both ends of the stream know: the task that drives it, and the callers.
#[derive(Debug)]
pub(super) struct Link {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    calls: usize,
    waiting_in_silence: usize,
    last_used: Instant,
    last_read: Option<Instant>,
    alert: Option<AlertDescription>,
    over: bool,
    driver: Option<Waker>,
}

/// A call that needs the stream, until dropped.
#[derive(Debug)]
pub(super) struct Need {
    link: Arc<Link>,
    in_silence: bool,
}

/// The stream itself, as the HTTP/2 connection reads and writes it.
#[derive(Debug)]
pub(super) struct LinkStream<S> {
    stream: S,
    link: Arc<Link>,
    limits: LinkLimits,
    timer: Pin<Box<Sleep>>,
    written: FrameTracker,
    pings: PingBudget,
    /// What is still to be written of a ping.
    ping_rest: &'static [u8],
    /// When a ping was sent that nothing has been read after.
    asked_at: Option<Instant>,
}

impl Link {
    /// Wraps a stream.
    pub(super) fn wrap<S>(stream: S, limits: LinkLimits) -> (Arc<Self>, LinkStream<S>) {
        let now = Instant::now();
        let state = State {
            calls: 0,
            waiting_in_silence: 0,
            last_used: now,
            last_read: None,
            alert: None,
            over: false,
            driver: None,
        };
        let link = Arc::new(Self {
            state: Mutex::new(state),
        });
        let stream = LinkStream {
            stream,
            link: Arc::clone(&link),
            limits,
            timer: Box::pin(tokio::time::sleep(limits.idle.min(limits.before_ping))),
            written: FrameTracker::after_preface(),
            pings: PingBudget::default(),
            ping_rest: &[],
            asked_at: None,
        };
        (link, stream)
    }

    /// Marks the stream as needed. `in_silence` says that the server may be silent for minutes, so that pings are due.
    pub(super) fn needed(self: &Arc<Self>, in_silence: bool) -> Need {
        let mut state = self.state();
        state.calls += 1;
        state.waiting_in_silence += usize::from(in_silence);
        Need {
            link: Arc::clone(self),
            in_silence,
        }
    }

    /// When something was last read; none = never.
    pub(super) fn last_read(&self) -> Option<Instant> {
        self.state().last_read
    }

    /// The TLS alert that ended the stream.
    pub(super) fn alert(&self) -> Option<AlertDescription> {
        self.state().alert
    }

    /// Whether the stream has ended.
    pub(super) fn is_over(&self) -> bool {
        self.state().over
    }

    /// Ends the stream at once; calls on it fail.
    pub(super) fn sever(&self) {
        let driver = {
            let mut state = self.state();
            state.over = true;
            state.driver.take()
        };
        if let Some(driver) = driver {
            driver.wake();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_error(&self, error: &io::Error) {
        let tls: Option<&rustls::Error> = error.get_ref().and_then(|inner| inner.downcast_ref());
        let alert = if let Some(rustls::Error::AlertReceived(alert)) = tls {
            Some(*alert)
        } else {
            None
        };
        let mut state = self.state();
        state.over = true;
        state.alert = state.alert.or(alert);
    }
}

impl Drop for Need {
    fn drop(&mut self) {
        let mut state = self.link.state();
        state.calls -= 1;
        state.waiting_in_silence -= usize::from(self.in_silence);
        state.last_used = Instant::now();
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> LinkStream<S> {
    /// Looks at the clock. `Err` ends the stream; `Ok(true)` ends it in peace.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        while self.timer.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            let (calls, waiting, last_used, last_read) = {
                let state = self.link.state();
                (
                    state.calls,
                    state.waiting_in_silence,
                    state.last_used,
                    state.last_read.unwrap_or(state.last_used),
                )
            };
            if let Some(asked_at) = self.asked_at {
                if last_read >= asked_at {
                    self.asked_at = None;
                } else if now >= asked_at + self.limits.ping_answer {
                    return Err(io::Error::new(
                        io::ErrorKind::TimedOut,
                        "no answer to a ping",
                    ));
                }
            }
            if calls == 0 && now >= last_used + self.limits.idle {
                return Ok(true);
            }
            if waiting > 0
                && self.asked_at.is_none()
                && now >= last_read + self.limits.before_ping
                && self.pings.take(now.into_std())
            {
                self.ping_rest = &PING_FRAME;
                self.asked_at = Some(now);
            }
            let next = match self.asked_at {
                Some(asked_at) => asked_at + self.limits.ping_answer,
                None if calls == 0 => last_used + self.limits.idle,
                None => {
                    (last_read + self.limits.before_ping).max(now + self.limits.before_ping / 4)
                }
            };
            self.timer.as_mut().reset(next);
        }
        Ok(false)
    }

    /// Writes what is left of a ping, once no frame is half written.
    fn poll_ping(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.ping_rest.is_empty() || !self.written.is_between_frames() {
            return Poll::Ready(Ok(()));
        }
        while !self.ping_rest.is_empty() {
            match Pin::new(&mut self.stream).poll_write(cx, self.ping_rest) {
                Poll::Ready(Ok(count)) => {
                    self.ping_rest = self.ping_rest.get(count..).unwrap_or_default();
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        match Pin::new(&mut self.stream).poll_flush(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(())),
        }
    }

    /// After a failed write the reason may still wait to be read: an alert of the server.
    fn look_for_alert(&mut self, cx: &mut Context<'_>) {
        let mut scratch = [0; 512];
        for _ in 0..8 {
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
                Poll::Ready(Err(error)) => return self.link.note_error(&error),
                Poll::Ready(Ok(())) | Poll::Pending => return,
            }
        }
    }

    fn severed() -> io::Error {
        io::Error::new(io::ErrorKind::ConnectionAborted, "given up")
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for LinkStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        {
            let mut state = this.link.state();
            if state.over {
                return Poll::Ready(Err(Self::severed()));
            }
            state.driver = Some(cx.waker().clone());
        }
        let had = buffer.filled().len();
        match Pin::new(&mut this.stream).poll_read(cx, buffer) {
            Poll::Ready(Ok(())) => {
                let mut state = this.link.state();
                if buffer.filled().len() > had {
                    state.last_read = Some(Instant::now());
                } else {
                    state.over = true;
                }
                return Poll::Ready(Ok(()));
            }
            Poll::Ready(Err(error)) => {
                this.link.note_error(&error);
                return Poll::Ready(Err(error));
            }
            Poll::Pending => {}
        }
        match this.poll_timer(cx) {
            Ok(false) => {}
            Ok(true) => {
                this.link.state().over = true;
                // Whether or not the farewell fits into the socket now, the stream is over.
                drop(Pin::new(&mut this.stream).poll_shutdown(cx));
                return Poll::Ready(Ok(()));
            }
            Err(error) => {
                this.link.note_error(&error);
                return Poll::Ready(Err(error));
            }
        }
        if let Poll::Ready(Err(error)) = this.poll_ping(cx) {
            this.link.note_error(&error);
            return Poll::Ready(Err(error));
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LinkStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.link.is_over() {
            return Poll::Ready(Err(Self::severed()));
        }
        match this.poll_ping(cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        }
        match Pin::new(&mut this.stream).poll_write(cx, bytes) {
            Poll::Ready(Ok(count)) => {
                this.written.advance(bytes.get(..count).unwrap_or(bytes));
                Poll::Ready(Ok(count))
            }
            Poll::Ready(Err(error)) => {
                this.look_for_alert(cx);
                this.link.note_error(&error);
                Poll::Ready(Err(error))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    const LIMITS: LinkLimits = LinkLimits {
        idle: Duration::from_secs(30),
        before_ping: Duration::from_secs(30),
        ping_answer: Duration::from_secs(15),
    };

    /// A link whose preface is written, and the server's end.
    async fn link() -> (Arc<Link>, LinkStream<DuplexStream>, DuplexStream) {
        let (near, mut far) = duplex(1 << 16);
        let (link, mut stream) = Link::wrap(near, LIMITS);
        stream.write_all(&[1; 24]).await.unwrap();
        far.read_exact(&mut [0; 24]).await.unwrap();
        (link, stream, far)
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_that_nobody_needs_ends_after_its_time() {
        let (link, mut stream, _far) = link().await;
        let opened = Instant::now();
        let need = link.needed(false);
        let dropped_after = Duration::from_secs(45);
        let read = async {
            let count = stream.read(&mut [0; 8]).await.unwrap();
            (count, opened.elapsed().as_secs())
        };

        let (outcome, ()) = tokio::join!(read, async {
            tokio::time::sleep(dropped_after).await;
            drop(need);
        });

        assert_eq!(outcome, (0, 75));
        assert!(link.is_over());
    }

    #[tokio::test(start_paused = true)]
    async fn pings_go_out_in_silence_and_their_lack_of_an_answer_ends_the_link() {
        let (link, mut stream, mut far) = link().await;
        let opened = Instant::now();
        let _need = link.needed(true);
        let server = async {
            let mut pings = Vec::new();
            let mut ping = [0; PING_FRAME.len()];
            while far.read_exact(&mut ping).await.is_ok() {
                assert_eq!(ping, PING_FRAME);
                pings.push(opened.elapsed().as_secs());
                if pings.len() < 4 {
                    far.write_all(b"pong").await.unwrap();
                }
            }
            pings
        };
        let client = async {
            let error = loop {
                if let Err(error) = stream.read_exact(&mut [0; 4]).await {
                    break error;
                }
            };
            drop(stream);
            (error.kind(), opened.elapsed().as_secs())
        };

        let (pings, (kind, ended)) = tokio::join!(server, client);

        assert_eq!(kind, io::ErrorKind::TimedOut);
        assert_eq!(pings.len(), 4);
        assert!(
            pings
                .windows(2)
                .skip(1)
                .all(|pair| pair[1] - pair[0] >= 300),
            "{pings:?}"
        );
        assert!((15..=16).contains(&(ended - pings[3])), "{pings:?} {ended}");
    }

    #[tokio::test(start_paused = true)]
    async fn no_ping_goes_out_for_ordinary_calls_or_into_a_frame() {
        let (link, mut stream, mut far) = link().await;
        let ordinary = link.needed(false);
        let mut buffer = [0; 64];
        let waiting =
            tokio::time::timeout(Duration::from_secs(100), stream.read(&mut buffer)).await;
        assert!(waiting.is_err());
        drop(ordinary);

        let _patient = link.needed(true);
        stream
            .write_all(b"\x00\x00\x04\x00\x00\x00\x00\x00\x01ab")
            .await
            .unwrap();
        let waiting =
            tokio::time::timeout(Duration::from_secs(100), stream.read(&mut buffer)).await;
        assert!(!matches!(waiting, Ok(Ok(_))));

        let count = far.read(&mut buffer).await.unwrap();
        assert_eq!(buffer[..count], *b"\x00\x00\x04\x00\x00\x00\x00\x00\x01ab");
    }

    #[tokio::test(start_paused = true)]
    async fn a_severed_link_wakes_its_reader() {
        let (link, mut stream, _far) = link().await;
        let _need = link.needed(false);
        let mut buffer = [0; 8];

        let (outcome, ()) = tokio::join!(stream.read(&mut buffer), async { link.sever() });

        assert_eq!(
            outcome.unwrap_err().kind(),
            io::ErrorKind::ConnectionAborted
        );
        assert!(stream.write(b"x").await.is_err());
    }
}
