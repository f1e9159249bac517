//! Lines for a person: the time, what, and how it is; in colour on a terminal.

use std::io::{IsTerminal, Write};

use jiff::Zoned;

/// The look of a line's last part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// As it should be.
    Good,
    /// On its way.
    Waiting,
    /// Somebody has to do something.
    Bad,
    /// Gone, or of no interest.
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

/// Where the lines go: stdout.
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
        // A reader that went away is no reason to stop what was started.
        let _ = writeln!(std::io::stdout().lock(), "{line}");
    }

    /// Something that this program did.
    pub(crate) fn step(&self, text: &str) {
        Self::print(&format!("{} {text}", self.paint("1", "==>")));
    }

    /// Something that went wrong.
    pub(crate) fn error(&self, text: &str) {
        Self::print(&format!("{} {text}", self.paint("1;31", "error:")));
    }

    /// A line as it is.
    pub(crate) fn plain(&self, text: &str) {
        Self::print(text);
    }

    /// A command to copy.
    pub(crate) fn command(&self, text: &str) {
        Self::print(&format!("    {}", self.paint("36", text)));
    }

    /// A line that belongs to the one before it.
    pub(crate) fn detail(&self, text: &str, mood: Mood) {
        Self::print(&format!("             {}", self.paint(mood.code(), text)));
    }

    /// A line of the host's log.
    pub(crate) fn log(&self, text: &str) {
        Self::print(&format!("{} {text}", self.paint("2", "log")));
    }

    /// How an object is now. Children stand further to the right than their parents.
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
