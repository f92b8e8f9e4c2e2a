//! The gRPC services: one file per SPIRE API. A method decodes, asks the state, encodes.

mod agent;
mod bundle;
mod entry;
mod svid;

use std::sync::Arc;

use proto::spire::api::types;
use tonic::{Extensions, Status};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;

use crate::authorize::PeerCertificate;
use crate::script::Call;
use crate::state::Shared;

/// Answers UNIMPLEMENTED to RPCs that no agent calls, in the form that `async_trait` gives to their declarations.
macro_rules! unimplemented_rpcs {
    ($($name:ident: $request:ty => $response:ty;)+) => {
        $(
            fn $name<'service, 'call>(
                &'service self,
                _: tonic::Request<$request>,
            ) -> std::pin::Pin<Box<
                dyn Future<Output = Result<tonic::Response<$response>, tonic::Status>> + Send + 'call,
            >>
            where
                'service: 'call,
                Self: 'call,
            {
                Box::pin(std::future::ready(Err(tonic::Status::unimplemented(
                    "the development server has no such method",
                ))))
            }
        )+
    };
}
use unimplemented_rpcs;

/// All services, over the shared state.
#[derive(Clone, Debug)]
pub(crate) struct Services {
    pub(crate) shared: Arc<Shared>,
}

/// The number of a call in the list of calls; a request extension.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallNumber(pub(crate) usize);

/// The agent that an authorised call comes from; a request extension.
#[derive(Clone, Debug)]
pub(crate) struct Caller(pub(crate) PeerCertificate);

impl Services {
    /// Adds to the written record of a call.
    fn note(&self, extensions: &Extensions, note: impl FnOnce(&mut Call)) {
        let Some(CallNumber(number)) = extensions.get() else {
            return;
        };
        if let Some(call) = self.shared.state().script.calls.get_mut(*number) {
            note(call);
        }
    }
}

/// The SPIFFE ID of the agent that calls.
fn caller(extensions: &Extensions) -> Result<String, Status> {
    extensions
        .get()
        .map(|Caller(peer)| peer.id.clone())
        .ok_or_else(|| Status::permission_denied("an agent certificate is required"))
}

/// The encoded `SubjectPublicKeyInfo` in a CSR, whose signature is looked at only if it `must_be_signed`.
fn csr_public_key(csr: &[u8], must_be_signed: bool) -> Result<Vec<u8>, Status> {
    let (_, request) = X509CertificationRequest::from_der(csr)
        .map_err(|error| Status::invalid_argument(format!("malformed CSR: {error}")))?;
    if must_be_signed && request.verify_signature().is_err() {
        return Err(Status::invalid_argument("CSR signature does not verify"));
    }
    Ok(request.certification_request_info.subject_pki.raw.to_vec())
}

/// The status of an item in a batch.
fn item_status(status: &Status) -> types::Status {
    types::Status {
        code: status.code().into(),
        message: status.message().to_owned(),
    }
}
