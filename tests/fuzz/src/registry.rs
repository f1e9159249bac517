//! What a registry sends, and references to it: the first line says what the rest is.

use operator_host_config::reference::Reference;
use operator_host_delivery::oci::artifact::{self, Artifact, Descriptor, WASM_LAYER};
use serde_json::Value;

/// The most bytes that a plugin may have here.
const LIMIT: usize = 1000;
/// Maximum length of an error.
const LONGEST_MESSAGE: usize = 4 << 10;

pub(crate) fn run(bytes: &[u8]) {
    let end = bytes
        .iter()
        .position(|byte| *byte == b'\n')
        .unwrap_or(bytes.len());
    let (what, rest) = bytes.split_at(end);
    let rest = rest.get(1..).unwrap_or_default();
    let text = String::from_utf8_lossy(rest);
    match what {
        b"reference" => reference(&text),
        b"index" => index(rest),
        _ => manifest(rest),
    }
}

/// Checks that a text is shown on one line, without control characters.
fn shown(message: &str) {
    assert!(message.len() <= LONGEST_MESSAGE, "{} bytes", message.len());
    assert!(!message.contains(char::is_control), "{message:?}");
}

fn manifest(bytes: &[u8]) {
    match artifact::plugin_layer(bytes, LIMIT) {
        Ok(layer) => {
            assert_eq!(layer.media_type, WASM_LAYER);
            assert!(layer.size <= LIMIT as u64, "{}", layer.size);
            assert_eq!(artifact::layers(bytes), Ok(vec![layer]));
        }
        Err(error) => shown(&error.to_string()),
    }
}

/// Checks that a signature is added to a list once, and that nothing else in the list changes.
fn index(bytes: &[u8]) {
    if let Err(error) = artifact::listed(bytes) {
        shown(&error.to_string());
    }
    let subject = Descriptor::of(artifact::MANIFEST, b"");
    let signature = Artifact::of_signature(b"envelope".to_vec(), &subject);
    let digest = signature.descriptor().digest;
    match artifact::with_referrer(Some(bytes), &signature) {
        // What nobody reads may be no text.
        Ok(_) if serde_json::from_slice::<Value>(bytes).is_err() => {}
        Ok(more) => {
            let listed = artifact::listed(&more).expect("a list");
            assert_eq!(listed.iter().filter(|entry| entry.digest == digest).count(), 1);
            let others = |list: &[u8]| -> Vec<Value> {
                let list: Value = serde_json::from_slice(list).expect("JSON");
                let entries = list["manifests"].as_array().cloned().unwrap_or_default();
                let own = digest.to_string();
                entries
                    .into_iter()
                    .filter(|entry| entry["digest"] != own.as_str())
                    .collect()
            };
            assert_eq!(others(bytes), others(&more));
        }
        Err(error) => shown(&error.to_string()),
    }
}

/// Checks that a reference has one form, and no part of it leaves its place in a URL.
fn reference(text: &str) {
    match text.parse::<Reference>() {
        Ok(reference) => {
            assert_eq!(reference.to_string().parse(), Ok(reference.clone()));
            let url = format!(
                "https://{}/v2/{}/manifests/{}",
                reference.registry, reference.repository, reference.version
            );
            let parsed: http::Uri = url.parse().expect("a URL");
            assert_eq!(
                parsed.authority().map(http::uri::Authority::as_str),
                Some(reference.registry.as_str())
            );
            assert!(
                parsed.query().is_none() && !parsed.path().contains("/../") && !parsed.path().contains("//"),
                "{url}"
            );
        }
        Err(message) => assert!(!message.is_empty() && message.len() <= 4 * text.len() + LONGEST_MESSAGE),
    }
}
