//! Programs that tests call, and what they print.

use std::process::Command;

use crate::support::Scenario;

/// What a program printed, and its exit code.
pub struct Answer {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Answer {
    /// Fails unless it ended with this code.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        self
    }

    /// Returns all that it printed.
    pub fn all(&self) -> String {
        format!("{}{}", self.out, self.err)
    }
}

pub trait Call {
    /// Runs it to its end.
    fn call(&mut self) -> Answer;

    /// Runs it; fails unless it succeeds. Returns its standard output.
    #[track_caller]
    fn prints(&mut self) -> String {
        self.call().expect(0).out
    }

    /// Runs it; fails unless it ends with this code. Returns all that it prints.
    #[track_caller]
    fn ends(&mut self, code: i32) -> String {
        self.call().expect(code).all()
    }
}

impl Call for Command {
    fn call(&mut self) -> Answer {
        let output = self.output().unwrap_or_else(|error| panic!("{self:?}: {error}"));
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Answer {
            code: output.status.code(),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }
}

/// Returns a command that runs `operator-host` with these arguments.
pub fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_operator-host"));
    command.args(arguments).env_remove("OPERATOR_HOST_LOG");
    command
}

impl Scenario {
    /// Returns such a command for this scenario's cluster.
    pub fn program(&self, arguments: &[&str]) -> Command {
        let mut command = program(arguments);
        command.env("KUBECONFIG", self.kubeconfig());
        command
    }
}
