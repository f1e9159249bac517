//! Conversion of objects between the versions of their kind, with the `convert` of a plugin.
//!
//! The objects stay text. Only what identifies an object, its labels and its annotations are read. The plugin gets them
//! in a few calls of limited size. The host checks its answer as kube-apiserver does, but names the object that is
//! wrong, and restores the metadata that a conversion may not change.

mod checks;
mod there_and_back;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::time::Instant;

use operator_host_contract::{Conversion, Converted, Kind};
use operator_host_core::text::shorten;
use operator_host_engine::calls::Calls;
use operator_host_runtime::{Call, CallError, Plugin, RandomSource};

pub use self::checks::Before;
pub(crate) use self::checks::json;
pub use self::there_and_back::{Lost, there_and_back};

/// Bytes of the objects in one call of a plugin, if there is more than one object.
const BATCH_BYTES: usize = 512 << 10;
/// Objects in one call of a plugin.
const BATCH_OBJECTS: usize = 500;
/// Longest message about a conversion that failed, in bytes.
const MESSAGE: usize = 2048;

/// Why objects are not converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConversionError {
    /// The plugin does not convert a version.
    #[error("{0}")]
    UnknownVersion(String),
    /// An object is not a Kubernetes object, the plugin cannot convert it, or its answer for it is wrong.
    #[error("{0}")]
    Refused(String),
    /// The call failed.
    #[error("{}`convert` of the plugin {plugin} failed: {error}", cannot(object.as_deref()))]
    Call {
        /// The object and the version, such as `Shop default/a to example.com/v1`; `None`: there were several objects.
        object: Option<String>,
        /// The plugin's name and version.
        plugin: String,
        /// Why.
        error: Box<CallError>,
    },
}

impl ConversionError {
    /// Returns the message without the plugin's output, except its reasons for single objects.
    pub fn public_message(&self) -> String {
        match self {
            Self::Call { object, plugin, .. } => format!(
                "{}`convert` of the plugin {plugin} failed: the host's log says why",
                cannot(object.as_deref())
            ),
            error => error.to_string(),
        }
    }

    /// Reports whether the host is the cause, so that nothing is known about the plugin.
    pub fn is_of_host(&self) -> bool {
        matches!(self, Self::Call { error, .. } if error.is_of_host())
    }
}

fn cannot(object: Option<&str>) -> String {
    object.map_or_else(String::new, |object| format!("cannot convert {object}: "))
}

/// What a conversion is for.
#[derive(Clone, Copy)]
pub enum Purpose<'a> {
    /// A request of the API server, which waits until this time.
    Request(&'a Calls, Instant),
    /// The proof of a version: the calls wait for their turn as long as it takes, and log nothing.
    Proof,
}

/// Converts objects of one kind to a version, such as `example.com/v1`, each in its place, if the converted objects
/// together have at most `room` bytes.
///
/// # Errors
/// When one of them cannot be converted, and when they are larger. The message names the object if it is found in time.
pub async fn convert(
    purpose: Purpose<'_>,
    plugin: &Plugin,
    to: &str,
    objects: &[&RawValue],
    room: usize,
) -> Result<Vec<String>, ConversionError> {
    let mut converter = Converter {
        purpose,
        plugin,
        to,
        room,
    };
    let mut converted = Vec::with_capacity(objects.len());
    let mut rest = objects;
    while !rest.is_empty() {
        let (batch, after) = rest.split_at(batch(rest));
        let first = objects.len() - rest.len();
        converted.extend(converter.batch(batch, first).await?);
        rest = after;
    }
    Ok(converted)
}

/// Returns the number of objects for the next call, at least one.
fn batch(objects: &[&RawValue]) -> usize {
    let mut bytes = 0;
    let fit = objects.iter().take(BATCH_OBJECTS).take_while(|object| {
        bytes += object.get().len();
        bytes <= BATCH_BYTES
    });
    fit.count().max(1)
}

/// A conversion under way.
struct Converter<'a> {
    purpose: Purpose<'a>,
    plugin: &'a Plugin,
    to: &'a str,
    /// The bytes that the other converted objects may have.
    room: usize,
}

impl Converter<'_> {
    /// Converts objects in as many calls as they have versions.
    async fn batch(&mut self, objects: &[&RawValue], first: usize) -> Result<Vec<String>, ConversionError> {
        let mut by_version = BTreeMap::<String, Vec<(usize, Before<'_>)>>::new();
        for (index, object) in objects.iter().enumerate() {
            let before = Before::read(object.get()).map_err(|why| {
                ConversionError::Refused(format!("objects[{}] of the request: {why}", first + index))
            })?;
            for api_version in [before.api_version.as_str(), self.to] {
                self.check_version(&before.kind, api_version)?;
            }
            let same = by_version.entry(before.api_version.clone()).or_default();
            same.push((index, before));
        }
        let mut converted = vec![String::new(); objects.len()];
        for (api_version, same) in &by_version {
            let texts = if api_version == self.to {
                let texts = same.iter();
                let texts = texts.map(|(_, before)| self.take(before, before.text.to_owned()));
                texts.collect::<Result<_, _>>()?
            } else {
                let same: Vec<&Before<'_>> = same.iter().map(|(_, before)| before).collect();
                self.same(&same).await?
            };
            for ((index, _), text) in same.iter().zip(texts) {
                if let Some(place) = converted.get_mut(*index) {
                    *place = text;
                }
            }
        }
        Ok(converted)
    }

    /// Converts objects of one version. If the call fails for all of them, each is converted in a call of its own: so the
    /// message names the object that makes it fail.
    async fn same(&mut self, same: &[&Before<'_>]) -> Result<Vec<String>, ConversionError> {
        let failed = match self.call(same).await {
            Err(error @ ConversionError::Call { .. }) if same.len() > 1 && !error.is_of_host() => error,
            converted => return converted,
        };
        let Purpose::Request(_, until) = self.purpose else {
            return Err(failed);
        };
        let each = async {
            let mut converted = Vec::with_capacity(same.len());
            for before in same {
                converted.extend(self.call(&[*before]).await?);
            }
            Ok(converted)
        };
        tokio::time::timeout_at(until, each).await.unwrap_or(Err(failed))
    }

    /// Converts objects of one version in one call.
    async fn call(&mut self, same: &[&Before<'_>]) -> Result<Vec<String>, ConversionError> {
        let (plugin, to) = (self.plugin, self.to);
        let name = plugin.description().name_and_version();
        let conversion = Arc::new(Conversion {
            api_version: to.to_owned(),
            objects: same.iter().map(|before| before.for_plugin(None)).collect(),
        });
        let (outcome, share) = match self.purpose {
            Purpose::Request(calls, _) => calls.convert(plugin, &conversion).await,
            Purpose::Proof => {
                let Call { outcome, share, .. } =
                    plugin.proving(RandomSource::First).convert(&conversion).await;
                (outcome, share)
            }
        };
        let object = match same {
            [one] => Some(format!("{} to {to}", shorten(&one.full_name(), MESSAGE))),
            _ => None,
        };
        let results = outcome.map_err(|error| ConversionError::Call {
            object,
            plugin: name.clone(),
            error: Box::new(error),
        })?;
        let mut converted = Vec::with_capacity(same.len());
        for (before, result) in same.iter().zip(&results) {
            let text = match result {
                Converted::Object(object) => before.restore(object.get(), to).map_err(|why| {
                    before.refused(to, &format!("the answer of the plugin {name} is wrong: {why}"))
                })?,
                Converted::Error(message) => return Err(before.refused(to, message)),
            };
            converted.push(self.take(before, text)?);
        }
        drop(share);
        Ok(converted)
    }

    /// Returns a converted object if there is room for it.
    fn take(&mut self, before: &Before<'_>, text: String) -> Result<String, ConversionError> {
        let rest = self.room.checked_sub(text.len()).ok_or_else(|| {
            let why = "the converted objects are more than twice as large as the request; ask for fewer objects at a time \
                       (`limit`)";
            before.refused(self.to, why)
        })?;
        self.room = rest;
        Ok(text)
    }

    /// Checks that the plugin converts this version of the kind.
    fn check_version(&self, kind: &str, api_version: &str) -> Result<(), ConversionError> {
        let description = self.plugin.description();
        let (asked, own) = (Kind::new(api_version, kind), &description.parent);
        let mut versions = description.versions.iter();
        if asked.is_version_of(own) && versions.any(|version| version == asked.version()) {
            return Ok(());
        }
        let versions = match description.versions.is_empty() {
            true => "no versions".to_owned(),
            false => format!("{} of {}", description.versions.join(", "), own.kind),
        };
        let message = format!(
            "the plugin {} converts {versions}, not {asked}: does the CustomResourceDefinition belong to another version of \
             the plugin?",
            description.name_and_version()
        );
        Err(ConversionError::UnknownVersion(shorten(&message, MESSAGE)))
    }
}

impl Before<'_> {
    fn refused(&self, to: &str, why: &str) -> ConversionError {
        let message = format!("cannot convert {} to {to}: {why}", self.full_name());
        ConversionError::Refused(shorten(&message, MESSAGE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_gets_a_limited_part_of_the_objects_and_at_least_one() {
        let texts = |count: usize, bytes: usize| -> Vec<Box<RawValue>> {
            let text = format!("\"{}\"", "x".repeat(bytes));
            (0..count)
                .map(|_| RawValue::from_string(text.clone()).unwrap())
                .collect()
        };
        for (count, bytes, expected) in [
            (10, 10, 10),
            (2000, 10, BATCH_OBJECTS),
            (9, 100 << 10, 5),
            (2, 1 << 20, 1),
        ] {
            let texts = texts(count, bytes);
            let objects: Vec<&RawValue> = texts.iter().map(AsRef::as_ref).collect();
            assert_eq!(batch(&objects), expected);
        }
    }
}
