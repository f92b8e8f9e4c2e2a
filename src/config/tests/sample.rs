//! `deploy/agent.conf`: valid as it is, complete, and honest about what has no effect.
//!
//! Its prose begins with `##`. A line that begins with one `#` is an option at rest, or a brace of a block at rest.

use std::cell::RefCell;
use std::collections::BTreeSet;

use super::super::ast::ValueKind;
use super::super::raw::{PluginValue, RawConfig};
use super::super::schema::{self, Schema};
use super::super::section::{Notes, Section};
use super::super::{Config, parse};
use super::{check, good};

const SAMPLE: &str = include_str!("../../../deploy/agent.conf");
const MARK: &str = "# not acted on by this build yet";

/// Options that may not be set on their own: they need a file, another option, or another platform.
const NOT_ALONE: [&str; 5] = [
    "admin_named_pipe_name",
    "join_token_file",
    "named_pipe_name",
    "plugin_data_file",
    "trust_bundle_unix_socket",
];

/// Marked options that the agent does not warn of when it starts.
const SILENT: [&str; 3] = ["profiling_freq", "profiling_names", "profiling_port"];

/// Sections that [`schema::SECTIONS`] leaves out.
const MORE_SECTIONS: [&Schema; 3] = [&schema::DOG_STATSD, &schema::STATSD, &schema::IN_MEM];

/// An option at rest that can be set on its own: a line, or a block that is marked as a whole.
#[derive(Debug)]
struct Item {
    key: String,
    is_marked: bool,
    /// Numbers of its lines and of the braces around it.
    lines: BTreeSet<usize>,
}

fn at_rest(line: &str) -> Option<&str> {
    line.trim_start()
        .strip_prefix('#')
        .filter(|rest| !rest.starts_with('#'))
        .map(str::trim_start)
}

/// The sample with these lines as set options; every line keeps its number.
fn with_lines(is_set: impl Fn(usize) -> bool) -> String {
    let lines = SAMPLE.lines().enumerate();
    lines
        .flat_map(|(number, line)| {
            [
                at_rest(line).filter(|_| is_set(number)).unwrap_or(line),
                "\n",
            ]
        })
        .collect()
}

/// Cuts the options at rest into items.
fn items() -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    // Blocks around the line at hand: where each begins, and the first item in it.
    let mut open: Vec<(usize, usize)> = Vec::new();
    let mut depth_in_item = 0_usize;
    for (number, line) in SAMPLE.lines().enumerate() {
        let Some(text) = at_rest(line) else { continue };
        let code = text.trim_end_matches(MARK).trim_end();
        let (is_start, is_end) = (code.ends_with('{'), code == "}");
        if depth_in_item > 0 {
            items.last_mut().unwrap().lines.insert(number);
            depth_in_item = depth_in_item + usize::from(is_start) - usize::from(is_end);
        } else if is_end {
            let (_, first) = open.pop().unwrap();
            for item in &mut items[first..] {
                item.lines.insert(number);
            }
        } else if is_start && !text.ends_with(MARK) {
            open.push((number, items.len()));
        } else {
            let key = code.split(['=', '{']).next().unwrap_or_default();
            items.push(Item {
                key: key.trim().to_owned(),
                is_marked: text.ends_with(MARK),
                lines: open
                    .iter()
                    .map(|(start, _)| *start)
                    .chain([number])
                    .collect(),
            });
            depth_in_item = usize::from(is_start);
        }
    }
    items
}

/// The configuration with one item set, in place of what it excludes.
fn with_item(item: &Item) -> Result<Config, String> {
    let text = with_lines(|number| item.lines.contains(&number));
    let without_bundle = text.replace("trust_bundle_path =", "# trust_bundle_path =");
    let switched_off = |plugin: &str| {
        text.replace(
            &format!("{plugin} {{"),
            &format!("{plugin} {{ enabled = false\n"),
        )
    };
    let variants = [
        without_bundle,
        switched_off("NodeAttestor \"x509pop\""),
        switched_off("KeyManager \"disk\""),
    ];
    let first = match check(&text) {
        Ok(config) => return Ok(config),
        Err(errors) => errors.to_string(),
    };
    variants
        .iter()
        .find_map(|text| check(text).ok())
        .ok_or(first)
}

/// Reads the sample with all options set, settings of plugins included.
fn read_everything() -> Notes {
    let text = with_lines(|_| true);
    let tree = parse(&text).unwrap_or_else(|error| panic!("{error}"));
    let notes = RefCell::default();
    let raw = RawConfig::read(&tree, &notes);
    for plugin in raw.plugins.iter().flatten() {
        let path = format!("{}.{}", plugin.plugin_type, plugin.name);
        let Some(PluginValue(value)) = &plugin.plugin_data else {
            continue;
        };
        let ValueKind::Object(data) = &value.kind else {
            panic!("plugin_data of {path} is no block")
        };
        let schema = schema::SECTIONS.iter().find(|schema| schema.path == path);
        let schema = schema.unwrap_or_else(|| panic!("{path} has settings without a schema"));
        Section::top(schema, data, &notes);
    }
    notes.into_inner()
}

#[test]
fn the_sample_is_valid_as_it_is() {
    let config = good(SAMPLE);

    assert_eq!(config.warnings, []);
    assert_eq!(config.unbuilt(), []);
}

#[test]
fn every_option_in_the_sample_is_known_and_of_its_type() {
    let notes = read_everything();

    assert_eq!(notes.unknown, []);
    assert_eq!(notes.types, []);
    assert_eq!(notes.warnings, []);
}

#[test]
fn every_option_that_is_known_is_in_the_sample() {
    let seen: BTreeSet<String> = read_everything()
        .seen
        .into_keys()
        .map(|key| key.replace("[0]", ""))
        .collect();

    let sections = schema::SECTIONS.iter().copied().chain(MORE_SECTIONS);
    let names =
        sections.flat_map(|section| section.keys.iter().map(move |key| (section.path, *key)));
    let missing: Vec<_> = names
        .filter(|(path, key)| match *path {
            "" => !seen.contains(*key),
            "plugins" => !seen
                .iter()
                .any(|name| name.starts_with("plugins.") && name.ends_with(&format!(".{key}"))),
            path => !seen.contains(&format!("{path}.{key}")),
        })
        .collect();

    assert_eq!(missing, []);
}

#[test]
fn every_option_in_the_sample_can_be_set_on_its_own() {
    for item in items() {
        let outcome = with_item(&item);

        assert_eq!(
            outcome.is_err(),
            NOT_ALONE.contains(&item.key.as_str()),
            "{}: {outcome:?}",
            item.key
        );
    }
}

#[test]
fn the_sample_marks_what_this_build_does_not_act_on() {
    for item in items() {
        let Ok(config) = with_item(&item) else {
            continue;
        };
        let is_silent = SILENT.contains(&item.key.as_str());

        let has_no_effect = is_silent || !config.unbuilt().is_empty();

        assert_eq!(
            item.is_marked,
            has_no_effect,
            "{}: {:?}",
            item.key,
            config.unbuilt()
        );
    }
}
