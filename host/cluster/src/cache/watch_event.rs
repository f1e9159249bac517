//! The events of a watch, one a line.

use std::error::Error;
use std::io;
use std::pin::Pin;

use futures::io::{AsyncBufRead, AsyncBufReadExt as _};
use kube::core::{DynamicObject, Status};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::read;

/// The memory of a longer line is freed after it.
const USUAL_LINE: usize = 64 << 10;

/// An event of a watch.
#[derive(Debug, PartialEq)]
pub(super) enum Event {
    /// The object was created or changed, or has begun or ceased to be selected by the watch.
    Changed(DynamicObject),
    Deleted(DynamicObject),
    /// All changes up to this resource version have been sent.
    Bookmark(String),
    /// The watch has failed, and nothing follows.
    Failed(Status),
}

impl Event {
    /// Reads an event. `is_whole` decides by the metadata of an object whether the rest is read; otherwise it is null.
    ///
    /// # Errors
    /// When it is neither an event nor a `Status`.
    pub(super) fn read(line: &[u8], is_whole: impl Fn(&DynamicObject) -> bool) -> serde_json::Result<Self> {
        #[derive(Deserialize)]
        struct Line<'a> {
            r#type: &'a str,
            #[serde(borrow)]
            object: &'a RawValue,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Position {
            resource_version: String,
        }
        #[derive(Deserialize)]
        struct Bookmark {
            metadata: Position,
        }
        let Line { r#type, object } = match serde_json::from_slice(line) {
            Ok(event) => event,
            // A failure may come without an event around it.
            Err(error) => match serde_json::from_slice::<Status>(line) {
                Ok(status) if status.code != 0 => return Ok(Self::Failed(status)),
                _ => return Err(error),
            },
        };
        let whole = || read::object(object, &is_whole);
        match r#type {
            "ADDED" | "MODIFIED" => whole().map(Self::Changed),
            "DELETED" => whole().map(Self::Deleted),
            "BOOKMARK" => {
                let Bookmark { metadata } = serde_json::from_str(object.get())?;
                Ok(Self::Bookmark(metadata.resource_version))
            }
            "ERROR" => serde_json::from_str(object.get()).map(Self::Failed),
            other => Err(serde::de::Error::custom(format_args!(
                "{other:?} is no type of a watch event"
            ))),
        }
    }

    /// Returns the resource version up to which this event leads.
    pub(super) fn version(&self) -> Option<&str> {
        let version = match self {
            Self::Changed(object) | Self::Deleted(object) => object.metadata.resource_version.as_deref(),
            Self::Bookmark(version) => Some(version.as_str()),
            Self::Failed(_) => None,
        };
        version.filter(|version| !version.is_empty())
    }
}

/// The lines of a body.
pub(super) struct Lines {
    body: Pin<Box<dyn AsyncBufRead + Send>>,
    line: Vec<u8>,
    is_complete: bool,
    longest: usize,
}

impl Lines {
    /// Reads the lines of a body, none longer than `longest` bytes.
    pub(super) fn new(body: impl AsyncBufRead + Send + 'static, longest: usize) -> Self {
        Self {
            body: Box::pin(body),
            line: Vec::new(),
            is_complete: false,
            longest,
        }
    }

    /// Returns the next line; `None` at the end, which may be within a line. Cancel-safe: dropping the future loses nothing.
    ///
    /// # Errors
    /// When the connection breaks. A line that is too long gives [`io::ErrorKind::FileTooLarge`].
    pub(super) async fn next(&mut self) -> io::Result<Option<&[u8]>> {
        if std::mem::take(&mut self.is_complete) {
            self.line.clear();
            self.line.shrink_to(USUAL_LINE);
        }
        while !self.is_complete {
            let arrived = match self.body.fill_buf().await {
                Ok(arrived) => arrived,
                Err(error) if is_end(&error) => return Ok(None),
                Err(error) => return Err(error),
            };
            if arrived.is_empty() {
                return Ok(None);
            }
            let end = arrived.iter().position(|byte| *byte == b'\n');
            let part = &arrived[..end.unwrap_or(arrived.len())];
            if self.line.len() + part.len() > self.longest {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
            self.line.extend_from_slice(part);
            let used = part.len() + usize::from(end.is_some());
            self.is_complete = end.is_some();
            self.body.consume_unpin(used);
        }
        Ok(Some(&self.line))
    }
}

/// Whether a connection has ended rather than failed: old API servers and proxies end a watch in the middle of a chunk.
fn is_end(error: &io::Error) -> bool {
    // `io::Error::source` skips the error inside, so start with that.
    let inner = error.get_ref().map(|inner| inner as &(dyn Error + 'static));
    let mut causes = std::iter::successors(inner, |cause| (*cause).source());
    let is_kind = |kind| matches!(kind, io::ErrorKind::UnexpectedEof | io::ErrorKind::TimedOut);
    if is_kind(error.kind()) {
        return true;
    }
    causes.any(|cause| {
        cause.downcast_ref().map(io::Error::kind).is_some_and(is_kind)
            || cause.to_string().contains("unexpected EOF during chunk")
    })
}

#[cfg(test)]
mod tests {
    use futures::io::Cursor;
    use serde_json::{Value, json};

    use super::*;

    fn event(r#type: &str, object: &Value) -> Event {
        let line = json!({"object": object, "type": r#type}).to_string();
        Event::read(line.as_bytes(), |_| true).unwrap()
    }

    #[test]
    fn every_type_of_event_is_read() {
        let pod = json!({"metadata": {"name": "a", "resourceVersion": "7"}, "spec": {"b": 1}});
        let object: DynamicObject = serde_json::from_value(pod.clone()).unwrap();
        for r#type in ["ADDED", "MODIFIED"] {
            assert_eq!(event(r#type, &pod), Event::Changed(object.clone()));
        }
        assert_eq!(event("DELETED", &pod), Event::Deleted(object));
        assert_eq!(event("BOOKMARK", &pod), Event::Bookmark("7".to_owned()));
        assert_eq!(event("BOOKMARK", &pod).version(), Some("7"));
        let status = json!({"kind": "Status", "status": "Failure", "code": 410, "message": "too old"});
        let failed = event("ERROR", &status);
        assert!(matches!(&failed, Event::Failed(status) if status.code == 410));
        assert_eq!(failed.version(), None);
        let alone = Event::read(status.to_string().as_bytes(), |_| true).unwrap();
        assert_eq!(alone, failed);
    }

    #[test]
    fn what_is_not_kept_whole_is_skipped() {
        let line = br#"{"type": "ADDED", "object": {"metadata": {"name": "a"}, "spec": {"b": 1}}}"#;
        let Event::Changed(object) = Event::read(line, |_| false).unwrap() else {
            panic!("a change");
        };
        assert_eq!(object.data, Value::Null);
    }

    #[test]
    fn what_is_no_event_is_refused() {
        let lines: [&[u8]; 6] = [
            b"",
            b"[]",
            b"{\"type\": \"ADDED\"}",
            b"{\"type\": \"ADDED\", \"object\": 1}",
            b"{\"type\": \"BOOKMARK\", \"object\": {}}",
            b"{\"type\": \"MOVED\", \"object\": {}}",
        ];
        for line in lines {
            assert!(Event::read(line, |_| true).is_err(), "{}", line.escape_ascii());
        }
    }

    async fn lines(text: &'static str, longest: usize) -> (Vec<String>, Option<io::ErrorKind>) {
        // The body arrives in pieces of three bytes.
        let pieces = text.as_bytes().chunks(3).map(Ok::<_, io::Error>);
        let body = futures::TryStreamExt::into_async_read(futures::stream::iter(pieces));
        let mut lines = Lines::new(body, longest);
        let mut read = Vec::new();
        loop {
            match lines.next().await {
                Ok(Some(line)) => read.push(String::from_utf8(line.to_vec()).unwrap()),
                Ok(None) => return (read, None),
                Err(error) => return (read, Some(error.kind())),
            }
        }
    }

    #[tokio::test]
    async fn lines_are_read_in_pieces_and_an_unfinished_one_is_dropped() {
        let (read, error) = lines("abcd\n\nef\nunfinished", 10).await;
        assert_eq!(
            (read, error),
            (vec!["abcd".into(), String::new(), "ef".into()], None)
        );
        let (read, error) = lines("abcd\nabcde\n", 4).await;
        assert_eq!(
            (read, error),
            (vec!["abcd".into()], Some(io::ErrorKind::FileTooLarge))
        );
    }

    #[tokio::test]
    async fn a_connection_that_ends_within_a_chunk_is_no_failure() {
        let ended = io::Error::other(io::Error::from(io::ErrorKind::UnexpectedEof));
        assert!(is_end(&ended));
        assert!(!is_end(&io::Error::from(io::ErrorKind::ConnectionReset)));
        assert!(Lines::new(Cursor::new("a"), 1).next().await.unwrap().is_none());
    }
}
