//! [`MendedIo`] stands between a client's connection and hyper's HTTP/2 server: it reads through a
//! [`Mender`](super::authority::Mender) and writes straight through. What is mended is decided there.

use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::authority::{Mender, Step};

/// A server's end of a connection whose `:authority` values are valid. Bytes that need no mending are read into the
/// reader's buffer and stay there; a buffer exists only while mended bytes wait for room.
#[derive(Debug)]
pub struct MendedIo<T> {
    io: T,
    mender: Mender,
    waiting: Waiting,
}

/// Bytes that go to the reader before any others.
#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    /// How many of them have gone.
    gone: usize,
}

impl<T> MendedIo<T> {
    /// Mends what is read from `io`, a new connection.
    pub fn new(io: T) -> Self {
        Self {
            io,
            mender: Mender::new(),
            waiting: Waiting::default(),
        }
    }

    /// The connection itself, for its peer's credentials.
    pub fn get_ref(&self) -> &T {
        &self.io
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for MendedIo<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        // To be ready with no new bytes would mean the end of the stream, so bytes held back make us read again.
        while buf.filled().len() == before && buf.remaining() > 0 {
            if this.waiting.move_to(buf) {
                continue;
            }
            ready!(Pin::new(&mut this.io).poll_read(cx, buf))?;
            if buf.filled().len() == before {
                this.waiting = Waiting::from(this.mender.finish());
                if this.waiting.bytes.is_empty() {
                    break;
                }
            } else {
                this.waiting = mend(&mut this.mender, buf, before);
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for MendedIo<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

impl Waiting {
    /// Moves what fits; false when nothing waits. The buffer is freed with its last byte.
    fn move_to(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let left = self.bytes.get(self.gone..).unwrap_or_default();
        let going = left.len().min(buf.remaining());
        buf.put_slice(left.get(..going).unwrap_or_default());
        self.gone += going;
        if self.gone == self.bytes.len() {
            *self = Self::default();
        }
        going > 0
    }
}

impl From<Vec<u8>> for Waiting {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, gone: 0 }
    }
}

impl std::fmt::Debug for Waiting {
    /// Without the bytes: they may be a token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Waiting")
            .field("left", &(self.bytes.len() - self.gone))
            .finish()
    }
}

/// Mends what `buf` has gained after `before`. Bytes stay where they are up to the first that do not pass; what goes on
/// in place of the rest waits.
fn mend(mender: &mut Mender, buf: &mut ReadBuf<'_>, before: usize) -> Waiting {
    let mut waiting = Vec::new();
    let mut kept = before;
    while let Some(rest) = buf.filled().get(kept..).filter(|rest| !rest.is_empty()) {
        match mender.step(rest) {
            Step::Pass(length) => kept += length,
            Step::Replace { taken, with } => {
                waiting = with;
                mender.push(rest.get(taken..).unwrap_or_default(), &mut waiting);
                break;
            }
        }
    }
    buf.set_filled(kept);
    Waiting::from(waiting)
}

#[cfg(test)]
mod tests;
