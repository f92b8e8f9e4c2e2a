//! How the demo tells what happens: a time, a word, and a text of up to 100 columns; colour and a moving line on terminals only.

use std::fmt::{self, Display};
use std::time::{Duration, SystemTime};

use actors::clock::Clock;

use super::stage::Stage;
use super::workload::Credential;
use crate::cli::Output;
use crate::telemetry::date::rfc3339_seconds;

const BOLD: &str = "1";
const DIM: &str = "2";
const RED: &str = "31";
const GREEN: &str = "32";
/// Takes away what the meter wrote.
const CLEAR_LINE: &str = "\r\x1b[K";
/// Where texts begin: behind the time and the word.
const INDENT: &str = "                   ";
/// Places of a bar; the middle one is half of the life.
const BAR_WIDTH: u32 = 16;

/// What the standard output can show.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    pub(super) has_colour: bool,
    /// Whether a line may be written over.
    pub(super) has_meter: bool,
}

/// Writes the story.
#[derive(Debug)]
pub(super) struct Narrator<'a> {
    output: &'a mut Output,
    style: Style,
    clock: Clock,
    /// By the boot clock.
    started: Duration,
    /// What the demo is without if its time runs out now.
    missing: &'static str,
    shows_meter: bool,
}

impl<'a> Narrator<'a> {
    /// A narrator whose time begins now.
    pub(super) fn new(output: &'a mut Output, style: Style, clock: Clock) -> Self {
        let started = clock.now().boot;
        let missing = "nothing";
        let mut narrator = Self {
            output,
            style,
            clock,
            started,
            missing,
            shows_meter: false,
        };
        let version = env!("CARGO_PKG_VERSION");
        narrator.line(format_args!(
            "edge-agent {version}: a server, a node and two workloads in one process on this machine"
        ));
        narrator.gap();
        narrator
    }

    /// Names what is missing from here on, such as `no attestation`.
    pub(super) fn waits_for(&mut self, missing: &'static str) {
        self.missing = missing;
    }

    /// What is missing.
    pub(super) fn missing(&self) -> &'static str {
        self.missing
    }

    /// A step: when, a word, what.
    pub(super) fn step(&mut self, word: &str, text: impl Display) {
        let elapsed = self.clock.now().boot.saturating_sub(self.started);
        let time = self.paint(DIM, format!("{:5.2} s", elapsed.as_secs_f64()));
        let word = self.paint(GREEN, format!("{word:<9}"));
        self.line(format_args!("{time}  {word} {text}"));
    }

    /// More about the last step.
    pub(super) fn detail(&mut self, text: impl Display) {
        self.line(format_args!("{INDENT}{text}"));
    }

    /// One identity.
    pub(super) fn credential(&mut self, credential: &Credential) {
        let id = self.paint(BOLD, credential.id.clone());
        let left = time_left(credential, self.clock.wall());
        self.detail(id);
        self.detail(format_args!("  serial {}", credential.serial));
        self.detail(format_args!(
            "  valid until {}, {left} left",
            rfc3339_seconds(credential.expires_at)
        ));
    }

    /// One renewal, with what was left of the old certificate.
    pub(super) fn renewal(&mut self, old: &Credential, new: &Credential, answer: usize) {
        let id = self.paint(BOLD, new.id.clone());
        let now = self.clock.wall();
        self.step("renewed", id);
        self.detail(format_args!(
            "  serial {}, {} were left",
            old.serial,
            time_left(old, now)
        ));
        self.detail(format_args!(
            "      -> {}, {} left",
            new.serial,
            time_left(new, now)
        ));
        self.detail(format_args!("  as answer {answer} on the same stream"));
    }

    /// Shows what is left of the certificates, in one line that the next one replaces.
    pub(super) fn meter(&mut self, credentials: &[Credential], now: SystemTime) {
        if !self.style.has_meter {
            return;
        }
        let lives: Vec<String> = credentials
            .iter()
            .map(|credential| {
                let name = credential.id.rsplit('/').next().unwrap_or_default();
                format!(
                    "{name} {} {}",
                    bar(credential, now),
                    time_left(credential, now)
                )
            })
            .collect();
        let line = self.paint(DIM, lives.join("   "));
        self.output.print(&format!("{CLEAR_LINE}{INDENT}{line}"));
        self.shows_meter = true;
    }

    /// What can be tried while the demo stays up.
    pub(super) fn invite(&mut self, stage: &Stage) {
        let program = &stage.program;
        let public = stage.public_socket();
        let admin = stage.admin_socket();
        self.gap();
        self.line("The agent goes on until Ctrl-C. Try in another terminal, as the same user:");
        self.gap();
        for command in [
            format!("api fetch x509 -socketPath {public}"),
            format!("api watch -socketPath {public}"),
            format!("healthcheck -socketPath {public}"),
            format!("debug getinfo -socketPath {admin}"),
        ] {
            self.line(format_args!("  {program} {command}"));
        }
        self.gap();
        self.line("Any SPIFFE client takes the same socket, py-spiffe and go-spiffe for two:");
        self.gap();
        let url = stage.public_socket_url();
        self.line(format_args!("  export SPIFFE_ENDPOINT_SOCKET={url}"));
        self.gap();
        self.line(format_args!(
            "Configuration: {}",
            stage.config.file.display()
        ));
        if let Some(log) = &stage.config.log.file {
            self.line(format_args!("Log:           {}", log.display()));
        }
    }

    /// An empty line.
    pub(super) fn gap(&mut self) {
        self.line("");
    }

    /// The one line of a failed demo, on standard error.
    pub(super) fn fail(&mut self, error: &anyhow::Error) {
        self.clear_meter();
        let failed = self.paint(RED, "demo failed".to_owned());
        let reasons = format!("{error:#}");
        let reason = reasons.trim_end().replace('\n', "; ");
        self.output.complain(format_args!("{failed}: {reason}"));
    }

    fn line(&mut self, text: impl Display) {
        self.clear_meter();
        self.output.print(&format!("{text}\n"));
    }

    fn clear_meter(&mut self) {
        if std::mem::take(&mut self.shows_meter) {
            self.output.print(CLEAR_LINE);
        }
    }

    fn paint(&self, colour: &str, text: String) -> String {
        if self.style.has_colour {
            format!("\x1b[{colour}m{text}\x1b[0m")
        } else {
            text
        }
    }
}

/// A count with its noun: `1 sync`, `2 syncs`.
pub(super) fn counted(count: usize, noun: &str) -> impl Display {
    let ending = if count == 1 { "" } else { "s" };
    fmt::from_fn(move |f| write!(f, "{count} {noun}{ending}"))
}

fn time_left(credential: &Credential, now: SystemTime) -> String {
    format!("{:.1} s", credential.left(now).as_secs_f64())
}

/// What is left of a life, with a mark at its half: `[########|##......]`.
fn bar(credential: &Credential, now: SystemTime) -> String {
    let whole = credential.lifetime().as_secs_f64().max(1.0);
    let share = credential.left(now).as_secs_f64() / whole;
    let places = (0..BAR_WIDTH).map(|place| {
        if place == BAR_WIDTH / 2 {
            '|'
        } else if f64::from(place) < share * f64::from(BAR_WIDTH) {
            '#'
        } else {
            '.'
        }
    });
    format!("[{}]", places.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::super::workload::tests::credential;
    use super::*;
    use crate::cli::testing::captured;

    const PLAIN: Style = Style {
        has_colour: false,
        has_meter: false,
    };

    #[test]
    fn a_renewal_shows_both_serial_numbers_and_what_is_left() {
        let (mut output, standard, _) = captured();
        let clock = Clock::system();
        let end = actors::clock::unix_seconds(clock.wall()) - 1_767_366_245;
        let (old, new) = (
            credential("a", "01", end - 9),
            credential("a", "02", end + 55),
        );

        Narrator::new(&mut output, PLAIN, clock).renewal(&old, &new, 2);

        let text = standard.text();
        assert!(
            text.contains(" s  renewed   spiffe://demo.test/a\n"),
            "{text}"
        );
        assert!(text.contains("  serial 01, 0.0 s were left\n"), "{text}");
        assert!(text.contains("  -> 02, 5"), "{text}");
        assert!(text.contains("as answer 2 on the same stream\n"), "{text}");
    }

    #[test]
    fn colour_and_a_moving_line_are_for_terminals() {
        let lives = [credential("a", "01", 9)];
        let now = lives[0].valid_from;
        let style = Style {
            has_colour: true,
            has_meter: true,
        };
        let (mut plain, plain_text, _) = captured();
        let (mut terminal, terminal_text, _) = captured();

        Narrator::new(&mut plain, PLAIN, Clock::system()).meter(&lives, now);
        let mut narrator = Narrator::new(&mut terminal, style, Clock::system());
        narrator.meter(&lives, now);
        narrator.step("done", "x");

        assert!(!plain_text.text().contains('\x1b'));
        let text = terminal_text.text();
        assert!(
            text.contains("a [########|#######] 30.0 s\x1b[0m\r\x1b[K"),
            "{text:?}"
        );
        assert!(text.ends_with("\x1b[32mdone     \x1b[0m x\n"), "{text:?}");
    }

    #[test]
    fn a_bar_shrinks_to_its_mark_and_beyond() {
        let life = credential("a", "01", 30);
        let table = [
            (0, "[########|#######]"),
            (10, "[########|##.....]"),
            (15, "[########|.......]"),
            (25, "[###.....|.......]"),
            (40, "[........|.......]"),
        ];

        for (seconds, expected) in table {
            let now = life.valid_from + Duration::from_secs(seconds);
            assert_eq!(bar(&life, now), expected, "{seconds}");
        }
    }

    #[test]
    fn one_is_singular() {
        assert_eq!(counted(1, "sync").to_string(), "1 sync");
        assert_eq!(counted(0, "sync").to_string(), "0 syncs");
    }
}
