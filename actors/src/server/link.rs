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
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Sleep};

use super::frames::{FrameTracker, PING_FRAME, PingBudget};

/// How long things may be quiet.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinkLimits {
    /// A stream that no call needs is closed after this time (design D17).
    pub(super) idle: Duration,
    /// What a stream without owner, which is closing, gets at most.
    pub(super) farewell: Duration,
    /// While a call runs.
    pub(super) call: PingLimits,
    /// While nothing but calls that wait in a queue run.
    pub(super) queue: PingLimits,
}

/// When a silent peer is asked whether it is still there (design D8).
#[derive(Debug, Clone, Copy)]
pub(super) struct PingLimits {
    /// Silence before a ping goes out.
    pub(super) after: Duration,
    /// How long the answer may take: then the stream is given up.
    pub(super) answer: Duration,
}

/// How soon a call is to learn that its peer is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// Soon: others may wait for its end.
    Call,
    /// The server may have it wait for minutes.
    Queue,
}

/// What both ends of the stream know: the task that drives it, and the callers.
#[derive(Debug)]
pub(super) struct Link {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    calls: usize,
    queued: usize,
    /// Since when there has been a call; the silence before is nobody's.
    needed_since: Instant,
    last_used: Instant,
    retired: bool,
    last_read: Option<Instant>,
    alert: Option<AlertDescription>,
    over: bool,
    driver: Option<Waker>,
}

/// A call that needs the stream, until dropped.
#[derive(Debug)]
pub(super) struct Need {
    link: Arc<Link>,
    patience: Patience,
}

/// The stream itself, as the HTTP/2 connection reads and writes it.
#[derive(Debug)]
pub(super) struct LinkStream<S> {
    stream: S,
    link: Arc<Link>,
    limits: LinkLimits,
    timer: Pin<Box<Sleep>>,
    written: FrameTracker,
    read: FrameTracker,
    pings: PingBudget,
    /// What is still to be written of a ping.
    ping_rest: &'static [u8],
    /// A failed write whose reason is still to be read.
    broken: Option<io::Error>,
    /// When a ping was sent that nothing has been read after, and how long its answer may take.
    asked: Option<(Instant, Duration)>,
    /// Free again once the stream is closed: the fields are dropped in order.
    _place: Option<OwnedSemaphorePermit>,
}

/// What the clock says.
enum Next {
    /// Nothing before this instant.
    At(Instant),
    /// The stream ends in peace.
    End,
}

impl Link {
    /// Wraps a stream, which gives `place` back at its end.
    pub(super) fn wrap<S>(
        stream: S,
        limits: LinkLimits,
        place: Option<OwnedSemaphorePermit>,
    ) -> (Arc<Self>, LinkStream<S>) {
        let now = Instant::now();
        let state = State {
            calls: 0,
            queued: 0,
            needed_since: now,
            last_used: now,
            retired: false,
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
            timer: Box::pin(tokio::time::sleep(limits.idle)),
            written: FrameTracker::after_preface(),
            read: FrameTracker::from_frame(),
            pings: PingBudget::default(),
            ping_rest: &[],
            broken: None,
            asked: None,
            _place: place,
        };
        (link, stream)
    }

    /// Marks the stream as needed until the result is dropped.
    pub(super) fn needed(self: &Arc<Self>, patience: Patience) -> Need {
        let mut state = self.state();
        if state.calls == 0 {
            state.needed_since = Instant::now();
        }
        state.calls += 1;
        state.queued += usize::from(patience == Patience::Queue);
        Need {
            link: Arc::clone(self),
            patience,
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
        self.tell(|state| state.over = true);
    }

    /// Nobody will call any more: what is left to be said is said soon.
    pub(super) fn retire(&self) {
        self.tell(|state| state.retired = true);
    }

    fn tell(&self, change: impl FnOnce(&mut State)) {
        let driver = {
            let mut state = self.state();
            change(&mut state);
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
        state.queued -= usize::from(self.patience == Patience::Queue);
        state.last_used = Instant::now();
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> LinkStream<S> {
    /// Looks at the clock and sets the timer. `Err` ends the stream; `Ok(true)` ends it in peace.
    fn poll_timer(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        loop {
            let Next::At(due) = self.look(Instant::now())? else {
                return Ok(true);
            };
            // A timer that fires early is cheaper than one that is set at each read.
            if self.timer.is_elapsed() || due < self.timer.deadline() {
                self.timer.as_mut().reset(due);
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Ok(false);
            }
        }
    }

    /// What is due at `now`, and what comes next.
    fn look(&mut self, now: Instant) -> io::Result<Next> {
        let (calls, all_queued, retired, needed_since, last_read, last_used) = {
            let state = self.link.state();
            (
                state.calls,
                state.calls == state.queued,
                state.retired,
                state.needed_since,
                state.last_read,
                state.last_used,
            )
        };
        if let Some((asked_at, limit)) = self.asked {
            if last_read.is_some_and(|last_read| last_read >= asked_at) {
                self.asked = None;
            } else if now >= asked_at + limit {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("no answer to a ping within {limit:?}"),
                ));
            } else if calls > 0 {
                return Ok(Next::At(asked_at + limit));
            }
        }
        if calls == 0 {
            let due = last_used
                + if retired {
                    self.limits.farewell
                } else {
                    self.limits.idle
                };
            return Ok(if now >= due { Next::End } else { Next::At(due) });
        }
        let limits = if all_queued {
            self.limits.queue
        } else {
            self.limits.call
        };
        let quiet_since = last_read.map_or(needed_since, |last_read| last_read.max(needed_since));
        let due = quiet_since + limits.after;
        if now < due {
            return Ok(Next::At(due));
        }
        if !self.pings.take(now.into_std()) {
            return Ok(Next::At(now + limits.after));
        }
        self.ping_rest = &PING_FRAME;
        self.asked = Some((now, limits.answer));
        Ok(Next::At(now + limits.answer))
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

    /// After a failed write the reason may still wait to be read: an alert of the server. The runtime may not know yet that there is something
    /// to read, so a failed write is told only after the read that is bound to come.
    fn poll_broken(&mut self, cx: &mut Context<'_>, error: io::Error) -> Poll<io::Error> {
        let mut scratch = [0; 512];
        for _ in 0..8 {
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(&mut self.stream).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
                Poll::Ready(Ok(())) => break,
                Poll::Ready(Err(reason)) => {
                    self.link.note_error(&reason);
                    break;
                }
                Poll::Pending => {
                    self.broken = Some(error);
                    return Poll::Pending;
                }
            }
        }
        self.link.note_error(&error);
        Poll::Ready(error)
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
                let read = buffer.filled().get(had..).unwrap_or_default();
                if this.read.advance(read) {
                    this.pings.renew();
                }
                let mut state = this.link.state();
                if read.is_empty() {
                    state.over = true;
                } else {
                    state.last_read = Some(Instant::now());
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
        if let Some(error) = this.broken.take() {
            return this.poll_broken(cx, error).map(Err);
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
            Poll::Ready(Err(error)) => this.poll_broken(cx, error).map(Err),
            Poll::Pending => Poll::Pending,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let error = match this.broken.take() {
            Some(error) => error,
            None => match Pin::new(&mut this.stream).poll_flush(cx) {
                Poll::Ready(Err(error)) => error,
                flushed @ (Poll::Ready(Ok(())) | Poll::Pending) => return flushed,
            },
        };
        this.poll_broken(cx, error).map(Err)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests;
