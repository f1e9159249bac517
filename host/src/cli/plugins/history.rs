//! `operator-host plugins history`: prints which versions of a plugin were live.

use std::fmt::Write as _;
use std::io::Write as _;

use super::HostArgs;
use crate::cli::Failure;
use operator_host_author::output::{Paint, short, table};
use operator_host_core::text::printable;
use operator_host_delivery::history::HistoryEntry;

/// The options of `plugins history`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The controller
    #[arg(value_name = "CONTROLLER")]
    controller: String,
    #[command(flatten)]
    host: HostArgs,
}

/// Queries the host and prints the history.
pub(super) async fn run(args: Args) -> Result<(), Failure> {
    let path = format!("/plugins/{}/history", args.controller);
    let history: Vec<HistoryEntry> = args.host.ask(&path).await?;
    let mut out = std::io::stdout().lock();
    let text = match args.host.output {
        Some(format) => format.text(&history)?,
        None => text(&history, Paint::of(&out)),
    };
    out.write_all(text.as_bytes())?;
    Ok(())
}

/// Formats one line per entry, then the reason and the differences of each.
fn text(history: &[HistoryEntry], paint: Paint) -> String {
    if history.is_empty() {
        return "The host has recorded no version yet.\n".to_owned();
    }
    let mut rows = vec![["LIVE SINCE", "VERSION", "DIGEST", "WHY", "BY"].map(str::to_owned)];
    rows.extend(history.iter().map(|entry| {
        [
            format!("{:.0}", entry.at),
            printable(&entry.version),
            short(&printable(&entry.digest)),
            entry.why.as_str().to_owned(),
            printable(entry.by.as_deref().unwrap_or("the host")),
        ]
    }));
    let mut text = table(&rows).join("\n") + "\n";
    for entry in history {
        details(&mut text, entry, paint);
    }
    text
}

fn details(text: &mut String, entry: &HistoryEntry, paint: Paint) {
    let before = entry.before.as_deref().map(printable);
    let before = before.map_or_else(String::new, |before| format!(" after {}", short(&before)));
    let _ = writeln!(
        text,
        "\n{} ({}){before}: {}",
        printable(&entry.version),
        short(&printable(&entry.digest)),
        printable(&entry.because)
    );
    text.push_str(&paint.diff(&entry.diff, "  "));
}

#[cfg(test)]
mod tests {
    use super::*;
    use operator_host_delivery::history::Why;

    #[test]
    fn the_table_says_when_why_by_whom_and_what_changed() {
        let digest = |start: &str| format!("sha256:{start:0<64}");
        let history = [
            HistoryEntry {
                at: "2026-01-02T03:04:05.6Z".parse().unwrap(),
                version: "1.1.0".into(),
                digest: digest("bbbbbbbbbbbb"),
                before: Some(digest("aaaaaaaaaaaa")),
                why: Why::Forced,
                because: "promoted by force; it would delete\x1b[2J Pod web-1".into(),
                by: Some("kubectl-annotate".into()),
                diff: "-a\n+b".into(),
            },
            HistoryEntry {
                at: "2026-01-01T00:00:00Z".parse().unwrap(),
                version: "1.0.0".into(),
                digest: digest("aaaaaaaaaaaa"),
                before: None,
                why: Why::First,
                because: "it was the first".into(),
                by: None,
                diff: String::new(),
            },
        ];
        assert_eq!(
            text(&history, Paint(false)),
            "\
LIVE SINCE             VERSION   DIGEST         WHY                 BY
2026-01-02T03:04:05Z   1.1.0     bbbbbbbbbbbb   promoted by force   kubectl-annotate
2026-01-01T00:00:00Z   1.0.0     aaaaaaaaaaaa   the first           the host

1.1.0 (bbbbbbbbbbbb) after aaaaaaaaaaaa: promoted by force; it would delete [2J Pod web-1
  -a
  +b

1.0.0 (aaaaaaaaaaaa): it was the first
"
        );
    }
}
