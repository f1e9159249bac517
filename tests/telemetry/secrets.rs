//! What is exported contains no secret.

use super::collector::{Collector, Span, shown, text};
use super::exporting_with;
use crate::children::secrets::decoded;
use crate::delivery::registry::server::{Access, PASSWORD, Registry};
use crate::delivery::registry::tokens::{BASIC, Tokens};
use crate::support::prelude::*;

const SECRET: &str = "v1/Secret";
/// A value of a Secret whose plugin puts it into a label, too: the API server quotes it when it refuses the label.
const REFUSED: &str = "no label, but secret";
/// What stands in its place.
const HIDDEN: &str = "(hidden)";

/// The log records are those of the level `debug`, and the requests go to the API server, to a registry and to its token server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_log_records_nor_spans_nor_metrics_contain_a_token_a_password_or_a_value_of_a_secret() {
    let scenario = Scenario::new("trace-secrets").await;
    let folder = scenario.folder.path();
    let tokens = Tokens::start(folder).await;
    let registry = Registry::start(folder, Access::Token(tokens.port)).await;
    let token_server = format!("127.0.0.1:{}", tokens.port);
    let reference = format!("{}/team/puppet:1", registry.name());
    let credentials = registry.credentials();
    let (file, credentials) = (plugin("puppet"), credentials.to_str().unwrap());
    let push = ["push", file.to_str().unwrap(), &reference, "--plain-http"];
    let access = ["--credentials", credentials];
    program(&[&push[..], &access].concat()).prints();

    let collector = Collector::http().await;
    let name = registry.name();
    let top = format!("registry: {{plainHttp: [\"{name}\"], credentials: {credentials}}}");
    let children = "children: [{apiVersion: v1, kind: Secret}]";
    let puppet = controller(&format!("oci://{reference}"), children);
    let config = scenario.config_with(&top, &puppet);
    let more = [super::LOGS, ("OPERATOR_HOST_LOG", "debug")];
    let host = exporting_with(&scenario, &config, &collector.endpoint(), &more);

    let generate = json!([{"name": "s", "entries": [{"key": "password", "length": 24}]}]);
    scenario
        .ready_with("drawn", json!({"response": {"generate": generate}}))
        .await;
    let generated = scenario.get(SECRET, "s").await.unwrap().data["data"]["password"].clone();
    let generated = generated.as_str().unwrap();
    let refused = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "refused", "labels": {"password": REFUSED}},
        "stringData": {"password": REFUSED},
    });
    scenario.wants("refused", &[refused]).await;
    scenario.until_told("refused", "Ready=False ApplyFailed").await;
    let is_it = |span: &Span| text(&span.attributes, "k8s.object.name").as_deref() == Some("refused");
    let has_it = |spans: &[Span]| spans.iter().any(is_it).then_some(());
    collector.until_spans("a reconcile that failed", has_it).await;
    // It exports what it still has.
    assert_eq!(host.stop().await.code(), Some(0));

    let (spans, records, metrics) = (collector.spans(), collector.records(), collector.metrics());
    let requests = spans.iter().filter_map(|span| text(&span.attributes, "url.full"));
    let requests: Vec<String> = requests.collect();
    for server in [&*name, &token_server, "/secrets/refused"] {
        let is_there = requests.iter().any(|url| url.contains(server));
        assert!(is_there, "no request to {server} in {requests:?}");
    }
    let kubeconfig = std::fs::read_to_string(scenario.kubeconfig()).unwrap();
    let (_, own) = kubeconfig.split_once("token: ").unwrap();
    let own = own.split(['}', '\n']).next().unwrap().trim_matches('"');
    let mut secrets = tokens.tokens();
    assert!(!secrets.is_empty(), "the host needed a token");
    secrets.extend([own, PASSWORD, BASIC.trim_start_matches("Basic "), generated].map(str::to_owned));
    secrets.extend([decoded(generated), REFUSED.to_owned()]);
    let exported = format!("{spans:#?}\n{records:#?}\n{metrics:#?}");
    for secret in secrets {
        assert!(secret.len() > 8, "{secret:?} is a secret");
        let line = exported.lines().find(|line| line.contains(&secret));
        assert_eq!(line, None, "{secret:?} is exported");
    }
    let said = records
        .iter()
        .filter_map(|record| record.body.as_ref().and_then(shown));
    let said: Vec<String> = said.collect();
    assert!(said.iter().any(|line| line.contains(HIDDEN)), "{said:?}");
}
