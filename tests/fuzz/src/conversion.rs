//! Requests to convert objects: refused with a message, or read as serde_json reads them. What is sent back to the API
//! server has the metadata of the object except for labels and annotations, and everything else from the plugin.

use operator_host_webhook::conversion::Before;
use operator_host_webhook::fuzzing::{conversion, conversion_answer};
use serde_json::Value;

/// Maximum length of an error: it may quote names of the request.
const LONGEST_MESSAGE: usize = 16 << 10;

pub(crate) fn run(bytes: &[u8]) {
    let second = serde_json::from_slice::<Value>(bytes);
    match conversion(bytes) {
        Ok((uid, to, objects)) => {
            // What nobody reads may be no text.
            let Ok(second) = second else { return };
            let request = &second["request"];
            assert_eq!(
                (&request["uid"], &request["desiredAPIVersion"]),
                (&uid.clone().into(), &to.clone().into())
            );
            assert_eq!(request["objects"].as_array().map(Vec::len), Some(objects.len()));
            objects.iter().for_each(|object| shown(object));
            // Each object as what the plugin made of the one before.
            for pair in objects.windows(2) {
                restored(pair[0], pair[1], &to);
            }
            answered(&uid, &objects);
        }
        Err(message) => speaks(&message),
    }
}

fn speaks(message: &str) {
    assert!(
        !message.is_empty() && message.len() <= LONGEST_MESSAGE,
        "{message}"
    );
}

/// Checks that the plugin gets the whole object without `managedFields`.
fn shown(object: &str) {
    match Before::read(object) {
        Ok(before) => {
            let text = before.for_plugin(None).to_string();
            let mut expected: Value = serde_json::from_str(object).expect("JSON");
            if let Some(metadata) = expected["metadata"].as_object_mut() {
                metadata.remove("managedFields");
            }
            assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON"), expected);
        }
        Err(message) => speaks(&message),
    }
}

fn restored(before: &str, after: &str, to: &str) {
    let result = Before::read(before).and_then(|before| before.restore(after, to));
    let result = match result {
        Ok(result) => serde_json::from_str::<Value>(&result).expect("JSON"),
        Err(message) => return speaks(&message),
    };
    let parse = |text| serde_json::from_str::<Value>(text).expect("JSON");
    let (before, after) = (parse(before), parse(after));
    assert_eq!(result["apiVersion"], to);
    assert_eq!(result["kind"], before["kind"]);
    let (old, new, now) = (&before["metadata"], &after["metadata"], &result["metadata"]);
    for (key, value) in now.as_object().expect("metadata") {
        let source = if ["labels", "annotations"].contains(&key.as_str()) {
            new
        } else {
            old
        };
        assert_eq!(value, &source[key], "{key}");
    }
    for key in old.as_object().expect("metadata").keys() {
        assert!(
            now.get(key).is_some() || ["labels", "annotations"].contains(&key.as_str()),
            "{key} is lost"
        );
    }
    let fields = after.as_object().expect("an object");
    for (key, value) in fields.iter().filter(|(key, _)| *key != "metadata") {
        assert_eq!(&result[key], value, "{key}");
    }
    assert_eq!(result.as_object().map(serde_json::Map::len), Some(fields.len()));
}

fn answered(uid: &str, objects: &[&str]) {
    let texts: Vec<String> = objects.iter().map(|text| (*text).to_owned()).collect();
    let answer: Value = serde_json::from_slice(&conversion_answer(uid, Ok(texts))).expect("JSON");
    assert_eq!(answer["response"]["uid"], uid);
    assert_eq!(
        answer["response"]["convertedObjects"].as_array().map(Vec::len),
        Some(objects.len())
    );
    let answer: Value = serde_json::from_slice(&conversion_answer(uid, Err(uid.to_owned()))).expect("JSON");
    assert_eq!(answer["response"]["result"]["message"], uid);
}
