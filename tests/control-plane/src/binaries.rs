//! Locates the programs of the control plane.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

/// The three programs.
#[derive(Clone, Debug)]
pub(crate) struct Binaries {
    pub(crate) etcd: PathBuf,
    pub(crate) kube_apiserver: PathBuf,
    /// `None` only when `KUBEBUILDER_ASSETS` lacks it and the options do not need it.
    pub(crate) kube_controller_manager: Option<PathBuf>,
}

impl Binaries {
    /// Looks in `KUBEBUILDER_ASSETS`; without it, runs `install.sh`.
    pub(crate) fn find(controller_manager: bool) -> anyhow::Result<Self> {
        if let Some(folder) = std::env::var_os("KUBEBUILDER_ASSETS").filter(|folder| !folder.is_empty()) {
            let found = Self::in_folder(Path::new(&folder));
            if let Ok(found) = found
                && (found.kube_controller_manager.is_some() || !controller_manager)
            {
                return Ok(found);
            }
        }
        let found = Self::in_folder(&install()?)?;
        Ok(found)
    }

    fn in_folder(folder: &Path) -> anyhow::Result<Self> {
        let optional = |name: &'static str| Some(folder.join(name)).filter(|path| path.is_file());
        let required = |name: &'static str| optional(name).with_context(|| missing(name, folder));
        Ok(Self {
            etcd: required("etcd")?,
            kube_apiserver: required("kube-apiserver")?,
            kube_controller_manager: optional("kube-controller-manager"),
        })
    }
}

/// Returns the version of the control plane that is used here, such as `Kubernetes v1.36.2`.
///
/// # Errors
/// When there is none, or its API server does not start.
pub fn version() -> anyhow::Result<String> {
    version_of(&Binaries::find(false)?.kube_apiserver)
}

/// Returns what a program of Kubernetes says of itself.
pub(crate) fn version_of(program: &Path) -> anyhow::Result<String> {
    let output = Command::new(program).arg("--version").output();
    let output = output.with_context(|| format!("run {}", program.display()))?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

/// Says what to do about a program that is not there.
pub(crate) fn missing(name: &str, folder: &Path) -> String {
    let folder = folder.display();
    format!("{name} is missing in {folder}: run tests/control-plane/install.sh, or fix KUBEBUILDER_ASSETS")
}

/// Runs `install.sh`, which prints the folder, and downloads or builds its contents if necessary.
fn install() -> anyhow::Result<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("install.sh");
    let output = Command::new(&script)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("run {}", script.display()))?;
    if !output.status.success() {
        bail!(
            "no control plane on this machine: {} ended with {}; its messages above say why. Or set KUBEBUILDER_ASSETS to a \
             folder with etcd and kube-apiserver",
            script.display(),
            output.status
        );
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end()))
}
