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
    fn endpoint(&self, namespace: &str, more: &str) -> String {
        let credentials = format!(", credentials: {{secret: {namespace}/rabbitmq, basic: true}}{more}");
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
    let egress = scenario.start_egress("egress", &file(&scenario, &[rabbit.endpoint("ext-rabbitmq", "")]));
    scenario.apply(&admin("hunter2-old")).await;
    let host = scenario.start(CONTROLLER);

    scenario.apply(&user("shop", &["orders", "invoices"], "^$")).await;
    scenario
        .until_condition(USER, "shop", "Ready=True Reconciled")
        .await;
    let id = "ext-rabbitmq.shop";
    let password = scenario.password("shop").await;
    assert_eq!(password.len(), 32);
    assert!(rabbit.accepts(id, &password) && !rabbit.accepts(id, "hunter2"));
    let permissions = format!("/permissions/{id}/{id}");
    assert_eq!(rabbit.get(&permissions)["configure"], "^$");
    let mut writes = rabbit.front.writes();
    writes.sort();
    let mut expected = [
        "/permissions/ID/ID",
        "/queues/ID/invoices",
        "/queues/ID/orders",
        "/users/ID",
        "/vhosts/ID",
    ]
    .map(|path| format!("PUT {path}").replace("ID", id));
    expected.sort();
    assert_eq!(writes, expected, "each is sent once");

    scenario
        .apply(&user("shop", &["orders", "returns"], "^tmp-"))
        .await;
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
    until_true("another password is sent", async || {
        rabbit.accepts(id, "hunter2-mine")
    })
    .await;
    scenario
        .until_condition(USER, "shop", "Ready=True Reconciled")
        .await;

    // The server goes away, and comes back. Then its administrator has another password.
    let sent = rabbit.front.writes().len();
    drop(server);
    let not_ready = "Ready=False ChildrenNotReady: External … shop.";
    scenario.until_condition(USER, "shop", not_ready).await;
    let _server = rabbit.start().await;
    scenario
        .until_condition(USER, "shop", "Ready=True Reconciled")
        .await;
    let new = "admin:hunter2-new";
    let body = json!({"password": "hunter2-new", "tags": "administrator"}).to_string();
    assert_eq!(rabbit.ask(ADMIN, "PUT", "/users/admin", &body).0, "204");
    scenario
        .until_condition(USER, "shop", "Ready=False ChildrenNotReady: 401")
        .await;
    scenario.apply(&admin("hunter2-new")).await;
    scenario
        .until_condition(USER, "shop", "Ready=True Reconciled")
        .await;
    assert_eq!(rabbit.front.writes().len(), sent, "all was as it should be");

    // A message holds its queue, and the queue the rest.
    let message =
        json!({"properties": {}, "routing_key": "orders", "payload": "x", "payload_encoding": "string"});
    let exchange = format!("/exchanges/{id}/amq.default/publish");
    let (_, routed) = rabbit.ask(new, "POST", &exchange, &message.to_string());
    assert_eq!(routed["routed"], true);
    scenario.delete(USER, "shop").await;
    scenario
        .until_external("shop.queue.orders", "Stalled=True Refused: 400")
        .await;
    assert_eq!(rabbit.ask(new, "GET", &format!("/vhosts/{id}"), "").0, "200");
    rabbit.ask(new, "DELETE", &format!("/queues/{id}/orders/contents"), "");
    scenario.until_gone(USER, "shop").await;
    for kind in ["vhosts", "users"] {
        assert_eq!(
            rabbit.ask(new, "GET", &format!("/{kind}/{id}"), "").0,
            "404",
            "{kind}"
        );
    }
    for log in [egress.log(), host.log()] {
        assert!(!log.contains("hunter2") && !log.contains(&password));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_to_rabbitmq_twice_by_a_process_that_is_killed_or_followed_by_another() {
    const NAMESPACE: &str = "ext-rabbitmq-twice";
    let scenario = Scenario::new(NAMESPACE).await;
    let rabbit = Rabbit::new(&scenario).await;
    let _server = rabbit.start().await;
    let front = &rabbit.front;
    let endpoint = rabbit.endpoint(NAMESPACE, ", timeout: 900ms");
    let lease = format!(
        "namespaces: [{NAMESPACE}]\nleadership: single\n\
         lease: {{namespace: {NAMESPACE}, duration: 3s, renewDeadline: 2s, retryPeriod: 300ms}}\n"
    );
    let endpoints = scenario.file("endpoints.yaml", format!("{lease}endpoints:\n{endpoint}"));
    scenario.apply(&admin("hunter2-old")).await;
    let _host = scenario.start(CONTROLLER);
    // GET, PUT and GET for the virtual host, the user and the permissions: each is carried out, and the answer never comes.
    let mut egress = scenario.start_egress("egress", &endpoints);
    for step in 1..=9 {
        egress.until_log("ready to carry out").await;
        let name = format!("shop-{step}");
        let made = user(&name, &[], "^$");
        let act = async { drop(scenario.apply(&made).await) };
        front.hold(&format!(".{name}"), step, act).await;
        egress.kill();
        front.release();
        egress = scenario.start_egress("egress", &endpoints);
        scenario
            .until_condition(USER, &name, "Ready=True Reconciled")
            .await;
        let id = format!("{NAMESPACE}.{name}");
        let mut lines = front.lines();
        lines.retain(|line| line.contains(&id));
        let count = |path: &str| {
            let line = format!("PUT {path}").replace("ID", &id);
            lines.iter().filter(|it| **it == line).count()
        };
        // No GET shows a password.
        let counts = ["/vhosts/ID", "/permissions/ID/ID", "/users/ID"].map(count);
        assert!(matches!(counts, [1, 1, 1 | 2]), "step {step}: {lines:?}");
    }
    // Each DELETE, in the same way.
    for step in 1..=3 {
        egress.until_log("ready to carry out").await;
        let name = format!("shop-{step}");
        let before = front
            .lines()
            .iter()
            .filter(|it| it.starts_with("DELETE "))
            .count();
        front
            .hold("DELETE ", before + step, scenario.delete(USER, &name))
            .await;
        egress.kill();
        front.release();
        egress = scenario.start_egress("egress", &endpoints);
        scenario.until_gone(USER, &name).await;
    }
    drop(egress);
    // Of two replicas, the first is stopped in the middle of its work.
    let first = scenario.start_egress("first", &endpoints);
    first.until_log("ready to carry out").await;
    let second = scenario.start_egress("second", &endpoints);
    second.until_log("ready to carry out").await;
    front
        .hold("PUT /vhosts/ext-rabbitmq-twice.late", 1, async {
            scenario.apply(&user("late", &["orders"], "^$")).await;
        })
        .await;
    first.process().pause();
    front.release();
    scenario
        .until_condition(USER, "late", "Ready=True Reconciled")
        .await;
    first.process().resume();
    let lines = front.lines().len();
    until_true("the second has looked at all again", async || {
        front.lines().len() >= lines + 25
    })
    .await;
    let mut writes = front.writes();
    writes.retain(|line| line.contains(".late"));
    // As above: the first may have sent the password, and not yet said so.
    let (users, others): (Vec<_>, Vec<_>) = writes.iter().partition(|line| line.starts_with("PUT /users/"));
    assert!(matches!((users.len(), others.len()), (1 | 2, 3)), "{writes:?}");
}
