//! Converts between the WIT records and the contract's types, in which the Kubernetes objects are JSON text.

use std::io;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::bindings::operator_host::plugin::types as wit;
use crate::contract::{
    CleanupResponse, Condition, ConditionStatus, ContractVersion, Conversion, Converted, Definition,
    Description, Event, EventType, Failure, FieldError, GeneratedSecret, GeneratedValue, Kind, Need,
    ObjectRef, Request, Response,
};
use crate::error::CallError;
use crate::estimate::estimate;
use crate::limits::{self, Limits};
use crate::memory_budget::CallMemory;

/// Converts the request to a record; also returns the bytes of JSON in it.
pub(crate) fn request(request: &Request, limit: usize) -> Result<(wit::Request, usize), CallError> {
    let mut size = 0;
    let mut text = |object: &_| -> Result<String, CallError> {
        let text = Text::with_capacity(OBJECT, limit - size).of(object, request, limit)?;
        size += text.len();
        // serde_json writes valid UTF-8; checking it again takes a hundredth of the time of writing it.
        String::from_utf8(text).map_err(CallError::host)
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
            .collect::<Result<_, CallError>>()?,
        now: request.now.to_string(),
        traceparent: request.traceparent.clone(),
        namespace_terminating: request.namespace_terminating,
    };
    Ok((record, size))
}

/// As large as most objects, so that the text is not reallocated while it grows.
const OBJECT: usize = 4 << 10;

/// A JSON text with a maximum length; writing stops at that length.
pub(crate) struct Text {
    bytes: Vec<u8>,
    room: usize,
    is_full: bool,
}

impl Text {
    pub(crate) fn with_capacity(capacity: usize, room: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(capacity.min(room)),
            room,
            is_full: false,
        }
    }

    /// Serializes a value of a request.
    pub(crate) fn of<T: Serialize>(
        mut self,
        value: &T,
        request: &Request,
        limit: usize,
    ) -> Result<Vec<u8>, CallError> {
        match serde_json::to_writer(&mut self, value) {
            Ok(()) => Ok(self.bytes),
            Err(_) if self.is_full => {
                let related = request.related.iter().map(|related| related.objects.len()).sum();
                Err(CallError::request(limit, request.children.len(), related))
            }
            Err(error) => Err(CallError::host(error)),
        }
    }
}

impl io::Write for Text {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes)?;
        Ok(bytes.len())
    }

    #[inline]
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() > self.room - self.bytes.len() {
            self.is_full = true;
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Converts a description; also returns the bytes of JSON in it.
pub(crate) fn description(
    record: wit::Description,
    limits: &Limits,
    room: &CallMemory,
) -> Result<(Description, usize), CallError> {
    let mut reader = Reader::new(limits, room);
    let description = Description {
        contract: ContractVersion::V1,
        name: record.name,
        version: record.version,
        parent: kind(record.parent),
        makes: record.makes.into_iter().map(kind).collect(),
        reads: record.reads.into_iter().map(kind).collect(),
        finalizer: record.finalizer,
        crd: record
            .crd
            .map(|text| reader.value("crd", &text).map(Definition::from))
            .transpose()?,
        versions: record.versions,
        defaults: record.defaults,
        validates: record.validates,
    };
    Ok((description, reader.size))
}

/// Converts a response; also returns the bytes of JSON in it.
pub(crate) fn response(
    record: wit::Response,
    limits: &Limits,
    room: &CallMemory,
) -> Result<(Response, usize), CallError> {
    let mut reader = Reader::new(limits, room);
    let lists = Lists {
        children: record.children.len(),
        keep: record.keep.len(),
        generate: record.generate.len(),
        conditions: record.conditions.len(),
        events: record.events.len(),
        needs: record.needs.len(),
        errors: 0,
    };
    lists.check(limits)?;
    let response = Response {
        children: reader.children(&record.children)?,
        keep: record.keep.into_iter().map(object_ref).collect(),
        generate: record.generate.into_iter().map(generated_secret).collect(),
        status: reader.status(record.status.as_deref())?,
        conditions: record.conditions.into_iter().map(condition).collect(),
        events: record.events.into_iter().map(event).collect(),
        requeue_after_ms: record.requeue_after_ms,
        requeue_at: record.requeue_at.as_deref().map(requeue_at).transpose()?,
        needs: record.needs.into_iter().map(need).collect(),
    };
    Ok((response, reader.size))
}

/// Converts the result of `cleanup`; also returns the bytes of JSON in it.
pub(crate) fn cleanup(
    record: wit::CleanupResponse,
    limits: &Limits,
    room: &CallMemory,
) -> Result<(CleanupResponse, usize), CallError> {
    let mut reader = Reader::new(limits, room);
    let lists = Lists {
        children: record.children.len(),
        conditions: record.conditions.len(),
        events: record.events.len(),
        needs: record.needs.len(),
        ..Lists::default()
    };
    lists.check(limits)?;
    let response = CleanupResponse {
        done: record.done,
        children: reader.children(&record.children)?,
        status: reader.status(record.status.as_deref())?,
        conditions: record.conditions.into_iter().map(condition).collect(),
        events: record.events.into_iter().map(event).collect(),
        requeue_after_ms: record.requeue_after_ms,
        requeue_at: record.requeue_at.as_deref().map(requeue_at).transpose()?,
        needs: record.needs.into_iter().map(need).collect(),
    };
    Ok((response, reader.size))
}

/// Converts the result of `validate`; also returns the bytes in it.
pub(crate) fn validated(
    records: Vec<wit::FieldError>,
    limits: &Limits,
) -> Result<(Vec<FieldError>, usize), CallError> {
    let lists = Lists {
        errors: records.len(),
        ..Lists::default()
    };
    lists.check(limits)?;
    let size = records
        .iter()
        .map(|record| record.path.len() + record.message.len());
    let size = size.sum();
    let errors = records.into_iter().map(|record| FieldError {
        path: record.path,
        message: record.message,
    });
    Ok((errors.collect(), size))
}

/// Parses the time of the next reconcile.
fn requeue_at(text: &str) -> Result<Timestamp, CallError> {
    text.parse().map_err(|error| {
        CallError::protocol(format!(
            "`requeueAt` is {text:?}, which is no time in RFC 3339, such as 2026-01-02T03:04:05Z: {error}"
        ))
    })
}

/// Converts the reason why there is no response; an answer that cannot be read is another reason.
pub(crate) fn failure(record: wit::Failure, limits: &Limits, room: &CallMemory) -> CallError {
    let (status, conditions) = match &record {
        wit::Failure::Invalid(invalid) => (&invalid.status, &invalid.conditions),
        wit::Failure::Retry(retry) => (&retry.status, &retry.conditions),
    };
    let lists = Lists {
        conditions: conditions.len(),
        ..Lists::default()
    };
    let mut reader = Reader::new(limits, room);
    let status = match lists
        .check(limits)
        .and_then(|()| reader.status(status.as_deref()))
    {
        Ok(status) => status,
        Err(error) => return error,
    };
    let failure = match record {
        wit::Failure::Invalid(invalid) => Failure::Invalid {
            reason: invalid.reason,
            message: invalid.message,
            status,
            conditions: invalid.conditions.into_iter().map(condition).collect(),
        },
        wit::Failure::Retry(retry) => Failure::Retry {
            message: retry.message,
            after_ms: retry.after_ms,
            status,
            conditions: retry.conditions.into_iter().map(condition).collect(),
        },
    };
    failure.into()
}

/// Converts the objects of a conversion to text; also returns their bytes.
pub(crate) fn objects(conversion: &Conversion, limit: usize) -> Result<(Vec<String>, usize), CallError> {
    let size = conversion.objects.iter().map(|object| object.get().len()).sum();
    if size > limit {
        return Err(CallError::too_many_objects(limit, conversion.objects.len()));
    }
    let texts = conversion.objects.iter().map(|object| object.get().to_owned());
    Ok((texts.collect(), size))
}

/// Converts the results of `convert`; also returns their bytes. The objects stay text.
pub(crate) fn converted(
    records: Vec<Result<String, String>>,
    room: &CallMemory,
    limits: &Limits,
) -> Result<(Vec<Converted>, usize), CallError> {
    let size = records
        .iter()
        .map(|(Ok(text) | Err(text))| text.len())
        .sum::<usize>();
    if !room.keep(size) {
        return Err(CallError::heavy(limits));
    }
    let converted = records
        .into_iter()
        .enumerate()
        .map(|(index, record)| match record {
            Ok(text) => match RawValue::from_string(text) {
                Ok(object) => Ok(Converted::Object(object.into())),
                Err(error) => Err(CallError::protocol(format!(
                    "object {index} of the conversion is not JSON that can be read: {error}"
                ))),
            },
            Err(message) => Ok(Converted::Error(message)),
        });
    Ok((converted.collect::<Result<_, _>>()?, size))
}

/// Converts the result of `default`; also returns its bytes.
pub(crate) fn defaulted(
    text: &str,
    limits: &Limits,
    room: &CallMemory,
) -> Result<(Map<String, Value>, usize), CallError> {
    let mut reader = Reader::new(limits, room);
    let spec = reader.object("spec", text)?;
    Ok((spec, reader.size))
}

/// The lengths of the lists in an answer.
#[derive(Default)]
pub(crate) struct Lists {
    pub(crate) children: usize,
    pub(crate) keep: usize,
    pub(crate) generate: usize,
    pub(crate) conditions: usize,
    pub(crate) events: usize,
    pub(crate) needs: usize,
    /// What `validate` found.
    pub(crate) errors: usize,
}

impl Lists {
    /// Returns an error when a list is too long.
    pub(crate) fn check(&self, limits: &Limits) -> Result<(), CallError> {
        let children = self.children + self.keep + self.generate;
        let lists = [
            ("children", children, limits.children, Some("limits.children")),
            ("conditions", self.conditions, limits::CONDITIONS, None),
            ("Events", self.events, limits::LISTED, None),
            ("needs", self.needs, limits::LISTED, None),
            ("field errors", self.errors, limits::LISTED, None),
        ];
        match lists.into_iter().find(|(_, count, limit, _)| count > limit) {
            Some((what, count, limit, key)) => Err(CallError::too_many(what, count, limit, key)),
            None => Ok(()),
        }
    }
}

/// Parses the JSON texts of one answer and sums their bytes and values. Errors contain the path in the
/// answer.
struct Reader<'a> {
    size: usize,
    values: usize,
    limits: &'a Limits,
    room: &'a CallMemory,
}

impl<'a> Reader<'a> {
    fn new(limits: &'a Limits, room: &'a CallMemory) -> Self {
        Self {
            size: 0,
            values: 0,
            limits,
            room,
        }
    }

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
        let estimate = estimate(text);
        self.values += estimate.values;
        if self.values > self.limits.values {
            return Err(CallError::values(self.limits.values));
        }
        if !self.room.keep(estimate.bytes) {
            return Err(CallError::heavy(self.limits));
        }
        serde_json::from_str(text)
            .map_err(|error| CallError::protocol(format!("`{field}` is not JSON that can be read: {error}")))
    }
}

/// Returns the error for a JSON value that should have been an object.
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
