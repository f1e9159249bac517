//! Converts between the WIT records and the contract's types, in which the Kubernetes objects are JSON text.

use std::io;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::bindings::operator_host::plugin::types as wit;
use crate::contract::{
    CommandOutput, Condition, ConditionStatus, ContractVersion, Conversion, Converted, Definition,
    Description, Event, EventType, Failure, FieldError, GeneratedSecret, GeneratedValue, Kind, Need,
    ObjectRef, Request, Response,
};
use crate::error::CallError;
use crate::estimate::estimate;
use crate::limits::{self, Limits};
use crate::memory_budget::CallMemory;

/// The result of an export that can fail.
pub(crate) type Answer<R> = Result<R, wit::Failure>;

/// The result of `convert`.
pub(crate) type Conversions = Vec<Result<String, String>>;

/// Converts the request to a record; also returns the bytes of JSON in it.
pub(crate) fn request(request: &Request, limit: usize) -> Result<((wit::Request,), usize), CallError> {
    let mut size = 0;
    let mut text = |object: &_| -> Result<String, CallError> {
        let text = Text::with_capacity(OBJECT, limit - size).of(object, request, limit)?;
        size += text.len();
        // serde_json writes valid UTF-8; checking it again takes a hundredth of the time of writing it.
        String::from_utf8(text).map_err(CallError::host)
    };
    // Whole, so that a new field is not forgotten.
    let Request {
        parent,
        children,
        related,
        now,
        traceparent,
        namespace_terminating,
    } = request;
    let record = wit::Request {
        parent: text(parent)?,
        children: children.iter().map(&mut text).collect::<Result<_, _>>()?,
        related: related
            .iter()
            .map(|related| {
                let objects = related.objects.iter().map(&mut text).collect::<Result<_, _>>()?;
                Ok(wit::Related {
                    id: related.id.clone(),
                    objects,
                })
            })
            .collect::<Result<_, CallError>>()?,
        now: now.to_string(),
        traceparent: traceparent.clone(),
        namespace_terminating: *namespace_terminating,
    };
    Ok(((record,), size))
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

/// Converts the objects of a conversion to parameters; also returns their bytes.
pub(crate) fn conversion(
    conversion: &Conversion,
    limit: usize,
) -> Result<((String, Vec<String>), usize), CallError> {
    let size = conversion.objects.iter().map(|object| object.get().len()).sum();
    if size > limit {
        return Err(CallError::too_many_objects(limit, conversion.objects.len()));
    }
    let texts = conversion.objects.iter().map(|object| object.get().to_owned());
    Ok(((conversion.api_version.clone(), texts.collect()), size))
}

/// Converts a description.
pub(crate) fn description(
    record: wit::Description,
    reader: &mut Reader<'_>,
) -> Result<CommandOutput, CallError> {
    let crd = record.crd.map(|text| reader.value("crd", &text)).transpose()?;
    Ok(CommandOutput::Description(Description {
        contract: ContractVersion::V1,
        name: record.name,
        version: record.version,
        parent: record.parent.into(),
        also: all(record.also),
        makes: all(record.makes),
        reads: all(record.reads),
        finalizer: record.finalizer,
        crd: crd.map(Definition::from),
        versions: record.versions,
        defaults: record.defaults,
        validates: record.validates,
    }))
}

/// Converts the result of `reconcile` and of `cleanup`.
pub(crate) fn response(
    record: Answer<wit::Response>,
    reader: &mut Reader<'_>,
) -> Result<CommandOutput, CallError> {
    let record = match record {
        Ok(record) => record,
        Err(failure) => return reader.failure(failure),
    };
    let wit::Response {
        done,
        children,
        keep,
        generate,
        status,
        parent,
        conditions,
        events,
        requeue_after_ms,
        requeue_at: at,
        needs,
    } = record;
    Ok(CommandOutput::Response(Box::new(Response {
        done,
        children: reader.children(&children)?,
        keep: all(keep),
        generate: generate.into_iter().map(generated_secret).collect(),
        status: reader.status(status.as_deref())?,
        parent: parent.map(|text| reader.object("parent", &text)).transpose()?,
        conditions: all(conditions),
        events: all(events),
        requeue_after_ms,
        requeue_at: at.as_deref().map(requeue_at).transpose()?,
        needs: all(needs),
    })))
}

/// Converts the result of `validate`.
#[expect(clippy::unnecessary_wraps, reason = "as the others")]
pub(crate) fn validated(
    records: Vec<wit::FieldError>,
    reader: &mut Reader<'_>,
) -> Result<CommandOutput, CallError> {
    let sizes = records.iter().map(|it| it.path.len() + it.message.len());
    reader.size += sizes.sum::<usize>();
    Ok(CommandOutput::Validated(all(records)))
}

/// Converts the results of `convert`. The objects stay text.
pub(crate) fn converted(records: Conversions, reader: &mut Reader<'_>) -> Result<CommandOutput, CallError> {
    reader.size = records.iter().map(|(Ok(text) | Err(text))| text.len()).sum();
    if !reader.room.keep(reader.size) {
        return Err(CallError::heavy(reader.limits));
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
    Ok(CommandOutput::Converted(converted.collect::<Result<_, _>>()?))
}

/// Converts the result of `default`.
pub(crate) fn defaulted(text: Answer<String>, reader: &mut Reader<'_>) -> Result<CommandOutput, CallError> {
    match text {
        Ok(text) => Ok(CommandOutput::Defaulted(reader.object("spec", &text)?)),
        Err(failure) => reader.failure(failure),
    }
}

/// Parses the time of the next reconcile.
fn requeue_at(text: &str) -> Result<Timestamp, CallError> {
    text.parse().map_err(|error| {
        CallError::protocol(format!(
            "`requeueAt` is {text:?}, which is no time in RFC 3339, such as 2026-01-02T03:04:05Z: {error}"
        ))
    })
}

/// Checks the lengths of the lists in an answer.
pub(crate) fn check_lists(output: &CommandOutput, limits: &Limits) -> Result<(), CallError> {
    let (mut children, mut events, mut needs, mut errors) = (0, 0, 0, 0);
    let mut conditions: &[Condition] = &[];
    match output {
        CommandOutput::Response(response) => {
            children = response.children.len() + response.keep.len() + response.generate.len();
            conditions = &response.conditions;
            (events, needs) = (response.events.len(), response.needs.len());
        }
        CommandOutput::Failure(failure) => conditions = failure.conditions(),
        CommandOutput::Validated(of) => errors = of.len(),
        CommandOutput::Description(_) | CommandOutput::Converted(_) | CommandOutput::Defaulted(_) => {}
    }
    let lists = [
        ("children", children, limits.children, Some("limits.children")),
        ("conditions", conditions.len(), limits::CONDITIONS, None),
        ("Events", events, limits::LISTED, None),
        ("needs", needs, limits::LISTED, None),
        ("field errors", errors, limits::LISTED, None),
    ];
    match lists.into_iter().find(|(_, count, limit, _)| count > limit) {
        Some((what, count, limit, key)) => Err(CallError::too_many(what, count, limit, key)),
        None => Ok(()),
    }
}

/// Parses the JSON texts of one answer and sums their bytes and values. Errors contain the path in the
/// answer.
pub(crate) struct Reader<'a> {
    /// The bytes so far.
    pub(crate) size: usize,
    values: usize,
    limits: &'a Limits,
    room: &'a CallMemory,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(limits: &'a Limits, room: &'a CallMemory) -> Self {
        Self {
            size: 0,
            values: 0,
            limits,
            room,
        }
    }

    /// Converts the reason why there is no answer.
    fn failure(&mut self, record: wit::Failure) -> Result<CommandOutput, CallError> {
        Ok(CommandOutput::Failure(match record {
            wit::Failure::Invalid(invalid) => Failure::Invalid {
                reason: invalid.reason,
                message: invalid.message,
                status: self.status(invalid.status.as_deref())?,
                conditions: all(invalid.conditions),
            },
            wit::Failure::Retry(retry) => Failure::Retry {
                message: retry.message,
                after_ms: retry.after_ms,
                status: self.status(retry.status.as_deref())?,
                conditions: all(retry.conditions),
            },
        }))
    }

    pub(crate) fn children(&mut self, texts: &[String]) -> Result<Vec<Value>, CallError> {
        texts
            .iter()
            .enumerate()
            .map(|(index, text)| {
                let field = format_args!("children[{index}]");
                self.object(field, text).map(Value::Object)
            })
            .collect()
    }

    pub(crate) fn status(&mut self, text: Option<&str>) -> Result<Option<Map<String, Value>>, CallError> {
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

/// Converts records that have the same fields, and enums with the same cases.
macro_rules! same {
    ($($name:ident { $($field:ident),+ })+) => {$(
        impl From<wit::$name> for $name {
            fn from(wit::$name { $($field),+ }: wit::$name) -> Self {
                Self { $($field: $field.into()),+ }
            }
        }
    )+};
    ($($name:ident: $($case:ident),+;)+) => {$(
        impl From<wit::$name> for $name {
            fn from(case: wit::$name) -> Self {
                match case {
                    $(wit::$name::$case => Self::$case),+
                }
            }
        }
    )+};
}

same! {
    ConditionStatus: True, False, Unknown;
    EventType: Normal, Warning;
}
same! {
    Kind { api_version, kind }
    ObjectRef { api_version, kind, namespace, name }
    Need { id, api_version, kind, namespace, namespace_selector, name, names, label_selector }
    GeneratedValue { key, length, alphabet }
    Condition { type_, status, reason, message }
    Event { type_, reason, message }
    FieldError { path, message }
}

fn generated_secret(record: wit::GeneratedSecret) -> GeneratedSecret {
    GeneratedSecret {
        name: record.name,
        entries: all(record.entries),
    }
}

fn all<R, T: From<R>>(records: Vec<R>) -> Vec<T> {
    records.into_iter().map(T::from).collect()
}
