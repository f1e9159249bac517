//! CustomResourceDefinitions: what one consists of, and what is known of the kinds that one or Kubernetes itself defines.

pub mod definition;
pub mod known;
