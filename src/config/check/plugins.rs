//! `plugins { }`: how many of each type, and the settings of those that are known.

mod node;
mod workload;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::PathBuf;

use super::super::ast::{Object, Value, ValueKind};
use super::super::model::OpaqueData;
use super::super::plugin::{External, KeyManager, NodeAttestor, OtherPlugin, WorkloadAttestor};
use super::super::raw::RawPlugin;
use super::super::schema::{self, Schema};
use super::super::section::{Section, Spanned, collect_blocks};
use super::super::{nearest, parse};
use super::{Checker, Origin, paths, plain};

const TYPES: [&str; 4] = [
    "KeyManager",
    "NodeAttestor",
    "WorkloadAttestor",
    "SVIDStore",
];
const KEY_MANAGERS: [&str; 2] = ["disk", "memory"];
const SVID_STORES: [&str; 2] = ["aws_secretsmanager", "gcp_secretmanager"];
/// Longest `plugin_data_file` that is read, in bytes.
const LONGEST_DATA_FILE: u64 = 4 << 20;

/// The checked plugins; the single ones are `None` where there is a problem.
#[derive(Default)]
pub(super) struct Plugins {
    pub(super) key_manager: Option<KeyManager>,
    pub(super) node_attestor: Option<NodeAttestor>,
    pub(super) workload_attestors: Vec<WorkloadAttestor>,
    pub(super) svid_stores: Vec<OtherPlugin>,
}

/// A plugin and its settings, wherever they stood.
struct Settings<'a> {
    plugin: &'a RawPlugin,
    data: Object,
    /// Set when they come from a `plugin_data_file`.
    file: Option<PathBuf>,
}

impl Settings<'_> {
    fn key(&self) -> String {
        full_name(self.plugin)
    }

    fn origin(&self) -> Origin {
        Origin::File(self.plugin.position)
    }

    fn is_external(&self) -> bool {
        self.plugin
            .plugin_cmd
            .as_ref()
            .is_some_and(|command| !command.value.is_empty())
    }
}

fn full_name(plugin: &RawPlugin) -> String {
    format!("plugins.{}.{}", plugin.plugin_type, plugin.name)
}

impl Checker<'_> {
    /// Checks all plugins; an empty list also stands for a missing section, which has been reported.
    pub(super) fn plugins(&mut self, raw: &[RawPlugin]) -> Plugins {
        let section_is_missing = self.problems.iter().any(|problem| problem.key == "plugins");
        let mut plugins = Plugins::default();
        let mut counts = [0_usize; TYPES.len()];
        let mut names = BTreeSet::new();
        for plugin in raw {
            let Some(index) = TYPES.iter().position(|known| *known == plugin.plugin_type) else {
                let hint = hint(&plugin.plugin_type, &TYPES);
                let message = format!("unknown plugin type {:?}{hint}", plugin.plugin_type);
                self.problem(&full_name(plugin), Origin::File(plugin.position), message);
                continue;
            };
            if plugin
                .enabled
                .as_ref()
                .is_some_and(|enabled| !enabled.value)
            {
                continue;
            }
            if !names.insert((index, plugin.name.as_str())) {
                let message = format!("duplicate plugin: {} {:?}", plugin.plugin_type, plugin.name);
                self.problem(&full_name(plugin), Origin::File(plugin.position), message);
                continue;
            }
            if let Some(count) = counts.get_mut(index) {
                *count += 1;
            }
            self.plugin(plugin, &mut plugins);
        }
        if !section_is_missing {
            self.counts(counts);
        }
        plugins
    }

    fn counts(
        &mut self,
        [key_managers, node_attestors, workload_attestors, _]: [usize; TYPES.len()],
    ) {
        for (name, count) in [
            ("KeyManager", key_managers),
            ("NodeAttestor", node_attestors),
        ] {
            if count != 1 {
                let message =
                    format!("exactly one {name} plugin must be configured, found {count}");
                self.problem(&format!("plugins.{name}"), Origin::Default, message);
            }
        }
        if workload_attestors == 0 {
            let message = "at least one WorkloadAttestor plugin must be configured";
            self.problem("plugins.WorkloadAttestor", Origin::Default, message);
        }
    }

    fn plugin(&mut self, raw: &RawPlugin, plugins: &mut Plugins) {
        let Some(settings) = self.settings(raw) else {
            return;
        };
        match raw.plugin_type.as_str() {
            "KeyManager" => plugins.key_manager = Some(self.key_manager(&settings)),
            "NodeAttestor" => plugins.node_attestor = Some(self.node_attestor(&settings)),
            "WorkloadAttestor" => {
                let attestor = self.workload_attestor(&settings);
                plugins.workload_attestors.push(attestor);
            }
            _ => plugins
                .svid_stores
                .push(self.other(&settings, &SVID_STORES)),
        }
    }

    fn settings<'p>(&mut self, plugin: &'p RawPlugin) -> Option<Settings<'p>> {
        let file = plugin
            .plugin_data_file
            .as_ref()
            .filter(|file| !file.value.is_empty());
        let key = full_name(plugin);
        let Some(file) = file else {
            let data = match &plugin.plugin_data {
                None => Object::default(),
                Some(value) => self.inline_data(&key, &value.0)?,
            };
            return Some(Settings {
                plugin,
                data,
                file: None,
            });
        };
        if plugin.plugin_data.is_some() {
            let message = format!(
                "only one of plugin_data or plugin_data_file can be specified for {key}, not both"
            );
            self.problem(&key, file.origin, message);
            return None;
        }
        let path = paths::absolute(self.cwd, &file.value);
        let text = paths::read_text(&path, LONGEST_DATA_FILE);
        let data = text.and_then(|text| parse(&text).map_err(|error| error.to_string()));
        match data {
            Ok(data) => Some(Settings {
                plugin,
                data,
                file: Some(path),
            }),
            Err(reason) => {
                let message = format!(
                    "unable to read plugin_data_file {}: {reason}",
                    path.display()
                );
                self.problem(&key, file.origin, message);
                None
            }
        }
    }

    /// A block, a list of blocks, or HCL text in a string.
    fn inline_data(&mut self, key: &str, value: &Value) -> Option<Object> {
        let mut blocks = Vec::new();
        let reason = if let ValueKind::Text(text) = &value.kind {
            match parse(text) {
                Ok(data) => return Some(data),
                Err(error) => format!("its text cannot be parsed: {error}"),
            }
        } else if collect_blocks(value, &mut blocks) {
            let entries = blocks.iter().flat_map(|(object, _)| object.entries.clone());
            return Some(Object {
                entries: entries.collect(),
            });
        } else {
            format!("it is {}, not a block", value.kind.name())
        };
        self.problem(
            key,
            Origin::File(value.position),
            format!("plugin_data of {key} cannot be used: {reason}"),
        );
        None
    }

    /// Reads typed settings; problems inside a `plugin_data_file` name that file.
    fn typed<T>(
        &mut self,
        settings: &Settings<'_>,
        schema: &'static Schema,
        build: impl FnOnce(&Section<'_>, &mut Vec<String>) -> T,
    ) -> T {
        let notes = RefCell::default();
        let mut missing = Vec::new();
        let value = {
            let section = Section::top(schema, &settings.data, &notes);
            build(&section, &mut missing)
        };
        let mut notes = notes.into_inner();
        if let Some(file) = &settings.file {
            let place = |message: &mut String, origin: &mut Origin| {
                if let Origin::File(position) = origin {
                    *message = format!("{message} (in {}:{position})", file.display());
                }
                *origin = settings.origin();
            };
            for problem in notes.types.iter_mut().chain(&mut notes.unknown) {
                place(&mut problem.message, &mut problem.origin);
            }
            for warning in &mut notes.warnings {
                place(&mut warning.message, &mut warning.origin);
            }
        }
        self.problems.append(&mut notes.types);
        self.unknown.append(&mut notes.unknown);
        self.warnings.append(&mut notes.warnings);
        for complaint in missing {
            let message = format!(
                "{} {:?}: {complaint}",
                settings.plugin.plugin_type, settings.plugin.name
            );
            self.problem(&settings.key(), settings.origin(), message);
        }
        value
    }

    fn key_manager(&mut self, settings: &Settings<'_>) -> KeyManager {
        match settings.plugin.name.as_str() {
            _ if settings.is_external() => KeyManager::Other(self.other(settings, &KEY_MANAGERS)),
            "memory" => KeyManager::Memory,
            "disk" => {
                let cwd = self.cwd;
                self.typed(settings, &schema::DISK, |disk, missing| KeyManager::Disk {
                    directory: paths::absolute(cwd, &needed(disk, "directory", missing)),
                })
            }
            _ => KeyManager::Other(self.other(settings, &KEY_MANAGERS)),
        }
    }

    /// Keeps an external plugin or a built-in of the reference; any other name is a problem.
    fn other(&mut self, settings: &Settings<'_>, built_in: &[&'static str]) -> OtherPlugin {
        let plugin = settings.plugin;
        if !settings.is_external() && !built_in.contains(&plugin.name.as_str()) {
            let hint = hint(&plugin.name, built_in);
            let message = format!(
                "{} {:?} is not built in and has no plugin_cmd{hint}",
                plugin.plugin_type, plugin.name
            );
            self.problem(&settings.key(), settings.origin(), message);
        }
        OtherPlugin {
            name: plugin.name.clone(),
            external: self.external(settings),
            data: OpaqueData(settings.data.clone()),
        }
    }

    fn external(&mut self, settings: &Settings<'_>) -> Option<External> {
        let plugin = settings.plugin;
        let command = plugin
            .plugin_cmd
            .as_ref()
            .filter(|command| !command.value.is_empty())?;
        let checksum = plugin
            .plugin_checksum
            .clone()
            .filter(|checksum| !checksum.value.is_empty());
        match &checksum {
            Some(checksum) if !is_sha256(checksum) => {
                let message = format!(
                    "plugin_checksum of {} must be 64 hexadecimal digits",
                    settings.key()
                );
                self.problem(&settings.key(), checksum.origin, message);
            }
            Some(_) => {}
            None => self.warn(
                &settings.key(),
                command.origin,
                "external plugin without plugin_checksum",
            ),
        }
        Some(External {
            command: paths::absolute(self.cwd, &command.value),
            arguments: plain(plugin.plugin_args.clone()),
            checksum: checksum.map(|checksum| checksum.value),
        })
    }
}

fn is_sha256(checksum: &Spanned<String>) -> bool {
    checksum.value.len() == 64 && checksum.value.chars().all(|c| c.is_ascii_hexdigit())
}

fn hint(name: &str, known: &[&'static str]) -> String {
    match nearest::nearest(name, known) {
        Some(known) => format!(", did you mean {known:?}?"),
        None => String::new(),
    }
}

fn optional(section: &Section<'_>, key: &str) -> Option<String> {
    section
        .text(key)
        .map(|text| text.value)
        .filter(|text| !text.is_empty())
}

/// A text that must be there; empty with a complaint otherwise.
fn needed(section: &Section<'_>, key: &str, missing: &mut Vec<String>) -> String {
    optional(section, key).unwrap_or_else(|| {
        missing.push(format!("{key} must be configured"));
        String::new()
    })
}
