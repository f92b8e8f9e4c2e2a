//! A development server by hand: starts one, writes what an agent needs, and takes commands on standard input.

mod commands;

use std::io::{self, BufRead as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use devserver::{DevServer, KeyKind, NodeCa, Settings};

const USAGE: &str = "usage: devserver [--port PORT] [--trust-domain NAME] [--dir DIR] [--node-key KIND]
  --port PORT          port on 127.0.0.1 (default 8081; 0 asks for a free one)
  --trust-domain NAME  trust domain (default example.org)
  --dir DIR            writes bundle.pem, node-ca.pem, node.crt and node.key there (default: current directory)
  --node-key KIND      p256 (default), p384, p521 or rsa
";

/// What the command line asks for.
struct Options {
    port: u16,
    trust_domain: String,
    directory: PathBuf,
    node_key: KeyKind,
}

impl Options {
    /// # Errors
    /// A message for the user.
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            port: 8081,
            trust_domain: "example.org".to_owned(),
            directory: PathBuf::from("."),
            node_key: KeyKind::EcP256,
        };
        let mut arguments = arguments;
        while let Some(flag) = arguments.next() {
            let value = arguments
                .next()
                .ok_or_else(|| format!("{flag} wants a value"))?;
            match flag.as_str() {
                "--port" => {
                    options.port = value.parse().map_err(|_| format!("{value:?} is no port"))?;
                }
                "--trust-domain" => options.trust_domain = value,
                "--node-key" => {
                    options.node_key = match value.as_str() {
                        "p256" => KeyKind::EcP256,
                        "p384" => KeyKind::EcP384,
                        "p521" => KeyKind::EcP521,
                        "rsa" => KeyKind::Rsa2048,
                        _ => return Err(format!("{value:?} is no kind of key")),
                    }
                }
                "--dir" => options.directory = PathBuf::from(value),
                _ => return Err(format!("unknown flag {flag}")),
            }
        }
        Ok(options)
    }
}

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(problem) => return complain(&format!("{problem}\n{USAGE}"), 2),
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&format!("{error}\n"), 1),
    }
}

fn complain(text: &str, code: u8) -> ExitCode {
    // Without a standard error there is nobody to tell.
    drop(io::stderr().write_all(text.as_bytes()));
    ExitCode::from(code)
}

fn run(options: &Options) -> io::Result<()> {
    let node_ca = NodeCa::new();
    let mut settings = Settings::new(&options.trust_domain);
    settings.bind = SocketAddr::from((Ipv4Addr::LOCALHOST, options.port));
    settings.x509pop.roots_pem = node_ca.root_pem();
    let server = DevServer::start(settings)?;

    std::fs::create_dir_all(&options.directory)?;
    let bundle = options.directory.join("bundle.pem");
    let root = options.directory.join("node-ca.pem");
    std::fs::write(&bundle, server.bundle_pem())?;
    std::fs::write(&root, node_ca.root_pem())?;
    let node = node_ca
        .leaf("node", options.node_key)
        .write(&options.directory, "node")?;

    let mut out = io::stdout();
    writeln!(
        out,
        "serving trust domain {} on {}",
        options.trust_domain,
        server.addr()
    )?;
    writeln!(out, "trust_bundle_path  {}", bundle.display())?;
    writeln!(out, "certificate_path   {}", node.certificate.display())?;
    writeln!(out, "private_key_path   {}", node.private_key.display())?;
    writeln!(out, "node CA            {}", root.display())?;
    writeln!(
        out,
        "type `help` for commands; end of input stops the server"
    )?;
    out.flush()?;
    for line in io::stdin().lock().lines() {
        let answer = commands::execute(&server.control(), &line?);
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}
