//! Several replicas behind a Service, which get a new version of the plugin one after the other.

use std::time::{Duration, Instant};

use kube::api::ListParams;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};

use super::{CONVERTS, V2, serve_v2_at};
use crate::support::puppet::{controller, variant_of};
use crate::support::{LIMIT, Scenario, own_cluster};
use crate::webhook::{certified, port};

/// Forwards each connection to the next of these ports, like a Service. Returns its own port.
async fn balance(ports: Vec<u16>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let own = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        for port in ports.into_iter().cycle() {
            let (mut near, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                // It ends when one of them closes the connection.
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    own
}

#[tokio::test]
async fn while_a_replica_lacks_the_new_version_the_api_server_asks_another_one() {
    let cluster = own_cluster(control_plane::Options::default()).await;
    let scenario = Scenario::within(&cluster, "conversion-replicas").await;
    let authority = certified(&scenario);
    let start = |name: &str, variant: u8| {
        let plugin = scenario.file(&format!("{name}.wasm"), variant_of("puppet.wasm", variant));
        let top = "webhook: {address: '127.0.0.1:0', certificate: tls.crt, key: tls.key}";
        let config = scenario.config_with(top, &controller(&plugin.display().to_string(), ""));
        let text = std::fs::read(config).unwrap();
        scenario.start_named(name, &scenario.file(&format!("{name}.yaml"), text))
    };
    // The earlier version of the plugin does not convert.
    let [earlier, newer] = [start("earlier", 1), start("newer", CONVERTS)];
    for host in [&earlier, &newer] {
        host.until_log(&["controller started"]).await;
    }
    scenario
        .puppet("one", json!({ "text": "a", "response": {} }))
        .await;
    let ports = vec![port(&earlier).await, port(&newer).await];
    serve_v2_at(&scenario, balance(ports).await, &authority, "v1").await;

    let begun = Instant::now();
    let read = loop {
        match scenario.api(V2).get("one").await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            read => break read,
        }
        assert!(begun.elapsed() < LIMIT, "v2 is never served");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(read.expect("it is converted").data["spec"]["note"], "a");
    earlier
        .until_log(&["the API server is asked to try again", "converts no versions"])
        .await;
    let all = scenario.api(V2).list(&ListParams::default()).await;
    assert_eq!(all.expect("they are converted").items.len(), 1);
}
