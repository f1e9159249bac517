//! Parts of the webhook without its server, for fuzz targets only.

use serde_json::Value;

use super::bounds::Sizes;
use super::conversion_review::ConversionReview;
use super::review::Review;
use super::{Decision, memory_of, server};
use crate::conversion::Before;

/// A parsed review.
#[derive(Debug, PartialEq)]
pub struct Reviewed {
    /// The UID of the request.
    pub uid: String,
    /// The group and the kind of the resource.
    pub kind: (String, String),
    /// Its namespace; empty if it has none.
    pub namespace: String,
    /// Its name; empty if it has none.
    pub name: String,
    /// The object to ask the plugin about; `None` when it is allowed without asking.
    pub asked: Option<Asked>,
}

/// An object to ask the plugin about.
#[derive(Debug, PartialEq)]
pub struct Asked {
    /// Its text, as received.
    pub text: String,
    /// Bytes of memory to reserve before it is parsed.
    pub room: usize,
    /// The object for the plugin, or the error.
    pub object: Result<String, String>,
}

/// Processes a request's body up to the call of the plugin.
///
/// # Errors
/// Why it is not a review, or is too large.
pub fn review(body: &[u8]) -> Result<Reviewed, String> {
    let review = Review::parse(body)?;
    let asked = review.asked_about().map(|text| {
        let room = memory_of([Some(text), None], Sizes::FULL.object).map_err(|error| error.public)?;
        let object = Before::read(text).map(|object| object.for_plugin(None).to_string());
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

/// Returns the response that allows the resource, or denies it with this message.
pub fn answer(uid: &str, denied: Option<&str>) -> Value {
    let decision = denied.map_or(Decision::Allowed, |message| Decision::Denied(message.to_owned()));
    server::response(uid, &decision)
}

/// Returns the UID of a request for a conversion, the version to convert to, and the texts of the objects.
///
/// # Errors
/// Why it is not a ConversionReview.
pub fn conversion(body: &[u8]) -> Result<(String, String, Vec<&str>), String> {
    let review = ConversionReview::parse(body)?;
    let objects = review.objects.iter().map(|object| object.get()).collect();
    Ok((review.uid, review.to, objects))
}

/// Returns the answer to a request for a conversion.
pub fn conversion_answer(uid: &str, converted: Result<Vec<String>, String>) -> Vec<u8> {
    super::conversion_review::response(uid, converted).concat()
}
