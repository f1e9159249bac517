//! The sample `plugins/rabbitmq` with a real RabbitMQ, of Debian's package `rabbitmq-server`.

use control_plane::Component;
use control_plane::servers::RabbitMq;

use super::server::*;
use crate::support::prelude::*;

const USER: &str = "messaging.example.com/v1/RabbitUser";
const CONTROLLER: &str = "\
- name: rabbitmq
  parent: {apiVersion: messaging.example.com/v1, kind: RabbitUser}
  plugin: rabbitmq.wasm
  children:
  - {apiVersion: operator-host.dev/v1alpha1, kind: External}
  - {apiVersion: v1, kind: Secret}
";
const ADMIN: &str = "admin:hunter2-old";

/// A RabbitMQ, and a server before it that sees what it is asked.
struct Rabbit {
    server: RabbitMq,
    front: Server,
}

impl Rabbit {
    async fn new(scenario: &Scenario) -> Self {
        plugin("rabbitmq");
        let (user, password) = ADMIN.split_once(':').unwrap();
        let server = RabbitMq::create(scenario.folder.path(), user, password).unwrap();
        let front = Server::start().await;
        front.with(|inner| inner.before = Some(server.api_port()));
        Self { server, front }
    }

    async fn start(&self) -> Component {
        let process = self.server.start().unwrap();
        until_true("RabbitMQ answers", async || {
            self.ask(ADMIN, "GET", "/whoami", "").0 != "000"
        })
        .await;
        process
    }

    /// Asks it, as `NAME:PASSWORD`, and returns the code and the answer.
    fn ask(&self, who: &str, method: &str, path: &str, body: &str) -> (String, Value) {
        let url = format!("http://127.0.0.1:{}/api{path}", self.server.api_port());
        let mut command = Command::new("curl");
        command.args(["-s", "-w", "\n%{http_code}", "-u", who, "-X", method, &url]);
        let out = command.args(["-d", body]).call().out;
        let (answer, code) = out.rsplit_once('\n').unwrap();
        (code.to_owned(), serde_json::from_str(answer).unwrap_or_default())
    }

    /// Asks as the administrator.
    fn get(&self, path: &str) -> Value {
        self.ask(ADMIN, "GET", path, "").1
    }

    /// Reports whether a user has this password. Only one who may manage sees more than that.
    fn accepts(&self, user: &str, password: &str) -> bool {
        let (_, answer) = self.ask(&format!("{user}:{password}"), "GET", "/whoami", "");
        answer["reason"] == "Not management user"
    }

    /// Returns the entry of its endpoint.
    fn endpoint(&self, namespace: &str) -> String {
        let credentials = format!(", credentials: {{secret: {namespace}/rabbitmq, basic: true}}");
        self.front.endpoint("rabbitmq", namespace, &credentials)
    }
}

fn admin(password: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "rabbitmq"},
        "stringData": {"username": "admin", "password": password},
    })
    .to_string()
}

fn user(name: &str, queues: &[&str], configure: &str) -> String {
    json!({
        "apiVersion": "messaging.example.com/v1", "kind": "RabbitUser", "metadata": {"name": name},
        "spec": {"queues": queues, "permissions": {"configure": configure}, "every": "5s"},
    })
    .to_string()
}

impl Scenario {
    /// Returns the password of a user.
    async fn password(&self, name: &str) -> String {
        let secret = self.until_there("v1/Secret", &format!("{name}-rabbitmq")).await;
        let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_value(json!(secret)).unwrap();
        String::from_utf8(secret.data.unwrap()["password"].0.clone()).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_of_rabbitmq_is_made_changed_put_right_and_removed() {
    let scenario = Scenario::new("ext-rabbitmq").await;
    let rabbit = Rabbit::new(&scenario).await;
    let server = rabbit.start().await;
    let egress = scenario.start_egress("egress", &file(&scenario, &[rabbit.endpoint("ext-rabbitmq")]));
    scenario.apply(&admin("hunter2-old")).await;
    let host = scenario.start(CONTROLLER);

    let until = async |name: &str, says: &str| drop(scenario.until_condition(USER, name, says).await);
    scenario.apply(&user("shop", &["orders", "invoices"], "^$")).await;
    until("shop", "Ready=True Reconciled").await;
    let id = "ext-rabbitmq.shop";
    let password = scenario.password("shop").await;
    assert_eq!(password.len(), 32);
    assert!(rabbit.accepts(id, &password) && !rabbit.accepts(id, "hunter2"));
    let permissions = format!("/permissions/{id}/{id}");
    assert_eq!(rabbit.get(&permissions)["configure"], "^$");
    let mut writes = rabbit.front.writes();
    writes.sort();
    let expected =
        "permissions/ID/ID queues/ID/invoices queues/ID/orders users/ID vhosts/ID".replace("ID", id);
    let expected: Vec<_> = expected.split(' ').map(|path| format!("PUT /{path}")).collect();
    assert_eq!(writes, expected, "each is sent once");

    let changed = user("shop", &["orders", "returns"], "^tmp-");
    scenario.apply(&changed).await;
    until_true("the change is there", async || {
        rabbit.get(&permissions)["configure"] == "^tmp-"
            && rabbit.get(&format!("/queues/{id}/returns"))["durable"] == true
            && rabbit.get(&format!("/queues/{id}/invoices"))["error"] == "Object Not Found"
    })
    .await;
    let raised = json!({"password": password, "tags": "administrator"}).to_string();
    rabbit.ask(ADMIN, "PUT", &format!("/users/{id}"), &raised);
    rabbit.ask(ADMIN, "DELETE", &format!("/queues/{id}/orders"), "");
    until_true("drift is put right", async || {
        rabbit.get(&format!("/users/{id}"))["tags"] == json!([])
            && rabbit.get(&format!("/queues/{id}/orders"))["durable"] == true
    })
    .await;
    let changed = json!({"stringData": {"password": "hunter2-mine"}});
    scenario.patch("v1/Secret", "shop-rabbitmq", changed).await;
    let is_sent = async || rabbit.accepts(id, "hunter2-mine");
    until_true("another password is sent", is_sent).await;
    until("shop", "Ready=True Reconciled").await;

    // The server goes away, and comes back. Then its administrator has another password.
    let sent = rabbit.front.writes().len();
    drop(server);
    let not_ready = "Ready=False ChildrenNotReady: External … shop.";
    until("shop", not_ready).await;
    let _server = rabbit.start().await;
    until("shop", "Ready=True Reconciled").await;
    let new = "admin:hunter2-new";
    let body = json!({"password": "hunter2-new", "tags": "administrator"}).to_string();
    assert_eq!(rabbit.ask(ADMIN, "PUT", "/users/admin", &body).0, "204");
    until("shop", "Ready=False ChildrenNotReady: 401").await;
    scenario.apply(&admin("hunter2-new")).await;
    until("shop", "Ready=True Reconciled").await;
    assert_eq!(rabbit.front.writes().len(), sent, "all was as it should be");

    // A message holds its queue, and the queue the rest.
    let message =
        json!({"properties": {}, "routing_key": "orders", "payload": "x", "payload_encoding": "string"});
    let exchange = format!("/exchanges/{id}/amq.default/publish");
    let (_, routed) = rabbit.ask(new, "POST", &exchange, &message.to_string());
    assert_eq!(routed["routed"], true);
    scenario.delete(USER, "shop").await;
    let says = "Stalled=True Refused: 400";
    scenario.until_external("shop.queue.orders", says).await;
    assert_eq!(rabbit.ask(new, "GET", &format!("/vhosts/{id}"), "").0, "200");
    rabbit.ask(new, "DELETE", &format!("/queues/{id}/orders/contents"), "");
    scenario.until_gone(USER, "shop").await;
    for kind in ["vhosts", "users"] {
        let (code, _) = rabbit.ask(new, "GET", &format!("/{kind}/{id}"), "");
        assert_eq!(code, "404", "{kind}");
    }
    for log in [egress.log(), host.log()] {
        assert!(!log.contains("hunter2") && !log.contains(&password));
    }
}
