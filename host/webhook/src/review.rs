//! Parses admission reviews. Of an object only the fields needed for a decision are read from its text; it is
//! parsed completely only when the plugin is called, since the parsed form can be a hundred times as large.

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::LONGEST_UID;
use operator_host_core::json_text;
use operator_host_core::text::shorten;

const API_VERSION: &str = "admission.k8s.io/v1";
/// How much of another version a message quotes, in bytes.
const QUOTED: usize = 63;

/// A review that borrows from the request's body.
#[derive(Debug, PartialEq)]
pub(super) struct Review<'a> {
    pub(super) uid: String,
    pub(super) group: String,
    pub(super) kind: String,
    /// The version in which the user wrote the object; the API server converts it to the version of the webhook's rules.
    pub(super) written_version: Option<String>,
    pub(super) operation: String,
    pub(super) subresource: String,
    pub(super) namespace: String,
    pub(super) name: String,
    object: Option<&'a str>,
    old_object: Option<&'a str>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawReview<'a> {
    api_version: String,
    #[serde(borrow)]
    request: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request<'a> {
    uid: String,
    #[serde(borrow)]
    kind: &'a RawValue,
    #[serde(borrow)]
    request_kind: Option<&'a RawValue>,
    operation: String,
    sub_resource: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    #[serde(borrow)]
    object: Option<&'a RawValue>,
    #[serde(borrow)]
    old_object: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct GroupKind {
    group: String,
    kind: String,
}

#[derive(Deserialize)]
struct Version {
    version: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Going {
    deletion_timestamp: Option<IgnoredAny>,
}

/// Returns the request in the body of a review of this version.
pub(super) fn request<'a>(body: &'a [u8], expected: &str) -> Result<&'a str, String> {
    let text = std::str::from_utf8(body).map_err(|error| error.to_string())?;
    let RawReview { api_version, request } = json_text::object(text)?;
    if api_version != expected {
        let found = shorten(&api_version, QUOTED);
        return Err(format!("`apiVersion` is {found:?}, expected {expected}"));
    }
    let request = request.ok_or("missing field `request`")?;
    Ok(request.get())
}

impl<'a> Review<'a> {
    /// Parses a review of the supported version. An error contains no output of the plugin.
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, String> {
        let request: Request<'a> =
            json_text::object(request(body, API_VERSION)?).map_err(|error| format!("request: {error}"))?;
        let GroupKind { group, kind } =
            json_text::object(request.kind.get()).map_err(|error| format!("request.kind: {error}"))?;
        let written = request.request_kind.map(|kind| json_text::object(kind.get()));
        let written: Option<Version> = written.and_then(Result::ok);
        let object = |value: Option<&'a RawValue>| {
            let text = value.map(RawValue::get);
            text.filter(|text| text.starts_with('{'))
        };
        for (field, text) in [
            ("uid", &request.uid),
            ("kind", &kind),
            ("operation", &request.operation),
        ] {
            if text.is_empty() {
                return Err(format!("`{field}` is empty"));
            }
        }
        if request.uid.len() > LONGEST_UID {
            return Err(format!("`uid` is longer than {LONGEST_UID} bytes"));
        }
        Ok(Self {
            uid: request.uid,
            group,
            kind,
            written_version: written.map(|kind| kind.version),
            operation: request.operation,
            subresource: request.sub_resource.unwrap_or_default(),
            namespace: request.namespace.unwrap_or_default(),
            name: request.name.unwrap_or_default(),
            object: object(request.object),
            old_object: object(request.old_object),
        })
    }

    /// Returns the object if the plugin must be asked about it: not when the resource is being deleted or its
    /// desired state is unchanged. Otherwise the finalizers of a resource from before the webhook could not be
    /// removed.
    pub(super) fn asked_about(&self) -> Option<&'a str> {
        let writes = matches!(self.operation.as_str(), "CREATE" | "UPDATE") && self.subresource.is_empty();
        let object = self.object.filter(|_| writes && !self.is_going())?;
        let wanted = self.old_object.and_then(wants);
        let same = wanted.is_some_and(|wanted| Some(wanted) == wants(object));
        (!same).then_some(object)
    }

    /// Returns the object that an update would replace, unless it was written in another version of its kind.
    pub(super) fn replaced(&self) -> Option<&'a str> {
        self.old_object.filter(|_| self.operation == "UPDATE")
    }

    fn is_going(&self) -> bool {
        let going = || {
            let members = json_text::members(self.object?).ok()?;
            json_text::object(members.get("metadata")?.get()).ok()
        };
        going().is_some_and(|going: Going| going.deletion_timestamp.is_some())
    }
}

/// Returns the parts of a resource that the user controls, as text: the API server serializes equal objects
/// identically. `None` when it has more than can be compared.
fn wants(object: &str) -> Option<Vec<(String, &str)>> {
    let mut object = json_text::members(object).ok()?;
    object.remove("status");
    let metadata = object
        .remove("metadata")
        .map(|metadata| json_text::members(metadata.get()));
    let metadata = metadata.transpose().ok()?.into_iter().flatten();
    let controlled = metadata.filter(|(key, _)| matches!(key.as_str(), "labels" | "annotations"));
    let wants = object.into_iter().chain(controlled);
    Some(wants.map(|(key, value)| (key, value.get())).collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn body(operation: &str, old: &Value, new: &Value, subresource: &str) -> Vec<u8> {
        let object = |value: &Value| {
            let mut object = json!({"apiVersion": "a.dev/v1", "kind": "Thing", "metadata": {"name": "a"}});
            for (key, value) in value.as_object()? {
                object[key] = value.clone();
            }
            Some(object)
        };
        let review = json!({"apiVersion": API_VERSION, "kind": "AdmissionReview", "request": {
            "uid": "1", "kind": {"group": "a.dev", "version": "v1", "kind": "Thing"}, "name": "a", "operation": operation,
            "userInfo": {"username": "u"}, "subResource": subresource, "object": object(new), "oldObject": object(old),
        }});
        serde_json::to_vec_pretty(&review).unwrap()
    }

    fn is_asked(operation: &str, old: &Value, new: &Value, subresource: &str) -> bool {
        let body = body(operation, old, new, subresource);
        Review::parse(&body).unwrap().asked_about().is_some()
    }

    #[test]
    fn only_a_change_of_what_the_user_wants_is_asked_about() {
        let spec = |n: u32| json!({"spec": {"n": n}});
        assert!(is_asked("CREATE", &Value::Null, &spec(1), ""));
        assert!(is_asked("UPDATE", &spec(1), &spec(2), ""));
        let labelled = json!({"metadata": {"name": "a", "labels": {"a": "b"}}, "spec": {"n": 1}});
        assert!(is_asked("UPDATE", &spec(1), &labelled, ""));

        assert!(!is_asked("UPDATE", &spec(1), &spec(1), ""));
        let status = json!({"spec": {"n": 1}, "status": {"n": 2}});
        assert!(!is_asked("UPDATE", &spec(1), &status, ""));
        assert!(!is_asked("UPDATE", &spec(2), &status, "status"));
        let finalizer = json!({"metadata": {"name": "a", "finalizers": ["a/b"]}, "spec": {"n": 1}});
        assert!(!is_asked("UPDATE", &finalizer, &spec(1), ""));
        let going =
            json!({"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "spec": {"n": 1}});
        assert!(!is_asked("UPDATE", &spec(2), &going, ""));
        assert!(!is_asked("DELETE", &spec(1), &Value::Null, ""));
    }

    #[test]
    fn a_review_is_read_whatever_it_contains() {
        let odd = json!({"spec": {"text": "a \"}],: \\", "list": [1, [], {"": {}}], "n": -1.5e3, "no": null, "ja": true}});
        let body = body("CREATE", &Value::Null, &odd, "");
        let review = Review::parse(&body).unwrap();
        let known = (
            review.uid.as_str(),
            review.group.as_str(),
            review.kind.as_str(),
            review.name.as_str(),
        );
        assert_eq!(known, ("1", "a.dev", "Thing", "a"));
        let made: Value = serde_json::from_str(review.asked_about().unwrap()).unwrap();
        assert_eq!((&made["spec"], &made["kind"]), (&odd["spec"], &json!("Thing")));
    }

    #[test]
    fn what_is_no_review_is_refused() {
        for (body, expected) in [
            ("", "not a JSON object"),
            ("[]", "not a JSON object"),
            ("{}", "`apiVersion`"),
            (r#"{"apiVersion": "admission.k8s.io/v1beta1"}"#, "v1beta1"),
            (
                r#"{"apiVersion": "admission.k8s.io/v1", "request": 1}"#,
                "request: it is not",
            ),
            (
                r#"{"apiVersion": "admission.k8s.io/v1", "request": {"uid": {}}}"#,
                "expected a string",
            ),
            (
                r#"{"apiVersion": "admission.k8s.io/v1", "request": {"uid": "1""#,
                "EOF",
            ),
        ] {
            let error = Review::parse(body.as_bytes()).unwrap_err();
            assert!(error.contains(expected), "{body}: {error}");
        }
        let deep = format!("{{\"spec\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
        let review = format!("{{\"apiVersion\": \"{API_VERSION}\", \"request\": {{\"object\": {deep}}}}}");
        let error = Review::parse(review.as_bytes()).unwrap_err();
        assert!(error.contains("missing field `uid`"), "{error}");
    }

    /// Regression: an answer quoted the version, each byte as `\u{7f}`, and repeated any UID.
    #[test]
    fn what_is_refused_is_quoted_in_a_few_words_however_long_it_is() {
        let long = "\u{7f}".repeat(3 << 20);
        let valid = json!({"apiVersion": API_VERSION, "request": {
            "uid": "1", "kind": {"group": "a.dev", "kind": "Thing"}, "operation": "CREATE",
        }});
        for (place, expected) in [
            ("/apiVersion", "`apiVersion` is \"\\u{7f}"),
            ("/request", "request: it is not"),
            ("/request/uid", "`uid` is longer than 253 bytes"),
            ("/request/kind", "request.kind: it is not"),
        ] {
            let mut review = valid.clone();
            *review.pointer_mut(place).unwrap() = long.as_str().into();
            let error = Review::parse(review.to_string().as_bytes()).unwrap_err();
            assert!(
                error.contains(expected) && error.len() < 1000,
                "{place}: {} bytes",
                error.len()
            );
        }
        let with = |uid: &str| {
            let mut review = valid.clone();
            review["request"]["uid"] = uid.into();
            Review::parse(review.to_string().as_bytes()).map(|review| review.uid)
        };
        let longest = "u".repeat(LONGEST_UID);
        assert_eq!(with(&longest), Ok(longest.clone()));
        assert!(
            with(&(longest + "u"))
                .unwrap_err()
                .contains("longer than 253 bytes")
        );
    }
}
