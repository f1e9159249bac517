//! TLS: an endpoint with authorities of its own.

use super::server::*;
use crate::support::prelude::*;
use crate::telemetry::collector::Certificates;

#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_by_an_address_of_ipv6_is_trusted_by_its_own_authorities_which_may_be_renewed() {
    let scenario = Scenario::new("ext-tls").await;
    let [old, new] = ["old", "new"].map(|name| {
        let folder = scenario.folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        Certificates::make(&folder)
    });
    let trust = |authorities: &[&Certificates]| {
        let read = |it: &&Certificates| std::fs::read_to_string(&it.authority).unwrap();
        scenario.file("ca.crt", authorities.iter().map(read).collect::<String>())
    };
    let (server, present) = Server::start_tls(&old).await;
    let entry = format!(
        "- {{name: shop, url: 'https://[::1]:{}/api', certificateAuthority: {}, allowAddresses: ['::1'], \
         methods: [PUT, DELETE], namespaces: [ext-tls], qps: 100}}\n",
        server.port,
        trust(&[&new]).display(),
    );
    let process = scenario.start_egress("egress", &file(&scenario, &[entry]));
    let www = external("www", &json!({"ttl": 300}));
    scenario.external(&www).await;
    let says = "Reconciling=True NotReached: TLS";
    scenario.until_external("www", says).await;
    assert_eq!(server.lines(), Vec::<String>::new());
    trust(&[&old]);
    scenario.until_matches("www").await;

    // First both are trusted, then the server has another certificate, then the old authority goes.
    trust(&[&old, &new]);
    process.until_logged("has been renewed", 2).await;
    present(&new);
    trust(&[&new]);
    process.until_logged("has been renewed", 3).await;
    server.put("/www", json!({"ttl": 60}));
    server.until_has("/www", json!({"ttl": 300})).await;
    present(&old);
    trust(&[&new, &new]);
    // Until the renewed file is read, a connection that was trusted is used on.
    scenario.until_external("www", says).await;
    let sent = server.writes().len();
    let changed = scenario.external(&external("www", &json!({"ttl": 60}))).await;
    let is_tried =
        |it: &DynamicObject| it.data["status"]["observedGeneration"] == json!(changed.metadata.generation);
    scenario
        .until(EXTERNAL, "www", "the change is tried", is_tried)
        .await;
    scenario.until_external("www", says).await;
    // Nothing is sent to whom is not trusted.
    assert_eq!(server.writes().len(), sent);
}
