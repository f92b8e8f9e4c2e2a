//! From a listener to answered requests: the accept loop, and one task for each connection.

use std::cell::Cell;
use std::io::{IoSlice, Result};
use std::path::Path;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};

use crate::peer::Peer;
use crate::sys;

use super::authority_io::MendedIo;
use super::caller::{Caller, Gate};
use super::census::{Census, Place};
use super::routes::{Front, Routes};
use super::sockets::LocalListener;
use super::stage::{Stage, StageReader};

/// How long the loop rests after a failed accept: without it, a process out of descriptors spins (measured: 95 % of a core).
const ACCEPT_PAUSE: Duration = Duration::from_millis(75);
/// How long a client may take for its HTTP/2 preface and the head of its first SETTINGS.
const GREETING_LIMIT: Duration = Duration::from_secs(10);
/// Preface and frame head: who got so far without being cut off by hyper speaks HTTP/2 (RFC 9113 3.4).
const GREETING_BYTES: usize = 24 + 9;
/// How long after a burst of ends freed memory is given back.
const TRIM_DELAY: Duration = Duration::from_secs(5);

/// Calls in flight on one connection. Memory is bounded by a user's calls on all of them.
const STREAMS_MAX: u32 = 1_000;
/// Calls that a client may cancel before they are seen, at once, before its connection is taken for an attack (CVE-2023-44487). A pool
/// that drops a batch of calls must not lose its open streams with them, as it would at 20, the default.
const UNSEEN_CANCELS_MAX: usize = 5_000;
/// Calls answered with an error of the protocol, in the life of a connection: a client that asks beyond [`STREAMS_MAX`] collects them.
const REFUSED_STREAMS_MAX: usize = 50_000;
/// The longest header list in bytes.
const HEADER_LIST_BYTES_MAX: u32 = 16 * 1024;
/// Requests are tiny: so much may come unasked on one stream, and on all of a connection.
const STREAM_WINDOW_BYTES: u32 = 16 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 64 * 1024;
/// So much of an answer is buffered for a slow reader.
const SEND_BUFFER_BYTES: usize = 16 * 1024;

/// What stands behind one listener.
#[derive(Debug)]
pub(super) struct Door {
    routes: Arc<Routes>,
    gate: Arc<Gate>,
    census: Rc<Census>,
    http: http2::Builder<LocalTasks>,
}

/// Runs a connection's calls on the actors' thread. They end with their connection, and each end is counted.
#[derive(Debug, Clone)]
struct LocalTasks(Rc<Census>);

/// Counts the bytes read.
struct Counted<T> {
    io: T,
    bytes: Rc<Cell<usize>>,
}

impl Door {
    /// A door to these services.
    pub(super) fn new(routes: Routes, gate: Arc<Gate>, census: Rc<Census>) -> Self {
        let mut http = http2::Builder::new(LocalTasks(Rc::clone(&census)));
        http.max_concurrent_streams(STREAMS_MAX)
            .max_pending_accept_reset_streams(UNSEEN_CANCELS_MAX)
            .max_local_error_reset_streams(REFUSED_STREAMS_MAX)
            .max_header_list_size(HEADER_LIST_BYTES_MAX)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_send_buf_size(SEND_BUFFER_BYTES)
            .auto_date_header(false);
        Self {
            routes: Arc::new(routes),
            gate,
            census,
            http,
        }
    }

    /// Says in the log what is served where.
    pub(super) fn announce(&self, path: &Path) {
        let (address, apis) = (path.display(), self.routes.apis());
        match *self.routes {
            Routes::Public { .. } => {
                tracing::info!(network = "unix", %address, apis, "Starting agent APIs");
            }
            Routes::Admin { .. } => {
                tracing::info!(network = "unix", %address, apis, "Starting Admin APIs");
            }
        }
    }

    /// Counts the connection and finds out who it is; `None` if it is closed at once.
    fn admit(&self, stream: &UnixStream) -> Option<(Place, Caller)> {
        let uid = match stream.peer_cred() {
            Ok(credentials) => credentials.uid(),
            Err(error) => {
                self.gate.log_failed_accept(None, &error);
                return None;
            }
        };
        let Some(place) = self.census.enter(uid) else {
            self.gate.log_too_many_connections(uid);
            return None;
        };
        match Peer::of(stream) {
            Ok(peer) => Some((place, Caller::new(peer))),
            Err(error) => {
                self.gate.log_failed_accept(Some(uid), &error);
                None
            }
        }
    }

    /// Answers one connection until it ends, its process ends, or the endpoint does.
    async fn converse(&self, stream: UnixStream, caller: Arc<Caller>) {
        let bytes = Rc::new(Cell::new(0));
        let io = TokioIo::new(MendedIo::new(Counted {
            io: stream,
            bytes: Rc::clone(&bytes),
        }));
        let (gate, routes) = (Arc::clone(&self.gate), Arc::clone(&self.routes));
        let front = Front {
            caller: Arc::clone(&caller),
            gate,
            routes,
            census: Rc::clone(&self.census),
        };
        let mut connection = pin!(self.http.serve_connection(io, front));
        let mut exited = pin!(caller.peer.exited());
        let mut greeting = pin!(tokio::time::sleep(GREETING_LIMIT));
        let mut is_greeted = false;
        let mut stage = self.gate.stage();
        // Shutdown may have begun since the connection was accepted: look at once.
        stage.mark_changed();
        loop {
            // In this order, so that a caller found gone is hung up on before its answer is written.
            tokio::select! {
                biased;
                () = &mut exited => return,
                () = caller.hung_up() => return,
                is_draining = leaving(&mut stage) => {
                    if !is_draining {
                        return;
                    }
                    connection.as_mut().graceful_shutdown();
                }
                outcome = &mut connection => {
                    if let Err(error) = outcome {
                        tracing::trace!(pid = caller.peer.pid, %error, "local connection ended");
                    }
                    return;
                }
                () = &mut greeting, if !is_greeted => {
                    if bytes.get() < GREETING_BYTES {
                        return;
                    }
                    is_greeted = true;
                }
            }
        }
    }
}

/// Accepts until its task is aborted. The socket's file goes with the listener.
#[expect(clippy::infinite_loop, reason = "shutdown aborts the task")]
pub(super) async fn serve(listener: LocalListener, door: Rc<Door>) {
    let (listener, _file) = listener.into_parts();
    let listener = watched(listener);
    let mut is_failing = false;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                is_failing = false;
                if let Some((place, caller)) = door.admit(&stream) {
                    tokio::task::spawn_local(attend(
                        Rc::clone(&door),
                        stream,
                        place,
                        Arc::new(caller),
                    ));
                }
            }
            Err(error) => {
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::warn!(%error, "accepting local connections fails");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// An agent that listens and never accepts would look alive: the panic ends the process instead.
fn watched(listener: std::os::unix::net::UnixListener) -> UnixListener {
    UnixListener::from_std(listener).expect("a bound listener can be watched")
}

async fn attend(door: Rc<Door>, stream: UnixStream, place: Place, caller: Arc<Caller>) {
    Box::pin(door.converse(stream, caller)).await;
    drop(place);
    trim_later(&door.census);
}

/// After a burst of ends, and a while for more of them, freed memory is given back.
fn trim_later(census: &Rc<Census>) {
    if census.asks_for_trim() {
        let census = Rc::clone(census);
        tokio::task::spawn_local(async move {
            tokio::time::sleep(TRIM_DELAY).await;
            sys::trim_heap();
            census.trimmed();
        });
    }
}

/// Waits for the endpoint's end: true while calls may still end in order, false when connections are cut.
async fn leaving(stage: &mut StageReader) -> bool {
    loop {
        if stage.changed().await.is_err() {
            return false;
        }
        match *stage.borrow_and_update() {
            Stage::Serving | Stage::Revoked(_) => {}
            Stage::Draining => return true,
            Stage::Closed => return false,
        }
    }
}

impl<F> hyper::rt::Executor<F> for LocalTasks
where
    F: Future + 'static,
    F::Output: 'static,
{
    fn execute(&self, future: F) {
        let census = Rc::clone(&self.0);
        tokio::task::spawn_local(async move {
            future.await;
            trim_later(&census);
        });
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Counted<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        self.bytes.set(
            self.bytes
                .get()
                .saturating_add(buffer.filled().len() - before),
        );
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;

    #[tokio::test]
    #[should_panic(expected = "a bound listener can be watched")]
    async fn an_agent_that_cannot_accept_does_not_live_on() {
        // The reactor refuses files.
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        let listener = std::os::unix::net::UnixListener::from(file);
        listener.set_nonblocking(true).unwrap();

        watched(listener);
    }
}
