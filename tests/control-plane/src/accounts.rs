//! Tokens of ServiceAccounts for programs outside of the cluster, in kubeconfigs.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::authorization::v1::{
    SelfSubjectRulesReview, SelfSubjectRulesReviewSpec, SubjectRulesReviewStatus,
};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{
    ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::client::{config_of, connect};
use crate::cluster::ControlPlane;
use crate::component::POLL;

/// Longer than any test or playground session.
const LIFETIME: i64 = 24 * 60 * 60;

/// How long the authorizer may take to see new roles.
const LIMIT: Duration = Duration::from_secs(30);

impl ControlPlane {
    /// Creates a kubeconfig with a new token of an existing ServiceAccount, whose namespace is the default one, as
    /// in a pod. Returns once the API server knows all roles that are bound to the account itself: its authorizer
    /// watches roles, and a new server grants discovery to everybody a second after it is ready.
    pub async fn kubeconfig_of_account(&self, namespace: &str, name: &str) -> anyhow::Result<PathBuf> {
        let client = self.client().await?;
        let accounts = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(LIFETIME),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let answer = accounts
            .create_token_request(name, &PostParams::default(), &request)
            .await?;
        let token = answer.status.and_then(|status| status.token).unwrap_or_default();
        let kubeconfig = self.write_kubeconfig(&format!("{namespace}-{name}"), &token, namespace)?;
        let account = connect(&config_of(&kubeconfig).await?)?;
        let started = Instant::now();
        for (bound_in, rules) in bound(&client, namespace, name).await? {
            let bound_in = bound_in.unwrap_or_else(|| namespace.to_owned());
            let allowed = until_allowed(&account, &bound_in, &rules, started).await;
            allowed.map_err(|message| anyhow!("ServiceAccount {namespace}/{name}: {message}"))?;
        }
        Ok(kubeconfig)
    }
}

/// Returns the rules of every role that is bound to the account itself, with the binding's namespace.
async fn bound(
    client: &Client,
    namespace: &str,
    name: &str,
) -> anyhow::Result<Vec<(Option<String>, Vec<PolicyRule>)>> {
    let is_account = |subject: &Subject, bound_in: Option<&str>| {
        subject.kind == "ServiceAccount"
            && subject.name == name
            && subject.namespace.as_deref().or(bound_in) == Some(namespace)
    };
    let all = ListParams::default();
    let everywhere = Api::<ClusterRoleBinding>::all(client.clone()).list(&all).await?;
    let everywhere = everywhere
        .into_iter()
        .map(|binding| (None, binding.subjects, binding.role_ref));
    let within = Api::<RoleBinding>::all(client.clone()).list(&all).await?;
    let within = within
        .into_iter()
        .map(|binding| (binding.metadata.namespace, binding.subjects, binding.role_ref));
    let mut found = Vec::new();
    for (bound_in, subjects, role) in everywhere.chain(within) {
        let mut subjects = subjects.iter().flatten();
        if subjects.any(|subject| is_account(subject, bound_in.as_deref())) {
            let rules = rules_of(client, bound_in.as_deref(), &role).await?;
            found.push((bound_in, rules));
        }
    }
    // Every account without a role still gets discovery.
    found.push((None, Vec::new()));
    Ok(found)
}

/// Returns no rules for a missing role: such a binding grants nothing.
async fn rules_of(
    client: &Client,
    namespace: Option<&str>,
    role: &RoleRef,
) -> anyhow::Result<Vec<PolicyRule>> {
    let rules = match namespace {
        Some(namespace) if role.kind == "Role" => {
            let roles = Api::<Role>::namespaced(client.clone(), namespace);
            roles.get_opt(&role.name).await?.and_then(|role| role.rules)
        }
        _ => {
            let roles = Api::<ClusterRole>::all(client.clone());
            roles.get_opt(&role.name).await?.and_then(|role| role.rules)
        }
    };
    Ok(rules.unwrap_or_default())
}

/// Asks the API server for the account's permissions until they include the rules and the discovery that everybody
/// gets.
///
/// # Errors
/// The last answer.
async fn until_allowed(
    account: &Client,
    namespace: &str,
    rules: &[PolicyRule],
    started: Instant,
) -> Result<(), String> {
    let reviews = Api::<SelfSubjectRulesReview>::all(account.clone());
    let question = SelfSubjectRulesReview {
        spec: SelfSubjectRulesReviewSpec {
            namespace: Some(namespace.to_owned()),
        },
        ..SelfSubjectRulesReview::default()
    };
    loop {
        let message = match reviews.create(&PostParams::default(), &question).await {
            Ok(answer) => {
                let may = answer.status.unwrap_or_default();
                match rules.iter().find(|rule| !holds(&may, rule)) {
                    Some(rule) => format!("it has no {} yet", json!(rule)),
                    None if !may_discover(&may) => "it may not look around yet".to_owned(),
                    None => return Ok(()),
                }
            }
            Err(error) => error.to_string(),
        };
        if started.elapsed() > LIMIT {
            return Err(message);
        }
        tokio::time::sleep(POLL).await;
    }
}

fn holds(may: &SubjectRulesReviewStatus, rule: &PolicyRule) -> bool {
    let rule = json!(rule);
    let is_rule = |other: Value| other == rule;
    may.resource_rules.iter().any(|other| is_rule(json!(other)))
        || may.non_resource_rules.iter().any(|other| is_rule(json!(other)))
}

fn may_discover(may: &SubjectRulesReviewStatus) -> bool {
    may.non_resource_rules.iter().any(|rule| {
        let urls = rule.non_resource_urls.iter().flatten();
        urls.into_iter().any(|url| url == "/apis/*")
    })
}
