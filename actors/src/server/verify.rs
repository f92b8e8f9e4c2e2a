//! Is that the server? Owns the check of the server's certificate and the verdict that the caller reads after a failed
//! handshake. Decisions are in [`judge`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, SignatureScheme};

use crate::bundle::VerifyError;
use crate::clock::Clock;
use crate::credentials::ServerTrust;
use crate::spiffe_id::SpiffeId;
use crate::svid::Certificate;

/// Why the server's certificate is not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Rejection {
    /// No path leads to an authority of the bundle.
    UnknownAuthority,
    /// Anything else, in words.
    Untrusted(String),
}

/// Where the verifier of one handshake leaves its rejection: TLS errors carry no type of ours.
#[derive(Debug, Clone, Default)]
pub(super) struct Verdict(Arc<Mutex<Option<Rejection>>>);

/// The verifier of one handshake.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    /// What the server is verified by.
    pub(super) trust: ServerTrust,
    /// The ID that it has to prove.
    pub(super) expected: SpiffeId,
    /// Where the time of the check comes from.
    pub(super) clock: Clock,
    /// Which signatures are understood.
    pub(super) algorithms: WebPkiSupportedAlgorithms,
    /// Where the rejection goes.
    pub(super) verdict: Verdict,
}

impl Verdict {
    /// The rejection, if there was one.
    pub(super) fn take(&self) -> Option<Rejection> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn set(&self, rejection: Rejection) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(rejection);
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match judge(
            &self.trust,
            &self.expected,
            end_entity,
            intermediates,
            self.clock.wall(),
        ) {
            Ok(()) => Ok(ServerCertVerified::assertion()),
            Err(rejection) => {
                // The kind chooses the alert that the server gets to see.
                let kind = match rejection {
                    Rejection::UnknownAuthority => CertificateError::UnknownIssuer,
                    Rejection::Untrusted(_) => CertificateError::BadEncoding,
                };
                self.verdict.set(rejection);
                Err(kind.into())
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// The full SPIFFE check, or the comparison of the ID alone (node-side 1.2).
fn judge(
    trust: &ServerTrust,
    expected: &SpiffeId,
    end_entity: &[u8],
    intermediates: &[CertificateDer<'_>],
    now: SystemTime,
) -> Result<(), Rejection> {
    let leaf = parse(end_entity)?;
    let bundle = match trust {
        ServerTrust::Bundle(bundle) => bundle,
        ServerTrust::Insecure => {
            return match leaf.uri_names() {
                [name] if name == expected.as_str() => Ok(()),
                _ => Err(wrong_id(expected)),
            };
        }
    };
    let id = leaf
        .leaf_id()
        .map_err(|error| Rejection::Untrusted(error.to_string()))?;
    if id.trust_domain_name() != bundle.trust_domain.name() {
        return Err(Rejection::Untrusted(format!(
            "no X.509 bundle for trust domain {}",
            id.trust_domain_name()
        )));
    }
    let mut chain = vec![leaf];
    for intermediate in intermediates {
        chain.push(parse(intermediate)?);
    }
    bundle.verify(&chain, now).map_err(|error| match error {
        VerifyError::UnknownAuthority => Rejection::UnknownAuthority,
        VerifyError::Expired | VerifyError::NotYetValid | VerifyError::Invalid(_) => {
            Rejection::Untrusted(error.to_string())
        }
    })?;
    if id == *expected {
        Ok(())
    } else {
        Err(wrong_id(expected))
    }
}

fn parse(der: &[u8]) -> Result<Certificate, Rejection> {
    Certificate::from_der(der).map_err(|error| Rejection::Untrusted(error.to_string()))
}

fn wrong_id(expected: &SpiffeId) -> Rejection {
    Rejection::Untrusted(format!("certificate is not that of {expected}"))
}
