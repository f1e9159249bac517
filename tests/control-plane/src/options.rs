//! The options of a control plane.

use std::path::PathBuf;

use crate::{Snapshot, node};

/// Options for starting a control plane. [`Options::default`] starts everything except the audit log.
#[derive(Clone, Debug)]
pub struct Options {
    /// Run kube-controller-manager: the garbage collector, and the controllers behind Deployments, StatefulSets,
    /// Jobs, Endpoints and the deletion of namespaces.
    ///
    /// Its garbage collector discovers new kinds at its start and then every 30 seconds. Call
    /// [`ControlPlane::restart_controller_manager`] after installing a CustomResourceDefinition to avoid that wait.
    ///
    /// [`ControlPlane::restart_controller_manager`]: crate::ControlPlane::restart_controller_manager
    pub controller_manager: bool,
    /// Simulate kubelet, scheduler and volume provisioner.
    pub node: Option<node::Options>,
    /// Keep an audit log of every write, and of reads by ServiceAccounts.
    pub audit: bool,
    /// Make etcd keep acknowledged writes when it is killed. Writes are faster without it.
    pub durable: bool,
    /// Additional users besides the administrator.
    pub users: Vec<User>,
    /// Additional flags for kube-apiserver, such as `--feature-gates=…`; they come last and take precedence.
    pub apiserver_flags: Vec<String>,
    /// Folder for data and logs, which is kept. `None`: a temporary folder, which is deleted with the control plane
    /// unless the environment variable `CONTROL_PLANE_KEEP` is set.
    pub data_dir: Option<PathBuf>,
    /// Folder of a control plane that was stopped, whose objects and certificate this one begins with.
    pub copy_of: Option<PathBuf>,
}

/// A user that can authenticate; RBAC determines its permissions.
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
            copy_of: None,
        }
    }
}

impl Options {
    /// Returns options for the API server alone: no controllers, no simulated node.
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

    /// Adds a user without permissions, in these groups.
    #[must_use]
    pub fn with_user(mut self, name: &str, groups: &[&str]) -> Self {
        let groups = groups.iter().map(ToString::to_string).collect();
        self.users.push(User {
            name: name.to_owned(),
            groups,
        });
        self
    }

    /// Begins with the objects of a control plane that was stopped.
    #[must_use]
    pub fn with_data(mut self, snapshot: &Snapshot) -> Self {
        self.copy_of = Some(snapshot.data.root().to_owned());
        self
    }

    /// Adds a flag for kube-apiserver.
    #[must_use]
    pub fn with_apiserver_flag(mut self, flag: &str) -> Self {
        self.apiserver_flags.push(flag.to_owned());
        self
    }
}
