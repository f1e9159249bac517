//! `operator-host explain`: why a resource is as it is, from the cluster, and from a running host if its address is known.

mod advice;
mod gather;
mod host;
mod kinds;
mod tree;

use std::io::{IsTerminal, Write};
use std::net::SocketAddr;

use anyhow::anyhow;
use jiff::Timestamp;
use serde::Serialize;

use super::Failure;
use super::plugins::Output;
use operator_host_author::plugin_file;
use operator_host_cluster::client;
use operator_host_contract::is_dns_label;
use operator_host_core::metrics::Metrics;
use operator_host_core::object::{name_problem, shorten};
use operator_host_instruments::journal::Reconcile;

/// The options of `explain`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Needs no configuration and no running host, only your own read permissions.")]
pub struct Args {
    /// The kind of the resource, as for `kubectl get`: `echo`, `echoes` or `echoes.my-operator.dev`, or `KIND/NAME`
    #[arg(value_name = "KIND")]
    kind: String,
    /// The name of the resource
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// The namespace of the resource [default: the kubeconfig's namespace]
    #[arg(long, short, value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// The address of the running host's page (its --ui-addr), to show the last reconciles as well. It must be a loopback
    /// address: forward the port of the host's pod [default: ask no host]
    #[arg(long, env = "OPERATOR_HOST_UI_ADDR", value_name = "ADDRESS")]
    ui_addr: Option<SocketAddr>,
    /// The output format [default: text]
    #[arg(long, short, value_name = "FORMAT")]
    output: Option<Output>,
}

/// Maximum number of bytes of an error.
const MAX_ERROR: usize = 500;

/// What the cluster reports about one resource.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Explanation {
    api_version: String,
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    name: String,
    /// What the generations, the deletion and the pause mean, one sentence each.
    state: Vec<String>,
    conditions: Vec<Condition>,
    children: Vec<Child>,
    /// Whether there may be more children: some kinds could not be listed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    children_incomplete: bool,
    /// The version of the plugin that is not live, and what it would change.
    #[serde(skip_serializing_if = "Option::is_none")]
    proposed: Option<Proposed>,
    /// The last reconciles, the newest first; absent without the address of a host.
    #[serde(skip_serializing_if = "Option::is_none")]
    reconciles: Option<Vec<Reconcile>>,
    /// The newest first.
    events: Vec<Event>,
    /// What each reason means, and what to do about it.
    next: Vec<Advice>,
    /// What could not be read, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<String>,
}

/// A condition of the resource.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Condition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    reason: String,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<Timestamp>,
}

impl Condition {
    /// Reports whether the condition is not as it should be.
    fn is_problem(&self) -> bool {
        match self.type_.as_str() {
            "Stalled" | "Reconciling" | "Paused" | "PluginHeldBack" | "Contested" => self.status != "False",
            _ => self.status != "True",
        }
    }
}

/// A child of the resource, or an object that a child's controller has created.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Child {
    api_version: String,
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace: Option<String>,
    name: String,
    /// Why it is not ready; absent when it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    unready: Option<String>,
    /// Whether it stays when the resource is deleted.
    retained: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    created: Option<Timestamp>,
    /// The digest of the plugin version that last changed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    plugin_digest: Option<String>,
    /// The name and version of that plugin, as it describes itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    plugin: Option<String>,
    /// The generation of the resource at that change.
    #[serde(skip_serializing_if = "Option::is_none")]
    generation: Option<i64>,
    /// Others that own fields of it, without those who write its status.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    other_managers: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    children: Vec<Child>,
}

/// An Event about the resource.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    #[serde(rename = "type")]
    type_: String,
    reason: String,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
}

/// A version of the plugin that is not live.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Proposed {
    /// The plugin's own version; absent when no host has told it.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// The state in words, such as `held back`.
    state: String,
    message: String,
    /// What it would change in the resource; empty when it is not known.
    #[serde(skip_serializing_if = "String::is_empty")]
    diff: String,
}

/// What a reason means.
#[derive(Debug, Serialize)]
struct Advice {
    reason: String,
    text: String,
}

/// Refuses a name that could turn the request into another one.
fn check_name(what: &str, name: &str, problem: Option<String>) -> Result<(), Failure> {
    problem.map_or(Ok(()), |problem| {
        Err(Failure::Usage(anyhow!(
            "{what} {name:?} cannot be used: {problem}"
        )))
    })
}

/// Returns an error in the API server's words.
fn words(error: &kube::Error) -> String {
    shorten(&client::said(error), MAX_ERROR)
}

/// Prints the explanation.
///
/// # Errors
/// When there is no such kind or resource, or the API server does not answer.
pub async fn run(args: Args) -> Result<(), Failure> {
    plugin_file::show_log("off")?;
    let (kind, name) = match (args.kind.split_once('/'), args.name) {
        (None, Some(name)) => (args.kind, name),
        (Some((kind, name)), None) if !name.is_empty() => (kind.to_owned(), name.to_owned()),
        _ => {
            return Err(Failure::Usage(anyhow!(
                "specify a kind and a name: explain KIND NAME"
            )));
        }
    };
    check_name("the name", &name, name_problem(&name))?;
    if let Some(namespace) = &args.namespace {
        let problem = (!is_dns_label(namespace)).then(|| {
            "it must have at most 63 of a-z, 0-9 and `-`, and begin and end with a letter or digit".to_owned()
        });
        check_name("the namespace", namespace, problem)?;
    }
    let client = client::connect(std::sync::Arc::new(Metrics::unread())).await?;
    let mut explanation = gather::explain(&client, &kind, &name, args.namespace.as_deref()).await?;
    if let Some(address) = args.ui_addr {
        host::add(&mut explanation, address).await;
    }
    let mut out = std::io::stdout().lock();
    let text = match args.output {
        Some(format) => format.text(&explanation)?,
        None => tree::text(
            &explanation,
            Timestamp::now(),
            out.is_terminal() && plugin_file::colour(),
        ),
    };
    out.write_all(text.as_bytes())?;
    Ok(())
}
