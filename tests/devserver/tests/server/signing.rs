//! Workload SVIDs.

use devserver::{Code, DevServer, Entry, JwtTwist, SignTwist, SvidTwist, rpc};
use proto::spire::api::server::svid::v1::svid_client::SvidClient;
use proto::spire::api::server::svid::v1::{
    BatchNewX509svidRequest, NewJwtsvidRequest, NewX509svidParams,
};

use crate::client::{Identity, connect, csr, uri};
use crate::start_with_agent;

async fn client(server: &DevServer, agent: &Identity) -> SvidClient<tonic::transport::Channel> {
    SvidClient::new(connect(server, Some(agent)).await.unwrap())
}

fn batch(ids: &[&str]) -> BatchNewX509svidRequest {
    let key = rcgen::KeyPair::generate().unwrap();
    let item = |id: &&str| NewX509svidParams {
        entry_id: (*id).to_owned(),
        csr: csr(&key),
    };
    BatchNewX509svidRequest {
        params: ids.iter().map(item).collect(),
    }
}

#[tokio::test]
async fn a_batch_has_a_result_for_each_item() {
    let (server, agent) = start_with_agent().await;
    let control = server.control();
    control.configure(|settings| settings.with_intermediate = true);
    let generation = control.prepare_x509_authority();
    control.activate_x509_authority(generation);
    control.add_entry(Entry::new("web", "/web", &["unix:uid:1"]).with_ttl(60));
    control.add_entry(Entry::new("odd", "/odd", &["unix:uid:2"]));
    control.add_entry(Entry::new("bad", "/bad", &["unix:uid:3"]));
    control.twist_signing("odd", Some(SignTwist::Svid(SvidTwist::WrongId)));
    control.twist_signing(
        "bad",
        Some(SignTwist::Fail(Code::Internal, "no".to_owned())),
    );
    let mut client = client(&server, &agent).await;

    let answer = client
        .batch_new_x509svid(batch(&["web", "gone", "odd", "bad"]))
        .await
        .unwrap()
        .into_inner();

    let codes: Vec<i32> = answer
        .results
        .iter()
        .map(|item| item.status.as_ref().unwrap().code)
        .collect();
    assert_eq!(codes, [0, Code::NotFound as i32, 0, Code::Internal as i32]);
    let chain = &answer.results[0].svid.as_ref().unwrap().cert_chain;
    assert_eq!(chain.len(), 2);
    assert_eq!(uri(&chain[0]), "spiffe://example.org/web");
    let odd = &answer.results[2].svid.as_ref().unwrap().cert_chain;
    assert_eq!(uri(&odd[0]), "spiffe://example.org/not-yours");
    let call = control.calls(rpc::BATCH_NEW_X509_SVID).remove(0);
    assert_eq!(call.ids, ["web", "gone", "odd", "bad"]);
    assert_eq!(call.agent, Some(agent.id));
}

#[tokio::test]
async fn an_svid_starts_ten_seconds_back_and_lives_as_long_as_its_entry_says() {
    let (server, agent) = start_with_agent().await;
    server
        .control()
        .add_entry(Entry::new("web", "/web", &["unix:uid:1"]).with_ttl(60));
    let mut client = client(&server, &agent).await;

    let answer = client
        .batch_new_x509svid(batch(&["web"]))
        .await
        .unwrap()
        .into_inner();

    let svid = answer.results[0].svid.as_ref().unwrap();
    let (_, leaf) = x509_parser::parse_x509_certificate(&svid.cert_chain[0]).unwrap();
    let (start, end) = (
        leaf.validity().not_before.timestamp(),
        leaf.validity().not_after.timestamp(),
    );
    assert_eq!(end - start, 70);
    assert_eq!(end, svid.expires_at);
}

#[tokio::test]
async fn a_batch_over_the_limit_is_exhausting_and_an_empty_one_invalid() {
    let (server, agent) = start_with_agent().await;
    let mut client = client(&server, &agent).await;

    let too_many = client.batch_new_x509svid(batch(&["web"; 501])).await;
    let none = client.batch_new_x509svid(batch(&[])).await;

    assert_eq!(
        too_many.err().map(|status| status.code()),
        Some(Code::ResourceExhausted)
    );
    assert_eq!(
        none.err().map(|status| status.code()),
        Some(Code::InvalidArgument)
    );
}

#[tokio::test]
async fn a_jwt_svid_verifies_with_the_key_in_the_bundle() {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    let (server, agent) = start_with_agent().await;
    server
        .control()
        .add_entry(Entry::new("web", "/web", &["unix:uid:1"]));
    let mut client = client(&server, &agent).await;
    let request = NewJwtsvidRequest {
        entry_id: "web".to_owned(),
        audience: vec!["db".to_owned()],
    };

    let svid = client
        .new_jwtsvid(request)
        .await
        .unwrap()
        .into_inner()
        .svid
        .unwrap();

    let (signed, signature) = svid.token.rsplit_once('.').unwrap();
    let (_, claims) = signed.split_once('.').unwrap();
    let claims: serde_json::Value =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap();
    assert_eq!(claims["sub"], "spiffe://example.org/web");
    assert_eq!(claims["exp"].as_i64(), Some(svid.expires_at));
    assert_eq!(svid.expires_at - svid.issued_at, 300);
    let key = &server.control().bundle().jwt_authorities[0].public_key;
    let point = &key[key.len() - 65..];
    ring::signature::UnparsedPublicKey::new(&ring::signature::ECDSA_P256_SHA256_FIXED, point)
        .verify(
            signed.as_bytes(),
            &URL_SAFE_NO_PAD.decode(signature).unwrap(),
        )
        .unwrap();
}

#[tokio::test]
async fn jwt_requests_fail_by_what_is_wrong_with_them() {
    let (server, agent) = start_with_agent().await;
    server
        .control()
        .add_entry(Entry::new("web", "/web", &["unix:uid:1"]));
    let mut client = client(&server, &agent).await;
    let twist = JwtTwist::Fail(Code::Aborted, "told to".to_owned());

    for (id, audience, twist, code) in [
        ("web", vec![], None, Code::InvalidArgument),
        ("web", vec![""], None, Code::Internal),
        ("gone", vec!["db"], None, Code::NotFound),
        ("web", vec!["db"], Some(twist), Code::Aborted),
    ] {
        server.control().twist_jwt("web", twist);
        let request = NewJwtsvidRequest {
            entry_id: id.to_owned(),
            audience: audience.iter().map(|&name| name.to_owned()).collect(),
        };

        let outcome = client.new_jwtsvid(request).await;

        assert_eq!(
            outcome.err().map(|status| status.code()),
            Some(code),
            "{id} {audience:?}"
        );
    }
}
