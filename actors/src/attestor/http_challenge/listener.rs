//! A port that answers one question, for as long as its [`Listener`] lives.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use rustix::io::Errno;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{sleep, timeout};

/// Anybody may connect, and the server alone matters: the oldest of more connections than this makes room.
const MAX_CONNECTIONS: usize = 16;
/// Connections that the kernel keeps waiting.
const BACKLOG: u32 = 16;
/// From the first byte of a request to the last of its answer; the server waits no longer than this.
const CONNECTION_LIMIT: Duration = Duration::from_secs(10);
/// Largest request head in bytes.
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
    content: OnceCell<Vec<u8>>,
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
            .set((nonce + "\n").into_bytes())
            .map_err(|_| "there was one already".to_owned())
    }
}

impl Page {
    /// The whole answer to a request for `target`, the path with or without a query.
    fn answer(&self, method: &str, target: &str) -> Vec<u8> {
        let path = target.split('?').next().unwrap_or_default();
        match self.content.get().filter(|_| path == self.path) {
            None => response("404 Not Found", "", b""),
            Some(_) if method != "GET" => response("405 Method Not Allowed", "allow: GET\r\n", b""),
            Some(content) => {
                let header = "content-type: text/plain; charset=utf-8\r\n";
                response("200 OK", header, content)
            }
        }
    }
}

fn response(status: &str, header: &str, content: &[u8]) -> Vec<u8> {
    let length = content.len();
    let head = format!(
        "HTTP/1.1 {status}\r\n{header}content-length: {length}\r\nconnection: close\r\n\r\n"
    );
    [head.as_bytes(), content].concat()
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

async fn serve(mut stream: TcpStream, page: Rc<Page>) {
    match timeout(CONNECTION_LIMIT, exchange(&mut stream, &page)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a request for the challenge failed"),
        Err(_) => tracing::debug!("a request for the challenge took too long"),
    }
}

/// One request, one answer: hyper's server for this alone would cost more than the rest of the attestor.
async fn exchange(stream: &mut TcpStream, page: &Page) -> io::Result<()> {
    let mut head = Vec::new();
    let answer = loop {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(&head) {
            Ok(httparse::Status::Complete(_)) => {
                let method = request.method.unwrap_or_default();
                break page.answer(method, request.path.unwrap_or_default());
            }
            Ok(httparse::Status::Partial) if head.len() < MAX_HEAD_BYTES => {}
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                break response("431 Request Header Fields Too Large", "", b"");
            }
            Err(_) => break response("400 Bad Request", "", b""),
        }
        let room = MAX_HEAD_BYTES.saturating_sub(head.len());
        let mut limited = (&mut *stream).take(room as u64);
        if limited.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    };
    stream.write_all(&answer).await?;
    stream.shutdown().await
}
