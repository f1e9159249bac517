//! Servers outside of the cluster, of Debian's packages, for the samples that manage what is in them.

use std::{
    fs::OpenOptions,
    io::Write as _,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use crate::{
    component::{Component, Output},
    ports::{self, Port},
};

/// A PowerDNS with the zone `example.com`, in a database of SQLite, on free ports of 127.0.0.1.
#[derive(Debug)]
pub struct PowerDns {
    folder: PathBuf,
    /// The name of a socket has 107 characters at most.
    socket: TempDir,
    dns: Port,
    api: Port,
}

impl PowerDns {
    /// The packages that it needs.
    pub const PACKAGES: &str = "pdns-server pdns-backend-sqlite3 sqlite3";
    const PROGRAM: &str = "/usr/sbin/pdns_server";
    const SCHEMA: &str = "/usr/share/pdns-backend-sqlite3/schema/schema.sqlite3.sql";

    /// Reports whether the packages are installed.
    #[must_use]
    pub fn is_installed() -> bool {
        [Self::PROGRAM, Self::SCHEMA, "/usr/bin/sqlite3"]
            .map(Path::new)
            .iter()
            .all(|file| file.exists())
    }

    /// Creates the database in a folder, which must exist.
    ///
    /// # Errors
    /// When a package is missing.
    pub fn create(folder: &Path) -> anyhow::Result<Self> {
        let this = Self {
            folder: folder.to_owned(),
            socket: tempfile::tempdir().context("create a folder")?,
            dns: ports::reserve()?,
            api: ports::reserve()?,
        };
        let schema = std::fs::read_to_string(Self::SCHEMA);
        this.sql(&schema.with_context(|| format!("read {}", Self::SCHEMA))?)?;
        this.sql(
            "INSERT INTO domains (name, type) VALUES ('example.com', 'NATIVE'); \
             INSERT INTO records (domain_id, name, type, content, ttl) VALUES (1, 'example.com', 'SOA', \
             'ns.example.com h.example.com 1 3600 3600 3600 3600', 3600);",
        )?;
        Ok(this)
    }

    /// Starts the server without waiting for it. Clients of its API need this key.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self, key: &str, log: &str) -> anyhow::Result<Component> {
        let (folder, dns, api) = (self.folder.display(), self.dns.number, self.api.number);
        let socket = self.socket.path().display();
        let settings = format!(
            "daemon=no\nguardian=no\nlaunch=gsqlite3\ngsqlite3-database={folder}/pdns.sqlite3\nlocal-address=127.0.0.1\n\
             local-port={dns}\nsocket-dir={socket}\napi=yes\napi-key={key}\nwebserver=yes\nwebserver-address=127.0.0.1\n\
             webserver-port={api}\nloglevel=6\ncache-ttl=0\nquery-cache-ttl=0\nnegquery-cache-ttl=0\n"
        );
        write(&self.folder.join("pdns.conf"), &settings)?;
        let arguments = [format!("--config-dir={folder}")];
        let output = Output::File(self.folder.join(log));
        Component::spawn("pdns", Path::new(Self::PROGRAM), &arguments, &[], output)
    }

    /// Runs a statement in the database, and returns what it prints.
    ///
    /// # Errors
    /// When the statement is wrong.
    pub fn sql(&self, statement: &str) -> anyhow::Result<String> {
        let database = self.folder.join("pdns.sqlite3");
        let mut command = Command::new("sqlite3");
        command
            .args(["-cmd", ".timeout 30000"])
            .arg(database)
            .arg(statement);
        let output = command.output().context("run sqlite3")?;
        let words = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{statement}: {words}");
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Returns the port that answers queries.
    #[must_use]
    pub const fn dns_port(&self) -> u16 {
        self.dns.number
    }

    /// Returns the port of the API.
    #[must_use]
    pub const fn api_port(&self) -> u16 {
        self.api.number
    }
}

/// Writes a file that only this user may read: it has a password.
fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    let mut options = OpenOptions::new();
    let options = options.create(true).write(true).truncate(true).mode(0o600);
    let written = options
        .open(file)
        .and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("write {}", file.display()))
}

/// A RabbitMQ with the management API, on free ports of 127.0.0.1.
#[derive(Debug)]
pub struct RabbitMq {
    folder: PathBuf,
    /// Of AMQP, the management API, other nodes and the names of nodes.
    ports: [Port; 4],
    /// The process that knows the names of nodes.
    _names: Component,
}

impl RabbitMq {
    /// The package that it needs.
    pub const PACKAGES: &str = "rabbitmq-server";
    const PROGRAM: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

    /// Reports whether the package is installed.
    #[must_use]
    pub fn is_installed() -> bool {
        Path::new(Self::PROGRAM).exists()
    }

    /// Creates the configuration, with an administrator, in a folder, which must exist.
    ///
    /// # Errors
    /// When the package is missing.
    pub fn create(folder: &Path, user: &str, password: &str) -> anyhow::Result<Self> {
        let ports = [
            ports::reserve()?,
            ports::reserve()?,
            ports::reserve()?,
            ports::reserve()?,
        ];
        let [amqp, api, _, names] = ports.each_ref().map(|port| port.number);
        write(&folder.join("enabled_plugins"), "[rabbitmq_management].")?;
        let settings = format!(
            "listeners.tcp.1 = 127.0.0.1:{amqp}\nmanagement.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {api}\n\
             default_user = {user}\ndefault_pass = {password}\n"
        );
        write(&folder.join("rabbitmq.conf"), &settings)?;
        let arguments = ["-address", "127.0.0.1", "-port", &names.to_string()].map(str::to_owned);
        let output = Output::File(folder.join("epmd.log"));
        Ok(Self {
            folder: folder.to_owned(),
            ports,
            _names: Component::spawn("epmd", Path::new("/usr/bin/epmd"), &arguments, &[], output)?,
        })
    }

    /// Starts the server without waiting for it, which takes some seconds.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(&self) -> anyhow::Result<Component> {
        let [_, api, nodes, names] = &self.ports;
        let at = |name: &str| self.folder.join(name);
        let text = |text: String| PathBuf::from(text);
        let environment = [
            ("HOME", at("")),
            ("ERL_EPMD_PORT", text(names.number.to_string())),
            (
                "RABBITMQ_NODENAME",
                text(format!("rabbit-{}@localhost", api.number)),
            ),
            ("RABBITMQ_DIST_PORT", text(nodes.number.to_string())),
            (
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                text("-kernel inet_dist_use_interface {127,0,0,1}".to_owned()),
            ),
            ("RABBITMQ_MNESIA_BASE", at("mnesia")),
            ("RABBITMQ_LOG_BASE", at("log")),
            ("RABBITMQ_CONFIG_FILE", at("rabbitmq")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", at("enabled_plugins")),
            ("RABBITMQ_CONF_ENV_FILE", text("/dev/null".to_owned())),
            ("RABBITMQ_PID_FILE", at("pid")),
            // Then the script becomes the server, instead of starting it.
            ("NOTIFY_SOCKET", text("/nonexistent".to_owned())),
        ];
        let environment = environment
            .each_ref()
            .map(|(name, value)| (*name, value.as_path()));
        let output = Output::File(at("rabbitmq.log"));
        Component::spawn("rabbitmq", Path::new(Self::PROGRAM), &[], &environment, output)
    }

    /// Returns the port of the management API.
    #[must_use]
    pub const fn api_port(&self) -> u16 {
        self.ports[1].number
    }
}
