//! What `render` and `check` call a plugin with, all from files: the resources as an API server would admit them, and the
//! objects that there are.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::anyhow;
use jiff::Timestamp;
use kube::core::DynamicObject;
use serde_json::Value;

use super::Failure;
use super::registry::RegistryArgs;
use crate::dry_run::documents::{self, Document};
use crate::dry_run::offline::{self, Allowed, Scene};
use operator_host_contract::Kind;
use operator_host_core::crd::definition;
use operator_host_desired::names;
use operator_host_runtime::Plugin;
use operator_host_schema::{cel, schema};

/// The options of both commands.
#[derive(Debug, clap::Args)]
pub(crate) struct Inputs {
    /// Existing children, such as the output of `kubectl get pods -o yaml`; repeatable
    #[arg(long, value_name = "FILE")]
    pub children: Vec<PathBuf>,
    /// Objects that the plugin finds when it asks to read others; repeatable
    #[arg(long, value_name = "FILE")]
    pub related: Vec<PathBuf>,
    /// The time of the host's clock. The default is fixed, so that the same files give the same result
    #[arg(long, env = "OPERATOR_HOST_NOW")]
    #[arg(default_value = "2000-01-01T00:00:00Z", value_name = "RFC3339")]
    pub now: Timestamp,
    #[command(flatten)]
    pub registry: RegistryArgs,
}

/// What is in the files.
#[derive(Default)]
pub(crate) struct Resources {
    /// The custom resources of the plugin's kind, each with what there is for it.
    pub scenes: Vec<Scene>,
    /// The objects of other kinds, which a need may find.
    pub related: Vec<Arc<DynamicObject>>,
    /// The rules in CEL that only the API server can evaluate, and why.
    pub left: Vec<String>,
}

impl Inputs {
    /// Reads the files with the resources, and the others, and fills in the defaults of the resources. An error lists every resource
    /// that does not fit its definition or its rules, or whose kind is almost the plugin's: in its group, and not one that the
    /// plugin creates or reads.
    pub(crate) fn read(
        &self,
        files: &[PathBuf],
        plugin: &Plugin,
        allowed: &Allowed,
    ) -> Result<Resources, Failure> {
        let description = plugin.description();
        let parent = &description.parent;
        let known = |kind: &Kind| description.makes.contains(kind) || description.reads.contains(kind);
        let (children, others) = (documents::read(&self.children)?, documents::read(&self.related)?);
        let given = documents::read(files)?;
        let at_hand = children.iter().chain(&others).chain(&given);
        let at_hand = at_hand.map(|document| &document.object);
        let at_hand = at_hand.filter(|object| object["kind"] == "CustomResourceDefinition");
        let own = description.definition();
        let definitions: Arc<[Value]> = own.iter().chain(at_hand).cloned().collect();
        let of_kind = || definition::of_kind(&*definitions, parent);
        let crd = own.as_ref().or_else(of_kind);
        let schema = crd.and_then(|crd| definition::schema(crd, parent));
        let mut resources = Resources::default();
        let (mut parents, mut wrong) = (Vec::new(), Vec::new());
        for mut document in given {
            let kind = document.kind();
            if kind == *parent {
                let problems = judge(&mut document, schema, &mut resources.left);
                wrong.extend(problems.iter().map(|problem| format!("{document}: {problem}")));
                match document.dynamic() {
                    Ok(object) => parents.push(offline::admit(Arc::unwrap_or_clone(object), crd, self.now)),
                    Err(error) => wrong.push(format!("{error:#}")),
                }
            } else if kind.group() != parent.group() || known(&kind) {
                resources.related.push(dynamic(&document)?);
            } else {
                let place = &document.place;
                wrong.push(format!(
                    "{place}: the kind is {kind}; the plugin reconciles {parent}"
                ));
            }
        }
        if parents.is_empty() && wrong.is_empty() {
            wrong.push(format!("the files contain no resource of the kind {parent}"));
        }
        if !wrong.is_empty() {
            return Err(Failure::Usage(anyhow!(wrong.join("\n"))));
        }
        for document in &others {
            resources.related.push(dynamic(document)?);
        }
        let children = children.iter().map(dynamic).collect::<Result<Vec<_>, _>>()?;
        let scenes = parents.into_iter().map(|parent| Scene {
            children: offline::own(&children, &parent, description, &definitions, allowed),
            parent: Arc::new(parent),
            related: resources.related.clone(),
            now: self.now,
            allowed: allowed.clone(),
            definitions: Arc::clone(&definitions),
        });
        resources.scenes = scenes.collect();
        Ok(resources)
    }
}

fn dynamic(document: &Document) -> Result<Arc<DynamicObject>, Failure> {
    document.dynamic().map_err(Failure::Usage)
}

/// Fills in the defaults of a resource of the plugin's kind, and returns what the API server would refuse. Adds the rules
/// that only the API server can evaluate to `left`.
fn judge(document: &mut Document, schema: Option<&Value>, left: &mut Vec<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    if let Some(problem) = names::problem(&document.kind(), document.name()) {
        wrong.push(format!("metadata.name: {problem}"));
    }
    let Some(schema) = schema else { return wrong };
    schema::fill_defaults(&mut document.object, schema);
    let problems = schema::validate_resource(&document.object, schema);
    // As in the API server, the rules apply to what fits the schema.
    if problems.is_empty() {
        let verdict = cel::validate(schema, &document.object, None);
        wrong.extend(verdict.violations.iter().map(ToString::to_string));
        left.extend(verdict.left.iter().map(|rule| format!("{document}: {rule}")));
    }
    wrong.extend(problems.iter().map(ToString::to_string));
    wrong
}
