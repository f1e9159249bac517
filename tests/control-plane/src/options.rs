//! What a control plane is made of.

use std::path::PathBuf;

use crate::node;

/// What to start and how. [`Options::default`] is all there is, without the audit log.
#[derive(Clone, Debug)]
pub struct Options {
    /// Run kube-controller-manager: the garbage collector, and the controllers behind Deployments,
    /// StatefulSets, Jobs, Endpoints and the deletion of namespaces.
    ///
    /// Its garbage collector learns of new kinds at its start and then every 30 seconds. After installing a
    /// CustomResourceDefinition, [`ControlPlane::restart_controller_manager`] spares that wait.
    ///
    /// [`ControlPlane::restart_controller_manager`]: crate::ControlPlane::restart_controller_manager
    pub controller_manager: bool,
    /// Run the stand-in for kubelet, scheduler and volume provisioner.
    pub node: Option<node::Options>,
    /// Keep an audit log of every write, and of what ServiceAccounts read.
    pub audit: bool,
    /// Let etcd keep what it has answered when it is killed. Without it, each write is faster.
    pub durable: bool,
    /// Users beside the administrator.
    pub users: Vec<User>,
    /// Further flags for kube-apiserver, such as `--feature-gates=…`; they come last and win.
    pub apiserver_flags: Vec<String>,
    /// Where data and logs go; kept after the end. `None`: a temporary folder that goes with the control
    /// plane, unless the environment variable `CONTROL_PLANE_KEEP` is set.
    pub data_dir: Option<PathBuf>,
}

/// Somebody who may authenticate; what they may do is up to RBAC.
#[derive(Clone, Debug)]
pub struct User {
    /// The name that RBAC subjects refer to. Letters, digits and `-`.
    pub name: String,
    /// The groups, `system:authenticated` not included.
    pub groups: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            controller_manager: true,
            node: Some(node::Options::default()),
            audit: false,
            durable: false,
            users: Vec::new(),
            apiserver_flags: Vec::new(),
            data_dir: None,
        }
    }
}

impl Options {
    /// The API server alone: no controllers, no stand-in for nodes.
    #[must_use]
    pub fn bare() -> Self {
        Self {
            controller_manager: false,
            node: None,
            ..Self::default()
        }
    }

    /// Keeps an audit log of every write.
    #[must_use]
    pub fn with_audit(mut self) -> Self {
        self.audit = true;
        self
    }

    /// Adds a user without rights, in these groups.
    #[must_use]
    pub fn with_user(mut self, name: &str, groups: &[&str]) -> Self {
        let groups = groups.iter().map(ToString::to_string).collect();
        self.users.push(User {
            name: name.to_owned(),
            groups,
        });
        self
    }

    /// Adds a flag for kube-apiserver.
    #[must_use]
    pub fn with_apiserver_flag(mut self, flag: &str) -> Self {
        self.apiserver_flags.push(flag.to_owned());
        self
    }
}
