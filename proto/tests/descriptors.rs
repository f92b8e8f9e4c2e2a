//! Checks the descriptors that ship with the crate against the wire contract, written down here a second time: method
//! paths, and the field numbers and types that agents and servers in the field rely on.

use std::collections::BTreeMap;

use prost::Message as _;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FieldOptions, FileDescriptorSet};

/// Every method of every service: path, and which sides stream.
const METHODS: &str = "
    /SpiffeWorkloadAPI/FetchJWTBundles server
    /SpiffeWorkloadAPI/FetchJWTSVID unary
    /SpiffeWorkloadAPI/FetchWITBundles server
    /SpiffeWorkloadAPI/FetchWITSVID server
    /SpiffeWorkloadAPI/FetchX509Bundles server
    /SpiffeWorkloadAPI/FetchX509SVID server
    /SpiffeWorkloadAPI/ValidateJWTSVID unary
    /grpc.health.v1.Health/Check unary
    /grpc.health.v1.Health/List unary
    /grpc.health.v1.Health/Watch server
    /spiffe.broker.API/FetchJWTSVID unary
    /spiffe.broker.API/SubscribeToJWTBundles server
    /spiffe.broker.API/SubscribeToX509Bundles server
    /spiffe.broker.API/SubscribeToX509SVID server
    /spire.agent.debug.v1.Debug/GetInfo unary
    /spire.api.agent.delegatedidentity.v1.DelegatedIdentity/FetchJWTSVIDs unary
    /spire.api.agent.delegatedidentity.v1.DelegatedIdentity/SubscribeToJWTBundles server
    /spire.api.agent.delegatedidentity.v1.DelegatedIdentity/SubscribeToX509Bundles server
    /spire.api.agent.delegatedidentity.v1.DelegatedIdentity/SubscribeToX509SVIDs server
    /spire.api.agent.logger.v1.Logger/GetLogger unary
    /spire.api.agent.logger.v1.Logger/ResetLogLevel unary
    /spire.api.agent.logger.v1.Logger/SetLogLevel unary
    /spire.api.server.agent.v1.Agent/AttestAgent both
    /spire.api.server.agent.v1.Agent/BanAgent unary
    /spire.api.server.agent.v1.Agent/CountAgents unary
    /spire.api.server.agent.v1.Agent/CreateJoinToken unary
    /spire.api.server.agent.v1.Agent/DeleteAgent unary
    /spire.api.server.agent.v1.Agent/GetAgent unary
    /spire.api.server.agent.v1.Agent/ListAgents unary
    /spire.api.server.agent.v1.Agent/PostStatus unary
    /spire.api.server.agent.v1.Agent/RenewAgent unary
    /spire.api.server.bundle.v1.Bundle/AppendBundle unary
    /spire.api.server.bundle.v1.Bundle/BatchCreateFederatedBundle unary
    /spire.api.server.bundle.v1.Bundle/BatchDeleteFederatedBundle unary
    /spire.api.server.bundle.v1.Bundle/BatchSetFederatedBundle unary
    /spire.api.server.bundle.v1.Bundle/BatchUpdateFederatedBundle unary
    /spire.api.server.bundle.v1.Bundle/CountBundles unary
    /spire.api.server.bundle.v1.Bundle/GetBundle unary
    /spire.api.server.bundle.v1.Bundle/GetFederatedBundle unary
    /spire.api.server.bundle.v1.Bundle/ListFederatedBundles unary
    /spire.api.server.bundle.v1.Bundle/PublishJWTAuthority unary
    /spire.api.server.bundle.v1.Bundle/PublishWITAuthority unary
    /spire.api.server.entry.v1.Entry/BatchCreateEntry unary
    /spire.api.server.entry.v1.Entry/BatchDeleteEntry unary
    /spire.api.server.entry.v1.Entry/BatchUpdateEntry unary
    /spire.api.server.entry.v1.Entry/CountEntries unary
    /spire.api.server.entry.v1.Entry/GetAuthorizedEntries unary
    /spire.api.server.entry.v1.Entry/GetEntry unary
    /spire.api.server.entry.v1.Entry/ListEntries unary
    /spire.api.server.entry.v1.Entry/SyncAuthorizedEntries both
    /spire.api.server.svid.v1.SVID/BatchNewWITSVID unary
    /spire.api.server.svid.v1.SVID/BatchNewX509SVID unary
    /spire.api.server.svid.v1.SVID/MintJWTSVID unary
    /spire.api.server.svid.v1.SVID/MintWITSVID unary
    /spire.api.server.svid.v1.SVID/MintX509SVID unary
    /spire.api.server.svid.v1.SVID/NewDownstreamX509CA unary
    /spire.api.server.svid.v1.SVID/NewJWTSVID unary
";

/// Numbers and types of key fields: full name, number, type.
const FIELDS: &str = "
    X509SVIDResponse.svids 1 repeated message
    X509SVIDResponse.crl 2 repeated bytes
    X509SVIDResponse.federated_bundles 3 repeated message
    X509SVID.spiffe_id 1 string
    X509SVID.x509_svid 2 bytes
    X509SVID.x509_svid_key 3 bytes
    X509SVID.bundle 4 bytes
    X509SVID.hint 5 string
    JWTSVID.svid 2 string
    ValidateJWTSVIDRequest.svid 2 string
    ValidateJWTSVIDResponse.claims 2 message
    WITSVID.wit_svid_key 3 string
    spire.api.types.Agent.agent_version 8 string
    spire.api.types.Bundle.sequence_number 5 uint64
    spire.api.types.Bundle.wit_authorities 6 repeated message
    spire.api.types.BundleMask.x509_authorities 2 bool
    spire.api.types.Entry.x509_svid_ttl 5 int32
    spire.api.types.Entry.revision_number 11 int64
    spire.api.types.Entry.created_at 15 int64
    spire.api.types.Entry.additional_attributes 16 message
    spire.api.types.EntryMask.spiffe_id 2 bool
    spire.api.types.PermissionDeniedDetails.reason 1 enum
    spire.api.types.X509SVID.cert_chain 1 repeated bytes
    spire.api.server.agent.v1.AttestAgentRequest.challenge_response 2 bytes
    spire.api.server.agent.v1.AttestAgentRequest.Params.params 2 message
    spire.api.server.agent.v1.AttestAgentResponse.Result.reattestable 2 bool
    spire.api.server.agent.v1.PostStatusRequest.current_bundle_serial 1 uint64
    spire.api.server.entry.v1.SyncAuthorizedEntriesResponse.more 3 bool
    spire.api.server.svid.v1.NewX509SVIDParams.csr 2 bytes
    spire.agent.debug.v1.GetInfoResponse.svids_count 3 int32
    spire.api.agent.delegatedidentity.v1.X509SVIDWithKey.x509_svid_key 2 bytes
    spiffe.broker.WorkloadReference.reference 1 message
    google.rpc.Status.details 3 repeated message
    grpc.health.v1.HealthCheckResponse.status 1 enum
";

#[test]
fn every_method_has_its_path_and_streaming() {
    let descriptors = descriptors();

    let mut found = Vec::new();
    for file in &descriptors.file {
        for service in &file.service {
            let service_name = qualified(file.package(), service.name());
            found.extend(service.method.iter().map(|method| {
                let streaming = match (method.client_streaming(), method.server_streaming()) {
                    (false, false) => "unary",
                    (false, true) => "server",
                    (true, false) => "client",
                    (true, true) => "both",
                };
                format!("/{service_name}/{} {streaming}", method.name())
            }));
        }
    }
    found.sort();

    assert_eq!(found, rows(METHODS));
}

#[test]
fn key_fields_have_their_numbers_and_types() {
    let messages = messages();

    for row in rows(FIELDS) {
        let (path, _) = row.split_once(' ').expect("a field and its type");
        let (message, name) = path.rsplit_once('.').expect("a message and a field");
        let field = field(&messages, message, name);

        let repeated = match field.label() {
            Label::Repeated => "repeated ",
            Label::Optional | Label::Required => "",
        };
        let kind = type_word(field.r#type());
        assert_eq!(format!("{path} {} {repeated}{kind}", field.number()), row);
    }
}

#[test]
fn additional_attributes_of_an_entry_are_optional_and_nothing_else_is() {
    let messages = messages();

    let optional: Vec<String> = messages
        .iter()
        .filter(|(message, _)| !message.starts_with("google.protobuf."))
        .flat_map(|(message, descriptor)| {
            descriptor
                .field
                .iter()
                .filter(|field| field.proto3_optional())
                .map(move |field| format!("{message}.{}", field.name()))
        })
        .collect();

    assert_eq!(optional, ["spire.api.types.Entry.additional_attributes"]);
}

#[test]
fn the_old_svid_count_is_deprecated() {
    let messages = messages();
    let message = "spire.agent.debug.v1.GetInfoResponse";

    let is_deprecated = |name| {
        field(&messages, message, name)
            .options
            .as_ref()
            .is_some_and(FieldOptions::deprecated)
    };

    assert!(is_deprecated("svids_count"));
    assert!(!is_deprecated("cached_x509_svids_count"));
}

#[test]
fn oneof_members_share_their_oneof() {
    let cases = [
        (
            "spire.api.server.agent.v1.AttestAgentRequest",
            "step",
            ["params", "challenge_response"],
        ),
        (
            "spire.api.server.agent.v1.AttestAgentResponse",
            "step",
            ["result", "challenge"],
        ),
        (
            "spire.api.types.FederationRelationship",
            "bundle_endpoint_profile",
            ["https_web", "https_spiffe"],
        ),
    ];
    let messages = messages();

    for (message, oneof, members) in cases {
        let descriptor = &messages[message];

        assert_eq!(descriptor.oneof_decl.len(), 1, "{message}");
        assert_eq!(descriptor.oneof_decl[0].name(), oneof, "{message}");
        for member in members {
            let field = field(&messages, message, member);
            assert_eq!(field.oneof_index, Some(0), "{message}.{member}");
        }
    }
}

#[test]
fn an_unknown_field_of_a_newer_peer_is_ignored() {
    let mut encoded = proto::workload::JwtsvidRequest {
        audience: vec!["web".to_owned()],
        spiffe_id: String::new(),
    }
    .encode_to_vec();
    let field_1000_of_value_1 = [0xc0, 0x3e, 0x01];
    encoded.extend(field_1000_of_value_1);

    let decoded = proto::workload::JwtsvidRequest::decode(encoded.as_slice()).unwrap();

    assert_eq!(decoded.audience, ["web"]);
}

/// The lines of a table, without indentation.
fn rows(table: &str) -> Vec<&str> {
    table.trim().lines().map(str::trim).collect()
}

/// A type in lower case: `Type::Int32` is `int32`.
fn type_word(kind: Type) -> String {
    kind.as_str_name()
        .trim_start_matches("TYPE_")
        .to_lowercase()
}

fn descriptors() -> FileDescriptorSet {
    FileDescriptorSet::decode(proto::FILE_DESCRIPTOR_SET).expect("a valid descriptor set")
}

/// Every message by its full name, nested ones too.
fn messages() -> BTreeMap<String, DescriptorProto> {
    let mut found = BTreeMap::new();
    let mut pending = Vec::new();
    for file in descriptors().file {
        let package = file.package().to_owned();
        pending.extend(
            file.message_type
                .into_iter()
                .map(|message| (package.clone(), message)),
        );
    }

    while let Some((scope, message)) = pending.pop() {
        let name = qualified(&scope, message.name());
        let nested = message.nested_type.iter().cloned();
        pending.extend(nested.map(|nested| (name.clone(), nested)));
        found.insert(name, message);
    }

    found
}

fn field<'a>(
    messages: &'a BTreeMap<String, DescriptorProto>,
    message: &str,
    name: &str,
) -> &'a FieldDescriptorProto {
    let message = messages
        .get(message)
        .unwrap_or_else(|| panic!("no message {message}"));
    let mut fields = message.field.iter();

    fields
        .find(|field| field.name() == name)
        .unwrap_or_else(|| panic!("no field {name}"))
}

/// A name inside a package or message; the Workload API has no package.
fn qualified(scope: &str, name: &str) -> String {
    if scope.is_empty() {
        name.to_owned()
    } else {
        format!("{scope}.{name}")
    }
}
