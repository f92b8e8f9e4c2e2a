//! A client for these tests: TLS, attestation and the calls of an agent, as plainly as possible.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use devserver::{DevServer, KeyKind, NodeLeaf};
use hyper_util::rt::TokioIo;
use proto::spire::api::server::agent::v1::agent_client::AgentClient;
use proto::spire::api::server::agent::v1::{
    AgentX509svidParams, AttestAgentRequest, RenewAgentRequest, attest_agent_request,
    attest_agent_response,
};
use proto::spire::api::server::entry::v1::entry_client::EntryClient;
use proto::spire::api::server::entry::v1::{
    SyncAuthorizedEntriesRequest, SyncAuthorizedEntriesResponse,
};
use proto::spire::api::server::svid::v1::svid_client::SvidClient;
use proto::spire::api::server::svid::v1::{BatchNewX509svidRequest, NewX509svidParams};
use proto::spire::api::types;
use ring::rand::SystemRandom;
use rsa::pkcs8::DecodePrivateKey as _;
use rsa::signature::RandomizedSigner as _;
use rsa::signature::hazmat::PrehashSigner as _;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use x509_parser::prelude::FromDer as _;

/// An agent SVID with its key.
pub(crate) struct Identity {
    pub(crate) chain: Vec<Vec<u8>>,
    pub(crate) key: rcgen::KeyPair,
    pub(crate) id: String,
}

/// Verifies that the server chains to the bundle and has the right URI.
#[derive(Debug)]
struct SpiffeVerifier {
    roots: Vec<CertificateDer<'static>>,
    server_id: String,
    provider: CryptoProvider,
}

impl ServerCertVerifier for SpiffeVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let general = |what: &str| rustls::Error::General(what.to_owned());
        let anchors: Vec<_> = self
            .roots
            .iter()
            .map(|root| webpki::anchor_from_trusted_cert(root).unwrap())
            .collect();
        webpki::EndEntityCert::try_from(leaf)
            .map_err(|_| general("malformed leaf"))?
            .verify_for_usage(
                webpki::ALL_VERIFICATION_ALGS,
                &anchors,
                intermediates,
                now,
                webpki::KeyUsage::server_auth(),
                None,
                None,
            )
            .map_err(|error| rustls::Error::General(error.to_string()))?;
        let (_, parsed) =
            x509_parser::parse_x509_certificate(leaf).map_err(|_| general("malformed leaf"))?;
        let names = parsed.subject_alternative_name().unwrap().unwrap();
        match names.value.general_names.as_slice() {
            [x509_parser::extensions::GeneralName::URI(uri)] if *uri == self.server_id => {
                Ok(ServerCertVerified::assertion())
            }
            _ => Err(general("wrong server ID")),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

#[derive(Clone)]
struct Connector {
    address: std::net::SocketAddr,
    config: Arc<rustls::ClientConfig>,
}

type TlsIo = TokioIo<tokio_rustls::client::TlsStream<TcpStream>>;

impl tower_service::Service<http::Uri> for Connector {
    type Response = TlsIo;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = std::io::Result<TlsIo>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: http::Uri) -> Self::Future {
        let Self { address, config } = self.clone();
        Box::pin(async move {
            let stream = TcpStream::connect(address).await?;
            let name = ServerName::IpAddress(address.ip().into());
            let stream = TlsConnector::from(config).connect(name, stream).await?;
            Ok(TokioIo::new(stream))
        })
    }
}

/// A channel to the server, with a client certificate if there is an identity.
pub(crate) async fn connect(
    server: &DevServer,
    identity: Option<&Identity>,
) -> Result<Channel, tonic::transport::Error> {
    let provider = rustls::crypto::ring::default_provider();
    let verifier = SpiffeVerifier {
        roots: server
            .control()
            .bundle()
            .x509_authorities
            .into_iter()
            .map(|authority| CertificateDer::from(authority.asn1))
            .collect(),
        server_id: "spiffe://example.org/spire/server".to_owned(),
        provider: provider.clone(),
    };
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match identity {
        Some(identity) => {
            let chain = identity
                .chain
                .iter()
                .cloned()
                .map(CertificateDer::from)
                .collect();
            let key = PrivatePkcs8KeyDer::from(identity.key.serialize_der());
            builder
                .with_client_auth_cert(chain, PrivateKeyDer::Pkcs8(key))
                .unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Endpoint::from_static("http://devserver")
        .connect_with_connector(Connector {
            address: server.addr(),
            config: Arc::new(config),
        })
        .await
}

/// A CSR for `key`.
pub(crate) fn csr(key: &rcgen::KeyPair) -> Vec<u8> {
    let request = rcgen::CertificateParams::default()
        .serialize_request(key)
        .unwrap();
    request.der().to_vec()
}

/// Attests: `respond` answers challenges.
pub(crate) async fn attest(
    server: &DevServer,
    kind: &str,
    payload: Vec<u8>,
    respond: impl Fn(&Value) -> Value,
) -> Result<Identity, Status> {
    let key = rcgen::KeyPair::generate().unwrap();
    let channel = connect(server, None).await.unwrap();
    let (requests, stream) = mpsc::channel(4);
    let params = attest_agent_request::Params {
        data: Some(types::AttestationData {
            r#type: kind.to_owned(),
            payload,
        }),
        params: Some(AgentX509svidParams { csr: csr(&key) }),
    };
    let step = |step| AttestAgentRequest { step: Some(step) };
    requests
        .send(step(attest_agent_request::Step::Params(params)))
        .await
        .unwrap();
    let mut answers = AgentClient::new(channel)
        .attest_agent(ReceiverStream::new(stream))
        .await?
        .into_inner();
    loop {
        let answer = answers.message().await?.and_then(|answer| answer.step);
        match answer {
            Some(attest_agent_response::Step::Challenge(challenge)) => {
                let challenge = serde_json::from_slice(&challenge)
                    .map_err(|error| Status::data_loss(error.to_string()))?;
                let response = respond(&challenge).to_string().into_bytes();
                let response = step(attest_agent_request::Step::ChallengeResponse(response));
                requests.send(response).await.unwrap();
            }
            Some(attest_agent_response::Step::Result(result)) => {
                let svid = result.svid.ok_or_else(|| Status::data_loss("no SVID"))?;
                return Ok(identity(svid, key));
            }
            None => return Err(Status::data_loss("no result")),
        }
    }
}

/// Attests with a join token.
pub(crate) async fn attest_by_token(server: &DevServer, token: &str) -> Result<Identity, Status> {
    attest(server, "join_token", token.as_bytes().to_vec(), |_| {
        Value::Null
    })
    .await
}

/// Attests with a node certificate. RSA signatures have a salt of `rsa_salt` bytes.
pub(crate) async fn attest_by_x509pop(
    server: &DevServer,
    leaf: &NodeLeaf,
    kind: KeyKind,
    rsa_salt: usize,
) -> Result<Identity, Status> {
    let certificates: Vec<String> = CertificateDer::pem_slice_iter(leaf.cert_pem.as_bytes())
        .map(|der| STANDARD.encode(der.unwrap()))
        .collect();
    let payload = json!({ "certificates": certificates })
        .to_string()
        .into_bytes();
    attest(server, "x509pop", payload, |challenge| {
        prove(challenge, leaf, kind, rsa_salt)
    })
    .await
}

fn prove(challenge: &Value, leaf: &NodeLeaf, kind: KeyKind, rsa_salt: usize) -> Value {
    let field = if kind == KeyKind::Rsa2048 {
        "rsa_signature"
    } else {
        "ecdsa_signature"
    };
    let theirs = STANDARD
        .decode(challenge[field]["nonce"].as_str().unwrap())
        .unwrap();
    let ours = [7; 32];
    let signed = [theirs, ours.to_vec()].concat();
    let digest = ring::digest::digest(&ring::digest::SHA256, &signed);
    let key = PrivatePkcs8KeyDer::from_pem_slice(leaf.key_pem.as_bytes()).unwrap();
    let key = key.secret_pkcs8_der();
    let signature = match kind {
        KeyKind::EcP256 => {
            let algorithm = &ring::signature::ECDSA_P256_SHA256_FIXED_SIGNING;
            let key =
                ring::signature::EcdsaKeyPair::from_pkcs8(algorithm, key, &SystemRandom::new())
                    .unwrap();
            key.sign(&SystemRandom::new(), &signed)
                .unwrap()
                .as_ref()
                .to_vec()
        }
        KeyKind::EcP384 => {
            let key = p384::ecdsa::SigningKey::from(p384::SecretKey::from_pkcs8_der(key).unwrap());
            let signature: p384::ecdsa::Signature = key.sign_prehash(digest.as_ref()).unwrap();
            signature.to_bytes().to_vec()
        }
        KeyKind::EcP521 => {
            let key = p521::ecdsa::SigningKey::from(p521::SecretKey::from_pkcs8_der(key).unwrap());
            let padded = [&[0; 32], digest.as_ref()].concat();
            let signature: p521::ecdsa::Signature = key.sign_prehash(&padded).unwrap();
            signature.to_bytes().to_vec()
        }
        KeyKind::Rsa2048 => {
            let key = rsa::PrivateKey::from_pkcs8_der(key).unwrap();
            let key = rsa::pss::SigningKey::<rsa::sha2::Sha256>::new_with_salt_len(key, rsa_salt);
            let signature = key.sign_with_rng(&mut Counter(1), &signed);
            Box::<[u8]>::from(signature).to_vec()
        }
    };
    if kind == KeyKind::Rsa2048 {
        return json!({ field: { "nonce": STANDARD.encode(ours), "signature": STANDARD.encode(signature) } });
    }
    let (r, s) = signature.split_at(signature.len() / 2);
    let trimmed = |number: &[u8]| {
        let zeros = number.iter().take_while(|byte| **byte == 0).count();
        STANDARD.encode(&number[zeros..])
    };
    json!({ "rsa_signature": null,
            field: { "nonce": STANDARD.encode(ours), "r": trimmed(r), "s": trimmed(s) } })
}

/// Salts for tests need not be random.
struct Counter(u64);

impl rsa::rand_core::TryRng for Counter {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        self.0 += 1;
        Ok(u32::try_from(self.0).unwrap())
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        self.0 += 1;
        Ok(self.0)
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Self::Error> {
        self.0 += 1;
        bytes.fill(u8::try_from(self.0 % 251).unwrap());
        Ok(())
    }
}

impl rsa::rand_core::TryCryptoRng for Counter {}

fn identity(svid: types::X509svid, key: rcgen::KeyPair) -> Identity {
    let id = svid.id.unwrap();
    Identity {
        chain: svid.cert_chain,
        key,
        id: format!("spiffe://{}{}", id.trust_domain, id.path),
    }
}

/// Renews an agent SVID.
pub(crate) async fn renew(channel: Channel) -> Result<Identity, Status> {
    let key = rcgen::KeyPair::generate().unwrap();
    let request = RenewAgentRequest {
        params: Some(AgentX509svidParams { csr: csr(&key) }),
    };
    let svid = AgentClient::new(channel)
        .renew_agent(request)
        .await?
        .into_inner()
        .svid
        .unwrap();
    Ok(identity(svid, key))
}

/// Has an X.509-SVID of one entry signed.
pub(crate) async fn sign(
    server: &DevServer,
    agent: &Identity,
    entry_id: &str,
    key: &rcgen::KeyPair,
) -> types::X509svid {
    let channel = connect(server, Some(agent)).await.unwrap();
    let request = BatchNewX509svidRequest {
        params: vec![NewX509svidParams {
            entry_id: entry_id.to_owned(),
            csr: csr(key),
        }],
    };
    let answer = SvidClient::new(channel)
        .batch_new_x509svid(request)
        .await
        .unwrap();
    answer.into_inner().results.remove(0).svid.unwrap()
}

/// Syncs: one request per element of `requests`, all answers of the stream.
pub(crate) async fn sync(
    channel: Channel,
    requests: Vec<SyncAuthorizedEntriesRequest>,
) -> Result<Vec<SyncAuthorizedEntriesResponse>, Status> {
    let mut answers = EntryClient::new(channel)
        .sync_authorized_entries(tokio_stream::iter(requests))
        .await?
        .into_inner();
    let mut all = Vec::new();
    while let Some(answer) = answers.message().await? {
        all.push(answer);
    }
    Ok(all)
}

/// A sync that asks for no full entries.
pub(crate) async fn plain_sync(
    channel: Channel,
) -> Result<Vec<SyncAuthorizedEntriesResponse>, Status> {
    sync(channel, vec![SyncAuthorizedEntriesRequest::default()]).await
}

/// The reason in the details of a status.
pub(crate) fn reason(status: &Status) -> Option<devserver::Reason> {
    use prost::Message as _;

    let details = proto::google::rpc::Status::decode(status.details()).ok()?;
    let detail = details.details.first()?;
    let detail = types::PermissionDeniedDetails::decode(&*detail.value).ok()?;
    Some(detail.reason())
}

/// The single URI of a certificate.
pub(crate) fn uri(certificate: &[u8]) -> String {
    let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(certificate).unwrap();
    let names = parsed.subject_alternative_name().unwrap().unwrap();
    match names.value.general_names.as_slice() {
        [x509_parser::extensions::GeneralName::URI(uri)] => (*uri).to_owned(),
        other => panic!("not a single URI: {other:?}"),
    }
}
