//! Suggests what to try next with the installed samples.

use std::path::Path;

use kube::{ResourceExt, api::DynamicObject};
use serde_json::Value;

use crate::screen::Screen;

/// Prints how to reach the cluster and commands for the samples.
pub(crate) fn print(
    screen: &Screen,
    kubeconfig: Option<&Path>,
    samples: &[DynamicObject],
    definitions: &[DynamicObject],
    converts: bool,
) {
    screen.plain("");
    screen.plain("In another terminal:");
    if let Some(kubeconfig) = kubeconfig {
        screen.command(&format!("export KUBECONFIG={}", kubeconfig.display()));
    }
    for command in commands(samples, definitions) {
        screen.command(&command);
    }
    if converts {
        let commands = versions(samples, definitions);
        if !commands.is_empty() {
            screen.plain("A resource in another version of its kind, which the plugin converts:");
        }
        for command in commands {
            screen.command(&command);
        }
    }
}

/// Prints how to try out new versions of a plugin, and where to see the result.
pub(crate) fn print_plugins(screen: &Screen, program: &Path, address: &str, samples: &[DynamicObject]) {
    let has_echo = samples
        .iter()
        .any(|sample| sample.types.as_ref().is_some_and(|types| types.kind == "Echo"));
    if has_echo {
        screen.plain(
            "Another version of the Echo plugin, proved on the Echos here and promoted; one that is held back:",
        );
        screen.command("plugins/try.sh changed");
        screen.command("plugins/try.sh broken");
        screen.plain("The same plugin from an OCI registry on this machine, until Ctrl-C there:");
        screen.command("plugins/from-registry.sh");
        screen.plain("Another operator, which the running host takes from the cluster:");
        let (program, cron) = (program.display(), "plugins/target/plugins/cron.wasm");
        screen.command(&format!("{program} crd {cron} | kubectl apply -f -"));
        screen.command(&format!(
            "{program} pack --controller {cron} | kubectl apply --server-side -f -"
        ));
        screen.command("kubectl get controllers.operator-host.dev");
    }
    screen.plain("The versions of the plugins:");
    screen.command(&format!("{} plugins --address {address}", program.display()));
}

/// Prints how to stop everything.
pub(crate) fn print_end(screen: &Screen) {
    screen.plain("Ctrl-C stops everything that was started here.");
    screen.plain("");
}

fn commands(samples: &[DynamicObject], definitions: &[DynamicObject]) -> Vec<String> {
    let mut commands = Vec::new();
    let mut last = None;
    for sample in samples {
        let Some(definition) = definitions.iter().find(|it| defines(it, sample)) else {
            continue;
        };
        // With its group: Kubernetes or another project may have the name, too.
        let spec = &definition.data["spec"];
        let singular = format!(
            "{}.{}",
            text(&spec["names"]["kind"]).to_lowercase(),
            text(&spec["group"])
        );
        let name = sample.name_any();
        let namespace = sample.namespace().filter(|namespace| namespace != "default");
        let namespace = namespace
            .map(|namespace| format!(" -n {namespace}"))
            .unwrap_or_default();
        let patch =
            |what: String| format!("kubectl patch {singular} {name}{namespace} --type=merge -p '{what}'");
        let spec = &sample.data["spec"];
        if let Some(replicas) = spec["replicas"].as_u64() {
            commands.push(patch(format!(r#"{{"spec":{{"replicas":{}}}}}"#, replicas + 2)));
        }
        if let Some(size) = spec["storage"]["size"].as_str().and_then(doubled) {
            commands.push(patch(format!(r#"{{"spec":{{"storage":{{"size":"{size}"}}}}}}"#)));
        }
        last = Some(format!("{singular} {name}{namespace}"));
    }
    let Some(last) = last else { return commands };
    let plurals: Vec<_> = definitions
        .iter()
        .map(|it| {
            format!(
                "{}.{}",
                text(&it.data["spec"]["names"]["plural"]),
                text(&it.data["spec"]["group"])
            )
        })
        .collect();
    commands.insert(0, format!("kubectl get {},pods,pvc", plurals.join(",")));
    commands.push(format!("kubectl edit {last}"));
    commands.push(format!("kubectl describe {last}"));
    commands.push(format!("kubectl delete {last}"));
    commands
}

/// Returns commands that read the samples in the versions that are not stored.
fn versions(samples: &[DynamicObject], definitions: &[DynamicObject]) -> Vec<String> {
    let mut commands = Vec::new();
    for sample in samples {
        let Some(definition) = definitions.iter().find(|it| defines(it, sample)) else {
            continue;
        };
        let spec = &definition.data["spec"];
        let (plural, group) = (text(&spec["names"]["plural"]), text(&spec["group"]));
        let others = spec["versions"].as_array().into_iter().flatten();
        for version in others.filter(|version| version["storage"] == false) {
            let (version, name) = (text(&version["name"]), sample.name_any());
            let namespace = sample.namespace().unwrap_or_else(|| "default".to_owned());
            commands.push(format!(
                "kubectl get {plural}.{version}.{group} {name} -n {namespace} -o yaml"
            ));
        }
    }
    commands
}

fn defines(definition: &DynamicObject, object: &DynamicObject) -> bool {
    let spec = &definition.data["spec"];
    object.types.as_ref().is_some_and(|types| {
        spec["names"]["kind"] == types.kind.as_str()
            && types
                .api_version
                .split_once('/')
                .is_some_and(|(group, _)| spec["group"] == group)
    })
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// `1Gi` → `2Gi`.
fn doubled(size: &str) -> Option<String> {
    let unit = size
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(size.len());
    let number: u64 = size[..unit].parse().ok()?;
    Some(format!("{}{}", number.checked_mul(2)?, &size[unit..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_commands_name_the_samples() {
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": "echoes.my-operator.dev" },
            "spec": {
                "group": "my-operator.dev",
                "names": { "kind": "Echo", "plural": "echoes", "singular": "echo" },
                "versions": [{ "name": "v1beta1", "storage": false }, { "name": "v1", "storage": true }],
            },
        });
        let sample = json!({
            "apiVersion": "my-operator.dev/v1",
            "kind": "Echo",
            "metadata": { "name": "demo" },
            "spec": { "replicas": 3, "storage": { "size": "10Gi" } },
        });
        let object = |value| serde_json::from_value::<DynamicObject>(value).unwrap();
        let (sample, definition) = ([object(sample)], [object(definition)]);
        let of_versions = versions(&sample, &definition);
        assert_eq!(
            of_versions,
            ["kubectl get echoes.v1beta1.my-operator.dev demo -n default -o yaml"]
        );
        let commands = commands(&sample, &definition);
        assert_eq!(
            commands,
            [
                "kubectl get echoes.my-operator.dev,pods,pvc",
                r#"kubectl patch echo.my-operator.dev demo --type=merge -p '{"spec":{"replicas":5}}'"#,
                r#"kubectl patch echo.my-operator.dev demo --type=merge -p '{"spec":{"storage":{"size":"20Gi"}}}'"#,
                "kubectl edit echo.my-operator.dev demo",
                "kubectl describe echo.my-operator.dev demo",
                "kubectl delete echo.my-operator.dev demo",
            ]
        );
    }
}
