//! Checksums of objects that a plugin has read, so that pods are replaced when they change.

use crate::object::Object;

/// The usual annotation of a pod template for a [`checksum`].
pub const CHECKSUM: &str = "operator-host.dev/checksum";

/// Returns a checksum of what objects contain: of their kind, their name, and everything except metadata and status.
///
/// Kubernetes does not restart pods when a ConfigMap or Secret changes that they use. Put the checksum into an
/// annotation of the pod template, and a change of the contents replaces the pods, while a change of labels or
/// annotations does not:
///
/// ```
/// # use operator_plugin::builders::{Container, Deployment};
/// # use operator_plugin::prelude::*;
/// use operator_plugin::{CHECKSUM, checksum};
///
/// # fn reconcile(request: &Request<(), ()>) -> Result<Response<()>, Failure> {
/// let need = Need::object("settings", CONFIG_MAP, "shop-settings");
/// let Some(settings) = request.answer(&need) else {
///     return Ok(Response::needs_first([need]));
/// };
/// let app = Container::new("app", "shop:1.4").env_from_config_map("MODE", "shop-settings", "mode");
/// let deployment = Deployment::new("shop", &Labels::new("app", "shop"))
///     .container(app)
///     .pod_annotation(CHECKSUM, checksum(settings));
/// # Ok(Response::empty().child(deployment).need(need))
/// # }
/// ```
///
/// The result has 32 hexadecimal digits: the first half of a SHA-256. Who may read the pods can test guesses of a
/// Secret's values against it, so leave out Secrets whose values can be guessed. The values of Secrets that the host
/// generated are blank, and never change.
#[must_use]
pub fn checksum<'a>(objects: impl IntoIterator<Item = &'a Object>) -> String {
    let mut text = String::new();
    for object in objects {
        add(&mut text, object);
    }
    let mut digits = String::with_capacity(32);
    for byte in &hmac_sha256::Hash::hash(text.as_bytes())[..16] {
        for digit in [byte >> 4, byte & 15] {
            digits.extend(char::from_digit(u32::from(digit), 16));
        }
    }
    digits
}

/// Adds an object. JSON contains no zero byte, so different contents have different texts.
fn add(text: &mut String, object: &Object) {
    for part in [object.kind(), object.name()] {
        text.push_str(part);
        text.push('\0');
    }
    for (name, value) in object.value().as_object().into_iter().flatten() {
        if matches!(name.as_str(), "apiVersion" | "kind" | "metadata" | "status") {
            continue;
        }
        text.push_str(name);
        text.push('\0');
        text.push_str(&value.to_string());
        text.push('\0');
    }
    text.push('\0');
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn settings(name: &str, mode: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": name, "resourceVersion": "1" },
            "data": { "mode": mode },
        })
    }

    fn sum(objects: &[Value]) -> String {
        let objects: Vec<Object> = objects.iter().cloned().map(Object::from).collect();
        checksum(&objects)
    }

    #[test]
    fn a_checksum_changes_with_what_is_in_an_object_and_with_nothing_else() {
        let before = sum(&[settings("a", "fast")]);
        // Committed: another value would replace the pods of every plugin that is compiled anew.
        assert_eq!(before, "7b072627c0c34212d213428b8be833fb");
        let mut touched = settings("a", "fast");
        touched["metadata"]["resourceVersion"] = "2".into();
        touched["metadata"]["labels"] = json!({ "b": "c" });
        touched["status"] = json!({ "d": 1 });
        assert_eq!(sum(&[touched.clone()]), before);
        touched["apiVersion"] = "v2".into();
        assert_eq!(sum(&[touched.clone()]), before, "another version of the kind");
        touched["binaryData"] = json!({ "e": "AA==" });
        for other in [
            vec![],
            vec![settings("a", "slow")],
            vec![settings("b", "fast")],
            vec![touched],
        ] {
            assert_ne!(sum(&other), before, "{other:?}");
        }
    }

    #[test]
    fn a_checksum_is_the_same_for_the_text_of_an_object_and_for_its_value() {
        let text = r#"{ "kind": "ConfigMap", "data": { "mode": "fast" }, "metadata": { "name": "a" } }"#;
        assert_eq!(
            checksum([&Object::from_text(text.into())]),
            sum(&[settings("a", "fast")])
        );
    }
}
