//! The files of the connection to the API server are renewed while the host runs.

use crate::samples::echo::{CONTROLLER, echo};
use crate::support::prelude::*;
use crate::telemetry::{get, until_ready_says};

pub async fn without_controllers() -> ControlPlane {
    let options = Options {
        controller_manager: false,
        ..Options::default()
    };
    own_cluster(options).await
}

/// The control plane makes itself another certificate authority, and all tokens are replaced.
#[tokio::test]
async fn a_running_host_uses_renewed_authorities_and_tokens_and_says_what_is_wrong_until_then() {
    let mut cluster = without_controllers().await;
    let mut scenario = Scenario::within(&cluster, "renewed").await;
    let read = |file: &Path| std::fs::read_to_string(file).unwrap();
    let authority = cluster.data_dir().join("certificates/apiserver.crt");
    let text = read(scenario.kubeconfig());
    let (_, token) = text.split_once("{token: ").unwrap();
    let token = token.trim_end().trim_end_matches('}').to_owned();
    let own_authority = scenario.file("ca.crt", read(&authority));
    let own_token = scenario.file("token", &token);
    let text = text
        .replace(authority.to_str().unwrap(), own_authority.to_str().unwrap())
        .replace(
            &format!("token: {token}"),
            &format!("tokenFile: {}", own_token.display()),
        );
    let kubeconfig = scenario.file("of-host", text);
    scenario = scenario.with_kubeconfig(kubeconfig);
    let mut host = scenario.start(CONTROLLER);
    scenario.apply(&echo(1)).await;
    scenario.until_there("v1/Pod", "e-pod-0").await;

    cluster.stop_apiserver().await;
    std::fs::remove_dir_all(authority.parent().unwrap()).unwrap();
    let other = token.chars().rev().collect::<String>();
    for file in [cluster.data_dir().join("tokens.csv"), cluster.kubeconfig()] {
        std::fs::write(&file, read(&file).replace(&token, &other)).unwrap();
    }
    cluster.start_apiserver().await.expect("the API server");
    scenario.client = cluster.client().await.unwrap();
    scenario.apply(&echo(2)).await;

    let (status, _) = until_ready_says(&host, "[-]api-server failed: … UnknownIssuer").await;
    assert_eq!(status, 500);
    assert_eq!(get(&host, "/livez").await.0, 200, "it waits for longer");
    // As a Secret is mounted: the content changes at once.
    let renew = |file: &Path, content: &str| std::fs::rename(scenario.file("next", content), file).unwrap();
    renew(&own_authority, &read(&authority));
    until_ready_says(&host, "[-]api-server failed: … 401 Unauthorized").await;
    // As a command writes it.
    renew(&own_token, &format!("{other}\n"));
    until_ready_says(&host, "readyz check passed").await;
    scenario.until_there("v1/Pod", "e-pod-1").await;
    assert!(host.is_alive());
}

/// Regression: those who wait for an answer give up, so nothing failed, and the host was ready all the while.
#[tokio::test]
async fn an_api_server_that_hangs_makes_the_host_unready_until_it_answers() {
    let cluster = without_controllers().await;
    let scenario = Scenario::within(&cluster, "hanging-server").await;
    let host = scenario.start(CONTROLLER);
    until_ready_says(&host, "readyz check passed").await;
    cluster.pause_apiserver();
    let (status, _) = until_ready_says(&host, "[-]api-server failed: … no answer within").await;
    assert_eq!(status, 500);
    cluster.resume_apiserver();
    until_ready_says(&host, "readyz check passed").await;
}
