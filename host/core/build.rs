//! Writes what k8s-openapi knows of Kubernetes' own kinds: their names and scopes as a table, and their schemas into one
//! compressed file, because compiled into the program they would take a hundred times as much.

use std::any::TypeId;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use k8s_openapi::api::{
    admissionregistration::v1 as admission, apps::v1 as apps, autoscaling::v1 as autoscaling_v1,
    autoscaling::v2 as autoscaling, batch::v1 as batch, certificates::v1 as certificates,
    coordination::v1 as coordination, core::v1 as core, discovery::v1 as discovery, events::v1 as events,
    flowcontrol::v1 as flowcontrol, networking::v1 as networking, node::v1 as node, policy::v1 as policy,
    rbac::v1 as rbac, resource::v1 as resource, scheduling::v1 as scheduling, storage::v1 as storage,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1 as extensions;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1 as registration;
use k8s_openapi::{NamespaceResourceScope, Resource};
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

/// What an API server takes as a quantity. Source: the documentation of `Quantity`.
const QUANTITY: &str = r"^[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]+)?$";
/// Types that hold values of any form; their schemas say that it is an object.
const ANY: [&str; 4] = [
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON",
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1",
    "io.k8s.apimachinery.pkg.runtime.RawExtension",
    // A schema contains schemas, and `crd::structural` judges those of definitions.
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let mut generator = SchemaSettings::openapi3().into_generator();
    let (mut kinds, mut names) = (Map::new(), String::new());
    macro_rules! kinds {
        ($($module:ident: $($kind:ident)+;)+) => {
            $($(add::<$module::$kind>(&mut generator, &mut kinds, &mut names);)+)+
        };
    }
    kinds! {
        admission: MutatingAdmissionPolicy MutatingAdmissionPolicyBinding MutatingWebhookConfiguration
            ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration;
        apps: ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet;
        autoscaling_v1: HorizontalPodAutoscaler;
        autoscaling: HorizontalPodAutoscaler;
        batch: CronJob Job;
        certificates: CertificateSigningRequest;
        coordination: Lease;
        core: ConfigMap Endpoints Event LimitRange Namespace Node PersistentVolume PersistentVolumeClaim Pod PodTemplate
            ReplicationController ResourceQuota Secret Service ServiceAccount;
        discovery: EndpointSlice;
        events: Event;
        extensions: CustomResourceDefinition;
        flowcontrol: FlowSchema PriorityLevelConfiguration;
        networking: Ingress IngressClass IPAddress NetworkPolicy ServiceCIDR;
        node: RuntimeClass;
        policy: PodDisruptionBudget;
        rbac: ClusterRole ClusterRoleBinding Role RoleBinding;
        registration: APIService;
        resource: DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice;
        scheduling: PriorityClass;
        storage: CSIDriver CSINode CSIStorageCapacity StorageClass VolumeAttachment VolumeAttributesClass;
    }
    let metadata = generator.subschema_for::<ObjectMeta>();
    let mut types = generator.take_definitions(false);
    for (name, schema) in &mut types {
        strip(schema);
        // Whoever writes a status may write a part of it.
        if let (true, Some(schema)) = (name.ends_with("Status"), schema.as_object_mut()) {
            schema.remove("required");
        }
        if name == "io.k8s.apimachinery.pkg.api.resource.Quantity" {
            *schema = json!({ "anyOf": [{ "type": "string" }, { "type": "number" }], "pattern": QUANTITY });
        } else if ANY.contains(&&**name) {
            *schema = json!({ "x-kubernetes-preserve-unknown-fields": true });
        }
    }
    let all = json!({ "kinds": kinds, "metadata": metadata, "types": types });
    let mut file = GzEncoder::new(Vec::new(), Compression::best());
    file.write_all(all.to_string().as_bytes())?;
    let folder = std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    std::fs::write(Path::new(&folder).join("kinds.json.gz"), file.finish()?)?;
    std::fs::write(Path::new(&folder).join("kinds.rs"), format!("&[{names}]"))?;
    Ok(())
}

fn add<K: JsonSchema + Resource<Scope: 'static>>(
    generator: &mut SchemaGenerator,
    kinds: &mut Map<String, Value>,
    names: &mut String,
) {
    let is_namespaced = TypeId::of::<K::Scope>() == TypeId::of::<NamespaceResourceScope>();
    let (group, kind, plural) = (K::GROUP, K::KIND, K::URL_PATH_SEGMENT);
    *names += &format!(
        "BuiltIn {{ group: {group:?}, kind: {kind:?}, plural: {plural:?}, is_namespaced: {is_namespaced} }},"
    );
    let schema: Schema = generator.subschema_for::<K>();
    kinds.insert(format!("{}/{}", K::API_VERSION, K::KIND), schema.to_value());
}

/// Fields that k8s-openapi requires, and that Kubernetes sets or takes as zero: the metadata, the group of a binding's role, a
/// PriorityClass' value and a ControllerRevision's number.
const NOT_REQUIRED: [&str; 4] = ["metadata", "apiGroup", "value", "revision"];

/// Removes what is not used: above all the descriptions, which are most of the text. A field that is called
/// `description` stays.
fn strip(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else {
        return;
    };
    schema.remove("description");
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.retain(|name| !NOT_REQUIRED.iter().any(|other| name == other));
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(strip);
    }
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get_mut(inner) {
            strip(inner);
        }
    }
    for several in ["allOf", "anyOf", "oneOf"] {
        if let Some(Value::Array(several)) = schema.get_mut(several) {
            several.iter_mut().for_each(strip);
        }
    }
}
