//! Prints lines for a reader: time, object and state, in colour on a terminal.

use std::io::{IsTerminal, Write};

use jiff::Zoned;

/// The colour of a line's last part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// As expected.
    Good,
    /// In progress.
    Waiting,
    /// Somebody has to act.
    Bad,
    /// Deleted, or of little interest.
    Faint,
}

impl Mood {
    const fn code(self) -> &'static str {
        match self {
            Self::Good => "32",
            Self::Waiting => "33",
            Self::Bad => "31",
            Self::Faint => "2",
        }
    }
}

/// Prints the lines to stdout.
#[derive(Clone, Debug)]
pub(crate) struct Screen {
    colour: bool,
}

impl Screen {
    pub(crate) fn new() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self {
            colour: wanted && std::io::stdout().is_terminal(),
        }
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    fn print(line: &str) {
        // A closed stdout is no reason to stop what was started.
        let _ = writeln!(std::io::stdout().lock(), "{line}");
    }

    /// Prints an action of this program.
    pub(crate) fn step(&self, text: &str) {
        Self::print(&format!("{} {text}", self.paint("1", "==>")));
    }

    /// Prints an error.
    pub(crate) fn error(&self, text: &str) {
        Self::print(&format!("{} {text}", self.paint("1;31", "error:")));
    }

    /// Prints a line unchanged.
    pub(crate) fn plain(&self, text: &str) {
        Self::print(text);
    }

    /// Prints a command to copy.
    pub(crate) fn command(&self, text: &str) {
        Self::print(&format!("    {}", self.paint("36", text)));
    }

    /// Prints a line that belongs to the previous one.
    pub(crate) fn detail(&self, text: &str, mood: Mood) {
        Self::print(&format!("             {}", self.paint(mood.code(), text)));
    }

    /// Prints a line of the host's log.
    pub(crate) fn log(&self, text: &str) {
        Self::print(&format!("{} {text}", self.paint("2", "log")));
    }

    /// Prints the current state of an object. Children are indented more than their parents.
    pub(crate) fn object(&self, child: bool, name: &str, state: &str, mood: Mood) {
        let time = Zoned::now().strftime("%H:%M:%S").to_string();
        let indent = if child { "    " } else { "" };
        let width = 46 - indent.len();
        let padded = format!("{name:<width$}");
        let name = if child { padded } else { self.paint("1", &padded) };
        Self::print(&format!(
            "{} {indent}{name} {}",
            self.paint("2", &time),
            self.paint(mood.code(), state)
        ));
    }
}
