use std::sync::{Arc, LazyLock};

use proptest::prelude::*;

use super::*;
use crate::clock::from_unix_seconds;
use crate::keys::{KeyType, PrivateKey};
use crate::store::KeySlot;
use crate::testing::certificates::Ca;

fn certificate() -> Certificate {
    Ca::new(from_unix_seconds(1_790_000_000))
        .certificate()
        .clone()
}

fn text_of(certificate: &Certificate) -> String {
    STANDARD.encode(certificate.to_pem())
}

fn key() -> Arc<PrivateKey> {
    Arc::new(PrivateKey::generate(KeyType::EcP256).unwrap())
}

#[test]
fn data_is_read_as_go_reads_it() {
    let certificate = certificate();
    let pem = text_of(&certificate);
    let wrapped = format!(r"{}\r\n{}", &pem[..40], &pem[40..]);
    let cases = [
        ("null".to_owned(), (0, 0, false)),
        ("{}".to_owned(), (0, 0, false)),
        (" \n{\"unknown\": {\"a\": [1, null]}} ".to_owned(), (0, 0, false)),
        (r#"{"svid":null,"bundle":null,"reattestable":null,"bootstrap_use":null,"bootstrap_start_time":null,"connection_attempts":null}"#.to_owned(), (0, 0, false)),
        (format!(r#"{{"svid":["{pem}","{pem}"],"bundle":[],"reattestable":true}}"#), (2, 0, true)),
        (format!(r#"{{"SVID":["{pem}"],"Bundle":["{pem}"],"ReAttestable":true}}"#), (1, 1, true)),
        (format!(r#"{{"svid":["{pem}"],"svid":[],"reattestable":true,"REATTESTABLE":false}}"#), (0, 0, false)),
        (format!(r#"{{"svid":["{wrapped}"]}}"#), (1, 0, false)),
        (r#"{"bootstrap_use":-1,"connection_attempts":12,"bootstrap_start_time":"2026-05-06T07:08:09.123456789+02:00"}"#.to_owned(), (0, 0, false)),
    ];
    for (text, expected) in cases {
        let data = AgentData::decode(text.as_bytes()).unwrap();

        assert_eq!(
            (data.svid.len(), data.bundle.len(), data.reattestable),
            expected,
            "{text}"
        );
    }
}

#[test]
fn damaged_data_is_refused_without_repeating_it() {
    let pem = text_of(&certificate());
    let cases = [
        ("", "not valid JSON (line 1, column 0)"),
        ("{\"svid\":\n nope}", "not valid JSON (line 2, column 3)"),
        ("{} {}", "not valid JSON (line 1, column 4)"),
        ("[]", "the file is not an object"),
        ("7", "the file is not an object"),
        (r#"{"svid":7}"#, "svid is not a list of certificates"),
        (
            r#"{"bundle":{"a":1}}"#,
            "bundle is not a list of certificates",
        ),
        (r#"{"svid":[7]}"#, "certificate 0 of svid: not text"),
        (r#"{"svid":["%"]}"#, "certificate 0 of svid: not base64"),
        (r#"{"svid":[""]}"#, "certificate 0 of svid: no PEM blocks"),
        (
            r#"{"reattestable":"yes"}"#,
            "reattestable is not true or false",
        ),
        (
            r#"{"bootstrap_use":1.5}"#,
            "bootstrap_use is not a whole number",
        ),
        (
            r#"{"connection_attempts":"1"}"#,
            "connection_attempts is not a whole number",
        ),
        (
            r#"{"bootstrap_start_time":1}"#,
            "bootstrap_start_time is not a time in RFC 3339",
        ),
        (
            r#"{"bootstrap_start_time":"yesterday"}"#,
            "bootstrap_start_time is not a time in RFC 3339",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(
            AgentData::decode(text.as_bytes()).unwrap_err().to_string(),
            expected,
            "{text}"
        );
    }
    let second = format!(r#"{{"bundle":["{pem}","bm9wZQ=="]}}"#);
    assert!(
        AgentData::decode(second.as_bytes())
            .unwrap_err()
            .to_string()
            .starts_with("certificate 1 of bundle: ")
    );
}

#[test]
fn keys_are_read_as_go_reads_them() {
    let (a, b) = (key(), key());
    let [text_a, text_b] = [&a, &b].map(|key| STANDARD.encode(key.expose_pkcs8()));
    let cases = [
        ("null".to_owned(), vec![]),
        ("{}".to_owned(), vec![]),
        (r#"{"keys":null}"#.to_owned(), vec![]),
        (r#"{"keys":{},"other":[1]}"#.to_owned(), vec![]),
        (
            format!(r#"{{"Keys":{{"agent-svid-B":"{text_b}","agent-svid-A":"{text_a}"}}}}"#),
            vec![&a, &b],
        ),
        (
            format!(r#"{{"keys":{{"agent-svid-A":"{text_b}","agent-svid-A":"{text_a}"}}}}"#),
            vec![&a],
        ),
        (
            format!(r#"{{"keys":{{"foreign":"%","agent-svid-a":7,"agent-svid-B":"{text_b}"}}}}"#),
            vec![&b],
        ),
        (
            format!(
                r#"{{"keys":{{"agent-svid-A":"{}\n{}"}}}}"#,
                &text_a[..9],
                &text_a[9..]
            ),
            vec![&a],
        ),
    ];
    for (text, expected) in cases {
        let keys = decode_keys(text.as_bytes()).unwrap();

        let found: Vec<_> = keys.values().map(|key| key.expose_pkcs8()).collect();
        assert_eq!(
            found,
            expected
                .iter()
                .map(|key| key.expose_pkcs8())
                .collect::<Vec<_>>(),
            "{} keys",
            expected.len()
        );
    }
}

#[test]
fn damaged_keys_are_refused_without_repeating_them() {
    let cases = [
        ("", "not valid JSON (line 1, column 0)"),
        ("[]", "the file is not an object of keys in base64"),
        (
            r#"{"keys":["secret"]}"#,
            "the file is not an object of keys in base64",
        ),
        (
            r#"{"keys":{"agent-svid-A":7}}"#,
            "the file is not an object of keys in base64",
        ),
        (
            r#"{"keys":{"agent-svid-A":null}}"#,
            "the file is not an object of keys in base64",
        ),
        (
            r#"{"keys":{"agent-svid-A":"secret!"}}"#,
            "the file is not an object of keys in base64",
        ),
        (
            r#"{"keys":{"agent-svid-B":"c2VjcmV0"}}"#,
            "key agent-svid-B: not a private key in PKCS#8",
        ),
        (
            r#"{"keys":{"agent-svid-B":""}}"#,
            "key agent-svid-B: not a private key in PKCS#8",
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(
            decode_keys(text.as_bytes()).unwrap_err().to_string(),
            expected,
            "{text}"
        );
    }
}

#[test]
fn a_damaged_key_does_not_cost_the_good_one() {
    let good = key();
    let text = format!(
        r#"{{"keys":{{"agent-svid-A":"c2VjcmV0","agent-svid-B":"{}"}}}}"#,
        STANDARD.encode(good.expose_pkcs8())
    );

    let keys = decode_keys(text.as_bytes()).unwrap();

    let slots: Vec<_> = keys.keys().copied().collect();
    assert_eq!(slots, [KeySlot::B]);
    assert_eq!(keys[&KeySlot::B].public_key_der(), good.public_key_der());
}

#[test]
fn what_is_encoded_is_decoded_again() {
    let certificate = certificate();
    let data = AgentData {
        svid: vec![certificate.clone(); 3],
        bundle: vec![certificate],
        reattestable: true,
        ..AgentData::default()
    };
    let keys = Keys::from([(KeySlot::A, key()), (KeySlot::B, key())]);

    let read_data = AgentData::decode(&data.encode()).unwrap();
    let read_keys = decode_keys(&encode_keys(&keys)).unwrap();

    assert_eq!(read_data, data);
    assert_eq!(encode_keys(&read_keys), encode_keys(&keys));
    assert_eq!(&**encode_keys(&Keys::new()), b"{\n\t\"keys\": {}\n}");
}

#[test]
fn times_are_told_from_other_text() {
    for time in [
        ZERO_TIME,
        "2026-12-31T23:59:59+14:00",
        "2026-12-31T23:59:59.1-00:30",
        "2026-12-31T23:59:59.123456789Z",
    ] {
        assert!(is_rfc3339(time), "{time}");
    }
    for text in [
        "",
        "Z",
        "2026-12-31",
        "2026-12-31 23:59:59Z",
        "2026-12-31T23:59:59",
        "2026-12-31T23:59:59.Z",
        "2026-12-31T23:59:59+1:00",
        "2026-12-31T23:59:5üZ",
    ] {
        assert!(!is_rfc3339(text), "{text}");
    }
}

static GOOD_TEXT: LazyLock<Vec<u8>> = LazyLock::new(|| {
    AgentData {
        svid: vec![certificate()],
        ..AgentData::default()
    }
    .encode()
});

proptest! {
    #[test]
    fn no_text_makes_the_readers_panic(text in proptest::collection::vec(any::<u8>(), 0..300)) {
        let outcomes = (AgentData::decode(&text).is_ok(), decode_keys(&text).is_ok());

        prop_assert!(outcomes == (false, false) || serde_json::from_slice::<Value>(&text).is_ok());
    }

    #[test]
    fn a_file_cut_short_or_changed_is_read_or_refused(cut in 0..2000_usize, at in 0..2000_usize, byte in any::<u8>()) {
        let mut text = GOOD_TEXT.clone();
        if let Some(place) = text.get_mut(at) {
            *place = byte;
        }
        text.truncate(cut);

        let whole = cut >= GOOD_TEXT.len();
        prop_assert!(whole || AgentData::decode(&text).is_err());
    }
}
