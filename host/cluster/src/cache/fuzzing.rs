//! How the cache reads and keeps objects, for fuzz targets only.

use kube::core::DynamicObject;

use super::packed::Samples;
use super::page::Page;
use super::text::Text;

/// Reads the objects on a page of a list.
///
/// # Errors
/// When it is not a list, or an object cannot be read.
pub fn page(text: &[u8], is_whole: bool) -> serde_json::Result<Vec<DynamicObject>> {
    let mut objects = Vec::new();
    Page::new(text.to_vec())?.for_each(|_| is_whole, |object| objects.push(object))?;
    Ok(objects)
}

/// Returns objects of one kind as the cache returns them after it has kept them as text, without their type.
pub fn kept(objects: &[DynamicObject]) -> Vec<DynamicObject> {
    let samples = Samples::of_the_first();
    let keep = |object: &DynamicObject| Text::of(&mut object.clone(), None, &[], &samples);
    let texts: Vec<Text> = objects.iter().map(keep).collect();
    texts.iter().map(|text| text.object(None)).collect()
}
