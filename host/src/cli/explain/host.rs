//! Asks a running host, at the address of its page, what only a host knows.

use std::fmt::Write;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{anyhow, bail};
use serde::Deserialize;
use tokio::net::TcpStream;

use super::{Explanation, Proposed};
use crate::cli::plugins::get;
use operator_host_delivery::report::CandidateVersion;
use operator_host_instruments::journal::Reconcile;

/// The time that the host has to answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The part of the host's answer that is used. A host of another version may lack some of it.
#[derive(Debug, Deserialize)]
struct Answer {
    #[serde(default = "yes")]
    leads: bool,
    #[serde(default)]
    reconciles: Vec<Reconcile>,
    #[serde(default)]
    candidate: Option<CandidateVersion>,
}

fn yes() -> bool {
    true
}

/// Adds what the host knows. Without an answer, the explanation says why, and is otherwise as it was.
pub(super) async fn add(explanation: &mut Explanation, address: SocketAddr) {
    let asked = tokio::time::timeout(TIMEOUT, ask(explanation, address)).await;
    match asked.unwrap_or_else(|_| Err(anyhow!("no answer within {TIMEOUT:?}"))) {
        Ok(answer) => merge(explanation, answer, address),
        Err(error) => explanation
            .unreadable
            .push(format!("what the host at {address} knows: {error}")),
    }
}

async fn ask(explanation: &Explanation, address: SocketAddr) -> anyhow::Result<Answer> {
    if !address.ip().is_loopback() {
        bail!("not a loopback address: forward the port of the host's pod");
    }
    let group = match explanation.api_version.split_once('/') {
        Some((group, _)) => group,
        None => "",
    };
    let name = match &explanation.namespace {
        Some(namespace) => format!("{namespace}/{}", explanation.name),
        None => explanation.name.clone(),
    };
    let path = format!(
        "/ui/view?view=object&group={}&kind={}&name={}",
        encoded(group),
        encoded(&explanation.kind),
        encoded(&name)
    );
    get(TcpStream::connect(address).await?, "localhost", &path).await
}

fn merge(explanation: &mut Explanation, answer: Answer, address: SocketAddr) {
    if !answer.leads && answer.reconciles.is_empty() {
        explanation.unreadable.push(format!(
            "the last reconciles: another replica leads than the one at {address}"
        ));
    } else {
        explanation.reconciles = Some(answer.reconciles);
    }
    let Some(candidate) = answer.candidate else { return };
    let proposed = explanation.proposed.take();
    // What the condition of this resource says is about this resource.
    let (message, diff) = match proposed {
        Some(proposed) => (proposed.message, proposed.diff),
        None => (candidate.message, String::new()),
    };
    explanation.proposed = Some(Proposed {
        version: candidate.version,
        digest: candidate.digest,
        state: candidate.state.as_str().to_owned(),
        message,
        diff,
    });
}

/// Encodes a value of a query.
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        // Writing to a string cannot fail.
        let _ = match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' => {
                encoded.write_char(char::from(byte))
            }
            _ => write!(encoded, "%{byte:02X}"),
        };
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_of_another_version_may_know_less_or_more() {
        let answer: Answer = serde_json::from_str(r#"{"name": "a", "later": {"x": 1}}"#).unwrap();
        assert!(answer.leads && answer.reconciles.is_empty() && answer.candidate.is_none());
    }

    #[test]
    fn a_name_cannot_add_to_the_query() {
        assert_eq!(encoded("shop/a&b=c d"), "shop%2Fa%26b%3Dc%20d");
    }
}
