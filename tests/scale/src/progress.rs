//! Progress on standard error, in colour on a terminal.

use std::io::{IsTerminal as _, stderr};

/// Prints the title of a part.
pub(crate) fn part(title: &str) {
    print("\x1b[1m", title);
}

/// Prints a step within a part.
pub(crate) fn step(text: &str) {
    print("\x1b[2m", &format!("  {text}"));
}

fn print(style: &str, text: &str) {
    let coloured = stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let time = jiff::Zoned::now().strftime("%H:%M:%S").to_string();
    if coloured {
        eprintln!("{time} {style}{text}\x1b[0m");
    } else {
        eprintln!("{time} {text}");
    }
}
