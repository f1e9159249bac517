//! The warnings of the API server and of admission webhooks: `Warning` headers of a response, about deprecated versions, Pod
//! Security and the like. Source: RFC 7234, and the Kubernetes blog, "Warning: Helpful Warnings Ahead".

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use hyper::Response;
use hyper::header::WARNING;
use tracing::warn;

use operator_host_core::sync::lock;
use operator_host_core::text::{printable, shorten};

/// The longest text, in bytes. A webhook may choose it.
const LONGEST: usize = 512;
/// The most warnings of one request that are heard, and the most texts that are logged.
const MOST: usize = 64;

tokio::task_local! {
    static HEARD: RefCell<BTreeSet<String>>;
}

/// Runs requests in this task, and returns what the API server warns of meanwhile.
pub async fn hear<T>(requests: impl Future<Output = T>) -> (T, BTreeSet<String>) {
    let heard = async {
        let answer = requests.await;
        (answer, HEARD.with(RefCell::take))
    };
    HEARD.scope(RefCell::default(), heard).await
}

/// Tells a warning to whoever waits for the response, or else to the log.
pub fn tell(text: &str) {
    if !is_told(text) {
        warn!("the API server warns: {text}");
    }
}

/// Returns whether somebody waits for the response.
fn is_told(text: &str) -> bool {
    HEARD
        .try_with(|heard| heard.borrow_mut().insert(text.to_owned()))
        .is_ok()
}

/// The warnings that were logged because nobody waits for them. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Logged(Arc<Mutex<BTreeSet<String>>>);

impl Logged {
    /// Observes every response.
    pub(super) fn listen<B>(&self) -> impl FnOnce(Response<B>) -> Response<B> + Clone + use<B> {
        let logged = self.clone();
        move |response| {
            let headers = response.headers().get_all(WARNING).iter().take(MOST);
            for text in headers.filter_map(|value| text(value.as_bytes())) {
                if !is_told(&text) {
                    logged.log(text);
                }
            }
            response
        }
    }

    fn log(&self, text: String) {
        let mut logged = lock(&self.0);
        if logged.len() < MOST && !logged.contains(&text) {
            warn!("the API server warns: {text}");
            logged.insert(text);
        }
    }
}

/// Returns the text of a header `299 AGENT "TEXT"`, perhaps with a date after it.
fn text(value: &[u8]) -> Option<String> {
    let value = String::from_utf8_lossy(value);
    let (_, quoted) = value.strip_prefix("299 ")?.split_once('"')?;
    let mut text = String::new();
    let mut characters = quoted.chars();
    loop {
        match characters.next()? {
            '"' => break,
            '\\' => text.push(characters.next()?),
            other => text.push(other),
        }
    }
    Some(shorten(&printable(&text), LONGEST)).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_warning_is_heard_once_by_whoever_waits_for_the_response() {
        let logged = Logged::default();
        let answer = |texts: &[&str]| {
            let mut response = Response::builder();
            for text in texts {
                response = response.header(WARNING, *text);
            }
            logged.listen()(response.body(()).unwrap());
        };
        let deprecated = r#"299 - "v1 \"ComponentStatus\" is deprecated""#;
        let ((), heard) = hear(async {
            answer(&[deprecated, r#"299 k "zwei" "Wed, 21 Oct 2026 07:28:00 GMT""#]);
            answer(&[deprecated, "199 - \"misc\"", "299 - \"open", "nonsense"]);
        })
        .await;
        assert_eq!(
            heard.iter().map(String::as_str).collect::<Vec<_>>(),
            ["v1 \"ComponentStatus\" is deprecated", "zwei"]
        );
        assert!(lock(&logged.0).is_empty());
        answer(&[deprecated]);
        answer(&[deprecated]);
        assert_eq!(lock(&logged.0).len(), 1);
    }
}
