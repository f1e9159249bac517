//! Asks an API server what it says about schemas and values, and writes its verdicts.
//!
//! The tests of the host compare its own judgement with them (`host/schema/src/tests.rs`). With `--kubeconfig` the API server
//! is that of a cluster, in which definitions of the group `verdicts.fixtures.dev` come and go. Without it, one is started
//! as for the scenarios: of the version in `KUBEBUILDER_ASSETS`, if that is set.
//!
//! ```sh
//! cargo run -p control-plane --bin verdicts -- tests/verdicts/rules-1.36.json > new.json
//! ```

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Parser;
use control_plane::{ControlPlane, Options, manifests};
use kube::api::{DeleteParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, Config};
use serde_json::{Value, json};

#[derive(Debug, Parser)]
struct Args {
    /// A file with rows of `[group, schema, value, old value, …]`. What follows is replaced
    rows: PathBuf,
    /// The cluster to ask
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
}

const GROUP: &str = "verdicts.fixtures.dev";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let rows = std::fs::read_to_string(&args.rows).with_context(|| args.rows.display().to_string())?;
    let rows: Vec<Vec<Value>> = serde_json::from_str(&rows)?;
    let (_own, client) = match &args.kubeconfig {
        Some(file) => {
            let file = Kubeconfig::read_from(file)?;
            let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
            (None, Client::try_from(config)?)
        }
        None => {
            let own = ControlPlane::start(Options::bare()).await?;
            let client = own.client().await?;
            (Some(own), client)
        }
    };
    println!("[");
    for (index, row) in rows.iter().enumerate() {
        let [group, schema, value, old, ..] = &row[..] else {
            bail!("row {index} is {row:?}");
        };
        let verdict = ask(&client, index, schema, value, old).await?;
        let comma = if index + 1 < rows.len() { "," } else { "" };
        println!("{}{comma}", json!([group, schema, value, old, verdict]));
    }
    println!("]");
    Ok(())
}

/// Returns `[verdict, words]`: `ok` with the value that is stored, `schema` when the definition is refused, `refused` or
/// `old refused`.
async fn ask(
    client: &Client,
    index: usize,
    schema: &Value,
    value: &Value,
    old: &Value,
) -> anyhow::Result<Value> {
    let (kind, plural, field) = (format!("V{index}"), format!("v{index}s"), format!("c{index}"));
    let definition: DynamicObject = serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{GROUP}") },
        "spec": {
            "group": GROUP, "scope": "Cluster", "names": { "kind": kind, "plural": plural, "singular": kind.to_lowercase() },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": {
                "type": "object", "properties": { "spec": { "type": "object", "properties": { &field: schema } } },
            } } }],
        },
    }))?;
    let definitions = Api::all_with(
        client.clone(),
        &resource("apiextensions.k8s.io", "CustomResourceDefinition"),
    );
    let name = format!("{plural}.{GROUP}");
    // A run that ended early may have left it.
    if definitions.get_opt(&name).await?.is_some() {
        definitions.delete(&name, &DeleteParams::default()).await?;
        kube::runtime::wait::await_condition(definitions.clone(), &name, |object: Option<&DynamicObject>| {
            object.is_none()
        })
        .await?;
    }
    if let Err(error) = definitions.create(&PostParams::default(), &definition).await {
        return Ok(json!(["schema", words(error)?]));
    }
    manifests::apply(client, std::slice::from_ref(&definition)).await?;
    let objects = Api::all_with(client.clone(), &resource(GROUP, &kind));
    let object = |value: &Value, version: Option<String>| {
        let mut object = DynamicObject::new(&format!("o{index}"), &resource(GROUP, &kind));
        object.metadata.resource_version = version;
        object.data = json!({ "spec": { &field: value } });
        object
    };
    let verdict = async {
        let created = match old {
            Value::Null => None,
            old => match objects.create(&PostParams::default(), &object(old, None)).await {
                Err(error) => return Ok(json!(["old refused", words(error)?])),
                Ok(created) => Some(created),
            },
        };
        let answer = match created {
            None => objects.create(&PostParams::default(), &object(value, None)).await,
            Some(created) => {
                let object = object(value, created.metadata.resource_version);
                objects
                    .replace(&format!("o{index}"), &PostParams::default(), &object)
                    .await
            }
        };
        anyhow::Ok(match answer {
            Ok(stored) => json!(["ok", stored.data["spec"][&field]]),
            Err(error) => json!(["refused", words(error)?]),
        })
    };
    let verdict = verdict.await;
    definitions.delete(&name, &DeleteParams::default()).await?;
    verdict
}

fn resource(group: &str, kind: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk(group, "v1", kind),
        &format!("{}s", kind.to_lowercase()),
    )
}

/// Returns the API server's words.
///
/// # Errors
/// When it says nothing about the definition or the object.
fn words(error: kube::Error) -> anyhow::Result<String> {
    match error {
        kube::Error::Api(status) if (400..500).contains(&status.code) => Ok(status.message),
        other => Err(other.into()),
    }
}
