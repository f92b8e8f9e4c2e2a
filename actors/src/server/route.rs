//! The way to the server: the proxy before it, the addresses of either, TCP. Every step has a time limit of its own.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::address::ServerAddress;
use crate::proxy::{Proxies, Proxy, ProxyError};
use crate::random::Random;

/// Dead peers: probes after this time without traffic, this far apart; sent bytes that nobody acknowledges for that long.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;
const USER_TIMEOUT_MS: u32 = 30_000;
/// Addresses of one name that are tried: a name may have any number.
const MAX_ADDRESSES: usize = 16;
/// How many of them at once.
const AT_ONCE: usize = 2;

/// How long the steps to a connection may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct ConnectLimits {
    /// Resolving the name.
    pub(super) resolve: Duration,
    /// TCP, for each address.
    pub(super) connect: Duration,
    /// How long one address has a head start on the next.
    pub(super) head_start: Duration,
    /// The proxy's answer: it resolves and connects in that time.
    pub(super) tunnel: Duration,
    /// TLS.
    pub(super) handshake: Duration,
}

/// The way to one server.
#[derive(Debug)]
pub(super) struct Route {
    address: ServerAddress,
    proxy: Option<Proxy>,
    limits: ConnectLimits,
    random: RefCell<Random>,
}

impl Route {
    pub(super) fn new(
        address: ServerAddress,
        proxies: &Proxies,
        limits: ConnectLimits,
        random: Random,
    ) -> Result<Self, ProxyError> {
        Ok(Self {
            proxy: proxies.for_target(&address.host, address.port)?.cloned(),
            address,
            limits,
            random: RefCell::new(random),
        })
    }

    /// Where it leads.
    pub(super) fn address(&self) -> &ServerAddress {
        &self.address
    }

    /// A reason, and the proxy it concerns.
    pub(super) fn reason(&self, problem: &str) -> String {
        match &self.proxy {
            None => problem.to_owned(),
            Some(Proxy { host, port, .. }) if host.contains(':') => {
                format!("by proxy [{host}]:{port}: {problem}")
            }
            Some(Proxy { host, port, .. }) => format!("by proxy {host}:{port}: {problem}"),
        }
    }

    /// Opens a byte stream to the server. The error says what was wrong with each address.
    pub(super) async fn connect(&self) -> Result<TcpStream, String> {
        let ConnectLimits {
            connect,
            head_start,
            tunnel,
            ..
        } = self.limits;
        let addresses = self.addresses().await?;
        let attempt =
            async |address: SocketAddr| match timeout(connect, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => Ok(stream),
                Ok(Err(error)) => Err(format!("{address}: {error}")),
                Err(_) => Err(format!("{address}: no connection within {connect:?}")),
            };
        let stream = first_of(addresses, head_start, attempt)
            .await
            .map_err(|failures| failures.join("; "))?;
        if let Err(error) = tune(&stream) {
            tracing::debug!(%error, "unable to set socket options");
        }
        let Some(proxy) = &self.proxy else {
            return Ok(stream);
        };
        match timeout(tunnel, proxy.tunnel(stream, &self.address.peer)).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no tunnel within {tunnel:?}")),
        }
    }

    /// The addresses to connect to, in random order, one family after the other.
    async fn addresses(&self) -> Result<Vec<SocketAddr>, String> {
        let (host, port) = match &self.proxy {
            Some(proxy) => (proxy.host.as_str(), proxy.port),
            None => (self.address.host.as_str(), self.address.port),
        };
        let lookup = tokio::net::lookup_host((host, port));
        let mut addresses: Vec<_> = match timeout(self.limits.resolve, lookup).await {
            Ok(Ok(found)) => found.collect(),
            Ok(Err(error)) => return Err(format!("unable to resolve its name: {error}")),
            Err(_) => {
                return Err(format!(
                    "resolving its name took longer than {:?}",
                    self.limits.resolve
                ));
            }
        };
        if addresses.is_empty() {
            return Err("its name has no address".to_owned());
        }
        self.random.borrow_mut().shuffle(&mut addresses);
        let mut addresses = alternating(addresses);
        addresses.truncate(MAX_ADDRESSES);
        Ok(addresses)
    }
}

/// Puts the families in turn, lest all of one that leads nowhere come first (RFC 8305 4).
fn alternating(addresses: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let begins_with_6 = addresses.first().is_some_and(SocketAddr::is_ipv6);
    let (of_first, of_other): (Vec<_>, Vec<_>) = addresses
        .into_iter()
        .partition(|address| address.is_ipv6() == begins_with_6);
    let mut of_other = of_other.into_iter();
    let mut turns = Vec::new();
    for address in of_first {
        turns.push(address);
        turns.extend(of_other.next());
    }
    turns.extend(of_other);
    turns
}

/// The first connection that comes about. The next address has its turn when the one before has failed or has used up its head start, two
/// being tried at a time at most (RFC 8305 5). Without any: what was wrong with each.
async fn first_of<T, F: Future<Output = Result<T, String>>>(
    addresses: Vec<SocketAddr>,
    head_start: Duration,
    attempt: impl Fn(SocketAddr) -> F,
) -> Result<T, Vec<String>> {
    let mut waiting = addresses.into_iter();
    let mut running: Vec<Pin<Box<F>>> = Vec::with_capacity(AT_ONCE);
    let mut failures = Vec::new();
    loop {
        if running.len() < AT_ONCE {
            match waiting.next() {
                Some(address) => running.push(Box::pin(attempt(address))),
                None if running.is_empty() => return Err(failures),
                None => {}
            }
        }
        let may_start = running.len() < AT_ONCE && waiting.len() > 0;
        tokio::select! {
            biased;
            outcome = any_of(&mut running) => match outcome {
                Ok(stream) => return Ok(stream),
                Err(failure) => failures.push(failure),
            },
            () = sleep(head_start), if may_start => {}
        }
    }
}

/// The outcome of the first future that is ready, which is removed.
async fn any_of<F: Future>(running: &mut Vec<Pin<Box<F>>>) -> F::Output {
    poll_fn(|cx| {
        for (index, future) in running.iter_mut().enumerate() {
            if let Poll::Ready(outcome) = future.as_mut().poll(cx) {
                drop(running.remove(index));
                return Poll::Ready(outcome);
            }
        }
        Poll::Pending
    })
    .await
}

/// Socket options. The kernel notices a dead peer without waking us.
fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(stream, USER_TIMEOUT_MS)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn addresses(list: &[&str]) -> Vec<SocketAddr> {
        list.iter()
            .map(|text| SocketAddr::new(text.parse().unwrap(), 1))
            .collect()
    }

    #[test]
    fn families_take_turns() {
        let table: [(&[&str], &[&str]); 4] = [
            (&[], &[]),
            (&["192.0.2.1", "192.0.2.2"], &["192.0.2.1", "192.0.2.2"]),
            (
                &["::1", "::2", "::3", "192.0.2.1"],
                &["::1", "192.0.2.1", "::2", "::3"],
            ),
            (
                &["192.0.2.1", "::1", "::2", "::3"],
                &["192.0.2.1", "::1", "::2", "::3"],
            ),
        ];

        for (given, expected) in table {
            assert_eq!(alternating(addresses(given)), addresses(expected));
        }
    }

    /// Tries addresses whose last number says what they do: the tens are the ms until the outcome, 0 = never; the ones are 1 for a connection.
    async fn tried(list: &[&str]) -> (Result<SocketAddr, Vec<String>>, u128, usize) {
        let start = Instant::now();
        let (most, now) = (RefCell::new(0), RefCell::new(0));
        let attempt = async |address: SocketAddr| {
            *now.borrow_mut() += 1;
            let running = *now.borrow();
            let largest = running.max(*most.borrow());
            *most.borrow_mut() = largest;
            let SocketAddr::V4(v4) = address else {
                unreachable!()
            };
            let number = u64::from(v4.ip().octets()[3]);
            let limit = if number / 10 == 0 { 5000 } else { number };
            sleep(Duration::from_millis(limit)).await;
            *now.borrow_mut() -= 1;
            if number % 10 == 1 {
                Ok(address)
            } else {
                Err(address.ip().to_string())
            }
        };
        let outcome = first_of(addresses(list), Duration::from_millis(250), attempt).await;
        (outcome, start.elapsed().as_millis(), most.into_inner())
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_leads_nowhere_costs_its_head_start_alone() {
        let (outcome, after, most) = tried(&["192.0.2.0", "192.0.2.51", "192.0.2.71"]).await;

        assert_eq!(outcome, Ok(addresses(&["192.0.2.51"])[0]));
        assert!((301..=305).contains(&after), "{after}");
        assert_eq!(most, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_address_costs_nothing() {
        let (outcome, after, _) = tried(&["192.0.2.10", "192.0.2.20", "192.0.2.31"]).await;

        assert_eq!(outcome, Ok(addresses(&["192.0.2.31"])[0]));
        assert!((61..=65).contains(&after), "{after}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_error_names_every_address_and_two_are_tried_at_a_time() {
        let list = ["192.0.2.0", "192.0.2.2", "192.0.2.3", "192.0.2.4"];

        let (outcome, _, most) = tried(&list).await;

        let mut failures = outcome.unwrap_err();
        failures.sort();
        assert_eq!(failures, list);
        assert_eq!(most, 2);
        assert_eq!(tried(&[]).await.0, Err(Vec::new()));
    }
}
