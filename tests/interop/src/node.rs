//! Node certificates for x509pop, made with the `openssl` command: it writes every key kind in every encoding that operators have.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::TRUST_DOMAIN;
use crate::process::run;

/// A key kind of a node certificate.
#[derive(Clone, Copy, Debug)]
pub enum KeyKind {
    /// RSA with so many bits.
    Rsa(u32),
    /// An elliptic curve, by OpenSSL's name.
    Ec(&'static str),
}

/// How the private key file is written.
#[derive(Clone, Copy, Debug)]
pub enum Encoding {
    /// `BEGIN PRIVATE KEY`.
    Pkcs8,
    /// `BEGIN RSA PRIVATE KEY` or `BEGIN EC PRIVATE KEY`.
    Traditional,
}

/// The authority that the server trusts for node certificates.
#[derive(Debug)]
pub struct NodeAuthority {
    dir: PathBuf,
}

/// One node: a leaf with its key, and the agent ID that x509pop derives from it.
#[derive(Clone, Debug)]
pub struct Node {
    /// PEM file of the leaf.
    pub certificate: PathBuf,
    /// PEM file of its private key.
    pub key: PathBuf,
    /// `spiffe://TD/spire/agent/x509pop/SHA1`.
    pub agent_id: String,
}

impl NodeAuthority {
    /// Makes an authority in a new folder.
    pub fn new(dir: &Path) -> Self {
        fs::create_dir_all(dir).expect("the folder can be made");
        let authority = Self {
            dir: dir.to_owned(),
        };
        let mut request = openssl(&[
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ]);
        request.args([
            "-subj",
            "/CN=node authority",
            "-addext",
            "keyUsage=critical,keyCertSign",
            "-keyout",
        ]);
        run(request
            .arg(dir.join("ca.key"))
            .arg("-out")
            .arg(authority.certificate()));
        fs::write(
            dir.join("leaf.ext"),
            "basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\n",
        )
        .expect("extensions");
        authority
    }

    /// PEM file of the authority's certificate.
    pub fn certificate(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// Makes a node's key and has its leaf signed.
    pub fn node(&self, name: &str, kind: KeyKind, encoding: Encoding) -> Node {
        let file = |suffix: &str| self.dir.join(format!("{name}.{suffix}"));
        let (key, request, certificate) = (file("key"), file("csr"), file("pem"));

        let (algorithm, option) = match kind {
            KeyKind::Rsa(bits) => ("RSA", format!("rsa_keygen_bits:{bits}")),
            KeyKind::Ec(curve) => ("EC", format!("ec_paramgen_curve:{curve}")),
        };
        let pkcs8 = file("pkcs8");
        run(openssl(&[
            "genpkey",
            "-quiet",
            "-algorithm",
            algorithm,
            "-pkeyopt",
            &option,
            "-out",
        ])
        .arg(&pkcs8));
        match (encoding, kind) {
            (Encoding::Pkcs8, _) => fs::rename(&pkcs8, &key).expect("the key can be renamed"),
            (Encoding::Traditional, KeyKind::Rsa(_)) => {
                let mut convert = openssl(&["rsa", "-traditional", "-in"]);
                run(convert.arg(&pkcs8).arg("-out").arg(&key));
            }
            (Encoding::Traditional, KeyKind::Ec(_)) => {
                run(openssl(&["ec", "-in"]).arg(&pkcs8).arg("-out").arg(&key));
            }
        }

        run(
            openssl(&["req", "-new", "-subj", &format!("/CN={name}"), "-key"])
                .arg(&key)
                .arg("-out")
                .arg(&request),
        );
        let mut sign = openssl(&["x509", "-req", "-days", "1", "-in"]);
        sign.arg(&request)
            .arg("-CA")
            .arg(self.certificate())
            .arg("-CAkey")
            .arg(self.dir.join("ca.key"));
        run(sign
            .arg("-extfile")
            .arg(self.dir.join("leaf.ext"))
            .arg("-out")
            .arg(&certificate));

        let fingerprint =
            run(openssl(&["x509", "-noout", "-fingerprint", "-sha1", "-in"]).arg(&certificate));
        let digits = fingerprint
            .rsplit('=')
            .next()
            .unwrap_or_default()
            .trim()
            .replace(':', "")
            .to_lowercase();
        Node {
            certificate,
            key,
            agent_id: format!("spiffe://{TRUST_DOMAIN}/spire/agent/x509pop/{digits}"),
        }
    }
}

fn openssl(arguments: &[&str]) -> Command {
    let mut command = Command::new("openssl");
    command.args(arguments);
    command
}
