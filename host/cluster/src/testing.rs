//! An API server for tests, which answers as a function says.

use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// Returns a client whose requests this function answers, by their URI: with a status code and a document.
pub fn answering(answer: impl Fn(&str) -> (u16, Value) + Send + 'static) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let (code, answer) = answer(&request.uri().to_string());
        let text = match answer {
            Value::Null => String::new(),
            answer => answer.to_string(),
        };
        async move {
            tokio::task::yield_now().await;
            Response::builder()
                .status(code)
                .body(Body::from(text.into_bytes()))
        }
    });
    Client::new(service, "default")
}

/// Returns the list of the resources of an API version: namespaced kinds, each with its plural.
pub fn resources(api_version: &str, kinds: &[(&str, &str)]) -> Value {
    let resource = |(plural, kind): &_| json!({ "name": plural, "singularName": "", "kind": kind, "namespaced": true, "verbs": ["list"] });
    let resources: Vec<Value> = kinds.iter().map(resource).collect();
    json!({ "kind": "APIResourceList", "groupVersion": api_version, "resources": resources })
}

/// Returns a refusal.
pub fn refusal(code: u16, message: &str) -> (u16, Value) {
    let status =
        json!({ "kind": "Status", "status": "Failure", "code": code, "message": message, "reason": "" });
    (code, status)
}
