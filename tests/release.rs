//! What a release consists of: completions and the manual.

#[path = "../host/release/man.rs"]
#[allow(dead_code, reason = "its main function")]
mod man;

use std::fs;
use std::process::{Command, Output};

use clap::CommandFactory;
use operator_host::cli::Cli;

const PROGRAM: &str = env!("CARGO_BIN_EXE_operator-host");

/// Runs a command that succeeds, and returns what it prints.
fn printed(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that fails, and returns why.
fn failed(command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.output().expect("it runs");
    assert!(!status.success(), "{command:?}");
    String::from_utf8(stderr).unwrap()
}

/// Returns what a shell offers for the last of these words, with the function that the script registers.
fn completed(words: &str) -> Vec<String> {
    let script = format!(
        "source <(\"$0\" completions bash); \
         [[ $(complete -p operator-host) =~ -F\\ ([^ ]+) ]]; \
         COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=(); \
         \"${{BASH_REMATCH[1]}}\" operator-host \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\""
    );
    let mut bash = Command::new("bash");
    let text = printed(bash.args(["--norc", "-c", &script, PROGRAM]));
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_and_values() {
    assert_eq!(completed("operator-host exp"), ["explain"]);
    let all = completed("operator-host ''");
    for name in ["run", "check", "plugins", "completions"] {
        assert!(all.iter().any(|it| it == name), "{name} is not in {all:?}");
    }
    assert!(
        !all.iter().any(|it| it == "compile-plugin"),
        "it is internal: {all:?}"
    );
    assert_eq!(completed("operator-host run --ui-c"), ["--ui-certificate"]);
    assert_eq!(completed("operator-host plugins his"), ["history"]);
    assert_eq!(completed("operator-host new --lang assem"), ["assemblyscript"]);
}

#[test]
fn every_shell_gets_completions_and_another_word_is_no_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let text = printed(Command::new(PROGRAM).args(["completions", shell]));
        assert!(text.contains("ui-certificate"), "{shell}: {text}");
        assert!(
            !text.contains("compile-plugin"),
            "{shell} offers what is internal"
        );
    }
    let error = failed(Command::new(PROGRAM).args(["completions", "tcsh"]));
    assert!(error.contains("possible values: bash"), "{error}");
}

/// Returns the names of all commands that the manual has pages for.
fn pages(command: &clap::Command, name: &str) -> Vec<(String, Vec<String>)> {
    let options = command.get_arguments().filter(|it| !it.is_hide_set());
    let options = options.filter_map(|it| Some(format!("--{}", it.get_long()?)));
    let mut all = vec![(name.to_owned(), options.collect())];
    for sub in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        all.extend(pages(sub, &format!("{name}-{}", sub.get_name())));
    }
    all
}

#[test]
fn the_manual_has_a_page_for_every_command_with_its_options() {
    let folder = tempfile::tempdir().unwrap();
    man::write_all(folder.path()).unwrap();
    let expected = pages(&Cli::command(), "operator-host");
    assert!(expected.len() > 20);
    let count = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(count, expected.len(), "pages that no command has");
    for (name, options) in expected {
        let file = folder.path().join(format!("{name}.1"));
        printed(
            Command::new("mandoc")
                .args(["-T", "lint", "-W", "error"])
                .arg(&file),
        );
        let text = printed(
            Command::new("mandoc")
                .args(["-T", "ascii", "-O", "width=500"])
                .arg(&file),
        );
        // Bold letters are written twice, with a backspace between them.
        let mut plain: Vec<char> = Vec::new();
        for letter in text.chars() {
            if letter == '\u{8}' {
                plain.pop();
            } else {
                plain.push(letter);
            }
        }
        let plain: String = plain.into_iter().collect();
        assert!(plain.contains(&format!("{name} - ")), "{plain}");
        for option in options {
            assert!(plain.contains(&option), "{option} is not in {plain}");
        }
    }
}
