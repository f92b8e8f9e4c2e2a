//! Answers that break the contract (design D22): refused item by item, the rest is of use.

use proto::spire::api::server::svid::v1::BatchNewX509svidResponse;
use proto::spire::api::server::svid::v1::batch_new_x509svid_response::Result as SigningResult;

use super::*;
use crate::entry::EntryId;

fn requests(count: usize) -> Vec<SigningRequest> {
    (0..count)
        .map(|number| SigningRequest {
            entry_id: EntryId::new(&format!("e{number}")).unwrap(),
            csr: vec![1],
        })
        .collect()
}

/// A result with this status and chain.
fn signed(code: Option<i32>, chain: Option<Vec<Vec<u8>>>) -> SigningResult {
    SigningResult {
        status: code.map(|code| types::Status {
            code,
            message: "gone\n\u{202e}".into(),
        }),
        svid: chain.map(|cert_chain| X509svid {
            cert_chain,
            ..Default::default()
        }),
    }
}

#[tokio::test]
async fn each_certificate_of_a_batch_has_an_outcome_of_its_own() {
    let authority = Authority::new();
    let leaf = authority
        .issue("spiffe://domain.test/a")
        .certificate
        .to_vec();
    let intermediate = authority.certificate.to_vec();
    let with_rest = [leaf.as_slice(), b"rest"].concat();
    let cut = leaf[..leaf.len() - 1].to_vec();
    let (lost, fine) = (Err(tonic::Code::DataLoss), |count: usize| Ok(count));
    let table = [
        ("good", signed(Some(0), Some(vec![leaf.clone()])), fine(1)),
        (
            "good without status",
            signed(None, Some(vec![leaf.clone()])),
            fine(1),
        ),
        (
            "with intermediates in one element",
            signed(
                Some(0),
                Some(vec![[leaf.clone(), intermediate.clone()].concat()]),
            ),
            fine(2),
        ),
        ("refused", signed(Some(5), None), Err(tonic::Code::NotFound)),
        (
            "refused and signed",
            signed(Some(5), Some(vec![leaf.clone()])),
            Err(tonic::Code::NotFound),
        ),
        (
            "unknown code",
            signed(Some(77), None),
            Err(tonic::Code::Unknown),
        ),
        ("neither status nor SVID", signed(None, None), lost),
        ("no SVID", signed(Some(0), None), lost),
        ("empty chain", signed(Some(0), Some(vec![])), lost),
        (
            "chain of nothing",
            signed(Some(0), Some(vec![vec![]])),
            lost,
        ),
        (
            "garbage",
            signed(Some(0), Some(vec![b"garbage".to_vec()])),
            lost,
        ),
        (
            "trailing bytes",
            signed(Some(0), Some(vec![with_rest])),
            lost,
        ),
        ("cut", signed(Some(0), Some(vec![cut])), lost),
        (
            "long chain",
            signed(Some(0), Some(vec![intermediate; 200])),
            lost,
        ),
    ];
    let results: Vec<_> = table.iter().map(|(_, result, _)| result.clone()).collect();
    let script = move |call: ServerCall| {
        let results = results.clone();
        async move {
            call.answer(&BatchNewX509svidResponse { results }).await;
            ok()
        }
    };
    let (_server, agent) = pair(&authority, script).await;

    let outcomes = Rc::clone(&agent.client)
        .sign_x509(requests(table.len()))
        .await
        .unwrap();

    for ((case, _, expected), outcome) in table.iter().zip(&outcomes) {
        let got = outcome
            .as_ref()
            .map(Vec::len)
            .map_err(|refusal| refusal.code);
        assert_eq!(got, *expected, "{case}");
        if let Err(refusal) = outcome {
            assert!(
                !refusal.message.contains(['\n', '\u{202e}']),
                "{case}: {refusal}"
            );
        }
    }
}

#[tokio::test]
async fn a_batch_with_more_or_fewer_results_than_requests_serves_those_that_there_are() {
    let authority = Authority::new();
    let chain = vec![
        authority
            .issue("spiffe://domain.test/a")
            .certificate
            .to_vec(),
    ];
    let script = move |call: ServerCall| {
        let results = vec![signed(Some(0), Some(chain.clone())); 2];
        async move {
            call.answer(&BatchNewX509svidResponse { results }).await;
            ok()
        }
    };
    let (server, agent) = pair(&authority, script).await;

    for (asked, good) in [(2, 2), (1, 1), (3, 2)] {
        let outcomes = Rc::clone(&agent.client)
            .sign_x509(requests(asked))
            .await
            .unwrap();

        assert_eq!(outcomes.len(), asked);
        assert!(outcomes[..good].iter().all(Result::is_ok));
        for missing in &outcomes[good..] {
            assert_eq!(missing.as_ref().unwrap_err().code, tonic::Code::DataLoss);
        }
    }
    let none = Rc::clone(&agent.client).sign_x509(Vec::new()).await;
    assert_eq!(none.unwrap().len(), 0);
    assert_eq!(server.methods.lock().unwrap().len(), 3);
}

#[tokio::test]
async fn an_answer_over_four_mebibytes_is_refused_before_it_comes() {
    let authority = Authority::new();
    let good = bundle_message(&authority);
    let script = move |call: ServerCall| {
        let good = good.clone();
        async move {
            // The second one is larger than everything the agent may ever hold.
            match call.number {
                0 => call.announce((4 << 20) + 1).await,
                1 => call.announce(200 << 20).await,
                2 => call.announce(u32::MAX).await,
                _ => return a_bundle(call, good).await,
            }
            std::future::pending().await
        }
    };
    let (server, agent) = pair(&authority, script).await;

    for _ in 0..3 {
        let error = Rc::clone(&agent.client).bundle().await.unwrap_err();
        assert_eq!(error.code(), Some(tonic::Code::OutOfRange), "{error:?}");
    }
    Rc::clone(&agent.client).bundle().await.unwrap();
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn words_of_the_server_are_harmless_wherever_they_show() {
    let authority = Authority::new();
    let script = |call: ServerCall| async move {
        // As gRPC encodes what a header cannot carry.
        let words = "no%0Alevel=error%1B[31m%E2%80%AE";
        drop(call);
        status(tonic::Code::Internal, words)
    };
    let (_server, agent) = pair(&authority, script).await;

    let error = Rc::clone(&agent.client).bundle().await.unwrap_err();

    let text = error.to_string();
    assert_eq!(error.code(), Some(tonic::Code::Internal));
    assert!(text.contains("level=error"), "{text}");
    assert!(!text.contains(['\n', '\u{1b}', '\u{202e}']), "{text:?}");
}

#[tokio::test]
async fn an_own_bundle_that_is_of_no_use_is_refused_whole() {
    let authority = Authority::new();
    let good = bundle_message(&authority);
    let changed: [fn(&mut types::Bundle); 5] = [
        |bundle| bundle.x509_authorities.clear(),
        |bundle| bundle.trust_domain = "other.test".into(),
        |bundle| bundle.trust_domain = "domain.test\n".into(),
        |bundle| bundle.x509_authorities[0].asn1.push(0),
        |bundle| bundle.jwt_authorities.push(types::JwtKey::default()),
    ];
    let script = move |call: ServerCall| {
        let mut message = good.clone();
        async move {
            if let Some(change) = changed.get(call.number) {
                change(&mut message);
            }
            a_bundle(call, message).await
        }
    };
    let (_server, agent) = pair(&authority, script).await;

    for _ in 0..changed.len() {
        let outcome = Rc::clone(&agent.client).bundle().await;
        assert!(
            matches!(outcome, Err(ServerError::Malformed { .. })),
            "{outcome:?}"
        );
    }
    assert!(Rc::clone(&agent.client).bundle().await.is_ok());
}
