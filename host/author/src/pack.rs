//! `operator-host pack`: prints ConfigMaps that hold plugins.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, anyhow};
use k8s_openapi::ByteString;
use serde_json::{Value, json};

use super::plugin_file::Loaded;
use super::{Failure, plugin_file, sign};
use operator_host_config::{ServiceAccount, object};
use operator_host_contract::{Description, Kind, is_dns_label};
use operator_host_core::digest::Digest;
use operator_host_core::object::{DIGEST_ANNOTATION, PACK_LABEL, is_config_map_key};
use operator_host_delivery::pack::{Compression, INDEX_SUFFIX, Index, MAX_PARTS, SIGNATURE_SUFFIX};

/// Bytes of a plugin in one ConfigMap, which may have 1 MiB in total: this leaves room for an index and a signature.
const PART: usize = 1_000_000;

/// The options of `pack`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The plugins' WebAssembly files
    #[arg(required = true)]
    plugins: Vec<PathBuf>,
    /// The namespace of the ConfigMaps [default: the namespace that kubectl uses]
    #[arg(long, short)]
    namespace: Option<String>,
    /// Sign the plugins with this private key, as `openssl genpkey -algorithm ed25519` writes it. Without it, a
    /// signature that `sign` wrote beside a plugin's file is packed unchanged
    #[arg(long, value_name = "FILE")]
    sign_key: Option<PathBuf>,
    /// Print a Controller for each plugin, too: applied to a cluster, it makes a running host reconcile the plugin's kind
    #[arg(long)]
    controller: bool,
    /// The ServiceAccount with which the Controllers' children are written, for hosts whose ceilings demand one
    #[arg(long, requires = "controller", value_name = "NAMESPACE/NAME")]
    service_account: Option<ServiceAccount>,
}

/// Prints the manifests of ConfigMaps that hold the plugins, and how to mount them.
///
/// # Errors
/// When a file is not a plugin or its name cannot be a ConfigMap key, or when the key is invalid.
pub async fn run(args: Args) -> Result<(), Failure> {
    let key = args.sign_key.as_deref().map(sign::signing_key).transpose()?;
    let (mut maps, mut controllers) = (Vec::new(), Vec::new());
    for file in &args.plugins {
        let loaded = plugin_file::load(file).await?;
        let signature = sign::signature(key.as_ref(), file, &loaded)?;
        let Loaded { name, bytes, plugin } = loaded;
        maps.extend(pack(&name, &bytes, signature)?);
        if args.controller {
            let source = json!({"name": map_name(&name), "namespace": args.namespace, "key": name});
            let account = args.service_account.as_ref();
            controllers.push(controller(plugin.description(), source, account)?);
        }
    }
    if let Some(twice) = twice(&maps) {
        let message = anyhow!("two plugins need the ConfigMap {twice}: rename one of the files");
        return Err(Failure::Usage(message));
    }
    print!("{}", manifests(&maps, args.namespace.as_deref(), args.controller));
    for controller in controllers {
        print!("---\n{controller}");
    }
    Ok(())
}

/// Returns the manifest of a Controller that allows what the plugin says that it does. `source` is its ConfigMap.
fn controller(
    description: &Description,
    mut source: Value,
    account: Option<&ServiceAccount>,
) -> Result<String, Failure> {
    if !is_dns_label(&description.name) {
        let message = anyhow!(
            "the plugin's name {:?} cannot be that of a Controller: rename it, or write the Controller by hand",
            description.name
        );
        return Err(Failure::Usage(message));
    }
    // The host takes its own namespace.
    if let Some(source) = source.as_object_mut() {
        source.retain(|_, value| !value.is_null());
    }
    let kind = |kind: &Kind| json!({"apiVersion": kind.api_version, "kind": kind.kind});
    let kinds = |kinds: &[Kind]| kinds.iter().map(kind).collect::<Vec<_>>();
    let mut spec = json!({"parent": kind(&description.parent), "plugin": {"configMap": source}});
    for (field, listed) in [("children", &description.makes), ("reads", &description.reads)] {
        if !listed.is_empty() {
            spec[field] = kinds(listed).into();
        }
    }
    if let Some(account) = account {
        spec["serviceAccount"] = account.to_string().into();
    }
    let manifest = json!({
        "apiVersion": object::kind().api_version,
        "kind": object::KIND,
        "metadata": {"name": description.name},
        "spec": spec,
    });
    Ok(serde_saphyr::to_string(&manifest).context("cannot write the Controller")?)
}

/// One ConfigMap, with the digest of the plugin that it contains or contains a part of.
#[derive(Debug, PartialEq)]
struct Map {
    name: String,
    /// The name of the plugin's first ConfigMap.
    of: String,
    digest: Digest,
    /// The data by key.
    data: Vec<(String, Vec<u8>)>,
}

/// Packs one plugin. The first ConfigMap contains the plugin, or the index and the first part, so every change of the
/// plugin's form changes that ConfigMap.
fn pack(file: &str, bytes: &[u8], signature: Option<Vec<u8>>) -> Result<Vec<Map>, Failure> {
    if !is_config_map_key(file) {
        let message =
            anyhow!("{file:?} cannot be a key of a ConfigMap: only letters, digits, '-', '_' and '.' can");
        return Err(Failure::Usage(message));
    }
    let compression = match bytes.len() <= PART {
        true => Compression::None,
        false => Compression::Zstd,
    };
    let (index, mut parts) =
        Index::split(file, bytes, compression, PART).context("cannot compress the plugin")?;
    let count = parts.len();
    if count > MAX_PARTS {
        let message = anyhow!("{file} needs {count} parts; a host accepts at most {MAX_PARTS}");
        return Err(Failure::Usage(message));
    }
    let mut first = Vec::new();
    if count == 1 {
        first.push((format!("{file}{}", compression.suffix()), parts.remove(0)));
    } else {
        let text = serde_json::to_vec_pretty(&index).context("cannot write the index")?;
        first.push((format!("{file}{INDEX_SUFFIX}"), text));
        first.push((index.parts[0].file.clone(), parts.remove(0)));
    }
    if let Some(signature) = signature {
        first.push((format!("{file}{SIGNATURE_SUFFIX}"), signature));
    }
    let base = map_name(file);
    let map = |(number, data): (usize, Vec<(String, Vec<u8>)>)| Map {
        name: match number {
            0 => base.clone(),
            number => format!("{base}-{number}"),
        },
        of: base.clone(),
        digest: index.sha256,
        data,
    };
    let others = index.parts.iter().skip(1).zip(parts);
    let others = others.map(|(part, content)| vec![(part.file.clone(), content)]);
    let all = std::iter::once(first).chain(others);
    Ok(all.enumerate().map(map).collect())
}

/// Returns a valid object name: `echo-plugin` for `echo.wasm`.
fn map_name(file: &str) -> String {
    let stem = file.strip_suffix(".wasm").unwrap_or(file).to_ascii_lowercase();
    let stem = stem.replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let mut stem = stem.trim_matches('-').to_owned();
    // With the end it fits a label's value.
    stem.truncate(50);
    format!("{stem}-plugin")
}

fn twice(maps: &[Map]) -> Option<&str> {
    let mut seen = BTreeSet::new();
    let mut names = maps.iter().map(|map| map.name.as_str());
    names.find(|name| !seen.insert(*name))
}

fn manifests(maps: &[Map], namespace: Option<&str>, is_named: bool) -> String {
    let mut text = String::from(
        "# Apply this with `kubectl apply --server-side -f -`: without --server-side, kubectl copies everything into an\n\
         # annotation, which is too small.",
    );
    text.push_str(match is_named {
        true => " The host reads the ConfigMaps that a Controller names.\n",
        false => {
            " Mount all ConfigMaps as one folder, the `plugins` folder of the configuration.\n\
             # The `items` keep each ConfigMap from providing a file of another one, even if somebody changes it:\n\
             #\n\
             #   volumes:\n\
             #     - name: plugins\n\
             #       projected:\n\
             #         sources:\n"
        }
    });
    // Writing to a string cannot fail.
    for map in maps.iter().filter(|_| !is_named) {
        let item = |(key, _): &(String, _)| format!("{{key: {key}, path: {key}}}");
        let items: Vec<_> = map.data.iter().map(item).collect();
        let (name, items) = (&map.name, items.join(", "));
        let _ = writeln!(
            text,
            "#           - configMap: {{name: {name}, items: [{items}]}}"
        );
    }
    for map in maps {
        let name = &map.name;
        let _ = writeln!(
            text,
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}"
        );
        if let Some(namespace) = namespace {
            let _ = writeln!(text, "  namespace: {namespace}");
        }
        let _ = write!(
            text,
            "  labels:\n    {PACK_LABEL}: {}\n  annotations:\n    {DIGEST_ANNOTATION}: {}\nbinaryData:\n",
            map.of, map.digest
        );
        for (key, bytes) in &map.data {
            // A JSON string is also valid YAML.
            let value = serde_json::to_string(&ByteString(bytes.clone())).unwrap_or_default();
            let _ = writeln!(text, "  {key}: {value}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use operator_host_delivery::testing::noise;

    #[test]
    fn the_manifests_are_yaml_with_the_digest_and_explain_how_to_mount_them() {
        let bytes = noise(PART + PART / 2);
        let maps = pack("echo.wasm", &bytes, None).unwrap();
        let text = manifests(&maps, Some("operators"), false);
        let documents: Vec<serde_json::Value> = serde_saphyr::from_multiple(&text).unwrap();
        assert_eq!(documents.len(), 2);
        assert_eq!(documents[0]["metadata"]["namespace"], "operators");
        let digest = &documents[1]["metadata"]["annotations"][DIGEST_ANNOTATION];
        assert_eq!(*digest, Digest::of(&bytes).to_string());
        let part: ByteString =
            serde_json::from_value(documents[1]["binaryData"]["echo.wasm.zst.1"].clone()).unwrap();
        assert_eq!(part.0, maps[1].data[0].1);
        assert!(
            text.contains(
                "#           - configMap: {name: echo-plugin-1, items: [{key: echo.wasm.zst.1, path: echo.wasm.zst.1}]}\n"
            ),
            "{}",
            &text[..800]
        );
    }

    #[test]
    fn a_controller_names_the_account_that_writes_its_children() {
        let description =
            operator_host_delivery::testing::describing("echo", "1", Kind::new("a.dev/v1", "Echo"));
        let spec = |account: Option<&ServiceAccount>| -> Value {
            let text = controller(&description, json!({"name": "echo-plugin"}), account).unwrap();
            serde_saphyr::from_str::<Value>(&text).unwrap()["spec"].take()
        };
        let account = ServiceAccount {
            namespace: "team-a".to_owned(),
            name: "operators".to_owned(),
        };
        assert_eq!(spec(Some(&account))["serviceAccount"], "team-a/operators");
        assert!(spec(None)["serviceAccount"].is_null());
    }

    #[test]
    fn a_name_that_no_config_map_takes_is_refused() {
        assert!(matches!(pack("e cho.wasm", b"x", None), Err(Failure::Usage(_))));
        let both: Vec<_> = ["a_b.wasm", "a.b.wasm"]
            .iter()
            .flat_map(|file| pack(file, b"x", None).unwrap())
            .collect();
        assert_eq!(twice(&both), Some("a-b-plugin"));
    }
}
