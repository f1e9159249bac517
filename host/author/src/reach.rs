//! How the API server reaches the host's webhook: by the arguments of a command, or else by the configuration.

use std::path::PathBuf;

use anyhow::{Context, anyhow};
use serde_json::Value;

use super::Failure;
use operator_host_config::webhook::{WebhookReach, WebhookTarget, parse_service};
use operator_host_core::crd::definition::conversion_by;
use operator_host_webhook::certificates::ca_bundle;
use operator_host_webhook::{CONVERT_PATH, DEFAULT_PATH, PATH};

/// The Service of the manifests.
pub(crate) const SERVICE: &str = "operator-host/operator-host-webhook";

/// The arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct ReachArgs {
    /// The Service in front of the host's webhook port [default: `webhook.service` of the configuration, or
    /// operator-host/operator-host-webhook]
    #[arg(long, value_name = "NAMESPACE/NAME[:PORT]", conflicts_with = "url")]
    pub service: Option<String>,
    /// The URL of the host's webhook, instead of a Service, such as `https://10.0.0.1:8443` [default: `webhook.url` of the
    /// configuration]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// The PEM file of the certificate authority that the API server should trust [default:
    /// `webhook.certificateAuthority` of the configuration]; omit both when another component injects the authority, such as
    /// cert-manager
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

impl ReachArgs {
    /// Whether they name a webhook.
    pub(crate) const fn is_given(&self) -> bool {
        self.service.is_some() || self.url.is_some()
    }

    /// Returns how to reach the webhook.
    pub(crate) fn client(&self, reach: Option<&WebhookReach>) -> Result<Client, Failure> {
        let target = match (&self.url, &self.service, reach) {
            (Some(url), ..) => {
                let rest = url.strip_prefix("https://").unwrap_or_default();
                if rest.is_empty() || rest.contains(['?', '#', '@', ' ']) {
                    let message = anyhow!("--url is {url:?}: it must be one such as https://10.0.0.1:8443");
                    return Err(Failure::Usage(message));
                }
                WebhookTarget::Url(base(url).to_owned())
            }
            (None, None, Some(reach)) => reach.target.clone(),
            (None, given, _) => parse_service(given.as_deref().unwrap_or(SERVICE)).ok_or_else(|| {
                Failure::Usage(anyhow!("--service must be NAMESPACE/NAME or NAMESPACE/NAME:PORT"))
            })?,
        };
        let configured = reach.and_then(|reach| reach.authority.as_deref());
        let mut authority = None;
        if let (None, Some(file)) = (&self.ca, configured)
            && !file.is_file()
        {
            // In the configuration it is a path of the host, which may be a pod.
            eprintln!(
                "operator-host: warning: {} (`webhook.certificateAuthority`) is not on this machine, so the output names no \
                 authority: give it with --ca, unless another component injects it",
                file.display()
            );
        } else if let Some(file) = self.ca.as_deref().or(configured) {
            let pem = std::fs::read(file)
                .with_context(|| format!("cannot read {}", file.display()))
                .map_err(Failure::Usage)?;
            authority = Some(ca_bundle(pem, file).map_err(|why| Failure::Usage(anyhow!(why)))?);
        }
        Ok(Client { target, authority })
    }
}

/// How the API server reaches the webhook.
pub(crate) struct Client {
    target: WebhookTarget,
    authority: Option<Value>,
}

impl Client {
    /// Lets the webhook convert the versions of a definition.
    pub(crate) fn convert(&self, definition: &mut Value) {
        definition["spec"]["conversion"] = conversion_by(&self.at(CONVERT_PATH));
    }

    /// Returns the `clientConfig` of the webhook at one of its paths.
    pub(crate) fn at(&self, path: &str) -> Value {
        let mut config = self.target.client_config(path);
        if let Some(authority) = &self.authority {
            config["caBundle"] = authority.clone();
        }
        config
    }
}

/// Returns the URL without the path of a webhook, which may be given with it.
fn base(url: &str) -> &str {
    let url = url.trim_end_matches('/');
    let paths = [PATH, CONVERT_PATH, DEFAULT_PATH];
    let base = paths.iter().find_map(|path| url.strip_suffix(path));
    base.unwrap_or(url)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use operator_host_config::Config;

    use super::*;

    /// Regression: the API server asked for the path `/`, and every change of a resource was refused.
    #[test]
    fn a_url_without_a_path_gets_that_of_the_webhook() {
        for (given, url) in [
            ("https://10.0.0.1:8443", "https://10.0.0.1:8443"),
            ("https://10.0.0.1:8443/", "https://10.0.0.1:8443"),
            ("https://a/validate", "https://a"),
            ("https://a/convert", "https://a"),
            ("https://gateway/host/validate", "https://gateway/host"),
        ] {
            let client = Client {
                target: WebhookTarget::Url(base(given).to_owned()),
                authority: None,
            };
            for path in [PATH, CONVERT_PATH] {
                assert_eq!(client.at(path)["url"], format!("{url}{path}"));
            }
        }
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        reach: ReachArgs,
    }

    #[test]
    fn the_api_server_reaches_the_webhook_as_the_arguments_say_or_else_the_configuration() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.crt"), "-----BEGIN CERTIFICATE-----").unwrap();
        let client = |webhook: &str, more: &[&str]| {
            let file = folder.path().join("config.yaml");
            let text = format!("controllers: []\nwebhook: {{certificate: a.crt, key: a.key{webhook}}}\n");
            let config = Config::parse(&file, &text).unwrap();
            let line = ["x"].iter().chain(more);
            let args = <Line as clap::Parser>::try_parse_from(line).unwrap().reach;
            let reach = config.webhook.as_ref().and_then(|webhook| webhook.reach.as_ref());
            args.client(reach).map_err(|_| ()).unwrap().at(PATH)
        };
        let service = |namespace: &str, name: &str, port: u16| json!({ "service": { "namespace": namespace, "name": name, "port": port, "path": PATH } });
        assert_eq!(
            client("", &[]),
            service("operator-host", "operator-host-webhook", 443)
        );
        assert_eq!(client(", service: a/b", &[]), service("a", "b", 443));
        assert_eq!(client(", service: 'a/b:8443'", &[]), service("a", "b", 8443));
        assert_eq!(
            client(", service: 'a/b:8443'", &["--service", "a/b:1"]),
            service("a", "b", 1)
        );
        assert_eq!(
            client(", service: a/b", &["--service", "c/d"]),
            service("c", "d", 443)
        );
        let url = json!({ "url": "https://10.0.0.1:8443/validate" });
        assert_eq!(client(", url: 'https://10.0.0.1:8443'", &[]), url);
        assert_eq!(client(", service: a/b", &["--url", "https://10.0.0.1:8443"]), url);
        let wrong = <Line as clap::Parser>::parse_from(["x", "--url", "https://a?p=q"]).reach;
        assert!(wrong.client(None).is_err());
        let trusted = client(", service: a/b, certificateAuthority: ca.crt", &[]);
        assert!(trusted["caBundle"].is_string(), "{trusted}");
        // It is in the pod.
        assert_eq!(
            client(", service: a/b, certificateAuthority: none.crt", &[]),
            service("a", "b", 443)
        );
    }
}
