//! Parses ConversionReviews, and writes their answers.

use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::review::request;
use super::{LONGEST_UID, WORDS};
use crate::conversion::Before;
use operator_host_contract::Kind;
use operator_host_core::json_text;
use operator_host_core::text::shorten;

const API_VERSION: &str = "apiextensions.k8s.io/v1";
/// Maximum number of objects in a review. The API server reads lists in pages of at most 10,000 objects.
const MAX_OBJECTS: usize = 20_000;
/// Longest API version to convert to, in bytes: a group and a version. Messages and the log contain it.
const LONGEST_VERSION: usize = 253 + 1 + 63;

/// A ConversionReview that borrows from the request's body.
#[derive(Debug)]
pub(super) struct ConversionReview<'a> {
    pub(super) uid: String,
    pub(super) to: String,
    pub(super) objects: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
struct Request<'a> {
    uid: String,
    #[serde(rename = "desiredAPIVersion")]
    desired_api_version: String,
    #[serde(borrow)]
    objects: &'a RawValue,
}

/// The objects of a review, at most [`MAX_OBJECTS`]: a list of small values takes more memory than its text.
struct Objects<'a>(Vec<&'a RawValue>);

impl<'de> Deserialize<'de> for Objects<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Self(Vec::new()))
    }
}

impl<'de> Visitor<'de> for Objects<'de> {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of objects")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<Self, A::Error> {
        while let Some(object) = list.next_element()? {
            if self.0.len() == MAX_OBJECTS {
                return Err(A::Error::custom(format!("more than {MAX_OBJECTS} objects")));
            }
            self.0.push(object);
        }
        Ok(self)
    }
}

impl<'a> ConversionReview<'a> {
    /// Parses a review of the supported version.
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, String> {
        let Request {
            uid,
            desired_api_version: to,
            objects,
        } = json_text::object(request(body, API_VERSION)?).map_err(|error| format!("request: {error}"))?;
        // Serde would quote all of a text.
        let objects = Some(objects.get()).filter(|objects| objects.starts_with('['));
        let objects = objects.ok_or("request.objects: it is not a list")?;
        let Objects(objects) =
            serde_json::from_str(objects).map_err(|error| format!("request.objects: {error}"))?;
        if uid.is_empty() || to.is_empty() {
            return Err("`uid` or `desiredAPIVersion` is empty".to_owned());
        }
        for (field, text, most) in [
            ("uid", &uid, LONGEST_UID),
            ("desiredAPIVersion", &to, LONGEST_VERSION),
        ] {
            if text.len() > most {
                return Err(format!("`{field}` is longer than {most} bytes"));
            }
        }
        Ok(Self { uid, to, objects })
    }

    /// Returns the kind of the objects, in the version to convert to; `None` without objects.
    pub(super) fn kind(&self) -> Option<Result<Kind, String>> {
        let first = Before::read(self.objects.first()?.get());
        Some(first.map(|first| Kind::new(self.to.clone(), first.kind)))
    }
}

/// Returns the review with the response, in pieces: the objects, or why they are not converted.
pub(super) fn response(uid: &str, converted: Result<Vec<String>, String>) -> Vec<Bytes> {
    let (objects, result) = match converted {
        Ok(objects) => (objects, json!({ "status": "Success" })),
        Err(message) => {
            // It may quote the request.
            let message = shorten(&message, WORDS);
            (Vec::new(), json!({ "status": "Failure", "message": message }))
        }
    };
    let head = format!(
        "{{\"apiVersion\":\"{API_VERSION}\",\"kind\":\"ConversionReview\",\"response\":{{\"uid\":{},\"result\":{result},\
         \"convertedObjects\":[",
        Value::from(uid)
    );
    let mut pieces = Vec::with_capacity(objects.len() * 2 + 2);
    pieces.push(Bytes::from(head));
    for (index, object) in objects.into_iter().enumerate() {
        if index > 0 {
            pieces.push(Bytes::from_static(b","));
        }
        pieces.push(Bytes::from(object));
    }
    pieces.push(Bytes::from_static(b"]}}"));
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(change: impl FnOnce(&mut Value)) -> Vec<u8> {
        let mut review = json!({
            "apiVersion": API_VERSION, "kind": "ConversionReview",
            "request": { "uid": "1", "desiredAPIVersion": "a.dev/v2", "objects": [
                { "apiVersion": "a.dev/v1", "kind": "Thing", "metadata": { "name": "a" } },
            ] },
        });
        change(&mut review);
        serde_json::to_vec(&review).unwrap()
    }

    #[test]
    fn a_review_is_read_and_answered_with_its_own_uid() {
        let body = review(|_| {});
        let review = ConversionReview::parse(&body).unwrap();
        assert_eq!((review.uid.as_str(), review.to.as_str()), ("1", "a.dev/v2"));
        let kind = review.kind().unwrap().unwrap();
        assert_eq!(kind.to_string(), "a.dev/v2/Thing");
        let objects = vec!["{\"a\":1}".to_owned(), "{}".to_owned()];
        let answer: Value = serde_json::from_slice(&response("1\"", Ok(objects)).concat()).unwrap();
        assert_eq!(
            answer["response"],
            json!({ "uid": "1\"", "result": { "status": "Success" }, "convertedObjects": [{ "a": 1 }, {}] })
        );
        let failed: Value =
            serde_json::from_slice(&response("1", Err("no \"b\"".to_owned())).concat()).unwrap();
        let result = json!({ "status": "Failure", "message": "no \"b\"" });
        let expected = json!({ "uid": "1", "result": result, "convertedObjects": [] });
        assert_eq!(failed["response"], expected);
    }

    #[test]
    fn what_is_no_review_is_refused() {
        for (pointer, other, expected) in [
            ("/apiVersion", json!("v1beta1"), "v1beta1"),
            ("/request/uid", json!(""), "is empty"),
            ("/request/objects", json!({}), "request.objects: it is not a list"),
            ("/request", Value::Null, "missing field `request`"),
        ] {
            let body = review(|review| *review.pointer_mut(pointer).unwrap() = other);
            let error = ConversionReview::parse(&body).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let many = |count| review(|review| review["request"]["objects"] = vec![0; count].into());
        assert!(ConversionReview::parse(&many(MAX_OBJECTS)).is_ok());
        let error = ConversionReview::parse(&many(MAX_OBJECTS + 1)).unwrap_err();
        assert!(error.contains("more than 20000 objects"), "{error}");
        let none = review(|review| review["request"]["objects"] = json!([]));
        assert!(ConversionReview::parse(&none).unwrap().kind().is_none());
        let strange = review(|review| review["request"]["objects"][0] = json!("text"));
        let strange = ConversionReview::parse(&strange).unwrap();
        assert!(strange.kind().unwrap().is_err());
    }
}
