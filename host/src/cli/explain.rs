//! `operator-host explain`: why a resource is as it is, from the cluster alone. Nothing is written.

mod advice;
mod children;
mod decorators;
mod kinds;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::anyhow;
use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use kube::api::{Api, DynamicObject, ListParams};
use kube::{Client, ResourceExt};
use serde_json::Value;

use self::children::Found;
use self::decorators::Decorator;
use self::kinds::Kinds;
use super::Failure;
use operator_host_author::output::{GREEN, Paint, RED, YELLOW, age};
use operator_host_author::plugin_file;
use operator_host_cluster::client;
use operator_host_cluster::objects::Objects;
use operator_host_contract::{Kind, is_dns_label};
use operator_host_core::object::{
    PAUSED_ANNOTATION, annotation, is_terminating, is_unreadable, kind_in_words, name_problem, unreadable,
};
use operator_host_core::text::{printable, shorten};
use operator_host_desired::conditions::{SYNCED, is_host_type};
use operator_host_desired::names;
use operator_host_telemetry::metrics::Metrics;

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
}

/// Maximum number of bytes of an error.
const MAX_ERROR: usize = 500;
/// Number of Events to show.
const EVENTS: usize = 10;

/// What the cluster knows about one resource.
struct Explanation {
    parent: DynamicObject,
    /// The name of its kind, with the group.
    kind: String,
    children: Found,
    /// The Controllers that decorate it.
    decorators: Vec<Decorator>,
    /// The newest first.
    events: Vec<core::Event>,
}

/// Refuses a name that could turn the request into another one.
fn check_name(what: &str, name: &str, problem: Option<String>) -> Result<(), Failure> {
    let wrong = problem.map(|problem| anyhow!("{what} {name:?} cannot be used: {problem}"));
    wrong.map_or(Ok(()), |wrong| Err(Failure::Usage(wrong)))
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
        (None, Some(name)) if !args.kind.is_empty() => (args.kind, name),
        (Some((kind, name)), None) if !kind.is_empty() && !name.is_empty() => {
            (kind.to_owned(), name.to_owned())
        }
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
    let explanation = explain(&client, &kind, &name, args.namespace.as_deref()).await?;
    let mut out = std::io::stdout().lock();
    let text = text(&explanation, Timestamp::now(), Paint::of(&out));
    out.write_all(text.as_bytes())?;
    Ok(())
}

/// Collects everything about a resource.
async fn explain(
    client: &Client,
    kind: &str,
    name: &str,
    namespace: Option<&str>,
) -> anyhow::Result<Explanation> {
    let kinds = Kinds::read(client).await?;
    let served = kinds.find(kind)?;
    let resource = &served.api;
    let of = Kind::new(&*resource.api_version, &*resource.kind);
    if let Some(problem) = names::problem(&of, name) {
        return Err(anyhow!("{name:?} cannot be a name: {problem}"));
    }
    let namespace = namespace.unwrap_or(client.default_namespace());
    let namespace = served.is_namespaced.then_some(namespace);
    let kind = kind_in_words(&resource.group, &resource.kind).into_owned();
    let parent = match Objects::new(client.clone(), resource, namespace).get(name).await {
        Ok(parent) => parent,
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let place = namespace.map(|namespace| format!(" in the namespace {namespace}"));
            return Err(anyhow!("there is no {kind} {name}{}", place.unwrap_or_default()));
        }
        Err(error) => return Err(anyhow!("cannot read {kind} {name}: {}", words(&error))),
    };
    let mut children = children::find(client, &kinds, &parent, namespace).await;
    let mut unread = |what: &str, error: &kube::Error| {
        children.unread.insert(format!("{what}: {}", words(error)));
    };
    let events = events(client, &parent).await;
    let events = events.inspect_err(|error| unread("Events", error));
    let decorators = decorators::find(client, &kinds, &parent).await;
    let decorators = decorators.inspect_err(|error| unread("Controllers", error));
    let (events, decorators) = (events.unwrap_or_default(), decorators.unwrap_or_default());
    Ok(Explanation {
        parent,
        kind,
        children,
        decorators,
        events,
    })
}

/// Returns the newest Events about an object.
async fn events(client: &Client, parent: &DynamicObject) -> kube::Result<Vec<core::Event>> {
    let namespace = parent.namespace();
    let api: Api<core::Event> = Api::namespaced(client.clone(), namespace.as_deref().unwrap_or("default"));
    let uid = parent.uid().unwrap_or_default();
    let about = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
    let mut events = api.list(&about).await?.items;
    events.sort_by_key(|event| std::cmp::Reverse(last_time(event)));
    events.truncate(EVENTS);
    Ok(events)
}

fn last_time(event: &core::Event) -> Option<Timestamp> {
    let series = event.series.as_ref();
    let series = series.and_then(|series| series.last_observed_time.as_ref());
    let micro = series.or(event.event_time.as_ref()).map(|time| time.0);
    let last = event.last_timestamp.as_ref().map(|time| time.0);
    let created = || event.metadata.creation_timestamp.as_ref().map(|time| time.0);
    last.or(micro).or_else(created)
}

/// Formats an explanation. Values from the cluster cannot control the terminal.
fn text(explanation: &Explanation, now: Timestamp, paint: Paint) -> String {
    let Explanation {
        parent,
        kind,
        children,
        decorators,
        events,
    } = explanation;
    let mut text = String::new();
    let namespace = parent.namespace();
    let place = namespace.as_ref().map(|namespace| format!("{namespace}/"));
    let _ = writeln!(text, "{kind} {}{}", place.unwrap_or_default(), parent.name_any());
    let conditions = parent.data["status"]["conditions"].as_array();
    let conditions: Vec<&Value> = conditions.into_iter().flatten().collect();
    let is_ours = conditions.iter().any(|condition| condition["type"] == SYNCED);
    for line in state(parent, is_ours || decorators.is_empty()) {
        let _ = writeln!(text, "  {}", printable(&line));
    }
    if !decorators.is_empty() {
        text.push_str("\nDecorated by\n");
    }
    for decorator in decorators {
        let _ = writeln!(text, "  {}", printable(&decorator.line()));
    }
    text.push_str("\nConditions\n");
    if conditions.is_empty() {
        text.push_str("  none\n");
    }
    for condition in &conditions {
        write_condition(&mut text, condition, now, paint);
    }
    text.push_str("\nChildren\n");
    match (children.all.as_slice(), children.unread.is_empty()) {
        ([], true) => text.push_str("  none\n"),
        ([], false) => text.push_str("  none among the kinds that could be listed\n"),
        _ => text.push_str(&children.table(namespace.as_deref(), now, paint)),
    }
    if !events.is_empty() {
        text.push_str("\nEvents, the newest first\n");
    }
    for event in events {
        let when = last_time(event).map_or_else(String::new, |last| age(last, now));
        let kind = match event.type_.as_deref().unwrap_or_default() {
            "Warning" => paint.with(YELLOW, "Warning"),
            other => printable(other),
        };
        let trace = event.annotations().get("operator-host.dev/trace-id");
        let trace = trace.map_or_else(String::new, |trace| format!(" (trace {})", printable(trace)));
        let [reason, message] = [&event.reason, &event.message];
        let [reason, message] = [reason, message].map(|text| printable(text.as_deref().unwrap_or_default()));
        let _ = writeln!(text, "  {when:<5} {kind} {reason}: {message}{trace}");
    }
    if !children.unread.is_empty() {
        text.push_str("\nNot shown, because it could not be read\n");
    }
    for line in &children.unread {
        let _ = writeln!(text, "  {}", printable(line));
    }
    text.push_str("\nWhat to do next\n");
    let mut next = next(parent, &conditions);
    let problems = decorators.iter().filter_map(|it| it.problem.as_ref());
    next.extend(problems.filter_map(|reason| Some((reason.as_str(), advice::about(reason)?))));
    if next.is_empty() {
        let nothing = match is_ours || decorators.is_empty() {
            true => nothing_to_do(&conditions, !children.unread.is_empty()),
            false => {
                "Nothing is known. The Events above and `status.objects` of the Controllers may say more."
            }
        };
        let _ = writeln!(text, "  {nothing}");
    }
    for (reason, advice) in next {
        let _ = writeln!(text, "  {}", paint.with(YELLOW, &printable(reason)));
        for paragraph in advice.lines() {
            let _ = writeln!(text, "    {paragraph}");
        }
    }
    text
}

/// Says what the generations, the deletion and the pause mean, one sentence each.
fn state(parent: &DynamicObject, is_ours: bool) -> Vec<String> {
    let mut state = Vec::new();
    let generation = parent.metadata.generation;
    let observed = parent.data["status"]["observedGeneration"].as_i64();
    state.push(match (generation, observed) {
        _ if !is_ours => "Its status is not the host's.".to_owned(),
        (Some(generation), Some(observed)) if observed < generation => format!(
            "The host has not reconciled the current spec: generation {generation}, last reconciled {observed}."
        ),
        (Some(generation), Some(_)) => format!("The host has seen the current spec, generation {generation}."),
        _ if is_unreadable(parent) => format!("The host does not reconcile it: {}.", unreadable("it")),
        (_, None) => "No host has written a status yet: no controller has seen the resource, or its definition has no \
                      status subresource."
            .to_owned(),
        (None, Some(_)) => "The host has written a status.".to_owned(),
    });
    if is_terminating(parent) {
        let finalizers = parent.finalizers().join(", ");
        state.push(format!("It is being deleted. Its finalizers: {finalizers}."));
    }
    if annotation(parent, PAUSED_ANNOTATION) == Some("true") {
        state.push(format!("It is paused by the annotation {PAUSED_ANNOTATION}."));
    }
    state
}

/// Reports whether a condition is not as it should be.
fn is_problem(condition: &Value) -> bool {
    let type_ = condition["type"].as_str().unwrap_or_default();
    let is_good = !is_host_type(type_) || type_ == SYNCED;
    condition["status"] != if is_good { "True" } else { "False" }
}

/// Writes a condition, and what follows the first line of its message: the differences that a version of the plugin would make.
fn write_condition(text: &mut String, condition: &Value, now: Timestamp, paint: Paint) {
    let field = |name: &str| condition[name].as_str().unwrap_or_default();
    let status = format!("{:<7}", printable(field("status")));
    let status = paint.with(if is_problem(condition) { RED } else { GREEN }, &status);
    let since = field("lastTransitionTime").parse();
    let since = since.map_or_else(|_| String::new(), |since| age(since, now));
    let message = field("message");
    let (message, more) = message.split_once('\n').unwrap_or((message, ""));
    let _ = writeln!(
        text,
        "  {:<14} {status} {since:<5} {}: {}",
        printable(field("type")),
        printable(field("reason")),
        printable(message)
    );
    text.push_str(&paint.diff(more, "    "));
}

/// Returns what to do about each condition that is not as it should be, by its reason.
fn next<'a>(parent: &DynamicObject, conditions: &[&'a Value]) -> Vec<(&'a str, String)> {
    // The host writes no condition about it.
    let unread = is_unreadable(parent).then_some("Unreadable");
    let problems = conditions.iter().filter(|condition| is_problem(condition));
    let mut seen = BTreeSet::new();
    unread
        .into_iter()
        .chain(problems.filter_map(|condition| condition["reason"].as_str()))
        .filter(|reason| seen.insert(*reason))
        .filter_map(|reason| Some((reason, advice::about(reason)?)))
        .collect()
}

fn nothing_to_do(conditions: &[&Value], is_incomplete: bool) -> &'static str {
    let is_ready = |condition: &&Value| condition["type"] == "Ready" && condition["status"] == "True";
    match (conditions, conditions.iter().any(is_ready)) {
        ([], _) => {
            "Search the host's log for the name of the controller. The usual causes are: no controller is configured for \
             the kind, the namespace is not listed under `namespaces`, or no replica leads."
        }
        (_, true) if is_incomplete => {
            "Nothing: the resource is ready, by its own status. Not every kind of child could be listed; see above."
        }
        (_, true) => "Nothing: the resource is ready.",
        (_, false) => "The reasons above are the plugin's own. Ask the author of the plugin.",
    }
}

#[cfg(test)]
mod tests {
    use operator_host_desired::conditions::HOST_TYPES;
    use serde_json::json;

    use super::*;

    #[test]
    fn each_condition_of_the_host_is_known_as_good_or_bad() {
        for type_ in HOST_TYPES.into_iter().chain(["Own"]) {
            let is = |status: &str| is_problem(&json!({ "type": type_, "status": status }));
            let expected = match type_ {
                "Ready" | "Synced" | "Own" => [false, true, true],
                _ => [true, false, true],
            };
            assert_eq!([is("True"), is("False"), is("Unknown")], expected, "{type_}");
        }
    }

    #[test]
    fn the_text_shows_conditions_the_tree_events_and_what_to_do() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let object = |of: Value| -> DynamicObject { serde_json::from_value(of).unwrap() };
        let metadata = |name: &str, owner: &str| {
            json!({
                "name": name, "namespace": "shop", "uid": name, "creationTimestamp": "1970-01-01T00:00:00Z",
                "labels": { "operator-host.dev/controller": "shop" }, "annotations": { "operator-host.dev/provenance":
                    "generation=3 parent=1 digest=sha256:0123456789abcdef plugin=shop 1.4.0" },
                "ownerReferences": [{ "apiVersion": "v1", "kind": "X", "name": owner, "uid": owner, "controller": true }],
            })
        };
        let mut web = metadata("web", "1");
        web["managedFields"] = json!([
            { "manager": "operator-host/shop", "operation": "Apply", "fieldsV1": { "f:spec": {} } },
            { "manager": "kubectl-edit", "operation": "Update", "fieldsV1": { "f:spec": {} } },
        ]);
        let mut key = metadata("key", "1");
        key["ownerReferences"] = Value::Null;
        let children = [
            json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": web, "spec": { "replicas": 1 },
                "status": { "replicas": 1, "updatedReplicas": 1 } }),
            json!({ "apiVersion": "v1", "kind": "Secret", "metadata": key }),
        ];
        let old = metadata("web-0", "web");
        let created = [
            json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": old, "spec": { "replicas": 0 } }),
            json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata("web-1", "web") }),
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata("web-1-x", "web-1") }),
        ];
        let parent = json!({
            "apiVersion": "a.dev/v1", "kind": "App",
            "metadata": { "name": "web", "namespace": "shop", "generation": 3 },
            "status": { "observedGeneration": 3, "conditions": [
                { "type": "Ready", "status": "False", "reason": "ChildrenNotReady", "lastTransitionTime": "1970-01-01T00:00:40Z",
                  "message": "Deployment shop/web: 0 of 1\u{1b}[2J replicas" },
                { "type": "PluginHeldBack", "status": "True", "reason": "Other", "message": "it would delete Pod web-1\n-a\n+\u{1b}b" },
            ] },
        });
        let event = json!({
            "metadata": { "annotations": { "operator-host.dev/trace-id": "4bf9" } }, "involvedObject": {},
            "type": "Normal", "reason": "ChildrenChanged", "message": "created Pod web-1", "lastTimestamp": "1970-01-01T00:00:10Z",
        });
        let explanation = Explanation {
            parent: object(parent),
            kind: "App.a.dev".into(),
            children: Found {
                all: children.map(object).into(),
                created: created.map(object).into(),
                unread: ["you may not list: secrets".to_owned()].into(),
            },
            decorators: Vec::new(),
            events: vec![serde_json::from_value(event).unwrap()],
        };
        let text = text(&explanation, at(100), Paint(false));
        let lines = [
            "App.a.dev shop/web\n  The host has seen the current spec, generation 3.\n",
            "  Ready          False   60s   ChildrenNotReady: Deployment shop/web: 0 of 1 [2J replicas\n",
            "Other: it would delete Pod web-1\n    -a\n    + b\n",
            "  └─ ReplicaSet/web-1 ",
            "     └─ Pod/web-1-x ",
            "  Secret/key ",
            "  90s   Normal ChildrenChanged: created Pod web-1 (trace 4bf9)\n",
            "  you may not list: secrets\n",
            "What to do next\n  ChildrenNotReady\n    ",
        ];
        for line in lines {
            assert!(text.contains(line), "{line:?} is not in {text}");
        }
        assert!(!text.contains("web-0"), "of an earlier version: {text}");
        let words: Vec<_> = text.split_whitespace().collect();
        for row in [
            "Deployment/web 0 of 1 replicas are available 100s shop 1.4.0 (0123456789ab) 3 kubectl-edit └─",
            "Secret/key ready, retained 100s shop",
        ] {
            assert!(words.join(" ").contains(row), "{row:?} is not in {text}");
        }
    }
}
