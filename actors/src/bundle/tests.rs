use super::*;
use crate::keys::{KeyType, PrivateKey};
use crate::testing::certificates::{Ca, leaf_params};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{ExtendedKeyUsagePurpose, KeyPair};

const ID: &str = "spiffe://domain.test/web";
const HOUR: Duration = Duration::from_hours(1);

fn epoch() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000)
}

fn domain() -> TrustDomain {
    TrustDomain::parse("domain.test").unwrap()
}

fn message(ca: &Ca) -> types::Bundle {
    types::Bundle {
        trust_domain: "domain.test".to_owned(),
        x509_authorities: vec![types::X509Certificate {
            asn1: ca.certificate().der().to_vec(),
            tainted: true,
        }],
        jwt_authorities: vec![types::JwtKey {
            public_key: PrivateKey::generate(KeyType::EcP256)
                .unwrap()
                .public_key_der()
                .to_vec(),
            key_id: "one".to_owned(),
            expires_at: 0,
            tainted: false,
        }],
        refresh_hint: 60,
        sequence_number: 7,
        ..Default::default()
    }
}

#[test]
fn a_pem_file_gives_its_certificates() {
    let (one, two) = (Ca::new(epoch()), Ca::new(epoch()));
    let text = one.certificate().to_pem() + &two.certificate().to_pem();

    let bundle = Bundle::from_file_text(&domain(), text.as_bytes(), BundleFormat::Pem).unwrap();

    assert_eq!(
        bundle.x509_authorities(),
        [one.authority(), two.authority()]
    );
    assert_eq!(
        bundle.x509_der().len(),
        one.certificate().der().len() + two.certificate().der().len()
    );
    let refused = Bundle::from_file_text(&domain(), b"", BundleFormat::Pem).unwrap_err();
    assert_eq!(refused.to_string(), "no PEM blocks");
}

#[test]
fn a_spiffe_document_gives_its_x509_authorities() {
    let ca = Ca::new(epoch());
    let encoded = STANDARD.encode(ca.certificate().der());
    let text = format!(
        r#"{{"keys": [{{"kty": "EC", "use": "x509-svid", "crv": "P-256", "x": "", "y": "", "x5c": ["{encoded}"]}},
            {{"kty": "EC", "use": "jwt-svid", "kid": "one"}}, {{"use": "wit-svid", "kid": "two"}}],
            "spiffe_sequence": 1, "spiffe_refresh_hint": 300}}"#
    );

    let bundle = Bundle::from_file_text(&domain(), text.as_bytes(), BundleFormat::Spiffe).unwrap();

    assert_eq!(bundle, ca.bundle("domain.test"));
}

#[test]
fn unusable_spiffe_documents_are_refused_with_their_reason() {
    let table = [
        ("", "malformed SPIFFE bundle: EOF"),
        ("[]", "malformed SPIFFE bundle"),
        ("{}", "no X.509 authorities"),
        (r#"{"keys": null}"#, "no X.509 authorities"),
        (
            r#"{"keys": [{"use": "jwt-svid", "kid": "one"}]}"#,
            "no X.509 authorities",
        ),
        (
            r#"{"keys": [{"kid": "one"}]}"#,
            "missing use for key entry 0",
        ),
        (
            r#"{"keys": [{"use": "jwt-svid", "kid": "a"}, {"use": ""}]}"#,
            "missing use for key entry 1",
        ),
        (
            r#"{"keys": [{"use": "sig"}]}"#,
            r#"unrecognized use "sig" for key entry 0"#,
        ),
        (
            r#"{"keys": [{"use": "jwt-svid"}]}"#,
            "missing kid for key entry 0",
        ),
        (
            r#"{"keys": [{"use": "x509-svid"}]}"#,
            "expected one certificate in key entry 0, found 0",
        ),
        (
            r#"{"keys": [{"use": "x509-svid", "x5c": ["a", "b"]}]}"#,
            "expected one certificate in key entry 0, found 2",
        ),
        (
            r#"{"keys": [{"use": "x509-svid", "x5c": ["!"]}]}"#,
            "certificate of key entry 0 is not base64",
        ),
        (
            r#"{"keys": [{"use": "x509-svid", "x5c": ["AAAA"]}]}"#,
            "key entry 0: malformed certificate",
        ),
    ];

    for (text, reason) in table {
        let refused =
            Bundle::from_file_text(&domain(), text.as_bytes(), BundleFormat::Spiffe).unwrap_err();
        assert!(refused.to_string().contains(reason), "{text}: {refused}");
    }
}

#[test]
fn the_servers_message_is_taken_whole() {
    let ca = Ca::new(epoch());
    let mut limited = message(&ca);
    limited.jwt_authorities[0].expires_at = 1_790_000_000;

    let bundle = Bundle::from_proto(message(&ca), &domain()).unwrap();

    assert_eq!(
        bundle.x509_authorities(),
        [X509Authority {
            tainted: true,
            ..ca.authority()
        }]
    );
    assert_eq!(
        (bundle.refresh_hint, bundle.sequence_number),
        (Duration::from_mins(1), 7)
    );
    assert_eq!(
        (
            bundle.jwt_authorities[0].key_id.as_str(),
            bundle.jwt_authorities[0].expires_at
        ),
        ("one", None)
    );
    let limited = Bundle::from_proto(limited, &domain()).unwrap();
    assert_eq!(limited.jwt_authorities[0].expires_at, Some(epoch()));
}

#[test]
fn of_jwt_authorities_with_one_key_id_the_last_counts() {
    let ca = Ca::new(epoch());
    let mut doubled = message(&ca);
    let first = doubled.jwt_authorities[0].clone();
    let other = types::JwtKey {
        key_id: "two".into(),
        ..first.clone()
    };
    let again = types::JwtKey {
        expires_at: 1_790_000_000,
        ..first
    };
    doubled.jwt_authorities.extend([other, again]);

    let bundle = Bundle::from_proto(doubled, &domain()).unwrap();

    let kept: Vec<_> = bundle
        .jwt_authorities
        .iter()
        .map(|authority| (authority.key_id.as_str(), authority.expires_at))
        .collect();
    assert_eq!(kept, [("two", None), ("one", Some(epoch()))]);
}

#[test]
fn unusable_messages_are_refused() {
    let ca = Ca::new(epoch());
    let changed = |change: fn(&mut types::Bundle)| {
        let mut message = message(&ca);
        change(&mut message);
        Bundle::from_proto(message, &domain()).unwrap_err()
    };

    assert_eq!(
        changed(|m| m.trust_domain = "other.test".to_owned()),
        BundleError::TrustDomain(domain())
    );
    assert_eq!(
        changed(|m| m.trust_domain.clear()),
        BundleError::TrustDomain(domain())
    );
    assert_eq!(
        changed(|m| m.jwt_authorities[0].key_id.clear()),
        BundleError::MissingKeyId(0)
    );
    assert_eq!(
        changed(|m| m.jwt_authorities[0].public_key.clear()),
        BundleError::JwtKey(0)
    );
    assert!(matches!(
        changed(|m| m.x509_authorities[0].asn1.truncate(9)),
        BundleError::Certificate(_)
    ));
    assert!(matches!(
        changed(|m| m.x509_authorities[0].asn1.clear()),
        BundleError::Certificate(_)
    ));
}

#[test]
fn a_chain_is_followed_to_an_authority_of_the_bundle() {
    let root = Ca::new(epoch());
    let upper = root.intermediate(epoch(), epoch() + HOUR);
    let lower = upper.intermediate(epoch(), epoch() + HOUR);
    let svid = lower.svid(ID, epoch(), epoch() + HOUR);
    let swapped = [
        svid.chain()[0].clone(),
        svid.chain()[2].clone(),
        svid.chain()[1].clone(),
    ];
    let expected = [svid.chain(), &[root.certificate().clone()]].concat();

    assert_eq!(
        root.bundle("domain.test")
            .verified_path(svid.chain(), epoch())
            .unwrap(),
        expected
    );
    assert_eq!(
        root.bundle("domain.test")
            .verified_path(&swapped, epoch())
            .unwrap(),
        expected
    );
    assert_eq!(
        root.bundle("domain.test").verify(&swapped[..2], epoch()),
        Err(VerifyError::UnknownAuthority)
    );
    // An authority need not be self-signed.
    let path = upper
        .bundle("domain.test")
        .verified_path(svid.chain(), epoch())
        .unwrap();
    assert_eq!(path, expected[..3]);
}

#[test]
fn a_path_is_refused_for_the_reason_that_go_gives() {
    let (early, late) = (epoch() - HOUR, epoch() + HOUR);
    let good = Ca::new(epoch());
    let expired_root = Ca::valid(early, epoch() - Duration::from_secs(1));
    let future_root = Ca::valid(late, late + HOUR);
    let table = [
        (good.svid(ID, early, late), &good, Ok(())),
        (good.svid(ID, early, epoch()), &good, Ok(())),
        (
            good.svid(ID, early, epoch() - Duration::from_secs(1)),
            &good,
            Err(VerifyError::Expired),
        ),
        (
            good.svid(ID, late, late),
            &good,
            Err(VerifyError::NotYetValid),
        ),
        (
            good.intermediate(early, early).svid(ID, early, late),
            &good,
            Err(VerifyError::Expired),
        ),
        (
            good.intermediate(late, late).svid(ID, early, late),
            &good,
            Err(VerifyError::NotYetValid),
        ),
        (
            expired_root.svid(ID, early, late),
            &expired_root,
            Err(VerifyError::Expired),
        ),
        (
            expired_root.intermediate(early, late).svid(ID, early, late),
            &expired_root,
            Err(VerifyError::Expired),
        ),
        (
            future_root.svid(ID, early, late),
            &future_root,
            Err(VerifyError::NotYetValid),
        ),
        (
            Ca::new(epoch()).svid(ID, early, late),
            &good,
            Err(VerifyError::UnknownAuthority),
        ),
        (
            Ca::new(epoch())
                .intermediate(early, late)
                .svid(ID, early, late),
            &good,
            Err(VerifyError::UnknownAuthority),
        ),
        (
            good.intermediate(early, late).svid(ID, early, late),
            &expired_root,
            Err(VerifyError::UnknownAuthority),
        ),
    ];

    for (row, (svid, ca, outcome)) in table.into_iter().enumerate() {
        assert_eq!(
            ca.bundle("domain.test").verify(svid.chain(), epoch()),
            outcome,
            "row {row}"
        );
    }
    assert!(matches!(
        good.bundle("domain.test").verify(&[], epoch()),
        Err(VerifyError::Invalid(_))
    ));
}

#[test]
fn a_renewed_authority_with_the_same_name_is_found_beside_the_expired_one() {
    let old = Ca::valid(epoch() - HOUR, epoch() - Duration::from_secs(1));
    let new = Ca::new(epoch());
    let bundle = Bundle::new(domain(), vec![old.authority(), new.authority()]);

    assert_eq!(
        bundle.verify(new.svid(ID, epoch(), epoch()).chain(), epoch()),
        Ok(())
    );
    assert_eq!(
        bundle.verify(old.svid(ID, epoch(), epoch()).chain(), epoch()),
        Err(VerifyError::Expired)
    );
    assert_eq!(
        Bundle::new(domain(), vec![]).verify(new.svid(ID, epoch(), epoch()).chain(), epoch()),
        Err(VerifyError::UnknownAuthority)
    );
}

#[test]
fn extended_key_usage_is_not_constrained() {
    let ca = Ca::new(epoch());
    for usages in [vec![], vec![ExtendedKeyUsagePurpose::CodeSigning]] {
        let mut params = leaf_params(&[ID], epoch(), epoch() + HOUR);
        params.extended_key_usages = usages;

        let chain = ca.chain(&params, &KeyPair::generate().unwrap());

        assert_eq!(ca.bundle("domain.test").verify(&chain, epoch()), Ok(()));
    }
}

#[test]
fn a_certificate_that_is_no_authority_signs_nothing() {
    let ca = Ca::new(epoch());
    let false_authority = ca.svid(ID, epoch(), epoch() + HOUR).leaf().clone();
    let bundle = Bundle::new(
        domain(),
        vec![X509Authority {
            certificate: false_authority.clone(),
            tainted: false,
        }],
    );

    assert_eq!(
        bundle.verify(&[false_authority], epoch()),
        Err(VerifyError::UnknownAuthority)
    );
}
