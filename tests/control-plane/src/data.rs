//! The folder with a control plane's data, logs and credentials.

use std::{
    fs::{File, OpenOptions},
    hash::{BuildHasher, RandomState},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use crate::{audit, options::User, ports};

/// The administrator's name.
pub(crate) const ADMIN: &str = "admin";

/// A folder; a temporary one is removed at the end.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    // Drop order: the folder first, then the lock that claims it.
    _temporary: Option<TempDir>,
    _lock: Option<File>,
}

impl DataDir {
    pub(crate) fn new(given: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(path) = given {
            std::fs::create_dir_all(path).with_context(|| format!("create {}", path.display()))?;
            let path = path
                .canonicalize()
                .with_context(|| format!("find {}", path.display()))?;
            return Ok(Self {
                path,
                _temporary: None,
                _lock: None,
            });
        }
        let root = ports::shared_folder()?.join("data");
        std::fs::create_dir_all(&root).with_context(|| format!("create {}", root.display()))?;
        remove_abandoned(&root);
        let mut temporary = tempfile::Builder::new()
            .prefix("run-")
            .tempdir_in(&root)
            .with_context(|| format!("create a folder in {}", root.display()))?;
        temporary.disable_cleanup(std::env::var_os("CONTROL_PLANE_KEEP").is_some());
        let path = temporary.path().to_owned();
        let lock = File::create(path.join("lock")).with_context(|| format!("write in {}", path.display()))?;
        lock.lock().with_context(|| format!("lock {}", path.display()))?;
        Ok(Self {
            path,
            _temporary: Some(temporary),
            _lock: Some(lock),
        })
    }

    /// Copies the objects, the certificate and the key for service accounts from the folder of another control plane.
    pub(crate) fn copy(&self, from: &Path) -> anyhow::Result<()> {
        // etcd reserves 64 MB for what it will write.
        let output = Command::new("cp")
            .args(["--recursive", "--sparse=always"])
            .args(["etcd", "certificates", "service-account.key"].map(|name| from.join(name)))
            .arg(&self.path)
            .output()
            .with_context(|| format!("copy {}", from.display()))?;
        let words = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "copy {}: {words}", from.display());
        Ok(())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.path
    }

    pub(crate) fn kubeconfig(&self, user: &str) -> PathBuf {
        if user == ADMIN {
            self.path("kubeconfig")
        } else {
            self.path(&format!("kubeconfig-{user}"))
        }
    }

    /// The file into which the API server writes its certificate, followed by that of the CA that signed it.
    pub(crate) fn certificate(&self) -> PathBuf {
        self.path("certificates/apiserver.crt")
    }

    fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        let path = self.path(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    }

    /// Writes the files that the API server reads, and one kubeconfig for each user.
    pub(crate) fn write_credentials(&self, port: u16, users: &[User]) -> anyhow::Result<()> {
        self.write("audit-policy.yaml", audit::POLICY)?;
        let key = self.path("service-account.key");
        if !key.exists() {
            let made = Command::new("openssl")
                .args(["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out"])
                .arg(&key)
                .output()
                .and_then(|output| match output.status.success() {
                    true => Ok(()),
                    false => Err(std::io::Error::other(
                        String::from_utf8_lossy(&output.stderr).into_owned(),
                    )),
                });
            made.with_context(|| "make the key for service accounts with openssl".to_owned())?;
        }
        let admin = User {
            name: ADMIN.to_owned(),
            groups: vec!["system:masters".to_owned()],
        };
        let mut tokens = String::new();
        for user in std::iter::once(&admin).chain(users) {
            let token = token();
            // token,user,uid,"groups": https://kubernetes.io/docs/reference/access-authn-authz/authentication/
            tokens += &format!("{token},{0},{0},\"{1}\"\n", user.name, user.groups.join(","));
            self.write_kubeconfig(&user.name, &token, port, "default")?;
        }
        self.write("tokens.csv", &tokens)
    }

    pub(crate) fn write_kubeconfig(
        &self,
        user: &str,
        token: &str,
        port: u16,
        namespace: &str,
    ) -> anyhow::Result<()> {
        let path = self.kubeconfig(user);
        let text = format!(
            "apiVersion: v1\n\
             kind: Config\n\
             current-context: control-plane\n\
             contexts:\n\
             - name: control-plane\n  \
               context: {{cluster: control-plane, user: {user}, namespace: {namespace}}}\n\
             clusters:\n\
             - name: control-plane\n  \
               cluster:\n    \
                 server: https://127.0.0.1:{port}\n    \
                 certificate-authority: {certificate}\n\
             users:\n\
             - name: {user}\n  \
               user: {{token: {token}}}\n",
            certificate = self.certificate().display(),
        );
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    }
}

/// Returns 128 random bits, so that other users of this machine cannot guess the token.
#[must_use]
pub fn token() -> String {
    let draw = || RandomState::new().hash_one(std::time::SystemTime::now());
    format!("{:016x}{:016x}", draw(), draw())
}

/// Removes the folders of processes that were killed, which no longer hold their locks.
fn remove_abandoned(root: &Path) {
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let Ok(lock) = OpenOptions::new().write(true).open(entry.path().join("lock")) else {
            continue;
        };
        if lock.try_lock().is_ok() {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}
