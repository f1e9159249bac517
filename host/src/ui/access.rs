//! Who may see the page on an address that others can reach: the API server decides, by a TokenReview and a
//! SubjectAccessReview for the verb `get` on the path `/ui`.
//!
//! A proxy or a program sends the token as a bearer token. A browser asks its user for a name and a password: the
//! password is the token. Decisions are remembered for a moment, by the hash of the token.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::header::HeaderValue;
use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Client;
use kube::api::{Api, PostParams};
use kube::core::ObjectMeta;
use sha2::{Digest, Sha256};
use thiserror::Error;
use tokio::sync::Semaphore;
use tracing::warn;

/// The path whose readers may see the page.
const PATH: &str = "/ui";
/// How long a decision counts.
const ALLOWED_FOR: Duration = Duration::from_secs(60);
const REFUSED_FOR: Duration = Duration::from_secs(5);
/// Number of decisions that are remembered.
const REMEMBERED: usize = 1024;
/// Number of tokens that are reviewed at a time.
const TURNS: usize = 4;
/// The least time for a token that is refused, so that guessing costs the API server little.
const PENALTY: Duration = Duration::from_millis(200);
/// How long the API server may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The least time between two errors of the API server in the log.
const LOG_PERIOD: Duration = Duration::from_secs(10);
/// Maximum size of a token in bytes.
const TOKEN: usize = 8 << 10;

/// Why a request is refused.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Nobody knows who it is.
    #[error("{0}: send a token of the cluster as a bearer token, or as the password of any user name")]
    Unknown(&'static str),
    /// The user may not see the page.
    #[error(
        "the user {0:?} may not see this page: bind a ClusterRole with the verb get on the nonResourceURL {PATH}"
    )]
    Forbidden(String),
    /// The API server has not decided. The log says why, and a client that nobody knows does not learn it.
    #[error("the API server does not decide who may see this page: see the log of the host, and try again")]
    Undecided,
}

type Decision = Result<(), Refusal>;

/// By the hash of the token, with the time until which it counts.
type Decisions = HashMap<[u8; 32], (Instant, Decision)>;

/// Asks the API server, and remembers its decisions.
pub(super) struct Access {
    client: Client,
    turns: Semaphore,
    decisions: Mutex<Decisions>,
    /// When an error of the API server was last logged.
    logged: Mutex<Option<Instant>>,
}

impl Access {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            turns: Semaphore::new(TURNS),
            decisions: Mutex::default(),
            logged: Mutex::default(),
        }
    }

    /// Decides about a request by its `Authorization` header.
    ///
    /// # Errors
    /// Returns why it is refused.
    pub(super) async fn check(&self, authorization: Option<&HeaderValue>) -> Decision {
        let header = authorization.ok_or(Refusal::Unknown("there is no token"))?;
        let token = token(header).ok_or(Refusal::Unknown("this is no token"))?;
        let hash: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(known) = self.known(&hash) {
            return known;
        }
        let Ok(turn) = self.turns.acquire().await else {
            return Err(Refusal::Undecided);
        };
        // Another request of the same browser may have asked meanwhile.
        if let Some(known) = self.known(&hash) {
            return known;
        }
        let asked = tokio::time::timeout(TIMEOUT, self.ask(token)).await;
        let decision =
            asked.unwrap_or_else(|_| Err(self.undecided(&format!("no answer within {TIMEOUT:?}"))));
        let keep = match &decision {
            Ok(()) => Some(ALLOWED_FOR),
            Err(Refusal::Undecided) => None,
            Err(_) => Some(REFUSED_FOR),
        };
        if let Some(keep) = keep {
            let mut decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            make_room(&mut decisions, now);
            decisions.insert(hash, (now + keep, decision.clone()));
        }
        // Those who wait are not delayed by this client's penalty.
        drop(turn);
        if decision.is_err() {
            tokio::time::sleep(PENALTY).await;
        }
        decision
    }

    /// Logs why the API server does not decide, but not for every request of everyone.
    fn undecided(&self, error: &dyn std::fmt::Display) -> Refusal {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|at| at.elapsed() >= LOG_PERIOD) {
            *logged = Some(Instant::now());
            warn!(%error, "the API server does not decide who may see the page: these requests are refused");
        }
        Refusal::Undecided
    }

    fn known(&self, hash: &[u8; 32]) -> Option<Decision> {
        let decisions = self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, decision) = decisions.get(hash)?;
        (Instant::now() < *until).then(|| decision.clone())
    }

    async fn ask(&self, token: String) -> Decision {
        let undecided = |error: kube::Error| self.undecided(&error);
        let review = TokenReview {
            spec: TokenReviewSpec {
                token,
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let api: Api<TokenReview> = Api::all(self.client.clone());
        let review = api
            .create(&PostParams::default(), &review)
            .await
            .map_err(undecided)?;
        let status = review.status.unwrap_or_default();
        let user = match (status.authenticated, status.user) {
            (Some(true), Some(user)) => user,
            _ => return Err(Refusal::Unknown("the API server does not know this token")),
        };
        let name = user.username.clone().unwrap_or_default();
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = api
            .create(&PostParams::default(), &question(user))
            .await
            .map_err(undecided)?;
        match answer.status {
            Some(status) if status.allowed => Ok(()),
            _ => Err(Refusal::Forbidden(name)),
        }
    }
}

/// Makes room for another decision: those that no longer count go first, and those who are allowed stay longest.
fn make_room(decisions: &mut Decisions, now: Instant) {
    if decisions.len() >= REMEMBERED {
        decisions.retain(|_, (until, _)| now < *until);
    }
    if decisions.len() >= REMEMBERED {
        decisions.retain(|_, (_, decision)| decision.is_ok());
    }
    if decisions.len() >= REMEMBERED {
        decisions.clear();
    }
}

/// Asks whether a user may see the page.
fn question(user: UserInfo) -> SubjectAccessReview {
    SubjectAccessReview {
        metadata: ObjectMeta::default(),
        spec: SubjectAccessReviewSpec {
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some(PATH.to_owned()),
                verb: Some("get".to_owned()),
            }),
            user: user.username,
            groups: user.groups,
            uid: user.uid,
            extra: user.extra,
            ..SubjectAccessReviewSpec::default()
        },
        status: None,
    }
}

/// Returns the token of an `Authorization` header. Source: RFC 6750 and RFC 7617.
fn token(header: &HeaderValue) -> Option<String> {
    let (scheme, rest) = header.to_str().ok()?.split_once(' ')?;
    let token = if scheme.eq_ignore_ascii_case("bearer") {
        rest.trim().to_owned()
    } else if scheme.eq_ignore_ascii_case("basic") {
        let ByteString(bytes) = serde_json::from_value(rest.trim().into()).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        text.split_once(':')?.1.to_owned()
    } else {
        return None;
    };
    (!token.is_empty() && token.len() <= TOKEN).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_tokens_do_not_make_the_host_forget_who_is_allowed() {
        let now = Instant::now();
        let later = now + ALLOWED_FOR;
        let refused = || Err(Refusal::Unknown("x"));
        let hash = |number: usize| -> [u8; 32] { Sha256::digest(number.to_le_bytes()).into() };
        let mut decisions = Decisions::from([(hash(0), (later, Ok(())))]);
        decisions.insert(hash(1), (later, refused()));
        for number in 2..REMEMBERED {
            decisions.insert(hash(number), (now, refused()));
        }
        make_room(&mut decisions, now);
        assert_eq!(decisions.len(), 2, "those that count stay");
        for number in 2..REMEMBERED {
            decisions.insert(hash(number), (later, refused()));
        }
        make_room(&mut decisions, now);
        assert_eq!(decisions.keys().collect::<Vec<_>>(), [&hash(0)]);
        for number in 1..REMEMBERED {
            decisions.insert(hash(number), (later, Ok(())));
        }
        make_room(&mut decisions, now);
        assert!(decisions.is_empty());
    }

    #[tokio::test]
    async fn who_is_not_known_does_not_learn_why_the_api_server_does_not_answer() {
        let config = kube::Config::new("http://127.0.0.1:9/secret-path".parse().unwrap());
        let access = Access::new(Client::try_from(config).unwrap());
        let refusal = access
            .check(Some(&HeaderValue::from_static("Bearer a")))
            .await
            .unwrap_err();
        assert_eq!(refusal, Refusal::Undecided);
        assert!(!refusal.to_string().contains("127.0.0.1"), "{refusal}");
        assert_eq!(access.turns.available_permits(), TURNS);
    }

    #[test]
    fn a_token_comes_as_a_bearer_token_or_as_a_password() {
        let token = |text: &str| token(&HeaderValue::from_str(text).unwrap());
        assert_eq!(token("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(token("bearer  abc").as_deref(), Some("abc"));
        // me:a:b
        assert_eq!(token("Basic bWU6YTpi").as_deref(), Some("a:b"));
        for bad in [
            "abc",
            "Bearer ",
            "Basic ???",
            "Basic bWU=",
            "Digest abc",
            &format!("Bearer {}", "a".repeat(9000)),
        ] {
            assert_eq!(token(bad), None, "{bad}");
        }
    }
}
