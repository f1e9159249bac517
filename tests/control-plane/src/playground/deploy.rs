//! Runs the host as deployed, except for the pod: with its manifests, its permissions, its configuration and its
//! identity.

use std::path::{Path, PathBuf};

use anyhow::Context;
use control_plane::{ControlPlane, deployed, manifests};

use crate::{counted, screen::Screen};

/// The name that the manifests use for the namespace and for all objects in it.
const NAME: &str = "operator-host";

/// The host's identity, and its environment.
#[derive(Default)]
pub(crate) struct Identity {
    pub(crate) kubeconfig: Option<PathBuf>,
    pub(crate) environment: Vec<(String, PathBuf)>,
    /// The user name in the audit log; `None` for the administrator.
    pub(crate) user: Option<String>,
}

/// Applies the kustomization, and prepares its Deployment to run as a process on this machine.
pub(crate) async fn deploy(
    folder: &Path,
    plane: &ControlPlane,
    data: &Path,
    screen: &Screen,
) -> anyhow::Result<Identity> {
    let root = data.join("deployed");
    std::fs::create_dir_all(&root).with_context(|| format!("cannot create {}", root.display()))?;
    let mut objects = deployed::kustomize(folder, &root.join("manifests.yaml"))?;
    let client = plane.client().await?;
    if deployed::for_server(&client, &mut objects).await? {
        screen.step(
            "This Kubernetes has no policy/v1 yet: its PodDisruptionBudget is applied as policy/v1beta1",
        );
    }
    manifests::apply(&client, &objects).await?;
    screen.step(&format!(
        "{} of {} applied",
        counted(objects.len(), "object"),
        folder.display()
    ));
    let deployed = deployed::unpack(&client, NAME, NAME, &root).await?;
    let (namespace, name) = &deployed.account;
    let kubeconfig = plane.kubeconfig_of_account(namespace, name).await?;
    let user = format!("system:serviceaccount:{namespace}:{name}");
    screen.step(&format!(
        "The host runs outside, as {user}, with the permissions of its roles"
    ));
    Ok(Identity {
        kubeconfig: Some(kubeconfig),
        environment: deployed.environment,
        user: Some(user),
    })
}

/// Reports the requests of the host that the API server refused, from the audit log.
pub(crate) fn report_forbidden(user: &str, plane: &ControlPlane, screen: &Screen) -> anyhow::Result<()> {
    let events = plane.audit_events()?;
    let own: Vec<_> = events
        .iter()
        .filter(|event| event.user.username == user)
        .collect();
    let forbidden = own.iter().filter(|event| {
        event
            .response_status
            .as_ref()
            .is_some_and(|status| status.code == 403)
    });
    let mut count = 0;
    for event in forbidden {
        count += 1;
        screen.error(&format!("forbidden: {} {}", event.verb, event.request_uri));
    }
    if count == 0 {
        screen.step(&format!(
            "{} of the host in the audit log, none forbidden",
            counted(own.len(), "request")
        ));
    }
    Ok(())
}
