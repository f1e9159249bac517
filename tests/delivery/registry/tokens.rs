//! A token server, which no package has: it gives a token to a user with a password, as the registry's documentation says.

use crate::delivery::packs::shell;
use crate::support::prelude::*;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The header of the user and the password of [`super::server`].
pub const BASIC: &str = "Basic dGVhbTpwYXNzOndvcmQ=";

/// The server, which ends when it is dropped.
pub struct Tokens {
    pub port: u16,
    /// The scope and the token of each answer.
    given: Arc<Mutex<Vec<(String, String)>>>,
    task: JoinHandle<()>,
}

impl Tokens {
    /// Starts a server that signs with a new key; its certificate is `token.pem` in the folder.
    pub async fn start(folder: &Path) -> Self {
        let script = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=tokens -keyout token.key -out token.pem";
        shell(folder, script);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let given = Arc::<Mutex<Vec<(String, String)>>>::default();
        let (all, folder) = (Arc::clone(&given), folder.to_owned());
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = stream.read_u8().await else { break };
                    head.push(byte);
                }
                let head = String::from_utf8(head).unwrap();
                let answer = match head.contains(BASIC) {
                    true => {
                        let scope = scope(&head);
                        let token = token(folder.clone(), &scope).await;
                        let body = json!({"token": token}).to_string();
                        all.lock().unwrap().push((scope, token));
                        format!(
                            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                            body.len()
                        )
                    }
                    false => "HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
                        .to_owned(),
                };
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        });
        Self { port, given, task }
    }

    /// Returns what tokens were given for.
    pub fn scopes(&self) -> Vec<String> {
        let given = self.given.lock().unwrap();
        given.iter().map(|(scope, _)| scope.clone()).collect()
    }

    /// Returns the tokens that were given.
    pub fn tokens(&self) -> Vec<String> {
        let given = self.given.lock().unwrap();
        given.iter().map(|(_, token)| token.clone()).collect()
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Returns the scope that a request asks for, such as `repository:team/echo:pull,push`.
fn scope(head: &str) -> String {
    let query = head.split([' ', '?']).nth(2).unwrap();
    let mut parameters = form_urlencoded::parse(query.as_bytes());
    let (_, scope) = parameters.find(|(name, _)| name == "scope").expect("a scope");
    scope.into_owned()
}

/// Creates a token, a JWT with the certificate of its key (RFC 7515).
async fn token(folder: PathBuf, scope: &str) -> String {
    let mut parts = scope.split(':');
    let (kind, name, actions) = (parts.next(), parts.next(), parts.next().unwrap_or_default());
    let claims = json!({
        "iss": "test", "aud": "test", "sub": "team", "jti": "1", "nbf": 0, "iat": 0, "exp": 4_000_000_000_u64,
        "access": [{"type": kind, "name": name, "actions": actions.split(',').collect::<Vec<_>>()}],
    });
    let script = r#"
        url() { base64 -w 0 | tr '+/' '-_' | tr -d '='; }
        head=$(printf '{"typ":"JWT","alg":"RS256","x5c":["%s"]}' "$(grep -v -e ---- token.pem | tr -d '\n')" | url)
        body=$(printf '%s' "$CLAIMS" | url)
        signature=$(printf '%s' "$head.$body" | openssl dgst -sha256 -sign token.key | url)
        printf '%s' "$head.$body.$signature""#;
    let script = format!("CLAIMS='{claims}'\n{script}");
    tokio::task::spawn_blocking(move || shell(&folder, &script))
        .await
        .unwrap()
}
