//! `operator-host webhook-manifests`: prints the ValidatingWebhookConfiguration that sends resources to the host, and the
//! CustomResourceDefinitions of the kinds that it converts.

use std::path::PathBuf;

use clap::ValueEnum;
use serde_json::{Value, json};

use super::reach::{ReachArgs, SERVICE};
use super::{Failure, plugin_file, rbac};
use operator_host_config::{Config, ControllerConfig, ServiceAccount};
use operator_host_runtime::Plugin;
use operator_host_webhook::{DEFAULT_PATH, PATH};

/// The options of `webhook-manifests`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration file
    #[arg(long, short, env = "OPERATOR_HOST_CONFIG", value_name = "FILE")]
    config: PathBuf,
    #[command(flatten)]
    reach: ReachArgs,
    /// What the API server does when the host does not answer
    #[arg(long, default_value = "fail", value_name = "POLICY")]
    failure_policy: FailurePolicy,
    /// The seconds that the API server waits for an answer
    #[arg(long, default_value_t = 10, value_name = "SECONDS", value_parser = clap::value_parser!(u8).range(1..=30))]
    timeout: u8,
    /// The host's ServiceAccount; the webhook skips its changes, such as those to finalizers
    #[arg(
        long,
        env = "OPERATOR_HOST_SERVICE_ACCOUNT",
        default_value = "operator-host/operator-host",
        value_name = "NAMESPACE/NAME"
    )]
    service_account: ServiceAccount,
    /// Omit `matchConditions`, which API servers before 1.28 do not support: these servers also send the host's own
    /// changes, and objects that are being deleted
    #[arg(long)]
    no_match_conditions: bool,
    /// The output format [default: the manifest]
    #[arg(long, short, value_name = "FORMAT")]
    output: Option<Output>,
    /// The name of the object
    #[arg(long, default_value = "operator-host", value_name = "NAME")]
    name: String,
    /// Omit the definitions of the kinds that the host converts
    #[arg(long)]
    no_definitions: bool,
    /// Files with CustomResourceDefinitions of kinds that no plugin defines; repeatable
    #[arg(long, value_name = "FILE")]
    crd: Vec<PathBuf>,
    #[command(flatten)]
    plugins: plugin_file::PluginFiles,
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Values for the Helm chart, which adds the Service and the certificate authority
    Helm,
}

/// The `failurePolicy` of an admission webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FailurePolicy {
    /// Refuse the write: no invalid resource is stored, and no resource at all while no replica answers
    Fail,
    /// Accept the write: the resource's conditions report problems later
    Ignore,
}

/// Prints a ValidatingWebhookConfiguration.
///
/// # Errors
/// When the configuration is invalid, a plugin cannot be loaded, or the definition of a kind is unknown.
pub async fn run(args: Args) -> Result<(), Failure> {
    let config = Config::load(&args.config).map_err(Failure::usage)?;
    let reach = config.webhook.as_ref().and_then(|webhook| webhook.reach.as_ref());
    let client = match args.output {
        Some(Output::Helm) => None,
        None => Some(args.reach.client(reach)?),
    };
    let plugins = rbac::load(&config, &args.plugins).await?;
    let described = plugins.iter().map(Plugin::description);
    let parents = config.controllers.iter().map(|controller| &controller.parent);
    let resources = rbac::resources(parents, described, &args.crd).await?;
    let mut webhooks = Vec::with_capacity(config.controllers.len());
    let (mut definitions, mut defaulting) = (Vec::new(), Vec::new());
    for (controller, plugin) in config.controllers.iter().zip(&plugins) {
        let description = plugin.description();
        let plural = resources.of(&controller.parent)?.plural;
        if let (Some(crd), Some(client)) = (&description.crd, &client)
            && description.converts()
            && !args.no_definitions
        {
            let mut definition = crd.value();
            client.convert(&mut definition);
            definitions.push(definition);
        }
        if description.converts() && args.output == Some(Output::Helm) {
            let service = args.reach.service.as_deref().unwrap_or(SERVICE);
            eprintln!(
                "the plugin {} converts {}, and the chart does not install definitions: apply the output of `operator-host crd \
                 --service {service}` for it",
                controller.plugin, controller.parent
            );
        }
        let webhook = webhook(&args, &config, controller, &plural);
        let at = |path: &str| {
            let mut webhook = webhook.clone();
            if let Some(client) = &client {
                webhook["clientConfig"] = client.at(path);
            }
            webhook
        };
        if description.defaults {
            let mut webhook = at(DEFAULT_PATH);
            // Another webhook may change the spec after this one.
            webhook["reinvocationPolicy"] = "IfNeeded".into();
            defaulting.push(webhook);
        }
        if description.validates {
            webhooks.push(at(PATH));
        }
    }
    if args.output == Some(Output::Helm) {
        let mut values = json!({ "webhook": { "enabled": true, "webhooks": webhooks } });
        if !defaulting.is_empty() {
            values["webhook"]["defaulting"] = defaulting.into();
        }
        print!("{}", serde_saphyr::to_string(&values)?);
        return Ok(());
    }
    let configuration = |kind: &str, webhooks: Vec<Value>| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": { "name": args.name, "labels": { "app.kubernetes.io/name": "operator-host" } },
            "webhooks": webhooks,
        })
    };
    let all = [
        ("ValidatingWebhookConfiguration", webhooks),
        ("MutatingWebhookConfiguration", defaulting),
    ];
    let all = all.into_iter().filter(|(_, webhooks)| !webhooks.is_empty());
    let all: Vec<_> = all
        .map(|(kind, webhooks)| configuration(kind, webhooks))
        .chain(definitions)
        .map(|document| serde_saphyr::to_string(&document))
        .collect::<Result<_, _>>()?;
    print!("{}", all.join("---\n"));
    if all.is_empty() {
        eprintln!(
            "no plugin of this configuration validates, sets defaults or converts: it needs no webhook"
        );
    }
    Ok(())
}

fn webhook(args: &Args, config: &Config, controller: &ControllerConfig, plural: &str) -> Value {
    let parent = &controller.parent;
    let mut webhook = json!({
        // A webhook's name must be a domain name with at least three labels. Users see it when a request is denied.
        "name": format!("{}.operator-host.dev", controller.name),
        "admissionReviewVersions": ["v1"],
        "failurePolicy": match args.failure_policy {
            FailurePolicy::Fail => "Fail",
            FailurePolicy::Ignore => "Ignore",
        },
        "matchPolicy": "Equivalent",
        "rules": [{
            "apiGroups": [parent.group()],
            "apiVersions": [parent.version()],
            "operations": ["CREATE", "UPDATE"],
            "resources": [plural],
            "scope": "*",
        }],
        "sideEffects": "None",
        "timeoutSeconds": args.timeout,
    });
    if !args.no_match_conditions {
        // Exclude deletions and the host's own changes. Without these conditions, a host that does not answer, for
        // example because its certificate has expired, could not remove its finalizers: nothing could be deleted until
        // the certificate is renewed.
        let account = args.service_account.user();
        let not_by_host =
            format!("request.operation == 'CREATE' || request.userInfo.username != '{account}'");
        webhook["matchConditions"] = json!([
            { "name": "stays", "expression": "!has(object.metadata.deletionTimestamp)" },
            { "name": "not-by-the-host", "expression": not_by_host },
        ]);
    }
    if !config.namespaces.is_empty() {
        // The host ignores other namespaces. Kubernetes labels every namespace with its name.
        webhook["namespaceSelector"] = json!({
            "matchExpressions": [{
                "key": "kubernetes.io/metadata.name", "operator": "In", "values": config.namespaces,
            }],
        });
    }
    webhook
}
