//! What an External says, checked as if nobody had: an old API server evaluates no rules, and prunes what it does not know.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SignedDuration;
use serde::Deserialize;
use serde_json::Value;

use super::secrets::has_placeholder;
use operator_host_config::endpoints::Method;
use operator_host_core::object::is_deeper;

/// Default of `every`.
const EVERY: Duration = Duration::from_secs(60);
/// The shortest `every`.
const SHORTEST: Duration = Duration::from_secs(5);
/// The longest.
const LONGEST: Duration = Duration::from_secs(24 * 3600);
/// The most bytes of a path.
const MAX_PATH: usize = 2048;
/// The most entries of `report` and `save` together.
const MAX_ENTRIES: usize = 64;
/// The deepest body and the deepest `matches`; an answer may be no deeper either.
pub(crate) const MAX_DEPTH: usize = 64;
/// The headers that an External may set.
const HEADERS: [&str; 3] = ["Accept", "Content-Type", "If-Match"];

/// The `spec` of an External.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Spec {
    pub(crate) endpoint: String,
    pub(crate) observe: Request,
    pub(crate) matches: Option<Value>,
    pub(crate) set: Option<Request>,
    pub(crate) unset: Option<Request>,
    every: Option<String>,
    #[serde(default)]
    pub(crate) report: Vec<String>,
    pub(crate) save: Option<Save>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    #[serde(default = "get")]
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) body: Option<Value>,
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Save {
    pub(crate) secret: String,
    pub(crate) entries: BTreeMap<String, String>,
}

const fn get() -> Method {
    Method::Get
}

impl Spec {
    /// Reads a spec. The error is what is wrong, with the field.
    pub(crate) fn of(spec: &Value) -> Result<Self, String> {
        let read: Self = serde_path_to_error::deserialize(spec).map_err(|error| {
            // The text of an error may quote a value, which may be a password.
            let path = match error.path().to_string().as_str() {
                "." => "spec".to_owned(),
                path => format!("spec.{path}"),
            };
            format!("`{path}` is missing, unknown or of another type")
        })?;
        read.check()?;
        Ok(read)
    }

    fn check(&self) -> Result<(), String> {
        let field = |field: &str, problem: Option<String>| {
            problem.map_or(Ok(()), |problem| Err(format!("`spec.{field}`: {problem}")))
        };
        let too_deep = |value: &Option<Value>| {
            let is_deep = value.as_ref().is_some_and(|value| is_deeper(value, MAX_DEPTH));
            is_deep.then(|| format!("it has more than {MAX_DEPTH} levels"))
        };
        field("matches", too_deep(&self.matches))?;
        let (observe, set, unset) = (Some(&self.observe), self.set.as_ref(), self.unset.as_ref());
        for (name, request) in [("observe", observe), ("set", set), ("unset", unset)] {
            let Some(request) = request else { continue };
            let is_wrong = (request.method == Method::Get) != (name == "observe");
            let method = is_wrong.then(|| format!("it cannot be {}", request.method.as_str()));
            field(&format!("{name}.path"), path_problem(&request.path))?;
            field(&format!("{name}.headers"), header_problem(&request.headers))?;
            field(&format!("{name}.body"), too_deep(&request.body))?;
            field(&format!("{name}.method"), method)?;
        }
        let has_body = self.observe.body.is_some();
        field("observe.body", has_body.then(|| "GET has none".to_owned()))?;
        let body = unset.and_then(|unset| unset.body.as_ref());
        let has_secret = body.is_some_and(has_placeholder);
        let why = "it cannot have `{{secret …}}`: the Secret may be gone when this is deleted";
        field("unset.body", has_secret.then(|| why.to_owned()))?;
        field("every", self.every.as_deref().map(duration).and_then(Result::err))?;
        let entries = self.save.iter().flat_map(|save| save.entries.values());
        let mut pointers = self.report.iter().chain(entries);
        if pointers.clone().count() > MAX_ENTRIES || !pointers.all(|text| text.starts_with('/')) {
            return Err(format!(
                "`spec.report` and `spec.save`: expected at most {MAX_ENTRIES} JSON pointers, such as `/id`"
            ));
        }
        Ok(())
    }

    /// Returns when to look again.
    pub(crate) fn every(&self) -> Duration {
        let every = self.every.as_deref().and_then(|text| duration(text).ok());
        every.unwrap_or(EVERY)
    }

    /// Reports whether the External only reads.
    pub(crate) const fn is_reader(&self) -> bool {
        self.set.is_none() && self.unset.is_none()
    }

    /// Returns what the External stands for: with it, nobody else may set the same.
    pub(crate) fn identity(&self) -> String {
        identity(&self.endpoint, &self.observe.path)
    }
}

/// Returns the identity of an External that observes this path of an endpoint.
pub(crate) fn identity(endpoint: &str, path: &str) -> String {
    format!("{endpoint} {path}")
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<SignedDuration>().ok();
    let parsed = parsed.and_then(|duration| Duration::try_from(duration).ok());
    let parsed = parsed.filter(|duration| (SHORTEST..=LONGEST).contains(duration));
    parsed.ok_or_else(|| format!("expected a duration from {SHORTEST:?} to 24h, such as `60s`"))
}

fn header_problem(headers: &BTreeMap<String, String>) -> Option<String> {
    let is_text = |byte: u8| (b' '..=b'~').contains(&byte);
    if let Some(name) = headers.keys().find(|name| !HEADERS.contains(&name.as_str())) {
        let name: String = name.escape_default().take(64).collect();
        return Some(format!("{name:?} cannot be set: only {} can", HEADERS.join(", ")));
    }
    let bad = headers.values().any(|value| !value.bytes().all(is_text));
    bad.then(|| "a value may only have the printable characters of ASCII".to_owned())
}

/// Returns why a path could leave the prefix of its endpoint, or mean different things to two programs.
fn path_problem(text: &str) -> Option<String> {
    if !text.starts_with('/') || text.len() > MAX_PATH {
        return Some(format!(
            "it must begin with `/` and have at most {MAX_PATH} bytes"
        ));
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let why = "it may only have printable characters of ASCII, without spaces; encode others as `%20`";
        return Some(why.to_owned());
    }
    if let Some(bad) = text.chars().find(|c| "#\\\"<>^`{|}".contains(*c)) {
        return Some(format!("it may not have the character `{bad}`"));
    }
    let (path, query) = text.split_once('?').unwrap_or((text, ""));
    // Some servers drop what comes after a semicolon before they resolve dots.
    let mut segments = path.split('/').map(|it| it.split(';').next());
    let has_dots = segments.any(|segment| matches!(segment, Some("." | "..")));
    let why = encoding_problem(path, true)
        .or_else(|| encoding_problem(query, false))
        .or_else(|| has_dots.then_some("it may not have the segments `.` and `..`"))
        .or_else(|| path.contains("//").then_some("it may not have empty segments"));
    why.map(str::to_owned)
}

/// Returns what is wrong with the percent-encoding in a path or a query of ASCII. What may not be encoded in a path, a server may
/// decode before it resolves dots and slashes, or decode twice.
fn encoding_problem(text: &str, is_path: bool) -> Option<&'static str> {
    let mut parts = text.split('%');
    let mut decoded = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let digits = part.get(..2).unwrap_or_default();
        let is_hex = digits
            .bytes()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'A'..=b'F'));
        let byte = u8::from_str_radix(digits, 16).ok();
        let Some(byte) = byte.filter(|_| is_hex) else {
            return Some("a `%` must be followed by two hexadecimal digits, in upper case");
        };
        let is_plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        if is_plain || byte.is_ascii_control() || is_path && b"/\\%;".contains(&byte) {
            return Some(
                "letters, digits, `-`, `.`, `_`, `~` and control characters may not be encoded, nor `/`, `\\`, `%` and `;` in a \
                 path: one resource must have one path, for everyone who decodes it",
            );
        }
        decoded.push(byte);
        decoded.extend_from_slice(&part.as_bytes()[2..]);
    }
    // Such as an overlong form of a dot, which some servers take for one.
    (is_path && std::str::from_utf8(&decoded).is_err()).then_some("what is encoded in it must be UTF-8")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_stays_below_the_prefix_of_its_endpoint() {
        let query = "/zones/example.com?rrset_name=www.example.com.&rrset_type=A";
        for good in "/ /a/%20b /a%C3%A4 /a?b=%2F..%2F /a/... /a:b@c"
            .split(' ')
            .chain([query])
        {
            assert_eq!(path_problem(good), None, "{good}");
        }
        let bad = "zones //evil.example/a /a//b /.. /a/../b /a/./b /a/..;x/b /%2e%2e/a /a%2Fb /a%2fb /a%5cb /a\\b /a#b \
                   /a%0d%0a /a?b%0a /%252e /a% /a%2 /a%zz /%61 /é /a\u{0} https://evil.example/ @evil.example/ /a%3b /a?b=\"";
        // Overlong forms of `..` and `/`, and other names of one resource.
        let names = "/%C0%AE%C0%AE/a /a%C0%AFb /a%2Db /a%7Eb /a%c3%a4";
        let bad = bad.split(' ').chain(names.split(' '));
        for bad in bad.chain(["", "/a b", "/a\r\nHost: evil"]) {
            assert!(path_problem(bad).is_some(), "{bad}");
        }
        assert!(path_problem(&format!("/{}", "a".repeat(MAX_PATH))).is_some());
    }

    #[test]
    fn what_is_wrong_is_named_by_its_field_and_never_quoted() {
        let base = json!({"endpoint": "dns", "observe": {"path": "/a"}});
        assert_eq!(Spec::of(&base).unwrap().every(), EVERY);
        let put = |field: &str, value: Value| json!({"method": "PUT", "path": "/a", field: value});
        for (value, words) in [
            (json!("4s"), "spec.every"),
            (json!("25h"), "spec.every"),
            (put("path", json!("/a/../b")), "spec.set.path"),
            (put("method", json!("GET")), "spec.set.method"),
            (put("headers", json!({"Host": "hunter2"})), "spec.set.headers"),
            (
                put("headers", json!({"Accept": "hunter2\n"})),
                "spec.unset.headers",
            ),
            (put("body", json!(["hunter2 {{secret a/b}}"])), "spec.unset.body"),
            (json!(["id"]), "spec.report"),
            (json!({"path": "/a", "body": "hunter2"}), "spec.observe"),
            (json!(["hunter2"]), "spec.endpoint"),
        ] {
            let mut spec = base.clone();
            spec[words.split('.').nth(1).unwrap()] = value;
            let error = Spec::of(&spec).unwrap_err();
            assert!(error.contains(words), "{words}: {error}");
            assert!(!error.contains("hunter2"), "{words}: {error}");
        }
        let alone = json!({"endpoint": "dns", "set": {"method": "PUT", "path": "/a"}});
        assert!(Spec::of(&alone).is_err(), "`set` needs `observe`");
    }
}
