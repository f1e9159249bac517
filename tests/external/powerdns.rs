//! The sample `plugins/dns` with a real PowerDNS, of Debian's packages `pdns-server`, `pdns-backend-sqlite3` and `sqlite3`.

use control_plane::Component;
use control_plane::servers::PowerDns;

use super::server::*;
use crate::support::prelude::*;

const RECORD: &str = "dns.example.com/v1/DnsRecord";
const CONTROLLER: &str = "\
- name: dns
  parent: {apiVersion: dns.example.com/v1, kind: DnsRecord}
  plugin: dns.wasm
  children: [{apiVersion: operator-host.dev/v1alpha1, kind: External}]
";

/// A PowerDNS whose log is read.
struct Dns {
    folder: PathBuf,
    server: PowerDns,
}

impl Dns {
    fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            server: PowerDns::create(folder).unwrap(),
        }
    }

    /// Starts the server with this key of its API.
    async fn start(&self, key: &str) -> Component {
        let process = self.server.start(key, &format!("{key}.log")).unwrap();
        until_true("PowerDNS answers", async || {
            let address = ("127.0.0.1", self.server.api_port());
            tokio::net::TcpStream::connect(address).await.is_ok()
        })
        .await;
        process
    }

    /// Starts egress with this server as the endpoint of the namespace, and its first key.
    async fn egress(&self, scenario: &Scenario) -> Host {
        let entry = format!(
            "- {{name: dns, url: 'http://127.0.0.1:{}/api/v1/servers/localhost', allowPlain: true, \
             allowAddresses: [127.0.0.1], methods: [PATCH], namespaces: ['ext-*'], qps: 100, \
             credentials: {{secret: {}/pdns, header: X-API-Key}}}}\n",
            self.server.api_port(),
            scenario.namespace
        );
        scenario.apply(&key("hunter2-old")).await;
        scenario.start_egress("egress", &file(scenario, &[entry]))
    }

    fn sql(&self, statement: &str) -> String {
        self.server.sql(statement).unwrap()
    }

    /// Returns what a name has, as `A 192.0.2.7`.
    fn of(&self, name: &str) -> String {
        self.sql(&format!(
            "SELECT type || ' ' || content FROM records WHERE name = '{name}' AND type != 'SOA' ORDER BY content"
        ))
    }

    /// Waits until a name of `example.com` has this.
    async fn until(&self, name: &str, expected: &str) {
        let (what, name) = (format!("{name}: {expected}"), format!("{name}.example.com"));
        until_true(&what, async || self.of(&name) == expected).await;
    }

    /// Returns the changes that the server with this key has carried out. SQLite is often locked by another one.
    fn changes(&self, key: &str) -> Vec<String> {
        let log = std::fs::read_to_string(self.folder.join(format!("{key}.log"))).unwrap();
        let changes = log
            .lines()
            .filter(|line| contains(line, "\"PATCH … HTTP/1.1\" 204"));
        changes.map(str::to_owned).collect()
    }
}

fn key(key: &str) -> String {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "pdns"}, "stringData": {"token": key}})
        .to_string()
}

fn record(object: &str, name: Option<&str>, type_: &str, values: &[&str]) -> String {
    json!({
        "apiVersion": "dns.example.com/v1", "kind": "DnsRecord", "metadata": {"name": object},
        "spec": {"zone": "example.com", "name": name, "type": type_, "values": values, "every": "5s"},
    })
    .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_in_powerdns_is_made_changed_put_right_and_removed() {
    let scenario = Scenario::new("ext-powerdns").await;
    let pdns = Dns::new(scenario.folder.path());
    let server = pdns.start("hunter2-old").await;
    let egress = pdns.egress(&scenario).await;
    let host = scenario.start(CONTROLLER);

    let until = async |name: &str, says: &str| drop(scenario.until_condition(RECORD, name, says).await);
    // Each is sent once: PowerDNS returns the values in the form in which they are compared.
    let records = [
        ("www", Some("www"), "A", vec!["192.0.2.7"], "A 192.0.2.7"),
        (
            "zone",
            None,
            "A",
            vec!["192.0.2.2", "192.0.2.1"],
            "A 192.0.2.1\nA 192.0.2.2",
        ),
        (
            "any",
            Some("*"),
            "AAAA",
            vec!["2001:DB8:0:0::7"],
            "AAAA 2001:db8::7",
        ),
        (
            "alias",
            Some("shop"),
            "CNAME",
            vec!["www.example.net"],
            "CNAME www.example.net",
        ),
        (
            "text",
            Some("_dmarc"),
            "TXT",
            vec![r#"say "a\b""#],
            r#"TXT "say \"a\\b\"""#,
        ),
    ];
    for (object, name, type_, values, _) in &records {
        scenario.apply(&record(object, *name, type_, values)).await;
    }
    for (object, name, _, _, expected) in &records {
        until(object, "Ready=True Reconciled").await;
        let name = name.map_or("example.com".to_owned(), |name| format!("{name}.example.com"));
        assert_eq!(pdns.of(&name), *expected);
    }
    let changes = pdns.changes("hunter2-old");
    assert_eq!(changes.len(), records.len(), "{changes:?}");

    let other = |name: &str| record("www", Some(name), "A", &["192.0.2.8"]);
    scenario.apply(&other("www")).await;
    pdns.until("www", "A 192.0.2.8").await;
    pdns.sql("UPDATE records SET content = '192.0.2.9' WHERE name = 'www.example.com'");
    pdns.until("www", "A 192.0.2.8").await;

    // The server goes away, is changed meanwhile, and comes back with another key.
    drop(server);
    until("www", "Ready=False ChildrenNotReady: External … www-").await;
    pdns.sql("DELETE FROM records WHERE name = 'www.example.com'");
    let _server = pdns.start("hunter2-new").await;
    until("www", "Ready=False ChildrenNotReady: 401").await;
    scenario.apply(&key("hunter2-new")).await;
    until("www", "Ready=True Reconciled").await;
    assert_eq!(pdns.of("www.example.com"), "A 192.0.2.8");
    let changes = pdns.changes("hunter2-new");
    // The other records were as they should be.
    assert_eq!(changes.len(), 1, "{changes:?}");

    // Another name is another record, and the first one is pruned.
    scenario.apply(&other("ftp")).await;
    pdns.until("ftp", "A 192.0.2.8").await;
    pdns.until("www", "").await;
    scenario.remove(RECORD, "www").await;
    pdns.until("ftp", "").await;
    for log in [egress.log(), host.log()] {
        assert!(!log.contains("hunter2"));
    }
}

/// The loop of external-dns: a Service has a record, which is the child of a child.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_with_an_annotation_has_a_record_with_its_addresses() {
    const SERVICE: &str = "v1/Service";
    const DECORATOR: &str = "operator-host.dev/v1alpha1/Controller";
    let cluster = own_cluster(Options::default()).await;
    let scenario = Scenario::within(&cluster, "ext-services").await;
    let pdns = Dns::new(scenario.folder.path());
    let _server = pdns.start("hunter2-old").await;
    let _egress = pdns.egress(&scenario).await;
    let config = format!(
        "plugins: {}\nceilings:\n- {{files: true, decorates: [{{apiGroups: [''], kinds: [Service]}}], \
         children: [{{apiGroups: [dns.example.com], kinds: [DnsRecord]}}]}}\ncontrollers:\n{CONTROLLER}",
        root().join("plugins/target/plugins").display()
    );
    let host = scenario.start_with(&scenario.file("config.yaml", config), &[]);
    let sample = |file: &str| {
        let file = root().join("plugins/service-dns").join(file);
        std::fs::read_to_string(file).unwrap()
    };
    scenario.apply(&sample("controller.yaml")).await;
    scenario
        .until_condition(DECORATOR, "service-dns", "Ready=True Running")
        .await;
    scenario.apply(&sample("sample.yaml")).await;
    pdns.until("www", "A 192.0.2.7").await;
    // The address of a load balancer, which only the status has.
    let balanced = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.8"}, {"hostname": "lb.example.net"}]}}});
    let (api, params) = (scenario.api(SERVICE), PatchParams::default());
    let patched = api.patch_status("www", &params, &Patch::Merge(balanced)).await;
    patched.expect("the patch is taken");
    let both = "A 192.0.2.7\nA 192.0.2.8";
    pdns.until("www", both).await;
    let annotate =
        |hostname: &str| json!({"metadata": {"annotations": {"dns.example.com/hostname": hostname}}});
    scenario.patch(SERVICE, "www", annotate("www")).await;
    let says = "Warning InvalidSpec: it must be like www.example.com";
    scenario.until_event("www", says).await;
    pdns.until("www", both).await;
    scenario.patch(SERVICE, "www", annotate("ftp.example.com")).await;
    pdns.until("ftp", both).await;
    pdns.until("www", "").await;
    // The record goes with the label, and with the Controller.
    for (label, expected) in [(Value::Null, ""), ("yes".into(), both)] {
        let label = json!({"metadata": {"labels": {"dns": label}}});
        scenario.patch(SERVICE, "www", label).await;
        pdns.until("ftp", expected).await;
    }
    scenario.remove(DECORATOR, "service-dns").await;
    pdns.until("ftp", "").await;
    assert_eq!(host.stop().await.code(), Some(0));
}
