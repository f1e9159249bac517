//! Records in a real PowerDNS, where it is installed (Debian: `pdns-server`, `pdns-backend-sqlite3`, `sqlite3`).

use control_plane::{Component, Output};

use super::server::*;
use crate::support::prelude::*;

const SERVER: &str = "/usr/sbin/pdns_server";
const SCHEMA: &str = "/usr/share/pdns-backend-sqlite3/schema/schema.sqlite3.sql";
const KEY: &str = "hunter2-pdns";

/// Starts PowerDNS with a zone; returns it with the port of its API.
async fn pdns(folder: &Path) -> (Component, u16) {
    let database = folder.join("pdns.sqlite3");
    let schema = std::fs::read_to_string(SCHEMA).unwrap();
    let zone = "INSERT INTO domains (name, type) VALUES ('example.com', 'NATIVE'); \
                INSERT INTO records (domain_id, name, type, content, ttl) VALUES (1, 'example.com', 'SOA', \
                'ns.example.com h.example.com 1 3600 3600 3600 3600', 3600);";
    let made = Command::new("sqlite3")
        .arg(&database)
        .arg(format!("{schema}\n{zone}"))
        .call();
    made.expect(0);
    let free = || {
        std::net::TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port()
    };
    let (dns, api) = (free(), free());
    let arguments = [
        "--config-dir=/nonexistent".to_owned(),
        "--daemon=no".to_owned(),
        "--guardian=no".to_owned(),
        "--launch=gsqlite3".to_owned(),
        format!("--gsqlite3-database={}", database.display()),
        "--local-address=127.0.0.1".to_owned(),
        format!("--local-port={dns}"),
        format!("--socket-dir={}", folder.display()),
        "--api=yes".to_owned(),
        format!("--api-key={KEY}"),
        "--webserver=yes".to_owned(),
        "--webserver-address=127.0.0.1".to_owned(),
        format!("--webserver-port={api}"),
    ];
    let output = Output::File(folder.join("pdns.log"));
    let process = Component::spawn("pdns", Path::new(SERVER), &arguments, &[], output).unwrap();
    until_true("PowerDNS answers", async || {
        tokio::net::TcpStream::connect(("127.0.0.1", api)).await.is_ok()
    })
    .await;
    (process, api)
}

fn record(address: &str) -> Value {
    let rrset = json!({"name": "www.example.com.", "type": "A", "ttl": 300, "records": [{"content": address, "disabled": false}]});
    let set = |more: Value| {
        let mut rrset = rrset.clone();
        rrset
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        json!({"method": "PATCH", "path": "/zones/example.com", "body": {"rrsets": [rrset]}})
    };
    json!({
        "apiVersion": "operator-host.dev/v1alpha1", "kind": "External", "metadata": {"name": "www"},
        "spec": {
            "endpoint": "dns",
            "observe": {"path": "/zones/example.com?rrset_name=www.example.com.&rrset_type=A"},
            "matches": {"rrsets": [{"ttl": 300, "records": [{"content": address, "disabled": false}]}]},
            "set": set(json!({"changetype": "REPLACE"})),
            "unset": set(json!({"changetype": "DELETE"})),
            "every": "5s",
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_in_powerdns_is_made_changed_put_right_and_removed() {
    if !Path::new(SERVER).is_file() || !Path::new(SCHEMA).is_file() {
        eprintln!(
            "left out: PowerDNS is not installed (apt-get install pdns-server pdns-backend-sqlite3 sqlite3)"
        );
        return;
    }
    let scenario = Scenario::new("ext-powerdns").await;
    let (pdns, port) = pdns(scenario.folder.path()).await;
    let entry = format!(
        "- {{name: dns, url: 'http://127.0.0.1:{port}/api/v1/servers/localhost', allowPlain: true, \
         allowAddresses: [127.0.0.1], methods: [PATCH], namespaces: ['ext-*'], \
         credentials: {{secret: ext-powerdns/pdns, header: X-API-Key}}}}\n"
    );
    let process = scenario.start_egress("egress", &file(&scenario, &[entry]));
    let key = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pdns"}, "stringData": {"token": KEY}});
    scenario.apply(&key.to_string()).await;
    let database = scenario.folder.path().join("pdns.sqlite3");
    let sql = |statement: &str| Command::new("sqlite3").arg(&database).arg(statement).prints();
    let addresses = || {
        sql("SELECT content FROM records WHERE name = 'www.example.com' AND type = 'A'")
            .trim()
            .to_owned()
    };

    let children = "children: [{apiVersion: operator-host.dev/v1alpha1, kind: External}]";
    let _host = scenario.start(&controller("puppet.wasm", children));
    scenario.wants("p", &[record("192.0.2.7")]).await;
    scenario.until_told("p", "Ready=True Reconciled").await;
    assert_eq!(addresses(), "192.0.2.7");
    scenario.wants("p", &[record("192.0.2.8")]).await;
    until_true("the change is there", async || addresses() == "192.0.2.8").await;
    // Somebody changes it in the server. PowerDNS caches what it reads for up to 20 s.
    sql("UPDATE records SET content = '192.0.2.9' WHERE name = 'www.example.com' AND type = 'A'");
    until_true("drift is put right", async || addresses() == "192.0.2.8").await;
    // The server is away for a while, and back.
    pdns.pause();
    scenario.until_external("www", "Ready=False TimedOut").await;
    pdns.resume();
    scenario.until_matches("www").await;
    scenario.wants("p", &[]).await;
    scenario.until_gone(EXTERNAL, "www").await;
    assert_eq!(addresses(), "");
    assert!(!process.log().contains(KEY));
}
