//! Parses ConversionReviews, and writes their answers.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::conversion::Before;
use crate::plugin::contract::Kind;

const API_VERSION: &str = "apiextensions.k8s.io/v1";

/// A ConversionReview that borrows from the request's body.
#[derive(Debug)]
pub(super) struct ConversionReview<'a> {
    pub(super) uid: String,
    pub(super) to: String,
    pub(super) objects: Vec<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawReview<'a> {
    api_version: String,
    #[serde(borrow)]
    request: RawRequest<'a>,
}

#[derive(Deserialize)]
struct RawRequest<'a> {
    uid: String,
    #[serde(rename = "desiredAPIVersion")]
    desired_api_version: String,
    #[serde(borrow)]
    objects: Vec<&'a RawValue>,
}

impl<'a> ConversionReview<'a> {
    /// Parses a review.
    ///
    /// # Errors
    /// When the body is not a review of the supported version.
    pub(super) fn parse(body: &'a [u8]) -> Result<Self, String> {
        let review: RawReview<'a> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        if review.api_version != API_VERSION {
            return Err(format!(
                "`apiVersion` is {:?}, expected {API_VERSION}",
                review.api_version
            ));
        }
        let RawRequest {
            uid,
            desired_api_version: to,
            objects,
        } = review.request;
        if uid.is_empty() || to.is_empty() {
            return Err("`uid` or `desiredAPIVersion` is empty".to_owned());
        }
        Ok(Self { uid, to, objects })
    }

    /// Returns the kind of the objects, in the version to convert to; `None` without objects.
    pub(super) fn kind(&self) -> Option<Result<Kind, String>> {
        let first = Before::read(self.objects.first()?.get());
        Some(first.map(|first| Kind {
            api_version: self.to.clone(),
            kind: first.kind,
        }))
    }
}

/// Returns the review with the response: the objects, or why they are not converted.
pub(super) fn response(uid: &str, converted: Result<&[String], &str>) -> Vec<u8> {
    let (objects, result) = match converted {
        Ok(objects) => (objects, json!({ "status": "Success" })),
        Err(message) => (
            &[] as &[String],
            json!({ "status": "Failure", "message": message }),
        ),
    };
    let head = format!(
        "{{\"apiVersion\":\"{API_VERSION}\",\"kind\":\"ConversionReview\",\"response\":{{\"uid\":{},\"result\":{result},\
         \"convertedObjects\":[",
        Value::from(uid)
    );
    let size = objects.iter().map(|object| object.len() + 1).sum::<usize>();
    let mut text = Vec::with_capacity(head.len() + size + 3);
    text.extend_from_slice(head.as_bytes());
    for (index, object) in objects.iter().enumerate() {
        if index > 0 {
            text.push(b',');
        }
        text.extend_from_slice(object.as_bytes());
    }
    text.extend_from_slice(b"]}}");
    text
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
        let objects = ["{\"a\":1}".to_owned(), "{}".to_owned()];
        let answer: Value = serde_json::from_slice(&response("1\"", Ok(&objects))).unwrap();
        assert_eq!(
            answer["response"],
            json!({ "uid": "1\"", "result": { "status": "Success" }, "convertedObjects": [{ "a": 1 }, {}] })
        );
        let failed: Value = serde_json::from_slice(&response("1", Err("no \"b\""))).unwrap();
        let result = json!({ "status": "Failure", "message": "no \"b\"" });
        assert_eq!(
            failed["response"],
            json!({ "uid": "1", "result": result, "convertedObjects": [] })
        );
    }

    #[test]
    fn what_is_no_review_is_refused() {
        for (change, expected) in [
            (
                Box::new(|review: &mut Value| review["apiVersion"] = "v1beta1".into())
                    as Box<dyn Fn(&mut Value)>,
                "v1beta1",
            ),
            (
                Box::new(|review| review["request"]["uid"] = "".into()),
                "is empty",
            ),
            (
                Box::new(|review| review["request"]["objects"] = json!({})),
                "invalid type",
            ),
            (Box::new(|review| review["request"] = Value::Null), "invalid type"),
        ] {
            let error = ConversionReview::parse(&review(change)).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let none = review(|review| review["request"]["objects"] = json!([]));
        assert!(ConversionReview::parse(&none).unwrap().kind().is_none());
        let strange = review(|review| review["request"]["objects"][0] = json!("text"));
        assert!(
            ConversionReview::parse(&strange)
                .unwrap()
                .kind()
                .unwrap()
                .is_err()
        );
    }
}
