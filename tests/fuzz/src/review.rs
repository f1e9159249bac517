//! Reviews for the webhook: refused with a message, or parsed like a second implementation does, and answered with
//! their own UID. A parsed object takes no more memory than was reserved.

use operator_host_webhook::fuzzing::{Asked, Reviewed, answer, review};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

/// Maximum length of an error, which is returned to the caller.
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

/// Checks that nothing kept of a body is longer than the body.
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

/// Checks that the plugin gets the same object, but for its managed fields, and that it takes no more memory than reserved.
fn object(asked: &Asked) {
    match &asked.object {
        Ok(object) => {
            assert!(object.len() <= asked.text.len());
            let (Ok(object), Ok(mut second)) =
                (serde_json::from_str(object), serde_json::from_str(&asked.text))
            else {
                // It is nested too deep for this.
                return;
            };
            let taken = tree(&object);
            assert!(taken <= asked.room, "{taken} bytes, and room for {}", asked.room);
            let metadata: Option<&mut Map<String, Value>> =
                Value::as_object_mut(&mut second).and_then(|it| it.get_mut("metadata")?.as_object_mut());
            metadata.and_then(|metadata| metadata.remove("managedFields"));
            assert_eq!(object, second);
        }
        Err(message) => assert!(!message.is_empty()),
    }
}

/// Returns the memory of a parsed value in bytes: the leaves of maps, and the capacity of lists and strings.
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

/// An AdmissionReview as parsed completely by serde, which refuses duplicate fields.
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
            && uid.len() <= 253
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
        // Changes are detected by comparing the text.
        Some(_) => assert!(asks || reviewed.asked.is_none()),
        None => assert_eq!(reviewed.asked.is_some(), asks),
    }
}
