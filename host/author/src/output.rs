//! How the commands print tables, differences and ages.

use std::io::IsTerminal;

use jiff::Timestamp;

use operator_host_core::text::printable;

/// The code of what is as it should be.
pub const GREEN: &str = "32";
/// The code of what is not.
pub const RED: &str = "31";
/// The code of what deserves a look.
pub const YELLOW: &str = "33";

/// Colours for a terminal, or none.
#[derive(Clone, Copy)]
pub struct Paint(pub bool);

impl Paint {
    /// Returns the colours of an output, if it is a terminal and the user allows them.
    pub fn of(out: &impl IsTerminal) -> Self {
        let allowed = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Self(out.is_terminal() && allowed)
    }

    /// Colours a text.
    pub fn with(self, code: &str, text: &str) -> String {
        match self.0 {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }

    /// Colours a line of a difference.
    pub fn line(self, line: &str) -> String {
        match line.as_bytes().first() {
            Some(b'-') => self.with(RED, line),
            Some(b'+') => self.with(GREEN, line),
            _ => line.to_owned(),
        }
    }

    /// Formats a difference, each line after this indent.
    pub fn diff(self, diff: &str, indent: &str) -> String {
        let line = |line| format!("{indent}{}\n", self.line(&printable(line)));
        diff.lines().map(line).collect()
    }
}

/// Formats rows in the style of `kubectl`: one line each, with columns of equal width.
pub fn table<const N: usize>(rows: &[[String; N]]) -> Vec<String> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: [usize; N] = std::array::from_fn(|column| width(column).unwrap_or_default());
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths);
        let line: String = cells.map(|(cell, width)| format!("{cell:<width$}   ")).collect();
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Shortens a digest.
pub fn short(digest: &str) -> String {
    digest.trim_start_matches("sha256:").chars().take(12).collect()
}

/// Formats an age as `kubectl` does.
pub fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}
