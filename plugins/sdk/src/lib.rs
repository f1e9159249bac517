//! Write a Kubernetes operator as a WebAssembly plugin of operator-host.
//!
//! A plugin is a spec type, a status type and one function from what the user wants and what exists to what
//! should exist and the status to show:
//!
//! ```ignore
//! use operator_plugin::prelude::*;
//! use schemars::JsonSchema;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Deserialize, JsonSchema)]
//! struct GreetingSpec {
//!     text: String,
//! }
//!
//! #[derive(Serialize, Deserialize, JsonSchema)]
//! struct GreetingStatus {
//!     length: usize,
//! }
//!
//! const PLUGIN: Plugin<GreetingSpec, GreetingStatus> =
//!     Plugin::new("example.com/v1", "Greeting", reconcile).makes(&[CONFIG_MAP]);
//! operator_plugin::register!(PLUGIN);
//!
//! fn reconcile(
//!     request: &Request<GreetingSpec, GreetingStatus>,
//! ) -> Result<Response<GreetingStatus>, Failure> {
//!     let Parent { name, spec, .. } = &request.parent;
//!     Ok(Response::new(GreetingStatus { length: spec.text.len() }).child(json!({
//!         "apiVersion": "v1",
//!         "kind": "ConfigMap",
//!         "metadata": { "name": name },
//!         "data": { "text": spec.text },
//!     })))
//! }
//! # fn main() {}
//! ```
//!
//! [`builders`] write the children of the usual kinds, in place of `json!`.
//!
//! The host does all the rest: watches, server-side apply, pruning, ownership, status conditions, Events,
//! retries. The function is pure: the same request gives the same response, so do not read the clock
//! (use [`Request::now`]) and do not generate passwords (use [`Response::generate`]).
//!
//! `cargo build --release --target wasm32-wasip1` makes the plugin; native `cargo test` tests it, with
//! [`testing`] (feature `testing`) to feed it resources from YAML.

mod bindings;
pub mod builders;
mod checksum;
#[cfg(feature = "command")]
mod command;
mod crd;
mod kinds;
mod labels;
pub mod log;
mod object;
mod plugin;
mod pod_template;
mod quantity;
mod readiness;
mod request;
mod response;
mod scan;
#[cfg(feature = "testing")]
pub mod testing;
mod text;
mod versions;

pub use checksum::{CHECKSUM, checksum};
pub use crd::{Column, Rule, RuleReason, Scale};
pub use kinds::*;
pub use labels::Labels;
pub use object::Object;
pub use plugin::{Defaults, Plugin};
pub use pod_template::PodTemplate;
pub use quantity::{InvalidQuantity, Quantity};
pub use request::{Parent, Request};
pub use response::*;
pub use serde_json::{Value, json};
pub use versions::Version;

/// The names that a plugin's source usually needs.
pub mod prelude {
    pub use crate::{
        CONFIG_MAP, CRON_JOB, Column, Condition, DAEMON_SET, DEPLOYMENT, Event, Failure, FieldError,
        GeneratedSecret, HORIZONTAL_POD_AUTOSCALER, INGRESS, JOB, Kind, Labels, NETWORK_POLICY, Need, Object,
        ObjectRef, PERSISTENT_VOLUME_CLAIM, POD, POD_DISRUPTION_BUDGET, Parent, Plugin, Quantity, ROLE,
        ROLE_BINDING, Request, Response, Rule, SECRET, SERVICE, SERVICE_ACCOUNT, STATEFUL_SET, Scale, Value,
        Version, json,
    };
}

/// Exports the functions that the host calls, so that the crate is a plugin.
///
/// Takes the name of a constant of type [`Plugin`]. The plugin's name and version are those of the crate.
#[macro_export]
macro_rules! register {
    ($plugin:ident) => {
        // The tests create the file when it is missing, so they must compile without it.
        #[cfg(not(test))]
        const DEFINITION: &str = ::core::include_str!(::core::concat!(
            ::core::env!("CARGO_MANIFEST_DIR"),
            "/crd.json"
        ));
        #[cfg(test)]
        const DEFINITION: &str = "";

        $crate::__register!($plugin, DEFINITION);

        #[cfg(test)]
        mod registered_plugin {
            #[test]
            fn crd_matches_the_types() {
                $crate::testing::check_crd(::core::env!("CARGO_MANIFEST_DIR"), &super::$plugin);
            }

            #[test]
            fn every_version_comes_back_from_the_others() {
                $crate::testing::check_versions(&super::$plugin);
            }
        }
    };
}

/// Does what [`register!`] does, for a plugin that decorates: its kinds are defined by others, so it has no definition.
#[macro_export]
macro_rules! register_decorator {
    ($plugin:ident) => {
        $crate::__register!($plugin, "");
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __register {
    ($plugin:ident, $definition:expr) => {
        #[doc(hidden)]
        pub struct RegisteredPlugin;

        impl $crate::__private::Registered for RegisteredPlugin {
            const NAME: &'static str = ::core::env!("CARGO_PKG_NAME");
            const VERSION: &'static str = ::core::env!("CARGO_PKG_VERSION");
            const CRD: &'static str = $definition;

            fn plugin() -> impl $crate::__private::Reconciler {
                $plugin
            }
        }

        $crate::__export!(RegisteredPlugin);
    };
}

/// Defines an export, whose parameters are those of the canonical ABI.
#[cfg(not(feature = "command"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __call {
    ($registered:ident, $export:literal, $implementation:ident($($parameter:ident: $type:ty),*)) => {
        #[unsafe(export_name = ::core::concat!("operator-host:plugin/reconciler@1.0.0#", $export))]
        unsafe extern "C" fn $implementation($($parameter: $type),*) -> *mut u8 {
            unsafe {
                $crate::__private::exports::operator_host::plugin::reconciler::$implementation::<$registered>(
                    $($parameter),*
                )
            }
        }
    };
    // A request, whose fields are passed one by one.
    ($registered:ident, $export:literal, $implementation:ident(request)) => {
        $crate::__call!($registered, $export, $implementation(
            parent: *mut u8, parent_length: usize, children: *mut u8, children_length: usize,
            related: *mut u8, related_length: usize, now: *mut u8, now_length: usize,
            is_traced: i32, traceparent: *mut u8, traceparent_length: usize, namespace_terminating: i32
        ));
    };
}

/// The expansion of [`register!`]: the component's exports, or a `main` for the command form. A native build, as in
/// `cargo test`, exports nothing.
///
/// `wit-bindgen` would also export functions that free the answer. It is freed with the whole sandbox, and they
/// would add 4 KB to the plugin and time to each call.
#[cfg(not(feature = "command"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __export {
    ($registered:ident) => {
        #[cfg(target_family = "wasm")]
        const _: () = {
            $crate::__call!($registered, "describe", _export_describe_cabi());
            $crate::__call!($registered, "validate", _export_validate_cabi(
                parent: *mut u8, parent_length: usize,
                has_old_parent: i32, old_parent: *mut u8, old_parent_length: usize
            ));
            $crate::__call!($registered, "reconcile", _export_reconcile_cabi(request));
            $crate::__call!($registered, "cleanup", _export_cleanup_cabi(request));
            $crate::__call!($registered, "convert", _export_convert_cabi(
                api_version: *mut u8, api_version_length: usize, objects: *mut u8, objects_length: usize
            ));
            $crate::__call!($registered, "default", _export_default_cabi(parent: *mut u8, parent_length: usize));
        };
    };
}

/// See the other `__export`.
#[cfg(feature = "command")]
#[doc(hidden)]
#[macro_export]
macro_rules! __export {
    ($registered:ident) => {
        /// Answers one call: JSON on standard input and output.
        pub fn main() -> ::std::process::ExitCode {
            $crate::__private::run_command::<$registered>()
        }
    };
}

/// Only for the macros.
#[doc(hidden)]
pub mod __private {
    pub use crate::bindings::*;
    #[cfg(feature = "command")]
    pub use crate::command::run as run_command;
    pub use crate::plugin::{Reconciler, Registered};
}
