//! One page of a list, which is read object by object: a tree of a whole page would take more memory than everything that
//! is kept of it.

use kube::core::{DynamicObject, ListMeta};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::read;

/// One page of a list.
pub(super) struct Page {
    text: Vec<u8>,
    pub(super) metadata: ListMeta,
}

impl Page {
    /// Reads everything but the objects.
    ///
    /// # Errors
    /// When it is not a list.
    pub(super) fn new(text: Vec<u8>) -> serde_json::Result<Self> {
        #[derive(Deserialize)]
        struct Head {
            metadata: ListMeta,
        }
        let Head { metadata } = serde_json::from_slice(&text)?;
        Ok(Self { text, metadata })
    }

    /// Hands over each object. `is_whole` decides by the metadata whether the rest is read; otherwise it is null.
    ///
    /// # Errors
    /// When an object cannot be read. Those before it have been handed over.
    pub(super) fn for_each(
        &self,
        is_whole: impl Fn(&DynamicObject) -> bool,
        mut take: impl FnMut(DynamicObject),
    ) -> serde_json::Result<()> {
        #[derive(Deserialize)]
        struct List<'a> {
            // An empty list may be null.
            #[serde(borrow)]
            items: Option<Vec<&'a RawValue>>,
        }
        let List { items } = serde_json::from_slice(&self.text)?;
        for item in items.into_iter().flatten() {
            take(read::object(item, &is_whole)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kube::core::ObjectList;
    use serde_json::{Value, json};

    use super::*;

    fn list() -> Value {
        json!({
            "apiVersion": "v1",
            "items": [
                {"aaa": [1], "metadata": {"name": "a", "labels": {"ours": "true"}}, "spec": {"b": {"c": null}}},
                {"aaa": [2], "metadata": {"name": "b", "managedFields": [{"fieldsV1": {"f:a": {}}}]}, "spec": {"b": 1}},
                {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "c", "labels": {"ours": "true"}}},
            ],
            "kind": "List",
            "metadata": {"resourceVersion": "7", "continue": "more"},
        })
    }

    fn read(page: &Page, is_whole: impl Fn(&DynamicObject) -> bool) -> Vec<DynamicObject> {
        let mut objects = Vec::new();
        page.for_each(is_whole, |object| objects.push(object)).unwrap();
        objects
    }

    #[test]
    fn objects_are_read_as_a_list_reads_them() {
        let page = Page::new(list().to_string().into()).unwrap();
        assert_eq!(page.metadata.resource_version.as_deref(), Some("7"));
        assert_eq!(page.metadata.continue_.as_deref(), Some("more"));
        let mut expected: ObjectList<DynamicObject> = serde_json::from_value(list()).unwrap();
        expected.items[1].metadata.managed_fields = None;
        assert_eq!(read(&page, |_| true), expected.items);
    }

    #[test]
    fn only_the_metadata_are_read_of_what_is_not_kept_whole() {
        let page = Page::new(list().to_string().into()).unwrap();
        let is_ours = |object: &DynamicObject| object.metadata.labels.is_some();
        let objects = read(&page, is_ours);
        assert!(!objects[0].data.is_null() && objects[1].data.is_null());
        assert_eq!(objects[1].metadata.name.as_deref(), Some("b"));
    }

    #[test]
    fn a_list_may_be_empty_or_null_but_not_something_else() {
        for items in [json!([]), json!(null)] {
            let text = json!({"metadata": {}, "items": items}).to_string();
            assert!(read(&Page::new(text.into()).unwrap(), |_| true).is_empty());
        }
        assert!(read(&Page::new("{\"metadata\": {}}".into()).unwrap(), |_| true).is_empty());
        for text in ["[]", "{}", "{\"metadata\": {}, \"items\": [", ""] {
            assert!(Page::new(text.into()).is_err(), "{text}");
        }
        for items in [json!([1]), json!({}), json!([{"metadata": {"labels": 1}}])] {
            let page = Page::new(json!({"metadata": {}, "items": items}).to_string().into()).unwrap();
            assert!(page.for_each(|_| true, drop).is_err());
        }
    }
}
