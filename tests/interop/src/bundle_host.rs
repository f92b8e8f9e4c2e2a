//! Places that hand out a trust bundle: an HTTPS server with a certificate authority of its own, and an HTTP server on a Unix socket.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::process::{Process, run};
use crate::{seconds, tools, wait_for};

/// An HTTPS server for the files of its folder.
#[derive(Debug)]
pub struct HttpsHost {
    dir: PathBuf,
    /// Where it listens on 127.0.0.1.
    pub port: u16,
    process: Process,
}

impl HttpsHost {
    /// Makes an authority and a certificate for 127.0.0.1, and starts.
    pub fn start(dir: &Path) -> Self {
        fs::create_dir_all(dir.join("files")).expect("the folder can be made");
        let mut command = openssl(dir);
        command.args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=web -keyout ca.key -out ca.pem".split(' '));
        command.args(["-addext", "keyUsage=critical,keyCertSign"]);
        run(&mut command);
        let mut command = openssl(dir);
        command.args("req -x509 -CA ca.pem -CAkey ca.key -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=host -keyout host.key -out host.pem".split(' '));
        command.args(["-addext", "subjectAltName=IP:127.0.0.1"]);
        command.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
        run(&mut command);

        let mut command = Command::new(tools::made("venv/bin/python"));
        command
            .arg(tools::sources().join("clients/https.py"))
            .arg(dir);
        let mut process = Process::start(&mut command, &dir.join("https.log"));
        let port = wait_for("the HTTPS server listens", seconds(20), || {
            let text = process.text();
            assert!(process.ended().is_none(), "{text}");
            text.split_once('\n')?.0.strip_prefix("port ")?.parse().ok()
        });
        Self {
            dir: dir.to_owned(),
            port,
            process,
        }
    }

    /// The authority of its certificate, PEM.
    pub fn authority(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// Where a file must lie to be handed out.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join("files").join(name)
    }

    /// What it has logged: a line for each request.
    pub fn log(&self) -> String {
        self.process.text()
    }
}

/// An HTTP server on a Unix socket that answers every request with one text.
#[derive(Debug)]
pub struct SocketHost {
    targets: Arc<Mutex<Vec<String>>>,
}

impl SocketHost {
    /// Starts one. Its thread ends with the process.
    pub fn start(socket: &Path, text: &str) -> Self {
        let listener = UnixListener::bind(socket).expect("the socket can be made");
        let targets = Arc::new(Mutex::new(Vec::new()));
        let (seen, text) = (Arc::clone(&targets), text.to_owned());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if let Err(error) = answer(stream, &text, &seen) {
                    println!("the bundle's socket: {error}");
                }
            }
        });
        Self { targets }
    }

    /// The request targets (path and query) so far.
    pub fn targets(&self) -> Vec<String> {
        let targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        targets.clone()
    }
}

fn answer(stream: UnixStream, text: &str, seen: &Mutex<Vec<String>>) -> io::Result<()> {
    stream.set_read_timeout(Some(seconds(10)))?;
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") && reader.read_line(&mut head)? > 0 {}
    let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
    seen.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(target);
    let length = text.len();
    write!(
        reader.get_mut(),
        "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    )
}

fn openssl(dir: &Path) -> Command {
    let mut command = Command::new("openssl");
    command.current_dir(dir);
    command
}
