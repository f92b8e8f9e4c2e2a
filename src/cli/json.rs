//! Answers of the agent as JSON: proto names, sorted keys, bytes in base64, 64-bit numbers as strings, no nulls. Pure.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost_types::value::Kind;
use proto::spire::agent::debug::v1::GetInfoResponse;
use proto::spire::agent::debug::v1::get_info_response::Cert;
use proto::spire::api::types::{LogLevel, Logger};
use proto::workload::{
    JwtBundlesResponse, JwtsvidResponse, ValidateJwtsvidResponse, X509svidResponse,
};
use serde_json::{Map, Number, Value, json};

/// Whole numbers up to here are exact in a JSON number (2^53).
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// One line.
pub(super) fn to_line(value: &Value) -> String {
    format!("{value}\n")
}

/// An answer of `FetchX509SVID`, private keys included.
pub(super) fn x509(answer: &X509svidResponse) -> Value {
    let svids = answer.svids.iter().map(|svid| {
        json!({
            "bundle": STANDARD.encode(&svid.bundle),
            "hint": svid.hint,
            "spiffe_id": svid.spiffe_id,
            "x509_svid": STANDARD.encode(&svid.x509_svid),
            "x509_svid_key": STANDARD.encode(&svid.x509_svid_key),
        })
    });
    json!({
        "crl": answer.crl.iter().map(|crl| STANDARD.encode(crl)).collect::<Vec<_>>(),
        "federated_bundles": base64_map(&answer.federated_bundles),
        "svids": svids.collect::<Vec<_>>(),
    })
}

/// The answers of `FetchJWTSVID` and `FetchJWTBundles`, tokens included.
pub(super) fn jwt(svids: &JwtsvidResponse, bundles: &JwtBundlesResponse) -> Value {
    let svids = svids.svids.iter();
    let svids = svids
        .map(|svid| json!({"hint": svid.hint, "spiffe_id": svid.spiffe_id, "svid": svid.svid}));
    json!([{"svids": svids.collect::<Vec<_>>()}, {"bundles": base64_map(&bundles.bundles)}])
}

/// An answer of `ValidateJWTSVID`.
pub(super) fn validated(answer: &ValidateJwtsvidResponse) -> Value {
    let mut members = Map::new();
    if answer.claims.is_some() {
        members.insert("claims".to_owned(), claims(answer));
    }
    members.insert("spiffe_id".to_owned(), answer.spiffe_id.clone().into());
    Value::Object(members)
}

/// The claims of a token that was found valid.
pub(super) fn claims(answer: &ValidateJwtsvidResponse) -> Value {
    object(answer.claims.as_ref())
}

/// An answer of the Logger API.
pub(super) fn logger(answer: Logger) -> Value {
    json!({
        "current_level": level_name(answer.current_level),
        "launch_level": level_name(answer.launch_level),
    })
}

/// A level's name in the Logger API.
pub(super) fn level_name(number: i32) -> &'static str {
    LogLevel::try_from(number)
        .unwrap_or(LogLevel::Unspecified)
        .as_str_name()
}

/// An answer of `GetInfo`.
pub(super) fn info(answer: &GetInfoResponse) -> Value {
    json!({
        "cached_jwt_svids_count": answer.cached_jwt_svids_count,
        "cached_svidstore_x509_svids_count": answer.cached_svidstore_x509_svids_count,
        "cached_x509_svids_count": answer.cached_x509_svids_count,
        "last_sync_success": answer.last_sync_success.to_string(),
        "svid_chain": answer.svid_chain.iter().map(certificate).collect::<Vec<_>>(),
        "svids_count": old_count(answer),
        "uptime": answer.uptime,
    })
}

#[expect(deprecated, reason = "readers of the reference's JSON know the field")]
fn old_count(answer: &GetInfoResponse) -> i32 {
    answer.svids_count
}

fn certificate(certificate: &Cert) -> Value {
    let mut members = Map::new();
    members.insert(
        "expires_at".to_owned(),
        certificate.expires_at.to_string().into(),
    );
    if let Some(id) = &certificate.id {
        members.insert(
            "id".to_owned(),
            json!({"path": id.path, "trust_domain": id.trust_domain}),
        );
    }
    members.insert("subject".to_owned(), certificate.subject.clone().into());
    Value::Object(members)
}

fn base64_map<B: AsRef<[u8]>>(entries: &HashMap<String, B>) -> Value {
    entries
        .iter()
        .map(|(key, bytes)| (key.clone(), STANDARD.encode(bytes)))
        .collect()
}

fn object(members: Option<&prost_types::Struct>) -> Value {
    let fields = members.into_iter().flat_map(|members| &members.fields);
    let values = fields.filter_map(|(key, value)| Some((key.clone(), value_of(value)?)));
    Value::Object(values.collect())
}

/// `None` for null.
fn value_of(value: &prost_types::Value) -> Option<Value> {
    Some(match value.kind.as_ref()? {
        Kind::NullValue(_) => return None,
        Kind::NumberValue(number) => Value::Number(number_of(*number)?),
        Kind::StringValue(text) => Value::String(text.clone()),
        Kind::BoolValue(truth) => Value::Bool(*truth),
        Kind::StructValue(members) => object(Some(members)),
        Kind::ListValue(list) => Value::Array(list.values.iter().filter_map(value_of).collect()),
    })
}

/// Whole numbers are written without a fraction, as Go does.
fn number_of(number: f64) -> Option<Number> {
    if number.fract() == 0.0 && number.abs() <= MAX_EXACT {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "it is whole and within range"
        )]
        return Some((number as i64).into());
    }
    Number::from_f64(number)
}

#[cfg(test)]
mod tests {
    use proto::spire::api::types::Spiffeid;
    use proto::workload::{Jwtsvid, X509svid};

    use super::*;

    #[test]
    fn an_x509_answer_is_one_sorted_line_with_unset_fields() {
        let svid = X509svid {
            spiffe_id: "spiffe://td/w".to_owned(),
            x509_svid: vec![1, 2, 3].into(),
            x509_svid_key: vec![4].into(),
            bundle: vec![5, 6].into(),
            hint: String::new(),
        };
        let answer = X509svidResponse {
            svids: vec![svid],
            ..X509svidResponse::default()
        };

        assert_eq!(
            to_line(&x509(&answer)),
            "{\"crl\":[],\"federated_bundles\":{},\"svids\":[{\"bundle\":\"BQY=\",\"hint\":\"\",\"spiffe_id\":\"spiffe://td/w\",\
             \"x509_svid\":\"AQID\",\"x509_svid_key\":\"BA==\"}]}\n"
        );
    }

    #[test]
    fn a_jwt_answer_is_an_array_of_svids_and_bundles() {
        let svid = Jwtsvid {
            spiffe_id: "spiffe://td/w".to_owned(),
            svid: "a.b.c".to_owned(),
            hint: "h".to_owned(),
        };
        let svids = JwtsvidResponse { svids: vec![svid] };
        let bundles = JwtBundlesResponse {
            bundles: HashMap::from([("spiffe://td".to_owned(), b"{}".to_vec().into())]),
        };

        assert_eq!(
            to_line(&jwt(&svids, &bundles)),
            "[{\"svids\":[{\"hint\":\"h\",\"spiffe_id\":\"spiffe://td/w\",\"svid\":\"a.b.c\"}]},{\"bundles\":{\"spiffe://td\":\"e30=\"}}]\n"
        );
    }

    #[test]
    fn claims_keep_whole_numbers_whole_and_drop_nulls() {
        let value = |kind| prost_types::Value { kind: Some(kind) };
        let list = prost_types::ListValue {
            values: vec![value(Kind::StringValue("x".to_owned()))],
        };
        let fields = [
            ("aud", Kind::ListValue(list)),
            ("exp", Kind::NumberValue(1_790_000_000.0)),
            ("ratio", Kind::NumberValue(0.5)),
            ("nothing", Kind::NullValue(0)),
            ("infinite", Kind::NumberValue(f64::INFINITY)),
        ];
        let fields = fields
            .into_iter()
            .map(|(key, kind)| (key.to_owned(), value(kind)))
            .collect();
        let answer = ValidateJwtsvidResponse {
            spiffe_id: "spiffe://td/w".to_owned(),
            claims: Some(prost_types::Struct { fields }),
        };

        assert_eq!(
            to_line(&validated(&answer)),
            "{\"claims\":{\"aud\":[\"x\"],\"exp\":1790000000,\"ratio\":0.5},\"spiffe_id\":\"spiffe://td/w\"}\n"
        );
    }

    #[test]
    fn info_writes_long_numbers_as_strings_and_leaves_unset_ids_out() {
        let id = Spiffeid {
            trust_domain: "td".to_owned(),
            path: "/a".to_owned(),
        };
        let chain = vec![
            Cert {
                id: Some(id),
                expires_at: 7,
                subject: "CN=a".to_owned(),
            },
            Cert {
                id: None,
                expires_at: 8,
                subject: String::new(),
            },
        ];
        let answer = GetInfoResponse {
            svid_chain: chain,
            uptime: 42,
            last_sync_success: 1_705_320_000,
            cached_x509_svids_count: 3,
            ..GetInfoResponse::default()
        };

        assert_eq!(
            to_line(&info(&answer)),
            "{\"cached_jwt_svids_count\":0,\"cached_svidstore_x509_svids_count\":0,\"cached_x509_svids_count\":3,\
             \"last_sync_success\":\"1705320000\",\"svid_chain\":[{\"expires_at\":\"7\",\"id\":{\"path\":\"/a\",\"trust_domain\":\"td\"},\
             \"subject\":\"CN=a\"},{\"expires_at\":\"8\",\"subject\":\"\"}],\"svids_count\":0,\"uptime\":42}\n"
        );
    }
}
