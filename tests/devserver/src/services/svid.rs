//! Signing of workload X.509-SVIDs and JWT-SVIDs.

use proto::spire::api::server::svid::v1::svid_server::Svid;
use proto::spire::api::server::svid::v1::{
    BatchNewWitsvidRequest, BatchNewWitsvidResponse, BatchNewX509svidRequest,
    BatchNewX509svidResponse, MintJwtsvidRequest, MintJwtsvidResponse, MintWitsvidRequest,
    MintWitsvidResponse, MintX509svidRequest, MintX509svidResponse, NewDownstreamX509caRequest,
    NewDownstreamX509caResponse, NewJwtsvidRequest, NewJwtsvidResponse, NewX509svidParams,
    batch_new_x509svid_response,
};
use proto::spire::api::types;
use tonic::{Request, Response, Status};

use super::{Services, caller, csr_public_key, item_status, unimplemented_rpcs};
use crate::entries::{StoredEntry, spiffe_id};
use crate::jwt::Claims;
use crate::script::{JwtTwist, SignTwist};
use crate::state::{State, SvidRequest};

/// The signing limit: a batch larger than a second's worth is refused (4.10).
const LARGEST_BATCH: usize = 500;

#[tonic::async_trait]
impl Svid for Services {
    async fn batch_new_x509svid(
        &self,
        request: Request<BatchNewX509svidRequest>,
    ) -> Result<Response<BatchNewX509svidResponse>, Status> {
        let agent = caller(request.extensions())?;
        let params = &request.get_ref().params;
        self.note(request.extensions(), |call| {
            call.ids = params.iter().map(|item| item.entry_id.clone()).collect();
        });
        if params.is_empty() {
            return Err(Status::invalid_argument("missing parameters"));
        }
        if params.len() > LARGEST_BATCH {
            return Err(Status::resource_exhausted(
                "rate: the batch exceeds the burst size",
            ));
        }
        let state = self.shared.state();
        let results = params
            .iter()
            .filter_map(|item| sign_item(&state, &agent, item))
            .collect();
        Ok(Response::new(BatchNewX509svidResponse { results }))
    }

    async fn new_jwtsvid(
        &self,
        request: Request<NewJwtsvidRequest>,
    ) -> Result<Response<NewJwtsvidResponse>, Status> {
        let agent = caller(request.extensions())?;
        let NewJwtsvidRequest { entry_id, audience } = request.get_ref().clone();
        self.note(request.extensions(), |call| {
            call.ids = vec![entry_id.clone()];
            call.details.clone_from(&audience);
        });
        if audience.is_empty() {
            return Err(Status::invalid_argument(
                "at least one audience is required",
            ));
        }
        let audience: Vec<String> = audience
            .into_iter()
            .filter(|name| !name.is_empty())
            .collect();
        if audience.is_empty() {
            return Err(Status::internal("audience is required"));
        }
        let state = self.shared.state();
        let entry = authorized_entry(&state, &agent, &entry_id)?;
        let svid = match state.script.jwt.get(&entry_id) {
            Some(JwtTwist::Fail(code, message)) => return Err(Status::new(*code, message)),
            Some(JwtTwist::Missing) => None,
            Some(JwtTwist::Times(issued_at, expires_at)) => {
                let mut svid = sign_jwt(&state, entry, &audience)?;
                (svid.issued_at, svid.expires_at) = (*issued_at, *expires_at);
                Some(svid)
            }
            None => Some(sign_jwt(&state, entry, &audience)?),
        };
        Ok(Response::new(NewJwtsvidResponse { svid }))
    }

    unimplemented_rpcs! {
        mint_x509svid: MintX509svidRequest => MintX509svidResponse;
        mint_jwtsvid: MintJwtsvidRequest => MintJwtsvidResponse;
        mint_witsvid: MintWitsvidRequest => MintWitsvidResponse;
        batch_new_witsvid: BatchNewWitsvidRequest => BatchNewWitsvidResponse;
        new_downstream_x509ca: NewDownstreamX509caRequest => NewDownstreamX509caResponse;
    }
}

/// One item of a batch; nothing where the script drops it.
fn sign_item(
    state: &State,
    agent: &str,
    item: &NewX509svidParams,
) -> Option<batch_new_x509svid_response::Result> {
    let twist = match state.script.sign.get(&item.entry_id) {
        Some(SignTwist::Dropped) => return None,
        Some(SignTwist::Fail(code, message)) => {
            return Some(failed_item(&Status::new(*code, message)));
        }
        Some(SignTwist::Svid(twist)) => Some(*twist),
        None => None,
    };
    let request = authorized_entry(state, agent, &item.entry_id).and_then(|stored| {
        let entry = &stored.entry;
        Ok(SvidRequest {
            public_key: csr_public_key(&item.csr, true)?,
            path: entry.path.clone(),
            dns_names: entry.dns_names.clone(),
            ttl: or_default(entry.x509_svid_ttl, state.settings.svid_ttl),
            age: state.settings.svid_age,
            hint: entry.hint.clone(),
        })
    });
    Some(match request {
        Ok(request) => batch_new_x509svid_response::Result {
            status: Some(types::Status::default()),
            svid: state.sign_svid(request, twist).svid,
        },
        Err(status) => failed_item(&status),
    })
}

fn failed_item(status: &Status) -> batch_new_x509svid_response::Result {
    batch_new_x509svid_response::Result {
        status: Some(item_status(status)),
        svid: None,
    }
}

fn sign_jwt(
    state: &State,
    stored: &StoredEntry,
    audience: &[String],
) -> Result<types::Jwtsvid, Status> {
    let entry = &stored.entry;
    let issued_at = state.now();
    let authority = state
        .jwt_authorities
        .find(state.jwt_authorities.active())
        .ok_or_else(|| Status::internal("no JWT key"))?;
    let (token, expires_at) = authority.issue(Claims {
        subject: &state.id_text(&entry.path),
        audience,
        issued_at,
        expires_at: issued_at + or_default(entry.jwt_svid_ttl, state.settings.jwt_ttl),
        has_jti: entry.includes_jti,
    });
    Ok(types::Jwtsvid {
        token,
        id: Some(spiffe_id(&state.settings.trust_domain, &entry.path)),
        expires_at,
        issued_at,
        hint: entry.hint.clone(),
    })
}

fn authorized_entry<'a>(
    state: &'a State,
    agent: &str,
    id: &str,
) -> Result<&'a StoredEntry, Status> {
    let no_selectors = Vec::new();
    let node_selectors = state
        .agents
        .get(agent)
        .map_or(&no_selectors, |agent| &agent.selectors);
    state
        .entries
        .authorized(&state.settings.trust_domain, agent, node_selectors)
        .remove(id)
        .ok_or_else(|| Status::not_found("entry not found or not authorized"))
}

fn or_default(own: i64, default: i64) -> i64 {
    if own == 0 { default } else { own }
}
