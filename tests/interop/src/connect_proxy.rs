//! A stand-in for an HTTP proxy: it takes `CONNECT` alone, resolves every name to the loopback address, and remembers what it was asked.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

const MAX_HEAD: usize = 16 << 10;

/// A running proxy. Its threads end with the process.
#[derive(Debug)]
pub struct ConnectProxy {
    /// Where it listens on the loopback address.
    pub port: u16,
    heads: Arc<Mutex<Vec<String>>>,
}

impl ConnectProxy {
    /// Starts one.
    pub fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener
            .local_addr()
            .expect("a bound socket has an address")
            .port();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&heads);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let seen = Arc::clone(&seen);
                thread::spawn(move || {
                    if let Err(error) = serve(stream, &seen) {
                        println!("the proxy: {error}");
                    }
                });
            }
        });
        Self { port, heads }
    }

    /// The heads of all requests so far.
    pub fn requests(&self) -> Vec<String> {
        let heads = self.heads.lock().unwrap_or_else(PoisonError::into_inner);
        heads.clone()
    }
}

fn serve(mut client: TcpStream, seen: &Mutex<Vec<String>>) -> io::Result<()> {
    let head = read_head(&mut client)?;
    let port = head
        .strip_prefix("CONNECT ")
        .and_then(|rest| rest.split(' ').next()?.rsplit_once(':')?.1.parse().ok());
    seen.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(head);
    let Some(port) = port else {
        return client.write_all(b"HTTP/1.1 405 Method Not Allowed\r\n\r\n");
    };
    let Ok(server) = TcpStream::connect::<(_, u16)>(("127.0.0.1", port)) else {
        return client.write_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n");
    };
    client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
    let (from_server, to_client) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || pass_on(from_server, to_client));
    pass_on(client, server);
    Ok(())
}

/// The request's head, with its last empty line. The client says no more before it is answered.
fn read_head(client: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") && head.len() < MAX_HEAD && client.read(&mut byte)? > 0 {
        head.extend(byte);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Copies until either side ends; an end or an error on one side is told to the other.
fn pass_on(mut from: TcpStream, mut to: TcpStream) {
    if io::copy(&mut from, &mut to).is_err() || to.shutdown(Shutdown::Write).is_err() {
        // What is gone cannot be told.
        drop(from.shutdown(Shutdown::Both));
    }
}
