//! The requests to one repository, with authentication. Every answer is bounded in bytes and in time.
//!
//! Credentials go to the registry, and for a token to the server that it names. A redirect is followed without them.

use std::sync::Arc;
use std::time::Duration;

use super::artifact::{Descriptor, INDEX, MANIFEST, MANIFEST_LIMIT};
use super::challenge::Challenge;
use super::credentials::Credentials;
use super::error::{CODES, RegistryError};
use super::transport::{self, Origin, Transport, words};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body as _, Incoming};
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, IF_NONE_MATCH, LOCATION,
    USER_AGENT, WWW_AUTHENTICATE,
};
use hyper::{Method, Request, Response, StatusCode, Uri};
use k8s_openapi::ByteString;
use operator_host_config::reference::{Reference, Version};
use operator_host_config::registry::RegistryConfig;
use operator_host_core::digest::Digest;
use operator_host_telemetry::http_client::asks_to_wait;
use serde::Deserialize;

/// Bytes of an answer that is only shown, and of a token.
const ERROR_LIMIT: usize = 8 << 10;
const TOKEN_LIMIT: usize = 64 << 10;
/// The time until a response begins, and for a small one; less when the settings give less.
const RESPOND: Duration = Duration::from_secs(20);
/// How often the download of a layer may be redirected.
const MAX_REDIRECTS: usize = 3;
/// The time to wait when a registry with too many requests does not say one.
const PAUSE: Duration = Duration::from_secs(1);
const DIGEST_HEADER: HeaderName = HeaderName::from_static("docker-content-digest");

/// The requests to one repository.
pub struct Repository {
    transport: Arc<Transport>,
    settings: Arc<RegistryConfig>,
    place: Reference,
    origin: Origin,
    /// What the registry may be asked for: `pull` or `pull,push`.
    actions: &'static str,
    authorization: Option<HeaderValue>,
}

#[derive(Deserialize)]
struct RawToken {
    token: Option<String>,
    access_token: Option<String>,
}

#[derive(Deserialize)]
struct RawErrors {
    errors: Vec<RawError>,
}

#[derive(Deserialize)]
struct RawError {
    #[serde(default)]
    code: String,
}

impl Repository {
    /// Prepares requests; nothing is sent yet.
    pub(super) fn new(
        transport: Arc<Transport>,
        settings: Arc<RegistryConfig>,
        place: Reference,
        actions: &'static str,
    ) -> Self {
        let tls = !settings.plain_http.contains(&place.registry.to_ascii_lowercase());
        Self {
            origin: Origin::of(&place.registry, tls),
            transport,
            settings,
            place,
            actions,
            authorization: None,
        }
    }

    /// Uses other connections from now on.
    pub(super) fn reconnect(&mut self, transport: Arc<Transport>) {
        self.transport = transport;
    }

    /// Asks whether a tag still names the known manifest, without its contents.
    pub(super) async fn still_names(
        &mut self,
        version: &Version,
        known: Digest,
    ) -> Result<bool, RegistryError> {
        let (url, what) = (self.url(&format!("manifests/{version}")), self.what(version));
        let mut request = self.request(Method::HEAD, &url, &what, accept(), Bytes::new())?;
        if let Ok(etag) = HeaderValue::from_str(&format!("\"{known}\"")) {
            request.headers_mut().insert(IF_NONE_MATCH, etag);
        }
        let statuses = [StatusCode::OK, StatusCode::NOT_MODIFIED];
        let response = self.expect(request, &what, &statuses).await?;
        Ok(response.status() == StatusCode::NOT_MODIFIED || stated(&response) == Some(known))
    }

    /// Reads a manifest. Its digest is computed here, and compared with the one that was asked for.
    pub(super) async fn manifest(&mut self, version: &Version) -> Result<(Digest, Bytes), RegistryError> {
        let (url, what) = (self.url(&format!("manifests/{version}")), self.what(version));
        let request = self.request(Method::GET, &url, &what, accept(), Bytes::new())?;
        let response = self.expect(request, &what, &[StatusCode::OK]).await?;
        let stated = stated(&response);
        let bytes = self.read(response, &what, MANIFEST_LIMIT).await?;
        let found = Digest::of(&bytes);
        let wanted = match version {
            Version::Digest(wanted) => Some(*wanted),
            Version::Tag(_) => stated,
        };
        match wanted {
            Some(wanted) if wanted != found => Err(other_contents(&self.place.registry, &what, found)),
            _ => Ok((found, bytes)),
        }
    }

    /// Reads contents by their digest, at most as many bytes as their descriptor says.
    pub(super) async fn blob(&mut self, blob: &Descriptor, limit: usize) -> Result<Bytes, RegistryError> {
        let what = format!(
            "{} of {}/{}",
            blob.digest, self.place.registry, self.place.repository
        );
        let limit = usize::try_from(blob.size).unwrap_or(limit).min(limit);
        let url = self.url(&format!("blobs/{}", blob.digest));
        let request = self.request(Method::GET, &url, &what, [], Bytes::new())?;
        let mut response = self.ask(request).await?;
        let mut from = self.origin.clone();
        for _ in 0..MAX_REDIRECTS {
            if !response.status().is_redirection() {
                break;
            }
            (from, response) = self.follow(&from, &response, &what).await?;
        }
        if response.status() != StatusCode::OK {
            return Err(self.refusal(response, &what).await);
        }
        let host = from.authority;
        let bytes = transport::read(response, &host, &what, limit, self.settings.timeout).await?;
        // Hashing the largest plugin takes too long for a thread that serves others.
        let hashed = bytes.clone();
        let found = tokio::task::spawn_blocking(move || Digest::of(&hashed)).await;
        let found = found.map_err(|error| self.malformed(&what, &error))?;
        if found != blob.digest {
            return Err(other_contents(&host, &what, found));
        }
        Ok(bytes)
    }

    /// Follows a redirect, without credentials.
    async fn follow(
        &self,
        from: &Origin,
        response: &Response<Incoming>,
        what: &str,
    ) -> Result<(Origin, Response<Incoming>), RegistryError> {
        let (url, target) = self.location(from, response, what)?;
        if from.tls && !target.tls {
            let reason = "the host does not follow a redirect to plain HTTP";
            return Err(self.redirected(what, Some(&target), reason));
        }
        let request = self.request(Method::GET, &url.to_string(), what, [], Bytes::new())?;
        let response = self
            .transport
            .send(request, target == self.origin, self.respond())
            .await?;
        Ok((target, response))
    }

    /// Returns the URL in the `Location` of an answer, and its origin.
    fn location(
        &self,
        from: &Origin,
        response: &Response<Incoming>,
        what: &str,
    ) -> Result<(Uri, Origin), RegistryError> {
        let location = response.headers().get(LOCATION);
        let url = location.and_then(|location| absolute(from, location.to_str().ok()?));
        let url = url.ok_or_else(|| self.redirected(what, None, "its location is not a URL"))?;
        let origin = Origin::of_url(&url).map_err(|why| self.redirected(what, None, why))?;
        Ok((url, origin))
    }

    /// Returns the manifests that refer to another one, as far as the registry lists them.
    pub(super) async fn referrers(&mut self, subject: Digest) -> Result<Option<Bytes>, RegistryError> {
        let what = format!("the signatures of {}", self.what(&Version::Digest(subject)));
        let url = self.url(&format!("referrers/{subject}"));
        let request = self.request(Method::GET, &url, &what, accept(), Bytes::new())?;
        let statuses = [StatusCode::OK, StatusCode::NOT_FOUND];
        let response = self.expect(request, &what, &statuses).await?;
        if response.status() == StatusCode::OK {
            return Ok(Some(self.read(response, &what, MANIFEST_LIMIT).await?));
        }
        // A registry without the interface: the list has a tag.
        self.optional(&Version::Tag(referrers_tag(subject))).await
    }

    /// Reads a manifest that may not be there.
    pub(super) async fn optional(&mut self, version: &Version) -> Result<Option<Bytes>, RegistryError> {
        match self.manifest(version).await {
            Ok((_, bytes)) => Ok(Some(bytes)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Uploads contents, unless the registry has them.
    pub(super) async fn upload(&mut self, blob: &Descriptor, bytes: &Bytes) -> Result<(), RegistryError> {
        let what = format!(
            "{} of {}/{}",
            blob.digest, self.place.registry, self.place.repository
        );
        let url = self.url(&format!("blobs/{}", blob.digest));
        let request = self.request(Method::HEAD, &url, &what, [], Bytes::new())?;
        let statuses = [StatusCode::OK, StatusCode::NOT_FOUND];
        let found = self.expect(request, &what, &statuses).await?;
        if found.status() == StatusCode::OK {
            return Ok(());
        }
        let url = self.url("blobs/uploads/");
        let none = (CONTENT_LENGTH, HeaderValue::from_static("0"));
        let request = self.request(Method::POST, &url, &what, [none], Bytes::new())?;
        let response = self.expect(request, &what, &[StatusCode::ACCEPTED]).await?;
        let (url, target) = self.location(&self.origin, &response, &what)?;
        if target != self.origin {
            let reason = "contents are uploaded to the registry itself only";
            return Err(self.redirected(&what, Some(&target), reason));
        }
        let separator = if url.query().is_some() { '&' } else { '?' };
        let url = format!("{url}{separator}digest={}", blob.digest);
        let content_type = content_type("application/octet-stream");
        let request = self.request(Method::PUT, &url, &what, [content_type], bytes.clone())?;
        let response = self.expect(request, &what, &[StatusCode::CREATED]).await;
        response.map(drop)
    }

    /// Stores a manifest or a list of them. Returns whether the registry lists it as a referrer of its subject.
    pub(super) async fn put(
        &mut self,
        version: &Version,
        media_type: &'static str,
        bytes: Vec<u8>,
    ) -> Result<bool, RegistryError> {
        let (url, what) = (self.url(&format!("manifests/{version}")), self.what(version));
        let request = self.request(Method::PUT, &url, &what, [content_type(media_type)], bytes.into())?;
        let response = self.expect(request, &what, &[StatusCode::CREATED]).await?;
        Ok(response.headers().contains_key("oci-subject"))
    }

    fn request(
        &self,
        method: Method,
        url: &str,
        what: &str,
        headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, RegistryError> {
        let mut request = Request::builder()
            .method(method)
            .uri(url)
            .header(USER_AGENT, agent());
        for (name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(body));
        request.map_err(|error| self.malformed(what, &error))
    }

    /// Sends a request. An answer with another status than these is an error.
    async fn expect(
        &mut self,
        request: Request<Full<Bytes>>,
        what: &str,
        statuses: &[StatusCode],
    ) -> Result<Response<Incoming>, RegistryError> {
        let response = self.ask(request).await?;
        match statuses.contains(&response.status()) {
            true => Ok(response),
            false => Err(self.refusal(response, what).await),
        }
    }

    /// Sends a request; authenticates once if the registry asks for it, and sends it again with its body.
    async fn ask(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, RegistryError> {
        let time = match request.body().is_end_stream() {
            true => self.respond(),
            // The response begins when the body has arrived.
            false => self.settings.timeout,
        };
        let mut authenticated = false;
        loop {
            let mut request = request.clone();
            let authorization = self.authorization.clone();
            request
                .headers_mut()
                .extend(authorization.map(|it| (AUTHORIZATION, it)));
            let response = self.transport.send(request, true, time).await?;
            if response.status() != StatusCode::UNAUTHORIZED {
                return Ok(response);
            }
            if authenticated {
                return Err(self.unauthorized("it does not accept these credentials"));
            }
            self.authenticate(&response).await?;
            authenticated = true;
        }
    }

    /// Gets what the registry asks for.
    async fn authenticate(&mut self, response: &Response<Incoming>) -> Result<(), RegistryError> {
        let asked = response.headers().get_all(WWW_AUTHENTICATE);
        let challenge = Challenge::parse(asked.iter().filter_map(|value| value.to_str().ok()));
        let credentials = match &self.settings.credentials {
            Some(file) => Credentials::find(file, &self.place)?,
            None => None,
        };
        let header = match (challenge, &credentials) {
            (_, Some(Credentials::Token(token))) => format!("Bearer {token}"),
            (Some(Challenge::Basic), Some(Credentials::User { name, password })) => basic(name, password),
            (Some(Challenge::Bearer { realm, service }), credentials) => {
                let user = match credentials {
                    Some(Credentials::User { name, password }) => Some(basic(name, password)),
                    _ => None,
                };
                let token = self.token(&realm, service, user).await?;
                format!("Bearer {token}")
            }
            (Some(Challenge::Basic), None) => {
                return Err(self.unauthorized(match self.settings.credentials {
                    Some(_) => "it wants a name and a password, and the credentials have none for it",
                    None => "it wants a name and a password: name a Docker configuration with `registry.credentials` (--credentials)",
                }));
            }
            (None, _) => return Err(self.unauthorized("it asks for neither a password nor a token")),
        };
        let mut header = HeaderValue::from_str(&header).map_err(|_| {
            self.unauthorized("the credentials contain characters that no header can contain")
        })?;
        header.set_sensitive(true);
        self.authorization = Some(header);
        Ok(())
    }

    /// Gets a token from the server that the registry names.
    async fn token(
        &self,
        realm: &str,
        service: Option<String>,
        user: Option<String>,
    ) -> Result<String, RegistryError> {
        let what = "a token";
        // Not the scope that the registry names: with it, the token could be one for other repositories.
        let scope = format!("repository:{}:{}", self.place.repository, self.actions);
        let parameters = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(service.map(|service| ("service", service)))
            .append_pair("scope", &scope)
            .finish();
        let separator = if realm.contains('?') { '&' } else { '?' };
        let url = format!("{realm}{separator}{parameters}");
        let unusable = |why: &str| {
            self.unauthorized(&format!(
                "it names no token server that the host can ask: {why}; ask the registry's administrators"
            ))
        };
        let url: Uri = url
            .parse()
            .map_err(|_invalid| unusable("its realm is not a URL"))?;
        let server = Origin::of_url(&url).map_err(unusable)?;
        let refused = |reason: &str| {
            let server = words(&server.to_string());
            self.unauthorized(&format!("it sends the host to {server} for a token, {reason}"))
        };
        if self.origin.tls && !server.tls {
            return Err(refused("which does not use TLS"));
        }
        let mut request = self.request(Method::GET, &url.to_string(), what, [], Bytes::new())?;
        if let Some(user) = user {
            let mut user = HeaderValue::from_str(&user).map_err(|error| self.malformed(what, &error))?;
            user.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, user);
        }
        let response = self
            .transport
            .send(request, server == self.origin, self.respond())
            .await?;
        let status = response.status();
        if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
            return Err(refused("which does not accept the credentials"));
        }
        if status != StatusCode::OK {
            let error = refused(&format!("which answers {status}"));
            return Err(RegistryError::asks_to_wait(
                error.to_string(),
                asks_to_wait(&response, PAUSE),
            ));
        }
        let bytes = transport::read(response, &server.authority, what, TOKEN_LIMIT, self.respond()).await?;
        let token: Result<RawToken, _> = serde_json::from_slice(&bytes);
        let token = token.ok().and_then(|raw| raw.token.or(raw.access_token));
        token.ok_or_else(|| refused("which answers without a token"))
    }

    fn url(&self, rest: &str) -> String {
        format!("{}/v2/{}/{rest}", self.origin, self.place.repository)
    }

    fn what(&self, version: &Version) -> String {
        let place = Reference {
            version: version.clone(),
            ..self.place.clone()
        };
        place.to_string()
    }

    async fn read(
        &self,
        response: Response<Incoming>,
        what: &str,
        limit: usize,
    ) -> Result<Bytes, RegistryError> {
        transport::read(response, &self.origin.authority, what, limit, self.respond()).await
    }

    fn respond(&self) -> Duration {
        RESPOND.min(self.settings.timeout)
    }

    /// Returns what an answer means that is neither contents nor an upload.
    async fn refusal(&self, response: Response<Incoming>, what: &str) -> RegistryError {
        let (status, wait) = (response.status(), asks_to_wait(&response, PAUSE));
        let registry = &self.place.registry;
        if status.is_redirection() {
            let target = self.location(&self.origin, &response, what).ok();
            let target = target.map(|(_, target)| target);
            let reason = "the host follows no more than three redirects, and only of layers";
            return self.redirected(what, target.as_ref(), reason);
        }
        // What it says is only an addition, and not shown: it may quote the request, with its credentials.
        let said = self
            .read(response, "an error", ERROR_LIMIT)
            .await
            .unwrap_or_default();
        let said: Option<RawErrors> = serde_json::from_slice(&said).ok();
        let code = said.and_then(|raw| Some(raw.errors.into_iter().next()?.code));
        let code = code.filter(|code| CODES.contains(&code.as_str()));
        let message = code.map_or_else(String::new, |code| format!(" ({code})"));
        match status {
            StatusCode::NOT_FOUND => {
                RegistryError::not_found(format!("{registry} does not have {what}{message}"))
            }
            StatusCode::FORBIDDEN => self.unauthorized(&format!("the credentials are not enough{message}")),
            status => {
                let asks = wait.map_or_else(String::new, |wait| format!("; it asks to wait {wait:?}"));
                let message = format!("{registry} answered {status} for {what}{message}{asks}");
                RegistryError::asks_to_wait(message, wait)
            }
        }
    }

    fn unauthorized(&self, reason: &str) -> RegistryError {
        let (registry, repository) = (&self.place.registry, &self.place.repository);
        format!("{registry} refuses access to {repository}: {reason}").into()
    }

    fn malformed(&self, what: &str, reason: &dyn std::fmt::Display) -> RegistryError {
        let (registry, reason) = (&self.place.registry, words(&reason.to_string()));
        format!("{registry} sent for {what} what cannot be used: {reason}").into()
    }

    /// Returns the error of a redirect that is not followed. Only the host of the target is shown: the rest of a URL may be
    /// as good as a password.
    fn redirected(&self, what: &str, target: Option<&Origin>, reason: &str) -> RegistryError {
        let registry = &self.place.registry;
        let target = target.map(|target| words(&target.to_string()));
        let target = target.as_deref().unwrap_or("an unknown place");
        format!("{registry} redirects {what} to {target}: {reason}").into()
    }
}

fn other_contents(registry: &str, what: &str, found: Digest) -> RegistryError {
    format!(
        "{registry} sent other contents for {what}: they have the digest {found}; nothing of them is used"
    )
    .into()
}

/// Returns the tag of the list of referrers, for registries without that interface.
pub(super) fn referrers_tag(subject: Digest) -> String {
    subject.to_string().replace(':', "-")
}

fn accept() -> [(HeaderName, HeaderValue); 2] {
    [MANIFEST, INDEX].map(|accepted| (ACCEPT, HeaderValue::from_static(accepted)))
}

fn content_type(media_type: &'static str) -> (HeaderName, HeaderValue) {
    (CONTENT_TYPE, HeaderValue::from_static(media_type))
}

/// Returns the digest that a registry states for what it names.
fn stated(response: &Response<Incoming>) -> Option<Digest> {
    let digest = response.headers().get(DIGEST_HEADER)?;
    digest.to_str().ok()?.parse().ok()
}

fn agent() -> &'static str {
    concat!("operator-host/", env!("CARGO_PKG_VERSION"))
}

fn basic(name: &str, password: &str) -> String {
    let pair = ByteString(format!("{name}:{password}").into_bytes());
    let encoded = serde_json::to_value(pair).unwrap_or_default();
    format!("Basic {}", encoded.as_str().unwrap_or_default())
}

/// Returns the URL of a `Location`: a URL, or a path on the same host.
fn absolute(from: &Origin, location: &str) -> Option<Uri> {
    if location.starts_with('/') && !location.starts_with("//") {
        format!("{from}{location}").parse().ok()
    } else {
        location.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_a_url_or_a_path_of_the_same_host() {
        let from = Origin::of("r:5000", true);
        let url = |location: &str| absolute(&from, location).map(|url| url.to_string());
        assert_eq!(url("/v2/x?a=b"), Some("https://r:5000/v2/x?a=b".into()));
        assert_eq!(url("https://s/x"), Some("https://s/x".into()));
        for relative in ["//s/x", "x y"] {
            let wrong = absolute(&from, relative).is_none_or(|url| Origin::of_url(&url).is_err());
            assert!(wrong, "{relative}");
        }
    }

    #[test]
    fn passwords_are_encoded() {
        assert_eq!(basic("user", "pass"), "Basic dXNlcjpwYXNz");
    }
}
