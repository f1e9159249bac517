//! The requests to one repository, with authentication. Every answer is bounded in bytes and in time.
//!
//! Credentials go to the registry, and for a token to the server that it names. A redirect is followed without them.

use std::sync::Arc;
use std::time::Duration;

use super::artifact::{Descriptor, INDEX, MANIFEST, MANIFEST_LIMIT};
use super::challenge::Challenge;
use super::credentials;
use super::error::{CODES, Cause, RegistryError};
use super::transport::{self, Origin, Transports, words};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body as _, Incoming};
use hyper::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue, IF_NONE_MATCH, LOCATION,
    USER_AGENT, WWW_AUTHENTICATE,
};
use hyper::{Method, Request, Response, StatusCode, Uri};
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
    transports: Arc<Transports>,
    settings: Arc<RegistryConfig>,
    pub(super) place: Reference,
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
        transports: Arc<Transports>,
        settings: Arc<RegistryConfig>,
        place: Reference,
        actions: &'static str,
    ) -> Self {
        let tls = !settings.plain_http.contains(&place.registry.to_ascii_lowercase());
        Self {
            origin: Origin::of(&place.registry, tls),
            transports,
            settings,
            place,
            actions,
            authorization: None,
        }
    }

    /// Asks whether a tag still names the known manifest, without its contents.
    pub(super) async fn still_names(
        &mut self,
        version: &Version,
        known: Digest,
    ) -> Result<bool, RegistryError> {
        let etag = HeaderValue::from_str(&format!("\"{known}\"")).ok();
        let headers = accept().into_iter().chain(etag.map(|etag| (IF_NONE_MATCH, etag)));
        let statuses = [StatusCode::OK, StatusCode::NOT_MODIFIED];
        let (path, what) = self.manifest_of(version);
        let response = self
            .expect(Method::HEAD, &path, &what, headers, Bytes::new(), &statuses)
            .await?;
        Ok(response.status() == StatusCode::NOT_MODIFIED || stated(&response) == Some(known))
    }

    /// Reads a manifest. Its digest is computed here, and compared with the one that was asked for.
    pub(super) async fn manifest(&mut self, version: &Version) -> Result<(Digest, Bytes), RegistryError> {
        let (path, what) = self.manifest_of(version);
        let response = self.get(&path, &what, &[StatusCode::OK]).await?;
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
        let (path, what) = self.blob_of(blob);
        let limit = usize::try_from(blob.size).unwrap_or(limit).min(limit);
        let request = self.request(Method::GET, &self.url(&path), &what, [], Bytes::new())?;
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
        let response = self.send(request, &target, self.respond()).await?;
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
        let what = format!("the signatures of {}", self.place.at(subject));
        let statuses = [StatusCode::OK, StatusCode::NOT_FOUND];
        let response = self
            .get(&format!("referrers/{subject}"), &what, &statuses)
            .await?;
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
            Err(error) if error.cause == Cause::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Uploads contents, unless the registry has them.
    pub(super) async fn upload(&mut self, blob: &Descriptor, bytes: &Bytes) -> Result<(), RegistryError> {
        let (path, what) = self.blob_of(blob);
        let statuses = [StatusCode::OK, StatusCode::NOT_FOUND];
        let found = self
            .expect(Method::HEAD, &path, &what, [], Bytes::new(), &statuses)
            .await?;
        if found.status() == StatusCode::OK {
            return Ok(());
        }
        let none = (CONTENT_LENGTH, HeaderValue::from_static("0"));
        let (path, accepted) = ("blobs/uploads/", [StatusCode::ACCEPTED]);
        let response = self
            .expect(Method::POST, path, &what, [none], Bytes::new(), &accepted)
            .await?;
        let (url, target) = self.location(&self.origin, &response, &what)?;
        if target != self.origin {
            let reason = "contents are uploaded to the registry itself only";
            return Err(self.redirected(&what, Some(&target), reason));
        }
        let separator = if url.query().is_some() { '&' } else { '?' };
        let url = format!("{url}{separator}digest={}", blob.digest);
        let content_type = content_type("application/octet-stream");
        let request = self.request(Method::PUT, &url, &what, [content_type], bytes.clone())?;
        let response = self.ask(request).await?;
        self.check(response, &what, &[StatusCode::CREATED])
            .await
            .map(drop)
    }

    /// Stores a manifest or a list of them. Returns whether the registry lists it as a referrer of its subject.
    pub(super) async fn put(
        &mut self,
        version: &Version,
        media_type: &'static str,
        bytes: Vec<u8>,
    ) -> Result<bool, RegistryError> {
        let (path, what) = self.manifest_of(version);
        let (headers, created) = ([content_type(media_type)], [StatusCode::CREATED]);
        let response = self
            .expect(Method::PUT, &path, &what, headers, bytes.into(), &created)
            .await?;
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

    /// Reads a document of the repository. An answer with another status than these is an error.
    async fn get(
        &mut self,
        path: &str,
        what: &str,
        statuses: &[StatusCode],
    ) -> Result<Response<Incoming>, RegistryError> {
        self.expect(Method::GET, path, what, accept(), Bytes::new(), statuses)
            .await
    }

    /// Sends a request about a path of the repository. An answer with another status than these is an error.
    async fn expect(
        &mut self,
        method: Method,
        path: &str,
        what: &str,
        headers: impl IntoIterator<Item = (HeaderName, HeaderValue)>,
        body: Bytes,
        statuses: &[StatusCode],
    ) -> Result<Response<Incoming>, RegistryError> {
        let request = self.request(method, &self.url(path), what, headers, body)?;
        let response = self.ask(request).await?;
        self.check(response, what, statuses).await
    }

    async fn check(
        &self,
        response: Response<Incoming>,
        what: &str,
        statuses: &[StatusCode],
    ) -> Result<Response<Incoming>, RegistryError> {
        match statuses.contains(&response.status()) {
            true => Ok(response),
            false => Err(self.refusal(response, what).await),
        }
    }

    /// Sends a request to the registry or to the server that it names.
    async fn send(
        &self,
        request: Request<Full<Bytes>>,
        to: &Origin,
        time: Duration,
    ) -> Result<Response<Incoming>, RegistryError> {
        // The file of authorities may have changed.
        let authorities = self.settings.certificate_authorities.as_deref();
        let transport = self.transports.get(authorities)?;
        transport.send(request, *to == self.origin, time).await
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
            let response = self.send(request, &self.origin, time).await?;
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
        let user = match &self.settings.credentials {
            Some(file) => credentials::find(file, &self.place)?,
            None => None,
        };
        let header = match (challenge, user) {
            (Some(Challenge::Bearer { realm, service }), user) => self.token(&realm, service, user).await?,
            (Some(Challenge::Basic), Some(user)) => user,
            (Some(Challenge::Basic), None) => {
                return Err(self.unauthorized(match self.settings.credentials {
                    Some(_) => "it wants a name and a password, and the credentials have none for it",
                    None => "it wants a name and a password: name a Docker configuration with `registry.credentials` (--credentials)",
                }));
            }
            (None, _) => return Err(self.unauthorized("it asks for neither a password nor a token")),
        };
        self.authorization = Some(header);
        Ok(())
    }

    /// Gets the header with a token from the server that the registry names.
    async fn token(
        &self,
        realm: &str,
        service: Option<String>,
        user: Option<HeaderValue>,
    ) -> Result<HeaderValue, RegistryError> {
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
        let user = user.map(|user| (AUTHORIZATION, user));
        let request = self.request(Method::GET, &url.to_string(), what, user, Bytes::new())?;
        let response = self.send(request, &server, self.respond()).await?;
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
        let token = token.ok_or_else(|| refused("which answers without a token"))?;
        let header = HeaderValue::from_str(&format!("Bearer {token}"));
        let mut header = header.map_err(|_| refused("which answers with what no header can contain"))?;
        header.set_sensitive(true);
        Ok(header)
    }

    fn url(&self, rest: &str) -> String {
        format!("{}/v2/{}/{rest}", self.origin, self.place.repository)
    }

    /// Returns the path of a manifest, and what it is for users.
    fn manifest_of(&self, version: &Version) -> (String, String) {
        let place = Reference {
            version: version.clone(),
            ..self.place.clone()
        };
        (format!("manifests/{version}"), place.to_string())
    }

    /// Returns the path of contents, and what they are for users.
    fn blob_of(&self, Descriptor { digest, .. }: &Descriptor) -> (String, String) {
        let (registry, repository) = (&self.place.registry, &self.place.repository);
        (
            format!("blobs/{digest}"),
            format!("{digest} of {registry}/{repository}"),
        )
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
                let message = format!("{registry} does not have {what}{message}");
                RegistryError::new(message, Cause::NotFound)
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
}
