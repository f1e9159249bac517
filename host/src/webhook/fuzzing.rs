//! The webhook without its server, for fuzz targets. No interface for anybody else.

use kube::core::DynamicObject;
use serde_json::Value;

use super::review::{self, Review};
use super::{Verdict, server, weigh};

/// A review that was understood.
#[derive(Debug, PartialEq)]
pub struct Reviewed {
    /// What the API server knows it by.
    pub uid: String,
    /// The group and the kind of what is written.
    pub kind: (String, String),
    /// Its namespace, or nothing.
    pub namespace: String,
    /// Its name, or nothing.
    pub name: String,
    /// What the plugin would be asked about; `None`: it is allowed without asking.
    pub asked: Option<Asked>,
}

/// An object that the plugin would be asked about.
#[derive(Debug, PartialEq)]
pub struct Asked {
    /// As it came.
    pub text: String,
    /// Bytes for which there must be room before a tree of it is made.
    pub room: usize,
    /// The object, or why there is none.
    pub object: Result<DynamicObject, String>,
}

/// What becomes of a request's body before the plugin is asked.
///
/// # Errors
/// Why it is no review, or too large to be looked at.
pub fn review(body: &[u8]) -> Result<Reviewed, String> {
    let review = Review::parse(body).map_err(|error| error.to_string())?;
    let asked = review.asked_about().map(|text| {
        let room = weigh(text).map_err(|error| error.public)?;
        let object = review::object(text).map_err(|error| error.to_string());
        let text = text.to_owned();
        Ok::<_, String>(Asked { text, room, object })
    });
    Ok(Reviewed {
        asked: asked.transpose()?,
        uid: review.uid,
        kind: (review.group, review.kind),
        namespace: review.namespace,
        name: review.name,
    })
}

/// What the API server gets when the resource is allowed, or denied in these words.
#[must_use]
pub fn answer(uid: &str, denied: Option<&str>) -> Value {
    let verdict = denied.map_or(Verdict::Allowed, |message| Verdict::Denied(message.to_owned()));
    server::response(uid, &verdict)
}
