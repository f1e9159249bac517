//! The plugin's verdict on a resource before it is written.

use std::sync::Arc;

use kube::core::DynamicObject;

use super::ask::ask_ahead;
use super::failure::PassError;
use crate::controller::context::Context;
use crate::controller::object::ObjectName;
use crate::plugin::CallError;
use crate::plugin::registry::Live;

/// What a plugin says of a resource that is about to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It would reconcile it, now or later.
    Fine,
    /// It calls it invalid, for this reason.
    Invalid(String),
}

/// Asks the live version, with the children and the needs that the caches hold; nothing is written or remembered.
///
/// # Errors
/// When there is no verdict, and why.
pub async fn admit(context: &Context, object: &DynamicObject) -> Result<Admission, String> {
    let plugin = match &*context.plugin.borrow() {
        Live::Plugin(plugin) => plugin.clone(),
        Live::Loading => return Err("the plugin is being loaded".to_owned()),
        Live::Failed(why) => return Err(why.to_string()),
    };
    if context.is_starting(&ObjectName::of(object)) {
        return Err("the first lists are under way".to_owned());
    }
    if let Some(failure) = context.watch_failure(object) {
        return Err(failure);
    }
    let mut object = object.clone();
    crate::controller::object::slim(&mut object);
    match ask_ahead(context, &plugin, &Arc::new(object)).await {
        // Something that it waits for may come.
        Ok(_) | Err(PassError::Call(CallError::Retry { .. })) => Ok(Admission::Fine),
        Err(PassError::Call(CallError::Invalid { reason, message })) => {
            Ok(Admission::Invalid(match reason {
                Some(reason) => format!("{reason}: {message}"),
                None => message,
            }))
        }
        Err(error) => Err(error.to_string()),
    }
}
