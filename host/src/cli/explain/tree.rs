//! Formats an explanation as text.

use std::fmt::Write;

use jiff::Timestamp;

use super::{Child, Condition, Explanation, Proposed};
use crate::cli::plugins::{age, short};
use operator_host_core::object::{group_of, kind_in_words};
use operator_host_core::printable::printable;
use operator_host_instruments::journal::{OK, Reconcile};

const GREEN: &str = "32";
const RED: &str = "31";
const YELLOW: &str = "33";

/// Formats an explanation. Values from the cluster cannot control the terminal.
pub(super) fn text(explanation: &Explanation, now: Timestamp, colour: bool) -> String {
    let paint = Paint(colour);
    let mut text = String::new();
    let place = explanation
        .namespace
        .as_ref()
        .map_or_else(String::new, |namespace| format!("{namespace}/"));
    let kind = kind_in_words(group_of(&explanation.api_version), &explanation.kind);
    let _ = writeln!(text, "{kind} {place}{}", explanation.name);
    for line in &explanation.state {
        let _ = writeln!(text, "  {}", printable(line));
    }
    let _ = writeln!(text, "\nConditions");
    if explanation.conditions.is_empty() {
        let _ = writeln!(text, "  none");
    }
    for condition in &explanation.conditions {
        write_condition(&mut text, condition, now, &paint);
    }
    let _ = writeln!(text, "\nChildren");
    let mut rows = Vec::new();
    for child in &explanation.children {
        add_rows(&mut rows, child, "", "", explanation.namespace.as_deref(), now);
    }
    match explanation.children_incomplete && rows.is_empty() {
        true => text.push_str("  none among the kinds that could be listed\n"),
        false => write_rows(&mut text, &rows, &paint),
    }
    if let Some(proposed) = &explanation.proposed {
        write_proposed(&mut text, proposed, &paint);
    }
    if let Some(reconciles) = &explanation.reconciles {
        let _ = writeln!(text, "\nLast reconciles, the newest first");
        if reconciles.is_empty() {
            let _ = writeln!(text, "  none that the host remembers");
        }
        for reconcile in reconciles {
            write_reconcile(&mut text, reconcile, now, &paint);
        }
    }
    if !explanation.events.is_empty() {
        let _ = writeln!(text, "\nEvents, the newest first");
    }
    for event in &explanation.events {
        let when = event.last.map_or_else(String::new, |last| age(last, now));
        let kind = match event.type_.as_str() {
            "Warning" => paint.with(YELLOW, "Warning"),
            other => printable(other),
        };
        let trace = event
            .trace_id
            .as_ref()
            .map_or_else(String::new, |trace| format!(" (trace {})", printable(trace)));
        let _ = writeln!(
            text,
            "  {when:<5} {kind} {}: {}{trace}",
            printable(&event.reason),
            printable(&event.message)
        );
    }
    if !explanation.unreadable.is_empty() {
        let _ = writeln!(text, "\nNot shown, because it could not be read");
    }
    for line in &explanation.unreadable {
        let _ = writeln!(text, "  {}", printable(line));
    }
    let _ = writeln!(text, "\nWhat to do next");
    if explanation.next.is_empty() {
        let _ = writeln!(text, "  {}", nothing_to_do(explanation));
    }
    for advice in &explanation.next {
        let _ = writeln!(text, "  {}", paint.with(YELLOW, &printable(&advice.reason)));
        for paragraph in advice.text.lines() {
            let _ = writeln!(text, "    {paragraph}");
        }
    }
    text
}

fn nothing_to_do(explanation: &Explanation) -> &'static str {
    let is_ready = |condition: &Condition| condition.type_ == "Ready" && condition.status == "True";
    if explanation.conditions.is_empty() {
        "Search the host's log for the name of the controller. The usual causes are: no controller is configured for the \
         kind, the namespace is not listed under `namespaces`, or no replica leads."
    } else if explanation.conditions.iter().any(is_ready) {
        if explanation.children_incomplete {
            "Nothing: the resource is ready, by its own status. Not every kind of child could be listed; see above."
        } else {
            "Nothing: the resource is ready."
        }
    } else {
        "The reasons above are the plugin's own. Ask the author of the plugin."
    }
}

fn write_condition(text: &mut String, condition: &Condition, now: Timestamp, paint: &Paint) {
    let status = format!("{:<7}", printable(&condition.status));
    let status = paint.with(if condition.is_problem() { RED } else { GREEN }, &status);
    let since = condition.since.map_or_else(String::new, |since| age(since, now));
    let _ = writeln!(
        text,
        "  {:<14} {status} {since:<5} {}: {}",
        printable(&condition.type_),
        printable(&condition.reason),
        printable(&condition.message)
    );
}

fn write_proposed(text: &mut String, proposed: &Proposed, paint: &Paint) {
    let _ = writeln!(text, "\nProposed version of the plugin");
    let named = match (&proposed.version, &proposed.digest) {
        (Some(version), Some(digest)) => format!("{} ({}) ", printable(version), short(&printable(digest))),
        (None, Some(digest)) => format!("{} ", short(&printable(digest))),
        (version, None) => version.as_deref().map(printable).unwrap_or_default(),
    };
    let state = paint.with(YELLOW, &printable(&proposed.state));
    let _ = writeln!(text, "  {named}{state}: {}", printable(&proposed.message));
    for line in proposed.diff.lines() {
        let line = printable(line);
        let line = match line.as_bytes().first() {
            Some(b'-') => paint.with(RED, &line),
            Some(b'+') => paint.with(GREEN, &line),
            _ => line,
        };
        let _ = writeln!(text, "    {line}");
    }
}

fn write_reconcile(text: &mut String, reconcile: &Reconcile, now: Timestamp, paint: &Paint) {
    let code = if reconcile.outcome == OK { GREEN } else { RED };
    let message = reconcile.message.as_ref();
    let message = message.map_or_else(String::new, |message| format!(": {}", printable(message)));
    let trace = reconcile.trace_id.as_ref();
    let trace = trace.map_or_else(String::new, |trace| format!(" (trace {})", printable(trace)));
    let _ = writeln!(
        text,
        "  {:<5} {:<7} {:>8.1} ms  {}{message}{trace}",
        age(reconcile.at, now),
        printable(&reconcile.reason),
        reconcile.took_ms,
        paint.with(code, &printable(&reconcile.outcome)),
    );
}

/// The columns of a child.
struct Row {
    name: String,
    state: String,
    is_ready: bool,
    rest: [String; 4],
}

const HEADINGS: [&str; 6] = ["NAME", "STATE", "AGE", "PLUGIN", "GENERATION", "ALSO MANAGED BY"];
/// Longest state in the table; the whole text is in the other formats.
const STATE: usize = 60;

/// Names the namespace of a child where it is another than that of its owner, which is `namespace`.
fn add_rows(
    rows: &mut Vec<Row>,
    child: &Child,
    branch: &str,
    indent: &str,
    namespace: Option<&str>,
    now: Timestamp,
) {
    let own = child.namespace.as_deref();
    let place = own.filter(|_| own != namespace).map(|own| format!(" in {own}"));
    let mut state: String = match &child.unready {
        Some(why) => printable(why).chars().take(STATE).collect(),
        None => "ready".to_owned(),
    };
    if child.retained {
        state += ", retained";
    }
    rows.push(Row {
        name: format!(
            "{branch}{}/{}{}",
            kind_in_words(group_of(&child.api_version), &child.kind),
            child.name,
            place.unwrap_or_default()
        ),
        state,
        is_ready: child.unready.is_none(),
        rest: [
            child
                .created
                .map_or_else(String::new, |created| age(created, now)),
            plugin(child),
            child.generation.map_or_else(String::new, |it| it.to_string()),
            printable(&child.other_managers.join(", ")),
        ],
    });
    for (i, below) in child.children.iter().enumerate() {
        let is_last = i + 1 == child.children.len();
        let branch = format!("{indent}{}", if is_last { "└─ " } else { "├─ " });
        let deeper = format!("{indent}{}", if is_last { "   " } else { "│  " });
        add_rows(rows, below, &branch, &deeper, own, now);
    }
}

/// Returns the version of the plugin that last changed a child, such as `echo 1.4.0 (0123456789ab)`.
fn plugin(child: &Child) -> String {
    let text = |value: &Option<String>| value.as_deref().map(printable);
    match (text(&child.plugin), text(&child.plugin_digest)) {
        (Some(plugin), Some(digest)) => format!("{plugin} ({})", short(&digest)),
        // A host of an earlier version changed it.
        (None, Some(digest)) => short(&digest),
        (plugin, None) => plugin.unwrap_or_default(),
    }
}

fn write_rows(text: &mut String, rows: &[Row], paint: &Paint) {
    if rows.is_empty() {
        let _ = writeln!(text, "  none");
        return;
    }
    let cells = |row: &Row| {
        let [age, plugin, generation, managers] = row.rest.clone();
        [
            row.name.clone(),
            row.state.clone(),
            age,
            plugin,
            generation,
            managers,
        ]
    };
    let width = |column: usize| {
        let widths = rows.iter().map(|row| cells(row)[column].chars().count());
        widths.chain([HEADINGS[column].len()]).max().unwrap_or_default()
    };
    let widths: [usize; 6] = std::array::from_fn(width);
    let line = |cells: [String; 6], code: Option<&str>| {
        let mut line = String::from(" ");
        for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let padded = format!("{cell:<width$}");
            let padded = match code {
                Some(code) if column == 1 => paint.with(code, &padded),
                _ => padded,
            };
            let _ = write!(line, " {padded} ");
        }
        line.trim_end().to_owned() + "\n"
    };
    text.push_str(&line(HEADINGS.map(str::to_owned), None));
    for row in rows {
        text.push_str(&line(cells(row), Some(if row.is_ready { GREEN } else { RED })));
    }
}

/// Colours for a terminal, or none.
struct Paint(bool);

impl Paint {
    fn with(&self, code: &str, text: &str) -> String {
        match self.0 {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Advice, Event};
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn child(kind: &str, name: &str, unready: Option<&str>, children: Vec<Child>) -> Child {
        Child {
            api_version: "v1".into(),
            kind: kind.into(),
            namespace: Some("shop".into()),
            name: name.into(),
            unready: unready.map(str::to_owned),
            retained: kind == "Secret",
            created: Some(at(0)),
            plugin_digest: Some("sha256:0123456789abcdef".into()),
            plugin: Some("shop 1.4.0".into()),
            generation: Some(3),
            other_managers: Vec::new(),
            children,
        }
    }

    #[test]
    fn the_text_shows_conditions_the_tree_events_and_what_to_do() {
        let pod = child(
            "Pod",
            "web-1-x",
            Some("ImagePullBackOff: no such image"),
            Vec::new(),
        );
        let set = child(
            "ReplicaSet",
            "web-1",
            Some("0 of 1 replicas are ready"),
            vec![pod],
        );
        let mut web = child(
            "Deployment",
            "web",
            Some("0 of 1 replicas are available"),
            vec![set],
        );
        web.other_managers = vec!["kubectl-edit".into()];
        let explanation = Explanation {
            api_version: "a.dev/v1".into(),
            kind: "App".into(),
            namespace: Some("shop".into()),
            name: "web".into(),
            state: vec!["The host has seen the current spec, generation 3.".into()],
            conditions: vec![Condition {
                type_: "Ready".into(),
                status: "False".into(),
                reason: "ChildrenNotReady".into(),
                message: "Deployment shop/web: 0 of 1\x1b[2J replicas".into(),
                since: Some(at(40)),
            }],
            children: vec![web, child("Secret", "key", None, Vec::new())],
            children_incomplete: false,
            proposed: Some(Proposed {
                version: Some("1.5.0".into()),
                digest: Some("sha256:fedcba9876543210".into()),
                state: "held back".into(),
                message: "it would delete Pod web-1".into(),
                diff: "-a\n+\x1bb".into(),
            }),
            reconciles: Some(vec![Reconcile {
                at: at(95),
                parent: "shop/web".into(),
                reason: "child".into(),
                waited_ms: 0.1,
                took_ms: 12.34,
                outcome: "api".into(),
                message: Some("Pod web-1: no".into()),
                trace_id: Some("4bf9".into()),
            }]),
            events: vec![Event {
                type_: "Normal".into(),
                reason: "ChildrenChanged".into(),
                message: "created Deployment web".into(),
                last: Some(at(30)),
                trace_id: Some("4bf9".into()),
            }],
            next: vec![Advice {
                reason: "ChildrenNotReady".into(),
                text: "Look at the child.\nThen wait.".into(),
            }],
            unreadable: vec!["nodes: forbidden".into()],
        };
        let expected = "\
App.a.dev shop/web
  The host has seen the current spec, generation 3.

Conditions
  Ready          False   60s   ChildrenNotReady: Deployment shop/web: 0 of 1 [2J replicas

Children
  NAME                 STATE                            AGE   PLUGIN                     GENERATION  ALSO MANAGED BY
  Deployment/web       0 of 1 replicas are available    100s  shop 1.4.0 (0123456789ab)  3           kubectl-edit
  └─ ReplicaSet/web-1  0 of 1 replicas are ready        100s  shop 1.4.0 (0123456789ab)  3
     └─ Pod/web-1-x    ImagePullBackOff: no such image  100s  shop 1.4.0 (0123456789ab)  3
  Secret/key           ready, retained                  100s  shop 1.4.0 (0123456789ab)  3

Proposed version of the plugin
  1.5.0 (fedcba987654) held back: it would delete Pod web-1
    -a
    + b

Last reconciles, the newest first
  5s    child       12.3 ms  api: Pod web-1: no (trace 4bf9)

Events, the newest first
  70s   Normal ChildrenChanged: created Deployment web (trace 4bf9)

Not shown, because it could not be read
  nodes: forbidden

What to do next
  ChildrenNotReady
    Look at the child.
    Then wait.
";
        let text = text(&explanation, at(100), false);
        assert_eq!(text, expected, "{text}");
    }

    /// Regression: a Service of Knative looked like one of Kubernetes.
    #[test]
    fn a_kind_that_may_share_its_name_is_shown_with_its_group() {
        let mut knative = child("Service", "web", None, Vec::new());
        knative.api_version = "serving.knative.dev/v1".into();
        let own = child("Service", "web", None, Vec::new());
        let mut rows = Vec::new();
        for child in [&own, &knative] {
            add_rows(&mut rows, child, "", "", Some("shop"), at(100));
        }
        let names: Vec<_> = rows.iter().map(|row| &*row.name).collect();
        assert_eq!(names, ["Service/web", "Service.serving.knative.dev/web"]);
    }

    #[test]
    fn a_child_of_a_cluster_scoped_parent_is_shown_with_its_namespace_and_what_is_below_it_without() {
        let mut web = child(
            "Deployment",
            "web",
            None,
            vec![child("ReplicaSet", "web-1", None, Vec::new())],
        );
        let mut rows = Vec::new();
        add_rows(&mut rows, &web, "", "", None, at(100));
        let names = |rows: &[Row]| rows.iter().map(|row| row.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&rows), ["Deployment/web in shop", "└─ ReplicaSet/web-1"]);
        web.children.clear();
        let mut rows = Vec::new();
        add_rows(&mut rows, &web, "", "", Some("shop"), at(100));
        assert_eq!(names(&rows), ["Deployment/web"]);
    }
}
