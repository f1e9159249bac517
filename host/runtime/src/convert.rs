//! Between the WIT records and the contract's types: the Kubernetes objects in them from and to JSON text.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::bindings::operator_host::plugin::types as wit;
use crate::call::CallError;
use crate::contract::{
    CleanupResponse, Condition, ConditionStatus, Description, Event, EventType, Failure, GeneratedSecret,
    GeneratedValue, Kind, Need, ObjectRef, Request, Response,
};

/// The request as a record, and the bytes of JSON in it.
pub(crate) fn request(request: &Request) -> Result<(wit::Request, usize), serde_json::Error> {
    let mut size = 0;
    let mut text = |object: &_| -> Result<String, serde_json::Error> {
        let text = to_json(object)?;
        size += text.len();
        Ok(text)
    };
    let record = wit::Request {
        parent: text(&request.parent)?,
        children: request.children.iter().map(&mut text).collect::<Result<_, _>>()?,
        related: request
            .related
            .iter()
            .map(|related| {
                let objects = related.objects.iter().map(&mut text).collect::<Result<_, _>>()?;
                Ok(wit::Related {
                    id: related.id.clone(),
                    objects,
                })
            })
            .collect::<Result<_, serde_json::Error>>()?,
        now: request.now.to_string(),
        traceparent: request.traceparent.clone(),
    };
    Ok((record, size))
}

/// As large as most objects are, so that the text does not move while it grows.
const OBJECT: usize = 4 << 10;

fn to_json<T: Serialize>(object: &T) -> Result<String, serde_json::Error> {
    let mut text = Vec::with_capacity(OBJECT);
    serde_json::to_writer(&mut text, object)?;
    // What serde_json writes is UTF-8; to look at it again costs a hundredth of the writing.
    String::from_utf8(text).map_err(serde::ser::Error::custom)
}

/// A description, and the bytes of JSON in it.
pub(crate) fn description(record: wit::Description) -> Result<(Description, usize), CallError> {
    let mut reader = Reader::default();
    let description = Description {
        name: record.name,
        version: record.version,
        parent: kind(record.parent),
        makes: record.makes.into_iter().map(kind).collect(),
        reads: record.reads.into_iter().map(kind).collect(),
        finalizer: record.finalizer,
        crd: record.crd.map(|text| reader.value("crd", &text)).transpose()?,
    };
    Ok((description, reader.size))
}

/// A response, and the bytes of JSON in it.
pub(crate) fn response(record: wit::Response) -> Result<(Response, usize), CallError> {
    let mut reader = Reader::default();
    let response = Response {
        children: reader.children(&record.children)?,
        keep: record.keep.into_iter().map(object_ref).collect(),
        generate: record.generate.into_iter().map(generated_secret).collect(),
        status: reader.status(record.status.as_deref())?,
        conditions: record.conditions.into_iter().map(condition).collect(),
        events: record.events.into_iter().map(event).collect(),
        requeue_after_ms: record.requeue_after_ms,
        needs: record.needs.into_iter().map(need).collect(),
    };
    Ok((response, reader.size))
}

/// The answer to `cleanup`, and the bytes of JSON in it.
pub(crate) fn cleanup(record: wit::CleanupResponse) -> Result<(CleanupResponse, usize), CallError> {
    let mut reader = Reader::default();
    let response = CleanupResponse {
        done: record.done,
        children: reader.children(&record.children)?,
        status: reader.status(record.status.as_deref())?,
        conditions: record.conditions.into_iter().map(condition).collect(),
        events: record.events.into_iter().map(event).collect(),
        requeue_after_ms: record.requeue_after_ms,
        needs: record.needs.into_iter().map(need).collect(),
    };
    Ok((response, reader.size))
}

/// Why there is no response.
pub(crate) fn failure(record: wit::Failure) -> Failure {
    match record {
        wit::Failure::Invalid(wit::Invalid { reason, message }) => Failure::Invalid { reason, message },
        wit::Failure::Retry(wit::Retry { message, after_ms }) => Failure::Retry { message, after_ms },
    }
}

/// Parses the JSON texts of one answer and adds up their bytes. Errors say where in the answer.
#[derive(Default)]
struct Reader {
    size: usize,
}

impl Reader {
    fn children(&mut self, texts: &[String]) -> Result<Vec<Value>, CallError> {
        texts
            .iter()
            .enumerate()
            .map(|(index, text)| {
                let field = format_args!("children[{index}]");
                self.object(field, text).map(Value::Object)
            })
            .collect()
    }

    fn status(&mut self, text: Option<&str>) -> Result<Option<Map<String, Value>>, CallError> {
        text.map(|text| self.object("status", text)).transpose()
    }

    fn object(&mut self, field: impl std::fmt::Display, text: &str) -> Result<Map<String, Value>, CallError> {
        match self.value(&field, text)? {
            Value::Object(map) => Ok(map),
            other => Err(not_an_object(field, &other)),
        }
    }

    fn value(&mut self, field: impl std::fmt::Display, text: &str) -> Result<Value, CallError> {
        self.size += text.len();
        serde_json::from_str(text)
            .map_err(|error| CallError::protocol(format!("`{field}` is not JSON that can be read: {error}")))
    }
}

/// The error for a JSON value that should have been an object.
pub(crate) fn not_an_object(field: impl std::fmt::Display, value: &Value) -> CallError {
    let what = match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    };
    CallError::protocol(format!("`{field}` is {what}; it must be a JSON object"))
}

fn kind(record: wit::Kind) -> Kind {
    Kind {
        api_version: record.api_version,
        kind: record.kind,
    }
}

fn object_ref(record: wit::ObjectRef) -> ObjectRef {
    let wit::ObjectRef {
        api_version,
        kind,
        namespace,
        name,
    } = record;
    ObjectRef {
        api_version,
        kind,
        namespace,
        name,
    }
}

fn generated_secret(record: wit::GeneratedSecret) -> GeneratedSecret {
    let value = |wit::GeneratedValue {
                     key,
                     length,
                     alphabet,
                 }| GeneratedValue {
        key,
        length,
        alphabet,
    };
    GeneratedSecret {
        name: record.name,
        entries: record.entries.into_iter().map(value).collect(),
    }
}

fn condition(record: wit::Condition) -> Condition {
    let status = match record.status {
        wit::ConditionStatus::True => ConditionStatus::True,
        wit::ConditionStatus::False => ConditionStatus::False,
        wit::ConditionStatus::Unknown => ConditionStatus::Unknown,
    };
    Condition {
        type_: record.type_,
        status,
        reason: record.reason,
        message: record.message,
    }
}

fn event(record: wit::Event) -> Event {
    let type_ = match record.type_ {
        wit::EventType::Normal => EventType::Normal,
        wit::EventType::Warning => EventType::Warning,
    };
    Event {
        type_,
        reason: record.reason,
        message: record.message,
    }
}

fn need(record: wit::Need) -> Need {
    let wit::Need {
        id,
        api_version,
        kind,
        namespace,
        name,
        label_selector,
    } = record;
    Need {
        id,
        api_version,
        kind,
        namespace,
        name,
        label_selector,
    }
}
