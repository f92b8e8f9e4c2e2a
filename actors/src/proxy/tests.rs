use std::collections::HashMap;

use tokio::io::{DuplexStream, duplex};

use super::*;

fn proxies(variables: &[(&str, &str)]) -> Proxies {
    let variables: HashMap<_, _> = variables.iter().copied().collect();
    Proxies::from_environment(&|name| variables.get(name).map(ToString::to_string))
}

fn proxy(url: &str) -> Proxy {
    rules::proxy(url).unwrap()
}

#[test]
fn the_upper_case_variable_wins_and_an_empty_one_counts_as_none() {
    type Case<'a> = (&'a [(&'a str, &'a str)], Option<&'a str>);
    let table: [Case<'_>; 6] = [
        (&[], None),
        (&[("HTTP_PROXY", "plain:1")], None),
        (&[("HTTPS_PROXY", "upper:1")], Some("upper")),
        (&[("https_proxy", "lower:1")], Some("lower")),
        (
            &[("HTTPS_PROXY", "upper:1"), ("https_proxy", "lower:1")],
            Some("upper"),
        ),
        (
            &[("HTTPS_PROXY", ""), ("https_proxy", "lower:1")],
            Some("lower"),
        ),
    ];

    for (variables, expected) in table {
        let proxies = proxies(variables);

        let found = proxies.for_target("server.test", 8081).unwrap();

        assert_eq!(
            found.map(|proxy| proxy.host.as_str()),
            expected,
            "{variables:?}"
        );
    }
}

#[test]
fn a_proxy_url_is_read_with_and_without_scheme() {
    let table = [
        ("http://proxy.test:3128", "proxy.test", 3128, None),
        (
            "HTTP://proxy.test:3128/path?query",
            "proxy.test",
            3128,
            None,
        ),
        ("proxy.test:3128", "proxy.test", 3128, None),
        ("HTTPS://proxy.test:3128", "proxy.test", 3128, None),
        ("proxy.test", "proxy.test", 80, None),
        ("http://[2001:db8::1]:3128", "2001:db8::1", 3128, None),
        ("[2001:db8::1]", "2001:db8::1", 80, None),
        ("http://u:p@proxy.test:1", "proxy.test", 1, Some("u:p")),
        ("http://u@proxy.test:1", "proxy.test", 1, Some("u:")),
        ("u:p%40%3a%2F@proxy.test:1", "proxy.test", 1, Some("u:p@:/")),
        ("http://u:a@b@proxy.test:1", "proxy.test", 1, Some("u:a@b")),
    ];

    for (url, host, port, credentials) in table {
        let proxy = proxy(url);

        assert_eq!((proxy.host.as_str(), proxy.port), (host, port), "{url}");
        let request = proxy.request("server.test:8081");
        let expected = credentials.map(|plain| {
            use base64::Engine;
            format!(
                "\r\nProxy-Authorization: Basic {}\r\n",
                base64::engine::general_purpose::STANDARD.encode(plain)
            )
        });
        assert_eq!(request.contains("Proxy-Authorization"), expected.is_some());
        assert!(
            expected.is_none_or(|header| request.contains(&header)),
            "{url}"
        );
    }
}

#[test]
fn an_unusable_proxy_is_refused_by_the_name_of_its_variable_and_without_its_password() {
    let table = [
        ("https://u:secret@proxy.test", "would show its credentials"),
        (
            "socks5://u:secret@proxy.test",
            "socks5:// proxies are not supported",
        ),
        ("secret://proxy.test", "scheme"),
        ("http://", "no host"),
        ("http://u:secret@:3128", "no host"),
        ("http://u:secret@proxy.test:0", "port"),
        ("http://u:secret@proxy.test:65536", "port"),
        ("http://u:secret@2001:db8::1", "port"),
        ("http://u:secret@[2001:db8::1", "neither"),
        ("http://u:secret@[name]:1", "brackets"),
        ("http://u:secret@[::1]1", "host and port"),
        ("http://u:secret%4@proxy.test", "hex"),
        ("http://u:secret@proxy test", "neither"),
        ("http://u:secret@proxy\r\nX: y", "neither"),
    ];

    for (url, reason) in table {
        let proxies = proxies(&[("https_proxy", url), ("NO_PROXY", "near.test")]);
        assert_eq!(
            proxies.for_target("near.test", 8081),
            Ok(None),
            "never asked"
        );
        let error = proxies.for_target("server.test", 8081).unwrap_err();

        let text = error.to_string();
        assert_eq!(error.variable, "https_proxy");
        assert!(text.contains(reason), "{url:?}: {text}");
        assert!(!format!("{error:?}").contains("secret"), "{text}");
    }
}

#[test]
fn credentials_of_a_proxy_are_in_no_debug_output() {
    let proxies = proxies(&[("HTTPS_PROXY", "http://user:secret@proxy.test:1")]);

    let text = format!("{proxies:?}");

    for hidden in ["user", "secret", "dXNlcjpzZWNyZXQ"] {
        assert!(!text.contains(hidden), "{text}");
    }
}

#[test]
fn no_proxy_is_read_as_go_reads_it() {
    let table = [
        ("", "server.test", true),
        ("*", "server.test", false),
        ("a.test, * ", "192.0.2.1", false),
        ("server.test", "server.test", false),
        ("SERVER.test", "Server.TEST", false),
        ("server.test", "a.server.test", false),
        ("server.test", "myserver.test", true),
        (".server.test", "server.test", true),
        (".server.test", "a.server.test", false),
        ("*.server.test", "a.server.test", false),
        ("*.server.test", "server.test", true),
        ("test", "server.test", false),
        ("server.test:8081", "server.test", false),
        ("server.test:80", "server.test", true),
        (":8081", "server.test", true),
        ("192.0.2.1", "192.0.2.1", false),
        ("192.0.2.1:8081", "192.0.2.1", false),
        ("192.0.2.1:80", "192.0.2.1", true),
        ("192.0.2.1", "192.0.2.2", true),
        ("192.0.2.0/24", "192.0.2.77", false),
        ("192.0.2.0/24", "192.0.3.77", true),
        ("192.0.2.77/24", "192.0.2.1", false),
        ("0.0.0.0/0", "192.0.2.1", false),
        ("0.0.0.0/0", "2001:db8::1", true),
        ("192.0.2.0/33", "192.0.2.1", true),
        ("192.0.2.1/32", "192.0.2.1", false),
        ("2001:db8::/32", "2001:db8:1::1", false),
        ("2001:db8::/32", "2001:db9::1", true),
        ("::/0", "2001:db9::1", false),
        ("2001:db8::1", "2001:db8::1", false),
        ("[2001:db8::1]:8081", "2001:db8::1", false),
        ("[2001:db8::1]:80", "2001:db8::1", true),
        ("192.0.2.1", "::ffff:192.0.2.1", false),
        ("10.0.0.0/8", "server.test", true),
        ("", "localhost", false),
        ("", "127.0.0.1", false),
        ("", "127.8.9.1", false),
        ("", "::1", false),
        ("", "::ffff:127.0.0.1", false),
        ("", "localhost.test", true),
    ];

    for (list, host, behind) in table {
        let proxies = proxies(&[("HTTPS_PROXY", "proxy.test:1"), ("no_proxy", list)]);

        let found = proxies.for_target(host, 8081).unwrap();

        assert_eq!(found.is_some(), behind, "NO_PROXY={list} and {host}");
    }
}

/// Asks a proxy that says `answer`; what it was asked, the outcome, and what else came through the tunnel.
async fn asked(answer: &[u8]) -> (String, io::Result<()>, Vec<u8>) {
    let (mut near, mut far): (DuplexStream, _) = duplex(1 << 16);
    let proxy = proxy("http://u:p@proxy.test:1");
    let other_end = async {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(far.read_u8().await.unwrap());
        }
        // A proxy may be cut off in the middle of a long answer.
        drop(far.write_all(answer).await);
        drop(far);
        String::from_utf8(request).unwrap()
    };
    let this_end = async {
        let outcome = proxy.ask(&mut near, "server.test:8081").await;
        let mut rest = Vec::new();
        if outcome.is_ok() {
            near.read_to_end(&mut rest).await.unwrap();
        }
        drop(near);
        (outcome, rest)
    };
    let (request, (outcome, rest)) = tokio::join!(other_end, this_end);
    (request, outcome, rest)
}

#[tokio::test]
async fn a_tunnel_loses_no_byte_of_what_follows_the_head() {
    let (request, outcome, rest) =
        asked(b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n\r\n\r\nfirst bytes").await;

    outcome.unwrap();
    assert_eq!(rest, b"\r\n\r\nfirst bytes");
    assert_eq!(
        request,
        format!(
            "CONNECT server.test:8081 HTTP/1.1\r\nHost: server.test:8081\r\nUser-Agent: {AGENT}\r\n\
             Proxy-Authorization: Basic dTpw\r\n\r\n"
        )
    );
}

#[tokio::test]
async fn only_an_answer_with_status_200_is_a_tunnel() {
    let long = format!("HTTP/1.1 200 OK\r\nX: {}", "x".repeat(1 << 17));
    let table: [(&[u8], Option<&str>); 13] = [
        (b"HTTP/1.0 200 OK\r\n\r\n", None),
        (b"HTTP/1.1 200\n\n", None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n", None),
        (b"HTTP/1.1 204 No Content\r\n\r\n", Some("status 204")),
        (b"HTTP/1.1 407 Secret Words\r\n\r\nbody", Some("status 407")),
        (b"HTTP/1.1 503 Secret Words\r\n\r\nbody", Some("status 503")),
        (
            b"HTTP/1.1 9999 OK\r\n\r\n",
            Some("not that of an HTTP proxy"),
        ),
        (b"HTTP/2 200\r\n\r\n", Some("not that of an HTTP proxy")),
        (b"SSH-2.0-x\r\n\r\n", Some("not that of an HTTP proxy")),
        (b"\xff\xff\r\n\r\n", Some("not that of an HTTP proxy")),
        (b"HTTP/1.1 200 OK\r\n", Some("hung up")),
        (b"", Some("hung up")),
        (long.as_bytes(), Some("longer than 16384 bytes")),
    ];

    for (answer, problem) in table {
        let (_, outcome, _) = asked(answer).await;

        let text = outcome.err().map(|error| error.to_string());
        assert_eq!(text.is_some(), problem.is_some(), "{text:?}");
        assert!(
            problem.is_none_or(|problem| text.as_ref().unwrap().contains(problem)),
            "{text:?}"
        );
        assert!(text.is_none_or(|text| !text.contains("Secret") && !text.contains("body")));
    }
}

#[tokio::test]
async fn a_target_cannot_add_headers() {
    let (mut near, _far) = duplex(100);

    let outcome = proxy("proxy.test:1").ask(&mut near, "a:1\r\nX: y").await;

    assert!(outcome.is_err());
}
