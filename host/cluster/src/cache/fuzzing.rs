//! How the cache reads and keeps objects, for fuzz targets only.

use std::io;

use futures::{FutureExt as _, TryStreamExt as _, stream};
use kube::core::DynamicObject;

use super::packed::Samples;
use super::page::Page;
use super::text::Text;
use super::watch_event::{Event, Lines};

/// Reads an event of a watch. Returns the object of a change or deletion.
///
/// # Errors
/// When it is neither an event nor a `Status`.
pub fn event(line: &[u8], is_whole: bool) -> serde_json::Result<Option<DynamicObject>> {
    Event::read(line, |_| is_whole).map(|event| match event {
        Event::Changed(object) | Event::Deleted(object) => Some(object),
        Event::Bookmark(_) | Event::Failed(_) => None,
    })
}

/// Reads the objects on a page of a list.
///
/// # Errors
/// When it is not a list, or an object cannot be read.
pub fn page(text: &[u8], is_whole: bool) -> serde_json::Result<Vec<DynamicObject>> {
    let mut objects = Vec::new();
    Page::new(text.to_vec())?.for_each(|_| is_whole, |object| objects.push(object))?;
    Ok(objects)
}

/// Returns the lines of a body that arrives in these pieces, up to the end or the first error.
pub fn lines(pieces: Vec<Vec<u8>>, longest: usize) -> (Vec<Vec<u8>>, Option<io::ErrorKind>) {
    let body = stream::iter(pieces.into_iter().map(Ok::<_, io::Error>));
    let mut lines = Lines::new(body.into_async_read(), longest);
    let mut read = Vec::new();
    loop {
        // Everything has arrived.
        match lines.next().now_or_never().transpose().map(Option::flatten) {
            Ok(Some(line)) => read.push(line.to_vec()),
            Ok(None) => return (read, None),
            Err(error) => return (read, Some(error.kind())),
        }
    }
}

/// Returns objects of one kind as the cache returns them after it has kept them as text, without their type.
#[must_use]
pub fn kept(objects: &[DynamicObject]) -> Vec<DynamicObject> {
    let samples = Samples::of_the_first();
    let keep = |object: &DynamicObject| Text::of(&mut object.clone(), None, &[], &samples);
    let texts: Vec<Text> = objects.iter().map(keep).collect();
    texts.iter().map(|text| text.object(None)).collect()
}
