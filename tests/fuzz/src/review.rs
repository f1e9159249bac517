//! What is sent to the webhook: refused in words, or understood as a second reader understands it, and answered under its
//! own UID; the tree of an object takes no more memory than room was made for.

use kube::core::DynamicObject;
use operator_host::webhook::fuzzing::{Asked, Reviewed, answer, review};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

/// What is said of a body goes back to its sender.
const LONGEST_MESSAGE: usize = 16 << 10;

pub(crate) fn run(bytes: &[u8]) {
    let second = std::str::from_utf8(bytes)
        .ok()
        .and_then(|text| serde_json::from_str::<Second>(text).ok());
    match review(bytes) {
        Ok(reviewed) => {
            held(&reviewed, bytes);
            answered(&reviewed.uid);
            if let Some(asked) = &reviewed.asked {
                object(asked);
            }
            if let Some(second) = second {
                agree(&reviewed, second);
            }
        }
        Err(message) => {
            assert!(
                !message.is_empty() && message.len() <= LONGEST_MESSAGE,
                "{message}"
            );
            assert!(!second.is_some_and(|second| second.is_review()), "{message}");
        }
    }
}

/// Nothing that is held of a body is longer than it.
fn held(reviewed: &Reviewed, body: &[u8]) {
    let (group, kind) = &reviewed.kind;
    let texts = [&reviewed.uid, group, kind, &reviewed.namespace, &reviewed.name];
    let asked = reviewed.asked.as_ref().map_or(0, |asked| asked.text.len());
    let held = texts.map(String::len).iter().sum::<usize>() + asked;
    assert!(held <= body.len(), "{held} of {}", body.len());
    assert!(!reviewed.uid.is_empty() && !kind.is_empty());
}

fn answered(uid: &str) {
    for denied in [None, Some("too small: \"3\"\n")] {
        let text = answer(uid, denied).to_string();
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
        assert_eq!(answer["kind"], "AdmissionReview");
        assert_eq!(answer["response"]["uid"], uid);
        assert_eq!(answer["response"]["allowed"], denied.is_none());
        assert_eq!(answer["response"]["status"]["message"].as_str(), denied);
    }
}

/// The object is what kube reads in its text, and takes no more than there is room for.
fn object(asked: &Asked) {
    match &asked.object {
        Ok(object) => {
            let taken = tree(&object.data);
            assert!(taken <= asked.room, "{taken} bytes, and room for {}", asked.room);
            if let Ok(second) = serde_json::from_str::<DynamicObject>(&asked.text)
                && second.types.is_some()
            {
                assert_eq!(*object, second);
            }
        }
        Err(message) => assert!(!message.is_empty()),
    }
}

/// The bytes that a tree takes: of a map its leaves, of lists and texts what they have room for.
fn tree(value: &Value) -> usize {
    let own = size_of::<Value>();
    match value {
        Value::Object(map) => {
            let leaf = 11 * (size_of::<String>() + own) + 16;
            let entries = map.iter().map(|(key, value)| key.capacity() + tree(value) - own);
            own + map.len().div_ceil(5) * leaf + entries.sum::<usize>()
        }
        Value::Array(list) => {
            let values = list.iter().map(|value| tree(value) - own);
            own + list.capacity() * own + values.sum::<usize>()
        }
        Value::String(text) => own + text.capacity(),
        _ => own,
    }
}

/// An AdmissionReview as serde reads it whole. What has a field twice is none for it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Second {
    api_version: String,
    request: Request,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    uid: String,
    kind: GroupKind,
    operation: String,
    sub_resource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    object: Option<Object>,
    old_object: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct GroupKind {
    group: String,
    kind: String,
}

#[derive(Deserialize)]
struct Object {
    metadata: Option<Metadata>,
    #[serde(flatten)]
    _rest: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    deletion_timestamp: Option<IgnoredAny>,
    #[serde(flatten)]
    _rest: Map<String, Value>,
}

impl Second {
    fn is_review(&self) -> bool {
        let Request {
            uid, kind, operation, ..
        } = &self.request;
        self.api_version == "admission.k8s.io/v1"
            && ![uid, &kind.kind, operation].iter().any(|text| text.is_empty())
    }
}

fn agree(reviewed: &Reviewed, second: Second) {
    assert!(second.is_review());
    let request = second.request;
    assert_eq!(reviewed.uid, request.uid);
    assert_eq!(reviewed.kind, (request.kind.group, request.kind.kind));
    assert_eq!(reviewed.namespace, request.namespace.unwrap_or_default());
    assert_eq!(reviewed.name, request.name.unwrap_or_default());
    let writes = ["CREATE", "UPDATE"].contains(&request.operation.as_str());
    let whole = request.sub_resource.unwrap_or_default().is_empty();
    let stays = request.object.is_some_and(|object| {
        object
            .metadata
            .is_none_or(|metadata| metadata.deletion_timestamp.is_none())
    });
    let asks = writes && whole && stays;
    match request.old_object {
        // Whether anything changed is told by the texts.
        Some(_) => assert!(asks || reviewed.asked.is_none()),
        None => assert_eq!(reviewed.asked.is_some(), asks),
    }
}
