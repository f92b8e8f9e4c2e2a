//! Sockets, TLS and HTTP/2: the thread of a server, its accept loop and its connections.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use std::{io, thread};

use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::authorize::PeerCertificate;
use crate::dispatch::Dispatcher;
use crate::services::Services;
use crate::state::Shared;
use crate::tls;

/// A pause after a failed accept, so that a full descriptor table does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What the server does as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Accepts connections.
    Serving,
    /// The port is closed and all connections are gone; it may serve again.
    Stopped,
    /// Over.
    Ended,
}

/// What happens to new connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConnectionFault {
    /// Nothing unusual.
    #[default]
    None,
    /// Accepted and reset at once.
    Reset,
    /// Accepted, then silence: no TLS handshake.
    Silent,
    /// The TLS handshake starts late.
    SlowHandshake(Duration),
    /// Every client certificate is refused with a TLS alert.
    RefuseCertificates,
}

/// What the network does to all connections; the counters are raised to trigger.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Network {
    pub(crate) new_connections: ConnectionFault,
    /// Open connections are neither read nor written: a cable that was cut.
    pub(crate) is_frozen: bool,
    pub(crate) go_aways: u64,
    pub(crate) closes: u64,
}

/// What a request may know of its connection, and do to it.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Counted from 1.
    pub(crate) number: u64,
    pub(crate) peer: Option<PeerCertificate>,
    pub(crate) close: Notify,
    pub(crate) go_away: Notify,
}

/// Listens on `bind` and starts the thread that serves.
pub(crate) fn start(
    shared: Arc<Shared>,
    bind: SocketAddr,
) -> io::Result<(SocketAddr, thread::JoinHandle<()>)> {
    let listener = std::net::TcpListener::bind(bind)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let thread = thread::Builder::new()
        .name("devserver".to_owned())
        .spawn(move || {
            runtime.block_on(run(&shared, listener, address));
            // Calls that still wait for something hold the state: let go of them before the end is told.
            drop(runtime);
            shared.reached(Phase::Ended);
        })?;
    Ok((address, thread))
}

/// Serves, pauses and serves again, as asked, until the end.
async fn run(shared: &Arc<Shared>, first: std::net::TcpListener, address: SocketAddr) {
    let mut wanted = shared.wanted.subscribe();
    let mut first = Some(first);
    loop {
        let phase = *wanted.borrow_and_update();
        match phase {
            Phase::Ended => return,
            Phase::Stopped => {
                first = None;
                shared.reached(Phase::Stopped);
                if wanted.changed().await.is_err() {
                    return;
                }
            }
            Phase::Serving => {
                let listener = match first.take() {
                    Some(listener) => TcpListener::from_std(listener),
                    None => TcpListener::bind(address).await,
                };
                match listener {
                    Ok(listener) => {
                        shared.reached(Phase::Serving);
                        accept(shared, &listener, &mut wanted).await;
                    }
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                }
            }
        }
    }
}

/// Accepts connections until another phase is asked for; then all of them end.
async fn accept(shared: &Arc<Shared>, listener: &TcpListener, wanted: &mut watch::Receiver<Phase>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connect(Arc::clone(shared), stream));
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
            Some(_) = connections.join_next() => {}
            _ = wanted.changed() => return connections.shutdown().await,
        }
    }
}

/// One connection from its first byte to its last.
async fn connect(shared: Arc<Shared>, stream: TcpStream) {
    let fault = shared.network.borrow().new_connections;
    match fault {
        ConnectionFault::None | ConnectionFault::RefuseCertificates => {}
        ConnectionFault::Reset => return reset(&stream),
        ConnectionFault::Silent => std::future::pending().await,
        ConnectionFault::SlowHandshake(delay) => tokio::time::sleep(delay).await,
    }
    match handshake(&shared, stream, fault).await {
        Ok((stream, connection)) => serve(&shared, stream, connection).await,
        Err(error) => shared
            .state()
            .script
            .handshake_failures
            .push(error.to_string()),
    }
}

/// Makes the end of `stream` a reset instead of an orderly close.
fn reset(stream: &TcpStream) {
    // Where the socket is already gone there is nothing left to reset.
    drop(stream.set_zero_linger());
}

async fn handshake(
    shared: &Arc<Shared>,
    stream: TcpStream,
    fault: ConnectionFault,
) -> io::Result<(TlsStream<TcpStream>, Connection)> {
    stream.set_nodelay(true)?;
    let refuses_certificates = fault == ConnectionFault::RefuseCertificates;
    let config =
        tls::server_config(&shared.state(), refuses_certificates).map_err(io::Error::other)?;
    let stream = TlsAcceptor::from(Arc::new(config)).accept(stream).await?;
    let (_, session) = stream.get_ref();
    if session.alpn_protocol() != Some(b"h2") {
        return Err(io::Error::other("the client does not offer h2"));
    }
    let peer = session
        .peer_certificates()
        .and_then(|chain| chain.first())
        .map(|leaf| {
            tls::peer_certificate(leaf)
                .ok_or_else(|| io::Error::other("the client has no SPIFFE ID"))
        })
        .transpose()?;
    let mut state = shared.state();
    state.connections += 1;
    let connection = Connection {
        number: state.connections,
        peer,
        close: Notify::new(),
        go_away: Notify::new(),
    };
    drop(state);
    Ok((stream, connection))
}

/// Serves HTTP/2 until the client goes, the server asks it to, or a fault ends the connection.
async fn serve(shared: &Arc<Shared>, stream: TlsStream<TcpStream>, connection: Connection) {
    let connection = Arc::new(connection);
    let mut network = shared.network.subscribe();
    let at_start = *network.borrow_and_update();
    let age = shared.state().settings.connection_age;
    let dispatcher = Dispatcher {
        services: Services {
            shared: Arc::clone(shared),
        },
        connection: Arc::clone(&connection),
    };
    let served = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), dispatcher);
    let mut served = pin!(served);
    let mut end_of_age = pin!(sleep_or_never(age));
    let mut is_old = false;
    let mut go_aways = at_start.go_aways;
    loop {
        tokio::select! {
            biased;
            () = connection.close.notified() => return,
            changed = network.changed() => {
                let now = *network.borrow_and_update();
                if changed.is_err() || now.closes != at_start.closes {
                    return;
                }
                if now.go_aways != go_aways {
                    go_aways = now.go_aways;
                    served.as_mut().graceful_shutdown();
                }
                // While this waits nobody polls the connection, so no byte comes in or goes out.
                if network.wait_for(|network| !network.is_frozen).await.is_err() {
                    return;
                }
            }
            () = connection.go_away.notified() => served.as_mut().graceful_shutdown(),
            () = &mut end_of_age, if !is_old => {
                is_old = true;
                served.as_mut().graceful_shutdown();
            }
            _ = &mut served => return,
        }
    }
}

async fn sleep_or_never(delay: Option<Duration>) {
    match delay {
        Some(delay) => tokio::time::sleep(delay).await,
        None => std::future::pending().await,
    }
}
