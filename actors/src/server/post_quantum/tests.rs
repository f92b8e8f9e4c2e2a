//! The client's side against a server's side of rustls, and against known answers.

use std::io;
use std::sync::Arc;

use ml_kem::{EncapsulationKey768, Key};
use ring::digest::{SHA256, digest};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, ServerConfig, ServerConnection,
    SignatureScheme,
};

use super::*;

/// A server's side of the group.
#[derive(Debug)]
struct Serving;

impl SupportedKxGroup for Serving {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        X25519MlKem768.start()
    }

    fn start_and_complete(&self, share: &[u8]) -> Result<CompletedKeyExchange, Error> {
        let (key, point) = share
            .split_at_checked(1184)
            .ok_or(PeerMisbehaved::InvalidKeyShare)?;
        let key = Key::<EncapsulationKey768>::try_from(key).unwrap();
        let key = EncapsulationKey768::new(&key).map_err(|_| PeerMisbehaved::InvalidKeyShare)?;
        let mut message = [0; 32];
        SystemRandom::new().fill(&mut message).unwrap();
        let (ciphertext, post_quantum) = key.encapsulate_deterministic(&message.into());
        let classical = kx_group::X25519.start_and_complete(point)?;
        Ok(CompletedKeyExchange {
            group: self.name(),
            pub_key: [ciphertext.as_slice(), &classical.pub_key].concat(),
            secret: [post_quantum.as_slice(), classical.secret.secret_bytes()]
                .concat()
                .into(),
        })
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::X25519MLKEM768
    }

    fn usable_for_version(&self, version: ProtocolVersion) -> bool {
        version == ProtocolVersion::TLSv1_3
    }
}

/// Algorithms of a server that has the group, and no other if told so.
pub(in crate::server) fn serving_provider(alone: bool) -> CryptoProvider {
    let mut provider = provider(alone);
    provider.kx_groups[0] = &Serving;
    provider
}

#[test]
fn keys_are_those_of_fips_203() {
    // The example key of the certificate profile for ML-KEM (RFC 9935): a seed of 00 to 3f, and SHA-256 of its encapsulation key.
    let seed = Zeroizing::new(std::array::from_fn(|index| u8::try_from(index).unwrap()));

    let exchange = X25519MlKem768::start_from(&seed).unwrap();

    assert_eq!(exchange.share.len(), 1184 + 32);
    let hash = digest(&SHA256, &exchange.share[..1184])
        .as_ref()
        .iter()
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
    assert_eq!(
        hash,
        "0b7934c83125c788995e2ba6bd761e33046b3e40571be53e023309a29f398cc9"
    );
}

#[test]
fn both_sides_come_to_the_same_secret_and_each_half_counts() {
    let client = X25519MlKem768.start().unwrap();
    let server = Serving.start_and_complete(client.pub_key()).unwrap();
    let secret = client.complete(&server.pub_key).unwrap();
    assert_eq!(secret.secret_bytes(), server.secret.secret_bytes());
    assert_eq!(secret.secret_bytes().len(), 64);

    for (changed, halves) in [(0, 0..32), (CIPHERTEXT, 32..64)] {
        let client = X25519MlKem768.start().unwrap();
        let mut server = Serving.start_and_complete(client.pub_key()).unwrap();
        server.pub_key[changed] ^= 1;
        let secret = client.complete(&server.pub_key).unwrap();
        let differs: Vec<bool> = [0..32, 32..64]
            .map(|half| secret.secret_bytes()[half.clone()] != server.secret.secret_bytes()[half])
            .to_vec();
        assert_eq!(differs, [halves.start == 0, halves.start == 32]);
    }
}

#[test]
fn a_share_of_another_shape_is_refused() {
    let zeros = [vec![1; CIPHERTEXT], vec![0; 32]].concat();
    for share in [
        Vec::new(),
        vec![1; CIPHERTEXT],
        vec![1; CIPHERTEXT + 31],
        vec![1; CIPHERTEXT + 33],
        zeros,
    ] {
        let client = X25519MlKem768.start().unwrap();

        let outcome = client.complete(&share);

        assert_eq!(
            outcome.err(),
            Some(PeerMisbehaved::InvalidKeyShare.into()),
            "{}",
            share.len()
        );
    }
}

/// Who is there does not matter here.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

/// A handshake in memory; the group, the version, and how often the client had to speak first.
fn handshake(
    required: bool,
    server: CryptoProvider,
) -> Result<(NamedGroup, ProtocolVersion, rustls::HandshakeKind), Error> {
    let key = rcgen::generate_simple_self_signed(["server.test".to_owned()]).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(server))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(
            vec![key.cert.der().clone()],
            PrivatePkcs8KeyDer::from(key.signing_key.serialize_der()).into(),
        )?;
    let mut server = ServerConnection::new(Arc::new(config))?;
    let config = ClientConfig::builder_with_provider(Arc::new(provider(required)))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody))
        .with_no_client_auth();
    let mut client = ClientConnection::new(
        Arc::new(config),
        ServerName::try_from("server.test").unwrap(),
    )?;
    while client.is_handshaking() || server.is_handshaking() {
        let mut wire = Vec::new();
        client.write_tls(&mut wire).unwrap();
        server.read_tls(&mut io::Cursor::new(wire)).unwrap();
        let refused = server.process_new_packets().err();
        let mut wire = Vec::new();
        server.write_tls(&mut wire).unwrap();
        client.read_tls(&mut io::Cursor::new(wire)).unwrap();
        client.process_new_packets()?;
        if let Some(error) = refused {
            return Err(error);
        }
    }
    Ok((
        client.negotiated_key_exchange_group().unwrap().name(),
        client.protocol_version().unwrap(),
        client.handshake_kind().unwrap(),
    ))
}

#[test]
fn a_handshake_uses_the_hybrid_where_the_server_has_it_and_no_round_trip_more_where_not() {
    let full = rustls::HandshakeKind::Full;
    let tls13 = ProtocolVersion::TLSv1_3;
    let with_hybrid = NamedGroup::X25519MLKEM768;

    for required in [false, true] {
        assert_eq!(
            handshake(required, serving_provider(false)),
            Ok((with_hybrid, tls13, full))
        );
        assert_eq!(
            handshake(required, serving_provider(true)),
            Ok((with_hybrid, tls13, full))
        );
    }
    assert_eq!(
        handshake(false, default_provider()),
        Ok((NamedGroup::X25519, tls13, full))
    );
    assert!(handshake(true, default_provider()).is_err());
}
