//! HCL 1 and JSON: what is taken, what is refused, and where.

use proptest::prelude::*;

use super::super::ast::{Entry, Key, Object, Position, Value, ValueKind};
use super::super::{hcl, json, parse};
use super::placeless;

/// The tree of an HCL text, written as the JSON-like text of `show`.
#[track_caller]
fn shown(text: &str) -> String {
    let tree = hcl::parse(text).unwrap_or_else(|error| panic!("{error}\nin\n{text}"));
    show_object(&tree)
}

fn show_object(object: &Object) -> String {
    let entries = object.entries.iter();
    let shown: Vec<_> = entries
        .map(|entry| format!("{}:{}", entry.key.text, show(&entry.value)))
        .collect();
    format!("{{{}}}", shown.join(","))
}

fn show(value: &Value) -> String {
    match &value.kind {
        ValueKind::Bool(value) => value.to_string(),
        ValueKind::Number(literal) => literal.clone(),
        ValueKind::Text(text) => format!("{text:?}"),
        ValueKind::Object(object) => show_object(object),
        ValueKind::List(items) => {
            let items: Vec<_> = items.iter().map(show).collect();
            format!("[{}]", items.join(","))
        }
    }
}

#[test]
fn hcl_takes_what_hcl_1_takes() {
    let cases = [
        ("", "{}"),
        ("a = 1", "{a:1}"),
        ("a = 1 b = 2", "{a:1,b:2}"),
        ("a = 1, b = 2", "{a:1,b:2}"),
        ("x { a = 1, }", "{x:{a:1}}"),
        ("x { a = 1, b = 2 }", "{x:{a:1,b:2}}"),
        ("\"agent\" { \"a\" = 1 }", "{agent:{a:1}}"),
        ("a.b = 1", "{a.b:1}"),
        ("a-b = 1", "{a-b:1}"),
        ("a =\n  1", "{a:1}"),
        ("a\n= 1", "{a:1}"),
        ("x\n{\n}", "{x:{}}"),
        ("x = {}", "{x:{}}"),
        ("x = { a = 1 }", "{x:{a:1}}"),
        ("a = 1\na = 2", "{a:1,a:2}"),
        ("x {}\nx {}", "{x:{},x:{}}"),
        ("A \"b\" { c {} }", "{A:{b:{c:{}}}}"),
        ("A b { c {} }", "{A:{b:{c:{}}}}"),
        ("A \"b\" \"c\" { d = 1 }", "{A:{b:{c:{d:1}}}}"),
        (
            "A \"b\" plugin_data { d = 1 }",
            "{A:{b:{plugin_data:{d:1}}}}",
        ),
        (
            "N \"x509pop\" { plugin_data { private_key_path = \"./a\" } }",
            "{N:{x509pop:{plugin_data:{private_key_path:\"./a\"}}}}",
        ),
        (
            "W \"unix\" { plugin_data {} }",
            "{W:{unix:{plugin_data:{}}}}",
        ),
        (
            "a = 0x1F b = 0755 c = -5 d = 1.5 e = 1e3 f = -0.5e-2 g = 0",
            "{a:0x1F,b:0755,c:-5,d:1.5,e:1e3,f:-0.5e-2,g:0}",
        ),
        ("a = .5", "{a:.5}"),
        ("a = true b = false", "{a:true,b:false}"),
        ("a = [1, \"b\", true,]", "{a:[1,\"b\",true]}"),
        ("a = []", "{a:[]}"),
        ("a = [[1], [2]]", "{a:[[1],[2]]}"),
        ("a = [{ b = 1 }, { b = 2 }]", "{a:[{b:1},{b:2}]}"),
        ("# x\n// y\n/* z\n*/ a = 1 # t", "{a:1}"),
        ("a = 1 /* b = 2 */ c = 3", "{a:1,c:3}"),
        ("a = 1\r\nx {\r\n}\r\n", "{a:1,x:{}}"),
        ("a = \"%{x}\"", "{a:\"%{x}\"}"),
    ];

    for (text, expected) in cases {
        assert_eq!(shown(text), expected, "{text:?}");
    }
}

#[test]
fn hcl_strings_mean_what_they_mean_in_hcl_1() {
    let cases = [
        (r#""\a\b\f\n\r\t\v\\\"""#, "\u{7}\u{8}\u{c}\n\r\t\u{b}\\\""),
        (r#""\101\x41\u0041\U00000041""#, "AAAA"),
        (r#""\xc3\xa9""#, "é"),
        (r#""é世""#, "é世"),
        (r#""\\.""#, "\\."),
        (r#""$${x}""#, "$${x}"),
        (r#""${a("b")}""#, "${a(\"b\")}"),
        ("\"${a\n}\"", "${a\n}"),
        (r#""${\n{}}x""#, "${\\n{}}x"),
        (r#""$HOME $""#, "$HOME $"),
        ("<<EOF\na\n  b\nEOF\n", "a\n  b\n"),
        ("<<EOF\nEOF\n", ""),
        ("<<-EOF\n    a\n      b\n    EOF\n", "a\n  b\n"),
        ("<<-EOF\n  a\n b\n  EOF\n", "  a\n b\n"),
        ("<<EOF\r\na\r\nEOF\r\n", "a\n"),
        ("<<EOF\na \"q\" \\d ${\nEOF", "a \"q\" \\d ${\n"),
    ];

    for (text, expected) in cases {
        let tree =
            hcl::parse(&format!("a = {text}")).unwrap_or_else(|error| panic!("{error} in {text}"));
        let value = tree.entries.first().map(|entry| &entry.value.kind);
        assert_eq!(
            value,
            Some(&ValueKind::Text(expected.to_owned())),
            "{text:?}"
        );
    }
}

#[test]
fn hcl_refuses_what_hcl_1_refuses() {
    let cases = [
        ("a = foo", 1, 5),
        ("a = foo.bar", 1, 5),
        ("a : 1", 1, 3),
        ("x { a : 1 }", 1, 7),
        ("a = \"b\nc\"", 1, 7),
        ("a = \"b", 1, 5),
        ("a = \"${b\"", 1, 5),
        ("\u{feff}a = 1", 1, 1),
        ("a = 1;", 1, 6),
        ("a = 'b'", 1, 5),
        ("a = \"\\d\"", 1, 6),
        ("a = \"\\8\"", 1, 6),
        ("a = \"\\400\"", 1, 6),
        ("a = \"\\ud800\"", 1, 6),
        ("a = \"\\xff\"", 1, 5),
        ("Type \"name\" = { }", 1, 13),
        ("a", 1, 2),
        ("a =", 1, 4),
        ("= 1", 1, 1),
        ("{}", 1, 1),
        ("x {", 1, 4),
        ("x { a = 1", 1, 10),
        ("}", 1, 1),
        ("x {}}", 1, 5),
        ("a = [1 2]", 1, 8),
        ("a = [1,", 1, 8),
        ("a = [b]", 1, 6),
        ("true = 1", 1, 1),
        ("a = 09", 1, 5),
        ("a = 0x", 1, 5),
        ("a = -", 1, 5),
        ("a = 1e", 1, 7),
        ("a = -.5", 1, 5),
        ("<<E\nx\nE\n{}", 1, 1),
        ("a = 10m", 1, 8),
        ("a = /* b", 1, 5),
        ("a = <<EOF\nb\n", 1, 5),
        ("a = \"${\\d}\"", 1, 8),
        ("a = <<-EOF\n  b\nEOF\n", 1, 5),
        ("a = << EOF\nb\nEOF", 1, 5),
        ("a = \0", 1, 5),
        ("a = 1\n\nb = ]", 3, 5),
    ];

    for (text, line, column) in cases {
        let error = hcl::parse(text).expect_err(text);
        assert_eq!(
            error.position,
            Position { line, column },
            "{text:?}: {error}"
        );
    }
}

#[test]
fn syntax_errors_never_repeat_the_text() {
    for text in [
        "join_token = abc123secret",
        "a = [abc123secret]",
        "a = \"\\dabc123secret\"",
        "{\"a\": abc123secret}",
    ] {
        let error = parse(text).expect_err(text).to_string();

        assert!(!error.contains("abc123secret"), "{error}");
    }
}

#[test]
fn places_are_those_of_keys_and_values() {
    let tree = hcl::parse("# c\r\nx {\r\n  é = \"v\"\r\n}\r\n").expect("a tree");

    let x = tree.entries.first().expect("x");
    let ValueKind::Object(inner) = &x.value.kind else {
        panic!("x is a block")
    };
    let entry = inner.entries.first().expect("é");
    assert_eq!(x.key.position, Position { line: 2, column: 1 });
    assert_eq!(x.value.position, Position { line: 2, column: 3 });
    assert_eq!(entry.key.position, Position { line: 3, column: 3 });
    assert_eq!(entry.value.position, Position { line: 3, column: 7 });
}

#[test]
fn json_is_taken_when_the_text_starts_with_a_brace() {
    // A comma may stand last, as Go's reader lets it.
    let text = "\n {\"a\": {\"b\": [1, -2.5e3, \"x\\n\\u00e9\\ud83d\\ude00\\/\", true, null, {},]}, \"n\": null,}";

    let tree = parse(text).expect("a tree");

    assert_eq!(
        show_object(&tree),
        "{a:{b:[1,-2.5e3,\"x\\né😀/\",true,{}]}}"
    );
    assert_eq!(
        tree.entries[0].key.position,
        Position { line: 2, column: 3 }
    );
}

#[test]
fn wrong_json_is_refused_with_its_place() {
    let cases = [
        ("{\"a\": }", 1, 7),
        ("{\"a\" 1}", 1, 6),
        ("{\"a\": 1,,}", 1, 9),
        ("{\"a\": [,1]}", 1, 8),
        ("{\"a\": 01}", 1, 9),
        ("{\"a\": 1.}", 1, 9),
        ("{\"a\": \"\\d\"}", 1, 8),
        ("{\"a\": \"\\ud800\"}", 1, 8),
        ("{\"a\": \"\n\"}", 1, 8),
        ("{\"a\": 1} x", 1, 10),
        ("{a: 1}", 1, 2),
        ("{\"a\": \"b", 1, 7),
        ("{\n\"a\": nil}", 2, 6),
        ("{", 1, 2),
    ];

    for (text, line, column) in cases {
        let error = json::parse(text).expect_err(text);
        assert_eq!(
            error.position,
            Position { line, column },
            "{text:?}: {error}"
        );
    }
}

#[test]
fn depth_size_and_count_are_limited() {
    let deep_blocks = "x {".repeat(5_000);
    let deep_lists = format!("a = {}", "[".repeat(5_000));
    let many_labels = format!("a {} {{}}", "b ".repeat(5_000));
    let deep_json = format!("{{\"a\":{}", "[".repeat(5_000));
    let many = "a = 1 ".repeat(150_000);
    let long = " ".repeat(super::super::ast::MAX_BYTES + 1);

    for text in [deep_blocks, deep_lists, many_labels, deep_json] {
        assert!(parse(&text).expect_err("too deep").message.contains("deep"));
    }
    assert!(
        parse(&many)
            .expect_err("too many")
            .message
            .contains("too many")
    );
    assert!(
        parse(&long)
            .expect_err("too long")
            .message
            .contains("too long")
    );
}

fn any_key() -> impl Strategy<Value = Key> {
    let bare = "[a-zA-Z_][a-zA-Z0-9_.-]{0,8}".prop_map(|text| {
        let quoted = matches!(text.as_str(), "true" | "false");
        (text, quoted)
    });
    prop_oneof![bare, any::<String>().prop_map(|text| (text, true))].prop_map(|(text, quoted)| {
        Key {
            text,
            position: Position::default(),
            quoted,
        }
    })
}

fn any_number() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        any::<u32>().prop_map(|n| format!("0x{n:X}")),
        any::<u16>().prop_map(|n| format!("0{n:o}")),
        (any::<i16>(), any::<u16>()).prop_map(|(whole, fraction)| format!("{whole}.{fraction}e3")),
    ]
}

/// Texts with a liking for what is special in HCL.
fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![any::<String>(), "[${}\"\\\\n\r\n\t\u{feff} a]{0,12}"]
}

fn any_object() -> impl Strategy<Value = Object> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(ValueKind::Bool),
        any_number().prop_map(ValueKind::Number),
        any_text().prop_map(ValueKind::Text),
    ];
    let kind = leaf.prop_recursive(4, 40, 5, |inner| {
        let value = inner.prop_map(|kind| Value {
            kind,
            position: Position::default(),
        });
        let entries = prop::collection::vec((any_key(), value.clone()), 0..5);
        prop_oneof![
            prop::collection::vec(value, 0..5).prop_map(ValueKind::List),
            entries.prop_map(|entries| ValueKind::Object(object(entries))),
        ]
    });
    let value = kind.prop_map(|kind| Value {
        kind,
        position: Position::default(),
    });
    prop::collection::vec((any_key(), value), 0..6).prop_map(object)
}

fn object(entries: Vec<(Key, Value)>) -> Object {
    let entries = entries.into_iter().map(|(key, value)| Entry { key, value });
    Object {
        entries: entries.collect(),
    }
}

proptest! {
    #[test]
    fn what_is_written_reads_back_the_same(tree in any_object()) {
        let text = tree.to_hcl();

        let read = hcl::parse(&text);

        prop_assert_eq!(read.as_ref().map(placeless), Ok(tree), "{}", text);
    }

    #[test]
    fn no_text_makes_the_parsers_panic(text in any::<String>()) {
        let _ = (hcl::parse(&text).is_ok(), json::parse(&text).is_ok());
    }

    #[test]
    fn no_heap_of_tokens_makes_them_panic(
        text in "([a-c]|agent|plugins|KeyManager|unix|=|\\{|\\}|\\[|\\]|,|\"|:|\\$\\{|<<-?EOF|EOF|\n|\r| |#|//|/\\*|\\*/|\\\\|[0-9]|0x|-|\\.|true|\u{e9}){0,40}"
    ) {
        let _ = (hcl::parse(&text).is_ok(), json::parse(&text).is_ok(), super::check(&text).is_ok());
    }
}
