//! A real registry: Debian's `docker-registry`, in a folder and at a port of its own.

use crate::delivery::packs::shell;
use crate::support::prelude::*;
use std::fmt::Write as _;
use std::fs;

use control_plane::{
    Component, Output,
    ports::{self, Port},
};
use tokio::net::TcpStream;

/// The user of a registry that wants a password.
pub const USER: &str = "team";
/// The password, with a character that separates it from the name.
pub const PASSWORD: &str = "pass:word";
/// The hash of the password, as `htpasswd -B` writes it.
const HASH: &str = "$2b$04$abcdefghijklmnopqrstuu7govE5p0NSk1WUEk5C2Qm3hpPC6VJ66";

/// How a registry is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Without TLS, by everybody.
    Plain,
    /// With TLS of an authority of its own, and with a password.
    Private,
    /// Without TLS, with a token from the server at this port.
    Token(u16),
}

/// A registry, which is killed when dropped.
pub struct Registry {
    process: Component,
    folder: Folder,
}

/// The folder of a registry that is stopped.
pub struct Folder {
    path: PathBuf,
    port: Port,
    access: Access,
}

impl Registry {
    /// Starts a registry without contents in a new folder.
    pub async fn start(path: &Path, access: Access) -> Self {
        fs::create_dir_all(path).unwrap();
        let port = ports::reserve().unwrap();
        let mut config = format!(
            "version: 0.1\nlog: {{level: warn, accesslog: {{disabled: true}}}}\nstorage: {{filesystem: {{rootdirectory: \
             {}/data}}, delete: {{enabled: true}}}}\nhttp:\n  addr: 127.0.0.1:{}\n",
            path.display(),
            port.number
        );
        if access == Access::Private {
            certificate(path);
            fs::write(path.join("htpasswd"), format!("{USER}:{HASH}\n")).unwrap();
            let _ = write!(
                config,
                "  tls: {{certificate: {0}/server.pem, key: {0}/server.key}}\nauth: {{htpasswd: {{realm: test, path: \
                 {0}/htpasswd}}}}\n",
                path.display()
            );
        }
        if let Access::Token(server) = access {
            let _ = writeln!(
                config,
                "auth: {{token: {{realm: 'http://127.0.0.1:{server}/token', service: test, issuer: test, rootcertbundle: \
                 {}/token.pem}}}}",
                path.display()
            );
        }
        fs::write(path.join("config.yml"), config).unwrap();
        let folder = Folder {
            path: path.to_owned(),
            port,
            access,
        };
        folder.start().await
    }

    /// Returns its name in references.
    pub fn name(&self) -> String {
        format!("127.0.0.1:{}", self.folder.port.number)
    }

    /// Whether it speaks TLS.
    pub fn tls(&self) -> bool {
        self.folder.access == Access::Private
    }

    /// Returns the certificate of its authority.
    pub fn authority(&self) -> PathBuf {
        self.folder.path.join("ca.pem")
    }

    /// Returns a Docker configuration with its credentials.
    pub fn credentials(&self) -> PathBuf {
        let file = self.folder.path.join("credentials.json");
        let entry = json!({"username": USER, "password": PASSWORD});
        let auths = json!({"auths": {self.name(): entry}});
        fs::write(&file, auths.to_string()).unwrap();
        file
    }

    /// Uploads contents with curl, as another tool does.
    pub fn upload(&self, repository: &str, bytes: &[u8]) {
        let file = self.folder.path.join("blob");
        fs::write(&file, bytes).unwrap();
        let digest = operator_host_core::digest::Digest::of(bytes).to_string();
        let script = r#"set -e
            place=$("$@" --request POST --output /dev/null --write-out '%header{location}' "$URL/blobs/uploads/")
            "$@" --request PUT --header 'Content-Type: application/octet-stream' --data-binary "@$FILE" \
                "$place&digest=$DIGEST""#;
        self.curl(
            script,
            repository,
            &[("FILE", file.to_str().unwrap()), ("DIGEST", &digest)],
        );
    }

    /// Stores a manifest with curl.
    pub fn put(&self, repository: &str, tag: &str, manifest: &str) {
        let script = r#""$@" --request PUT --header 'Content-Type: application/vnd.oci.image.manifest.v1+json' \
            --data "$MANIFEST" "$URL/manifests/$TAG""#;
        self.curl(script, repository, &[("MANIFEST", manifest), ("TAG", tag)]);
    }

    fn curl(&self, script: &str, repository: &str, variables: &[(&str, &str)]) {
        let scheme = if self.tls() { "https" } else { "http" };
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh", "curl", "--silent", "--show-error", "--fail"]);
        if self.tls() {
            command
                .args(["--user", &format!("{USER}:{PASSWORD}"), "--cacert"])
                .arg(self.authority());
        }
        command.env("URL", format!("{scheme}://{}/v2/{repository}", self.name()));
        command.envs(variables.iter().copied()).prints();
    }

    /// Stops it. Its contents stay.
    pub async fn stop(mut self) -> Folder {
        self.process.stop(LIMIT).await.expect("the registry has ended");
        self.folder
    }
}

impl Folder {
    /// Starts the registry, at the same port as before.
    pub async fn start(self) -> Registry {
        let config = self.path.join("config.yml");
        let arguments = ["serve".to_owned(), config.display().to_string()];
        let log = Output::File(self.path.join("registry.log"));
        let environment = [("OTEL_TRACES_EXPORTER", Path::new("none"))];
        let program = "docker-registry";
        let process = Component::spawn(program, Path::new(program), &arguments, &environment, log);
        let registry = Registry {
            process: process.expect("docker-registry starts: install the Debian package of that name"),
            folder: self,
        };
        let listens = async || TcpStream::connect(registry.name()).await.is_ok();
        until_true("the registry listens", listens).await;
        registry
    }
}

/// Creates an authority, and a certificate of it for this machine.
fn certificate(folder: &Path) {
    let script = "
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test-authority \
            -keyout ca.key -out ca.pem
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=registry \
            -keyout server.key -out server.csr
        printf 'subjectAltName=IP:127.0.0.1\\n' >extensions
        openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile extensions \
            -out server.pem";
    shell(folder, script);
}
