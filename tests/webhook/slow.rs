//! Slow callers and plugins, and that others do not have to wait for them.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::task::JoinSet;

use super::callers::{call, call_from, greet, puppet_of, reach, review};
use super::*;

/// Maximum number of connections of one address, and timeout for each part of a request: `host/webhook/src`.
const CONNECTIONS: usize = 192;
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of a plugin call, as set by [`configuration`].
const DEADLINE: Duration = Duration::from_secs(20);
/// More steps than a plugin can do in that time.
const ENDLESS: u64 = 10_000_000;

pub(super) async fn host(scenario: &Scenario) -> (Host, Authority) {
    let config = configuration(scenario);
    let authority = certified(scenario);
    let host = scenario.start_with(&config, &[]);
    host.until_log("controller started").await;
    host.until_log("the certificate is in use").await;
    (host, authority)
}

/// Sends the first bytes, then one per second until the server closes the connection. Returns how long that took,
/// and the response.
async fn drip(stream: impl AsyncRead + AsyncWrite, first: &[u8]) -> (Duration, String) {
    let begun = Instant::now();
    let (mut read, mut write) = tokio::io::split(stream);
    let sending = async {
        let mut bytes = first.to_vec();
        // The response may still be readable after the server stops reading.
        while write.write_all(&bytes).await.is_ok() && write.flush().await.is_ok() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            bytes = b"a".to_vec();
        }
        std::future::pending::<()>().await;
    };
    let mut answer = Vec::new();
    tokio::select! {
        // A connection may also end without TLS's close_notify.
        _ = read.read_to_end(&mut answer) => {}
        () = sending => {}
    }
    (begun.elapsed(), String::from_utf8_lossy(&answer).into_owned())
}

#[tokio::test]
async fn callers_that_send_a_byte_a_second_are_cut_off_and_take_nobody_elses_place() {
    let scenario = Scenario::new("webhook-slow").await;
    let (host, authority) = host(&scenario).await;
    let good = review(&puppet_of("{}"));
    let slow = [127, 0, 0, 2];
    let mut drops = JoinSet::new();
    for number in 0..CONNECTIONS {
        let stream = reach(&host, slow).await.expect("a connection");
        match number % 6 {
            // A TLS record of 512 bytes, with the beginning of a handshake.
            0..4 => drop(drops.spawn(async { ("", drip(stream, b"\x16\x03\x01\x02\x00\x01").await) })),
            4 => {
                let stream = greet(stream, &authority, None).await.expect("TLS");
                let head = b"POST /validate HTTP/1.1\r\nHost: h\r\nX-More: ";
                drops.spawn(async { ("", drip(stream, head).await) });
            }
            _ => {
                let stream = greet(stream, &authority, None).await.expect("TLS");
                let head = b"POST /validate HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n{";
                drops.spawn(async { ("the body did not arrive in time", drip(stream, head).await) });
            }
        }
    }
    let begun = Instant::now();
    let answer = call(&host, &authority, None, &good).await.expect("an answer");
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(drops.len(), CONNECTIONS);
    assert!(drops.try_join_next().is_none(), "there was a place for it");
    // This address has no place left: the connection that has waited the longest makes room.
    let answer = call_from(slow, &host, &authority, None, &good).await;
    assert_eq!(answer.expect("an answer").status, 200);
    let (_, (took, _)) = drops.join_next().await.unwrap().unwrap();
    assert!(begun.elapsed() < CLIENT_TIMEOUT / 2, "{:?}", begun.elapsed());
    assert!(took < CLIENT_TIMEOUT, "{took:?}");

    while let Some(drop) = drops.join_next().await {
        let (words, (took, printed)) = drop.unwrap();
        assert!(took < CLIENT_TIMEOUT * 2, "cut off after {took:?}");
        assert!(printed.contains(words), "{printed:?} does not contain {words:?}");
    }
    let answer = call_from(slow, &host, &authority, None, &good).await;
    assert_eq!(answer.expect("an answer").status, 200);
}

/// Waits until the plugin has begun this many long calls; it logs this word in each.
async fn until_busy(host: &Host, word: &str, calls: usize) {
    let is_one = |line: &&str| line.contains("\"message\":\"busy\"") && line.contains(word);
    let busy = || host.log().lines().filter(is_one).count();
    until_true(&format!("{calls} calls that are busy"), async || busy() >= calls).await;
}

#[tokio::test]
async fn slow_reviews_delay_no_reconcile_and_slow_reconciles_no_review() {
    let scenario = Scenario::new("webhook-turns").await;
    let (host, authority) = host(&scenario).await;
    let endless = json!({ "busy": ENDLESS });

    // No call that begins now ends within this time.
    let begun = Instant::now();
    let validated = json!({ "validate": "busy", "busy": ENDLESS });
    let body = review(&puppet_of(&validated.to_string()));
    let reviews = futures::future::join_all((0..20).map(|_| call(&host, &authority, None, &body)));
    let reconciles = async {
        // Half of the reviews that are answered at the same time.
        until_busy(&host, "", 2).await;
        let good = review(&puppet_of(&good().to_string()));
        let other = call_from([127, 0, 0, 2], &host, &authority, None, &good).await;
        assert_contains(&other.expect("an answer").text, "\"allowed\":true");
        for name in ["a", "b", "c"] {
            scenario.ready_wants(name, &[config_map(name, "1")]).await;
        }
    };
    tokio::select! {
        answers = reviews => panic!("{answers:?}"),
        () = reconciles => {}
    }
    assert!(
        begun.elapsed() < DEADLINE,
        "reconciles took {:?}",
        begun.elapsed()
    );

    let begun = Instant::now();
    for number in 0..20 {
        scenario.puppet(&format!("slow-{number}"), endless.clone()).await;
    }
    // The default number of concurrent reconciles.
    until_busy(&host, "/slow-", 8).await;
    for (spec, verdict) in [
        (good(), "\"allowed\":true"),
        (invalid(), "3 is less than 5"),
        (good(), "\"allowed\":true"),
    ] {
        let answer = call(&host, &authority, None, &review(&puppet_of(&spec.to_string()))).await;
        assert_contains(&answer.expect("an answer").text, verdict);
    }
    assert!(begun.elapsed() < DEADLINE, "reviews took {:?}", begun.elapsed());
}
