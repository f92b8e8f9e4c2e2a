//! The own bundle and those of foreign trust domains.

use proto::spire::api::server::bundle::v1::bundle_server::Bundle;
use proto::spire::api::server::bundle::v1::{
    AppendBundleRequest, BatchCreateFederatedBundleRequest, BatchCreateFederatedBundleResponse,
    BatchDeleteFederatedBundleRequest, BatchDeleteFederatedBundleResponse,
    BatchSetFederatedBundleRequest, BatchSetFederatedBundleResponse,
    BatchUpdateFederatedBundleRequest, BatchUpdateFederatedBundleResponse, CountBundlesRequest,
    CountBundlesResponse, GetBundleRequest, GetFederatedBundleRequest, ListFederatedBundlesRequest,
    ListFederatedBundlesResponse, PublishJwtAuthorityRequest, PublishJwtAuthorityResponse,
    PublishWitAuthorityRequest, PublishWitAuthorityResponse,
};
use proto::spire::api::types;
use tonic::{Request, Response, Status};

use super::{Services, unimplemented_rpcs};
use crate::script::FederatedBundle;

#[tonic::async_trait]
impl Bundle for Services {
    async fn get_bundle(
        &self,
        _: Request<GetBundleRequest>,
    ) -> Result<Response<types::Bundle>, Status> {
        let mut state = self.shared.state();
        let only = state.script.next_bundle_generations();
        let mut bundle = state.bundle(only.as_deref());
        bundle
            .x509_authorities
            .extend(state.script.extra_authorities.iter().cloned());
        Ok(Response::new(bundle))
    }

    async fn get_federated_bundle(
        &self,
        request: Request<GetFederatedBundleRequest>,
    ) -> Result<Response<types::Bundle>, Status> {
        let name = request.get_ref().trust_domain.clone();
        self.note(request.extensions(), |call| call.details.push(name.clone()));
        let state = self.shared.state();
        if name == state.settings.trust_domain {
            return Err(Status::invalid_argument(
                "the server's own trust domain is not a federated one",
            ));
        }
        match state.script.federated.get(&name) {
            Some(FederatedBundle::Bundle(bundle)) => Ok(Response::new(bundle.clone())),
            Some(FederatedBundle::Fail(code, message)) => Err(Status::new(*code, message)),
            None => Err(Status::not_found("bundle not found")),
        }
    }

    unimplemented_rpcs! {
        count_bundles: CountBundlesRequest => CountBundlesResponse;
        append_bundle: AppendBundleRequest => types::Bundle;
        publish_jwt_authority: PublishJwtAuthorityRequest => PublishJwtAuthorityResponse;
        publish_wit_authority: PublishWitAuthorityRequest => PublishWitAuthorityResponse;
        list_federated_bundles: ListFederatedBundlesRequest => ListFederatedBundlesResponse;
        batch_create_federated_bundle: BatchCreateFederatedBundleRequest => BatchCreateFederatedBundleResponse;
        batch_update_federated_bundle: BatchUpdateFederatedBundleRequest => BatchUpdateFederatedBundleResponse;
        batch_set_federated_bundle: BatchSetFederatedBundleRequest => BatchSetFederatedBundleResponse;
        batch_delete_federated_bundle: BatchDeleteFederatedBundleRequest => BatchDeleteFederatedBundleResponse;
    }
}
