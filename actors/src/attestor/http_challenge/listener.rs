//! A port that answers one question, for as long as its [`Listener`] lives.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::ready;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustix::io::Errno;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{sleep, timeout};

/// Anybody may connect, and the server alone matters: the oldest of more connections than this makes room.
const MAX_CONNECTIONS: usize = 16;
/// Connections that the kernel keeps waiting.
const BACKLOG: u32 = 16;
/// From the first byte of a request to the last of its answer; the server waits no longer than this.
const CONNECTION_LIMIT: Duration = Duration::from_secs(10);
/// Largest request head in bytes; also the least that hyper allows.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// Most header lines in a request.
const MAX_HEADERS: usize = 32;
/// Rest after a failure to accept, most likely for want of descriptors: trying at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// An open port. It closes, and what is under way ends, when this is dropped.
#[derive(Debug)]
pub(super) struct Listener {
    port: u16,
    page: Rc<Page>,
    _task: Task,
}

/// What is served.
#[derive(Debug)]
struct Page {
    path: String,
    /// Not set before the server has asked.
    content: OnceCell<Bytes>,
}

/// A task of the actors' thread that ends with its owner.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Listener {
    /// Listens on all addresses, on any free port if `port` is 0. Nothing is at `path` yet.
    pub(super) fn open(port: u16, path: String) -> io::Result<Self> {
        let listener = bind(port)?;
        let port = listener.local_addr()?.port();
        let page = Rc::new(Page {
            path,
            content: OnceCell::new(),
        });
        let served = Rc::clone(&page);
        let task = Task(spawn_local(async { accept(listener, served).await }));
        Ok(Self {
            port,
            page,
            _task: task,
        })
    }

    /// The TCP port.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Serves the nonce from now on. There is only one.
    pub(super) fn publish(&self, nonce: String) -> Result<(), String> {
        self.page
            .content
            .set(Bytes::from(nonce + "\n"))
            .map_err(|_| "there was one already".to_owned())
    }
}

impl Page {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let content = self
            .content
            .get()
            .filter(|_| request.uri().path() == self.path);
        let Some(content) = content else {
            return bare(StatusCode::NOT_FOUND);
        };
        if request.method() != Method::GET {
            let mut refusal = bare(StatusCode::METHOD_NOT_ALLOWED);
            let get = HeaderValue::from_static("GET");
            refusal.headers_mut().insert(ALLOW, get);
            return refusal;
        }
        let mut answer = Response::new(Full::new(content.clone()));
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        answer.headers_mut().insert(CONTENT_TYPE, text);
        answer
    }
}

fn bare(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

/// IPv6 and IPv4 in one socket; IPv4 alone where the host has no IPv6.
fn bind(port: u16) -> io::Result<TcpListener> {
    match listen(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))) {
        Err(error) if lacks_ipv6(&error) => listen(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))),
        outcome => outcome,
    }
}

fn lacks_ipv6(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::AFNOSUPPORT | Errno::PROTONOSUPPORT | Errno::ADDRNOTAVAIL)
    )
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv6() {
        let socket = TcpSocket::new_v6()?;
        // Hosts may have it the other way round by default.
        rustix::net::sockopt::set_ipv6_v6only(&socket, false)?;
        socket
    } else {
        TcpSocket::new_v4()?
    };
    // Connections of the attestation before must not keep a fixed port from this one.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn accept(listener: TcpListener, page: Rc<Page>) -> ! {
    let mut connections: VecDeque<Task> = VecDeque::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "connection not accepted");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        connections.retain(|connection| !connection.0.is_finished());
        if connections.len() >= MAX_CONNECTIONS {
            connections.pop_front();
        }
        connections.push_back(Task(spawn_local(serve(stream, Rc::clone(&page)))));
    }
}

async fn serve(stream: TcpStream, page: Rc<Page>) {
    let service = service_fn(|request| ready(Ok::<_, Infallible>(page.answer(&request))));
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(MAX_HEAD_BYTES)
        .max_headers(MAX_HEADERS)
        // The limit below is for all of it.
        .header_read_timeout(None)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(CONNECTION_LIMIT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a request for the challenge failed"),
        Err(_) => tracing::debug!("a request for the challenge took too long"),
    }
}
