use super::*;
use crate::keys::KeyType;
use crate::testing::certificates::{Ca, leaf_params};
use rcgen::{DnType, KeyPair};

const ID: &str = "spiffe://domain.test/web";
const KEY_BLOCK: &str = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";

fn epoch() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_790_000_000)
}

fn leaf() -> Certificate {
    Ca::new(epoch())
        .svid(ID, epoch(), epoch() + Duration::from_mins(1))
        .leaf()
        .clone()
}

#[test]
fn a_certificate_says_what_it_was_made_with() {
    let ca = Ca::new(epoch());
    let svid = ca.svid(ID, epoch(), epoch() + Duration::from_mins(1));

    let leaf = svid.leaf();

    assert_eq!(
        (leaf.not_before(), leaf.not_after()),
        (epoch(), epoch() + Duration::from_mins(1))
    );
    assert_eq!(leaf.uri_names(), [ID.to_owned()]);
    assert_eq!(svid.id.as_str(), ID);
    assert_eq!(svid.lifetime(), Duration::from_mins(1));
    assert_eq!(leaf.authority_key_id(), ca.certificate().subject_key_id());
    assert!(leaf.authority_key_id().is_some());
    assert_eq!((leaf.is_ca(), leaf.may_sign_certificates()), (false, false));
    assert_eq!(
        (
            ca.certificate().is_ca(),
            ca.certificate().may_sign_certificates()
        ),
        (true, true)
    );
    assert_eq!(ca.certificate().subject(), "CN=authority,O=SPIRE,C=US");
}

#[test]
fn subjects_print_as_go_prints_them() {
    let mut params = leaf_params(&[ID], epoch(), epoch() + Duration::from_mins(1));
    params
        .distinguished_name
        .push(DnType::from_oid(&[2, 5, 4, 45]), "ab@c");
    params
        .distinguished_name
        .push(DnType::OrganizationalUnitName, "a,b+c");
    params.distinguished_name.push(DnType::LocalityName, " #x ");
    params
        .distinguished_name
        .push(DnType::CommonName, "#agent\u{1b}");

    let chain = Ca::new(epoch()).chain(&params, &KeyPair::generate().unwrap());

    assert_eq!(
        chain[0].subject(),
        r"CN=\#agent\1B,OU=a\,b\+c,O=SPIRE,L=\ #x\ ,C=US,2.5.4.45=#0c0461624063"
    );
}

#[test]
fn der_and_pem_round_trip() {
    let chain = [leaf(), leaf()];
    let der: Vec<u8> = chain
        .iter()
        .flat_map(|certificate| certificate.der().to_vec())
        .collect();
    let pem: String = chain.iter().map(Certificate::to_pem).collect();

    assert_eq!(Certificate::list_from_der(&der).unwrap(), chain);
    assert_eq!(
        Certificate::list_from_pem(pem.as_bytes(), PemPolicy::CertificatesOnly).unwrap(),
        chain
    );
    assert!(pem.lines().all(|line| line.len() <= 64));
    let crlf = format!("Certificate:\r\n  Data:\r\n{}", pem.replace('\n', "\r\n"));
    assert_eq!(
        Certificate::list_from_pem(crlf.as_bytes(), PemPolicy::CertificatesOnly).unwrap(),
        chain
    );
}

#[test]
fn unusable_pem_is_refused_with_its_reason() {
    let good = leaf().to_pem();
    let mixed = format!("{good}{KEY_BLOCK}");
    let foreign = || CertificateError::ForeignBlock("PRIVATE KEY".to_owned());
    let unknown = "-----BEGIN TRUSTED CERTIFICATE-----\nAAAA\n-----END TRUSTED CERTIFICATE-----\n";
    let table = [
        (
            "",
            PemPolicy::CertificatesOnly,
            CertificateError::NoPemBlock,
        ),
        (
            "text",
            PemPolicy::CertificatesOnly,
            CertificateError::NoPemBlock,
        ),
        ("text", PemPolicy::SkipOthers, CertificateError::Missing),
        (KEY_BLOCK, PemPolicy::SkipOthers, CertificateError::Missing),
        (&mixed, PemPolicy::CertificatesOnly, foreign()),
        (
            unknown,
            PemPolicy::CertificatesOnly,
            CertificateError::ForeignBlock("TRUSTED CERTIFICATE".to_owned()),
        ),
        (
            "-----BEGIN CERTIFICATE-----\nAAAA\n",
            PemPolicy::SkipOthers,
            CertificateError::MalformedPem("block without an end".to_owned()),
        ),
        (
            "-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----\n",
            PemPolicy::SkipOthers,
            CertificateError::MalformedPem("damaged base64".to_owned()),
        ),
    ];

    for (text, policy, reason) in table {
        assert_eq!(
            Certificate::list_from_pem(text.as_bytes(), policy).unwrap_err(),
            reason,
            "{text}"
        );
    }
    assert_eq!(
        Certificate::list_from_pem(mixed.as_bytes(), PemPolicy::SkipOthers)
            .unwrap()
            .len(),
        1
    );
    assert_eq!(
        foreign().to_string(),
        r#"expected block type "CERTIFICATE"; got "PRIVATE KEY""#
    );
}

#[test]
fn hostile_der_is_refused() {
    let der = leaf().der().to_vec();
    let trailing = [der.as_slice(), &[0]].concat();
    let many = der.repeat(101);
    let huge = vec![0x30; 2 * 1024 * 1024];

    assert_eq!(
        Certificate::list_from_der(&[]),
        Err(CertificateError::Missing)
    );
    for bytes in [
        &trailing[..],
        &der[..der.len() - 1],
        &[0x30, 0x80],
        &many,
        &huge,
    ] {
        assert!(matches!(
            Certificate::list_from_der(bytes),
            Err(CertificateError::Malformed(_))
        ));
        assert!(matches!(
            Certificate::from_der(bytes),
            Err(CertificateError::Malformed(_))
        ));
    }
    for cut in 0..der.len() {
        assert!(Certificate::from_der(&der[..cut]).is_err());
    }
}

#[test]
fn only_a_leaf_with_one_spiffe_id_names_an_identity() {
    let ca = Ca::new(epoch());
    let until = epoch() + Duration::from_mins(1);
    let leaf_with = |names: &[&str]| {
        ca.chain(
            &leaf_params(names, epoch(), until),
            &KeyPair::generate().unwrap(),
        )
        .remove(0)
    };

    assert_eq!(leaf_with(&[ID]).leaf_id().unwrap().as_str(), ID);
    assert_eq!(leaf_with(&[]).leaf_id(), Err(CertificateError::UriNames(0)));
    assert_eq!(
        leaf_with(&[ID, ID]).leaf_id(),
        Err(CertificateError::UriNames(2))
    );
    assert!(matches!(
        leaf_with(&["http://domain.test"]).leaf_id(),
        Err(CertificateError::NotASpiffeId(_))
    ));
    assert_eq!(ca.certificate().leaf_id(), Err(CertificateError::LeafIsCa));
}

#[test]
fn an_svid_with_a_foreign_key_is_refused() {
    let ca = Ca::new(epoch());
    let svid = ca.svid(ID, epoch(), epoch() + Duration::from_mins(1));
    let other = PrivateKey::generate(KeyType::EcP256).unwrap();

    let refused = X509Svid::new(svid.chain().to_vec(), other);

    assert_eq!(refused.unwrap_err(), CertificateError::ForeignKey);
}
