//! The documents of an artifact: the plugin's manifest in the CNCF layout, and the manifest of a signature that refers
//! to it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::Problem;
use operator_host_core::digest::Digest;
use operator_host_core::json_text::unquoted;

/// The type of a manifest.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// The type of a list of manifests.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// The type of the configuration of a Wasm artifact.
pub const WASM_CONFIG: &str = "application/vnd.wasm.config.v0+json";
/// The type of the layer that is the WebAssembly file.
pub const WASM_LAYER: &str = "application/wasm";
/// The type of the artifact that holds a plugin's signature.
pub const SIGNATURE: &str = "application/vnd.operator-host.signature.v1";
/// The type of its layer: the contents of `<plugin>.sig`.
pub const ENVELOPE: &str = "application/vnd.dsse.envelope.v1+json";
/// The type of a configuration that says nothing, and its contents.
pub const EMPTY: &str = "application/vnd.oci.empty.v1+json";
/// The contents of the empty configuration.
pub const EMPTY_BYTES: &[u8] = b"{}";

/// Bytes that a manifest or a list of manifests may have.
pub const MANIFEST_LIMIT: usize = 1 << 20;

fn malformed(error: &serde_json::Error) -> Problem {
    // The manifest may quote the request, with its credentials.
    Problem(format!("it is not a manifest: {}", unquoted(error)))
}

/// A reference to contents by their digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    /// The type of the contents.
    pub media_type: String,
    /// Their digest.
    pub digest: Digest,
    /// Their size in bytes.
    pub size: u64,
    /// What they are for, in a list of manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    /// Remarks of others, and the signature of cosign.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
}

impl Descriptor {
    /// Creates the reference to some contents.
    pub fn of(media_type: &str, bytes: &[u8]) -> Self {
        Self {
            media_type: media_type.to_owned(),
            digest: Digest::of(bytes),
            size: bytes.len() as u64,
            artifact_type: None,
            annotations: None,
        }
    }
}

/// A manifest, as far as the host reads it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawManifest {
    schema_version: u32,
    #[serde(default)]
    layers: Vec<Descriptor>,
    manifests: Option<serde_json::Value>,
}

/// A list of manifests, or of the signatures of cosign. Everyone who may push can add to it.
#[derive(Debug, Deserialize)]
struct RawList {
    #[serde(default, alias = "layers")]
    manifests: Vec<Value>,
}

/// Returns the layers of a manifest.
///
/// # Errors
/// When it is not one.
pub fn layers(manifest: &[u8]) -> Result<Vec<Descriptor>, Problem> {
    let raw: RawManifest = serde_json::from_slice(manifest).map_err(|error| malformed(&error))?;
    if raw.schema_version != 2 {
        return Err(Problem(format!(
            "it is not a manifest: its schemaVersion is {}, expected 2",
            raw.schema_version
        )));
    }
    if raw.manifests.is_some() {
        return Err(
            "it is a list of manifests, of an image for several platforms: expected the manifest of a Wasm artifact".into(),
        );
    }
    Ok(raw.layers)
}

/// Returns the layer that is the plugin.
///
/// # Errors
/// When the manifest is not that of a plugin, or the plugin is too large.
pub fn plugin_layer(manifest: &[u8], limit: usize) -> Result<Descriptor, Problem> {
    let mut layers = layers(manifest)?;
    match layers.pop() {
        Some(layer) if layers.is_empty() && layer.media_type == WASM_LAYER => match layer.size {
            size if size > limit as u64 => {
                Err(format!("the plugin has {size} bytes, the limit is {limit}").into())
            }
            _ => Ok(layer),
        },
        last => {
            let types = layers.iter().chain(&last).map(|layer| shown(&layer.media_type));
            let types = types.take(5).collect::<Vec<_>>().join(", ");
            let types = if types.is_empty() { "missing" } else { &types };
            Err(Problem(format!(
                "its layers are {types}: expected one {WASM_LAYER}, as `operator-host push`, `wkg` and `oras` push it"
            )))
        }
    }
}

/// Returns a media type for users, if it looks like one.
pub fn shown(media_type: &str) -> &str {
    const LONGEST: usize = 100;
    let is_usual = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"/.+-".contains(&byte);
    let is_one = media_type.contains('/') && media_type.len() <= LONGEST && media_type.bytes().all(is_usual);
    if is_one { media_type } else { "of an unknown type" }
}

/// Returns the manifests in a list, or the layers in the list of cosign: those that the host can read.
///
/// # Errors
/// When it is not a list.
pub fn listed(index: &[u8]) -> Result<Vec<Descriptor>, Problem> {
    let raw: RawList = serde_json::from_slice(index).map_err(|error| malformed(&error))?;
    // One that the host cannot read, such as one with a SHA-512 digest, does not hide the others.
    let known = raw.manifests.into_iter();
    Ok(known
        .filter_map(|entry| serde_json::from_value(entry).ok())
        .collect())
}

/// What `push` uploads: the contents, in the order in which registries want them, and the manifest.
pub struct Artifact {
    /// The configuration and the layer, each with its type.
    pub blobs: Vec<(Descriptor, Vec<u8>)>,
    /// The manifest.
    pub manifest: Vec<u8>,
}

impl Artifact {
    /// Creates the artifact of a plugin. The same plugin always gives the same artifact.
    pub fn of_plugin(bytes: Vec<u8>, name: &str, version: &str, component: Option<&Interfaces>) -> Self {
        let mut layer = Descriptor::of(WASM_LAYER, &bytes);
        // `oras pull` writes only layers with a title, to a file of that name.
        let title = "org.opencontainers.image.title".to_owned();
        layer.annotations = Some([(title, format!("{name}.wasm"))].into());
        let mut config = json!({
            // The layout asks for a time. It is always the same one, so that the digest depends on the plugin alone.
            "created": "1970-01-01T00:00:00Z",
            "architecture": "wasm",
            "os": if component.is_some() { "wasip2" } else { "wasip1" },
            "layerDigests": [layer.digest],
        });
        if let Some(Interfaces { exports, imports }) = component {
            config["component"] = json!({ "exports": exports, "imports": imports, "target": null });
        }
        let config = config.to_string().into_bytes();
        let described = Descriptor::of(WASM_CONFIG, &config);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": described,
            "layers": [layer],
            "annotations": {
                "org.opencontainers.image.title": name,
                "org.opencontainers.image.version": version,
            },
        });
        Self {
            blobs: vec![(described, config), (layer, bytes)],
            manifest: manifest.to_string().into_bytes(),
        }
    }

    /// Creates the artifact of a signature: the contents of `<plugin>.sig`, for the plugin with this manifest.
    pub fn of_signature(envelope: Vec<u8>, subject: &Descriptor) -> Self {
        let empty = Descriptor::of(EMPTY, EMPTY_BYTES);
        let layer = Descriptor::of(ENVELOPE, &envelope);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": SIGNATURE,
            "config": empty,
            "layers": [layer],
            "subject": subject,
        });
        Self {
            blobs: vec![(empty, EMPTY_BYTES.to_vec()), (layer, envelope)],
            manifest: manifest.to_string().into_bytes(),
        }
    }

    /// Returns the reference to the manifest.
    pub fn descriptor(&self) -> Descriptor {
        Descriptor::of(MANIFEST, &self.manifest)
    }
}

/// The interfaces of a component.
pub struct Interfaces {
    /// What it exports.
    pub exports: Vec<String>,
    /// What it imports.
    pub imports: Vec<String>,
}

/// Returns the list of the manifests that refer to another one, with one more in it. The others stay as they are.
///
/// # Errors
/// When `index` is not a list.
pub fn with_referrer(index: Option<&[u8]>, referrer: &Artifact) -> Result<Vec<u8>, Problem> {
    // A map: serde would also read a structure from an array.
    let index: Option<BTreeMap<String, Value>> = index
        .map(serde_json::from_slice)
        .transpose()
        .map_err(|error| malformed(&error))?;
    let mut manifests = match index.unwrap_or_default().remove("manifests") {
        Some(entries) => serde_json::from_value(entries).map_err(|error| malformed(&error))?,
        None => Vec::<Value>::new(),
    };
    let added = Descriptor {
        artifact_type: Some(SIGNATURE.to_owned()),
        ..referrer.descriptor()
    };
    let added = json!(added);
    manifests.retain(|manifest| manifest["digest"] != added["digest"]);
    manifests.push(added);
    let list = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
    Ok(list.to_string().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pushed_has_the_layout_of_the_cncf_and_depends_on_the_plugin_alone() {
        let artifact = || Artifact::of_plugin(b"\0asm".to_vec(), "echo", "1.4.0", None);
        assert_eq!(artifact().manifest, artifact().manifest);
        let artifact = artifact();
        let layer = plugin_layer(&artifact.manifest, 10).unwrap();
        let expected = Descriptor::of("application/wasm", b"\0asm");
        assert_eq!((layer.digest, layer.size), (expected.digest, 4));
        assert_eq!(layer.media_type, expected.media_type);
        let title = "org.opencontainers.image.title";
        assert_eq!(layer.annotations.unwrap()[title], "echo.wasm");
        let manifest: serde_json::Value = serde_json::from_slice(&artifact.manifest).unwrap();
        let expected = "application/vnd.wasm.config.v0+json";
        assert_eq!(manifest["config"]["mediaType"], expected);
        let config: serde_json::Value = serde_json::from_slice(&artifact.blobs[0].1).unwrap();
        assert_eq!(config["architecture"], "wasm");
        assert_eq!(config["os"], "wasip1");
        assert_eq!(config["layerDigests"][0], Digest::of(b"\0asm").to_string());
        let large = plugin_layer(&artifact.manifest, 3).unwrap_err().to_string();
        assert_eq!(large, "the plugin has 4 bytes, the limit is 3");
        let interfaces = Interfaces {
            exports: vec!["a:b/c".into()],
            imports: Vec::new(),
        };
        let component = Artifact::of_plugin(b"\0asm".to_vec(), "echo", "1.4.0", Some(&interfaces));
        let config: serde_json::Value = serde_json::from_slice(&component.blobs[0].1).unwrap();
        assert_eq!(config["os"], "wasip2");
        assert_eq!(config["component"]["exports"][0], "a:b/c");
    }

    #[test]
    fn other_artifacts_are_named_and_refused() {
        let refuse =
            |manifest: serde_json::Value| plugin_layer(manifest.to_string().as_bytes(), 10).unwrap_err();
        let layer = |media_type: &str| json!({"mediaType": media_type, "digest": Digest::of(b""), "size": 1});
        let image = "application/vnd.oci.image.layer.v1.tar+gzip";
        let of = |layers: &[Value]| json!({"schemaVersion": 2, "layers": layers});
        let wrong = |field: &str, value: Value| {
            let mut layer = layer(WASM_LAYER);
            layer[field] = value;
            of(&[layer])
        };
        for (manifest, expected) in [
            (json!([]), "not a manifest"),
            (json!({"schemaVersion": 1}), "schemaVersion is 1"),
            (json!({"schemaVersion": 2, "manifests": []}), "list of manifests"),
            (of(&[]), "layers are missing"),
            (of(&[layer(image)]), image),
            (of(&[layer(WASM_LAYER), layer(WASM_LAYER)]), "expected one"),
            (of(&[layer("dGVhbTpwYXNz/")]), "layers are of an unknown type"),
            (
                json!({"schemaVersion": "dGVhbTpwYXNz"}),
                "a field is missing or has another form (line 1,",
            ),
            (wrong("digest", json!("sha512:00")), "another form"),
            (wrong("size", json!(-1)), "not a manifest"),
        ] {
            let error = refuse(manifest).to_string();
            assert!(error.contains(expected), "{error}");
            assert!(!error.contains("dGVhbTpwYXNz"), "{error}");
        }
        let error = plugin_layer(b"Basic dGVhbTpwYXNz", 10).unwrap_err().to_string();
        assert!(error.ends_with("it is not JSON (line 1, column 1)"), "{error}");
    }

    #[test]
    fn a_signature_refers_to_the_plugin_and_is_listed_once() {
        let plugin = Artifact::of_plugin(b"\0asm".to_vec(), "echo", "1.4.0", None);
        let signature = Artifact::of_signature(b"{}".to_vec(), &plugin.descriptor());
        let manifest: serde_json::Value = serde_json::from_slice(&signature.manifest).unwrap();
        let digest = Digest::of(&plugin.manifest).to_string();
        assert_eq!(manifest["subject"]["digest"], digest);
        let index = with_referrer(None, &signature).unwrap();
        let index = with_referrer(Some(&index), &signature).unwrap();
        let other = Artifact::of_signature(b"[]".to_vec(), &plugin.descriptor());
        let index = with_referrer(Some(&index), &other).unwrap();
        let all = listed(&index).unwrap();
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].artifact_type.as_deref(), Some(SIGNATURE));
        // Those of others stay, and hide none.
        let foreign = json!({"manifests": [
            {"mediaType": MANIFEST, "digest": "sha512:00", "size": 1, "platform": {"os": "linux"}}, 1, null,
        ]});
        let index = with_referrer(Some(foreign.to_string().as_bytes()), &other).unwrap();
        let all: Value = serde_json::from_slice(&index).unwrap();
        assert_eq!(
            all["manifests"].as_array().unwrap()[..3],
            foreign["manifests"].as_array().unwrap()[..]
        );
        assert_eq!(listed(&index).unwrap().len(), 1);
        assert!(listed(br#"{"manifests": 1}"#).is_err());
        assert!(with_referrer(Some(b"nonsense"), &other).is_err());
        assert!(with_referrer(Some(b"[[]]"), &other).is_err());
    }
}
