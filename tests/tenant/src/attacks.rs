//! What the tenant does. Each attack returns what Echo took meanwhile.

use std::time::Duration;

use futures::future::BoxFuture;
use operator_host_delivery::pack::Compression;
use serde_json::{Value, json};

use crate::stage::{ECHO_GROUP, GROUP, KINDS, Stage, TEAM, TENANT, config_map, controller};

/// How long Echo is measured in an attack that goes on by itself.
const TIME: Duration = Duration::from_secs(30);
/// How many plugins of 24 MB the tenant has. Packed they have 25 KB.
const BOMBS: u32 = 24;
/// How long the status of a Controller of the other team may take.
const STATUS: Duration = Duration::from_secs(5);
/// How long a host may take after it was killed until an Echo is served.
const START: Duration = Duration::from_secs(30);

/// An attack.
pub(crate) struct Attack {
    pub(crate) name: &'static str,
    pub(crate) make: for<'a> fn(&'a mut Stage) -> BoxFuture<'a, anyhow::Result<Outcome>>,
}

/// What an attack did.
#[derive(Default)]
pub(crate) struct Outcome {
    /// The median time of an Echo meanwhile.
    pub(crate) echo: Duration,
    /// The host's threads at the end.
    pub(crate) threads: u64,
    /// What was measured besides.
    pub(crate) notes: String,
    /// What must not be.
    pub(crate) problems: Vec<String>,
}

impl Outcome {
    /// Measures Echo for this time.
    async fn of(stage: &mut Stage, problems: Vec<String>, time: Duration) -> anyhow::Result<Self> {
        Ok(Self {
            echo: stage.echoes(time).await?,
            threads: stage.threads(),
            problems,
            ..Self::default()
        })
    }
}

macro_rules! attacks {
    ($($name:ident),+ $(,)?) => {
        &[$(Attack { name: stringify!($name), make: |stage| Box::pin($name(stage)) }),+]
    };
}

/// All of them.
pub(crate) const ATTACKS: &[Attack] = attacks![
    bombs_that_wait,
    bombs_that_change,
    controllers_without_kinds,
    controllers_with_many_kinds,
    many_controllers,
    kinds_and_plugins_of_others,
    the_name_of_another,
];

fn bomb(number: u32, version: u32) -> Value {
    let file = plugin_fixtures::bomb(1_500, version);
    let packed = Compression::Gzip.pack(&file).unwrap_or_default();
    config_map(TENANT, &format!("bomb{number}-plugin"), "bomb.wasm.gz", &packed)
}

fn of_bomb(number: u32) -> Value {
    controller(
        &format!("bomb{number}"),
        &format!("Tenant{number}"),
        GROUP,
        &json!({}),
    )
}

/// Plugins that compress to almost nothing wait to be compiled.
async fn bombs_that_wait(stage: &mut Stage) -> anyhow::Result<Outcome> {
    let bombs = (0..BOMBS).flat_map(|number| [bomb(number, number), of_bomb(number)]);
    let problems = stage.attack(bombs).await;
    Outcome::of(stage, problems, TIME).await
}

/// They change all the time, beside an upgrade of the other team.
async fn bombs_that_change(stage: &mut Stage) -> anyhow::Result<Outcome> {
    let mut usual = Vec::new();
    for _ in 0..3 {
        usual.push(stage.upgrade().await?);
    }
    usual.sort();
    let usual = usual[1];
    let errors = stage.attack((0..BOMBS).map(of_bomb)).await;
    let tenant = stage.tenant.clone();
    // Packed before, since the tenant has processors of its own.
    let bombs: Vec<Value> = (0..2 * BOMBS)
        .map(|version| bomb(version % BOMBS, BOMBS + version))
        .collect();
    let changing = tokio::spawn(async move {
        for bomb in bombs.iter().cycle() {
            if let Err(error) = Stage::apply(&tenant, bomb.clone()).await {
                return error.to_string();
            }
        }
        String::new()
    });
    let echo = stage.echoes(TIME).await;
    let mut upgrades = Vec::new();
    for _ in 0..3 {
        upgrades.push(stage.upgrade().await?);
    }
    upgrades.sort();
    let (upgrade, threads) = (upgrades[1], stage.threads());
    let mut problems = errors;
    if changing.is_finished() {
        problems.push(format!("the bombs do not change: {}", changing.await?));
    } else {
        changing.abort();
    }
    if upgrade > 2 * usual {
        problems.push(format!(
            "an upgrade takes {upgrade:?}, and {usual:?} without the attack"
        ));
    }
    Ok(Outcome {
        echo: echo?,
        threads,
        notes: format!("an upgrade {upgrade:?}, usually {usual:?}"),
        problems,
    })
}

/// Controllers of kinds that do not exist, and a host that starts with them.
async fn controllers_without_kinds(stage: &mut Stage) -> anyhow::Result<Outcome> {
    let nothing = |number: u32| {
        let (name, kind) = (format!("nothing{number}"), format!("Nothing{number}"));
        controller(&name, &kind, GROUP, &json!({}))
    };
    let mut problems = stage.attack((0..2_500).map(nothing)).await;
    let echo = stage.echoes(TIME).await?;
    let threads = stage.threads();
    let status = stage.first_status().await?;
    let peak = stage.peak()? / 1_000_000;
    let start = stage.restart().await?;
    if start > START {
        problems.push(format!("a host that starts serves an Echo after {start:?}"));
    }
    if status > STATUS {
        problems.push(format!("the other team's first status came after {status:?}"));
    }
    Ok(Outcome {
        echo,
        threads,
        notes: format!(
            "the other's first status {status:?}; peak before the restart {peak} MB; an Echo {start:?} after a start"
        ),
        problems,
    })
}

/// A Controller with 20,000 kinds of children.
async fn controllers_with_many_kinds(stage: &mut Stage) -> anyhow::Result<Outcome> {
    let kinds = |field: &str| -> Value {
        let kinds = (0..20_000).map(|number| json!({"apiVersion": "a.dev/v1", "kind": format!("K{number}")}));
        json!({field: kinds.collect::<Vec<_>>()})
    };
    let mut problems = Vec::new();
    for field in ["children", "reads"] {
        let errors = stage
            .attack(std::iter::once(controller(
                "many",
                "Tenant0",
                GROUP,
                &kinds(field),
            )))
            .await;
        if !errors
            .iter()
            .any(|error| error.contains(&format!("spec.{field}")))
        {
            problems.push(format!("20,000 entries in spec.{field}: {errors:?}"));
        }
    }
    Outcome::of(stage, problems, Duration::from_secs(5)).await
}

/// More Controllers than there are kinds and than the ceilings allow, which change all the time.
async fn many_controllers(stage: &mut Stage) -> anyhow::Result<Outcome> {
    let one = |number: usize, resync: usize| {
        let more = json!({"resync": format!("{}s", 3600 + resync)});
        controller(
            &format!("many{number}"),
            &format!("Tenant{}", number % KINDS),
            GROUP,
            &more,
        )
    };
    let mut problems = stage.attack((0..600).map(|number| one(number, 0))).await;
    let tenant = stage.tenant.clone();
    let changing = tokio::spawn(async move {
        for change in 1.. {
            if let Err(error) = Stage::apply(&tenant, one(change % 600, change)).await {
                return error.to_string();
            }
        }
        String::new()
    });
    let echo = stage.echoes(TIME).await;
    let status = stage.first_status().await?;
    let threads = stage.threads();
    if changing.is_finished() {
        problems.push(format!("the Controllers do not change: {}", changing.await?));
    } else {
        changing.abort();
    }
    if status > STATUS {
        problems.push(format!("the other team's first status came after {status:?}"));
    }
    Ok(Outcome {
        echo: echo?,
        threads,
        notes: format!("the other's first status {status:?}"),
        problems,
    })
}

/// Controllers that want what is another team's or the host's own.
async fn kinds_and_plugins_of_others(stage: &mut Stage) -> anyhow::Result<Outcome> {
    let child = |version: &str, kind: &str| json!({"children": [{"apiVersion": version, "kind": kind}]});
    let of_team = json!({"configMap": {"name": "echo-plugin", "namespace": TEAM, "key": "echo.wasm"}});
    let host = "operator-host.dev";
    let wanted = [
        ("taker", ECHO_GROUP, "Echo", json!({}), "KindTaken"),
        (
            "plugin",
            GROUP,
            "Tenant1",
            json!({"plugin": of_team}),
            "NotAllowed",
        ),
        ("own", host, "Other", json!({}), "InvalidSpec"),
        (
            "owner",
            GROUP,
            "Tenant2",
            child("operator-host.dev/v1alpha1", "Controller"),
            "InvalidSpec",
        ),
        (
            "scale",
            GROUP,
            "Tenant3",
            child("autoscaling/v1", "Scale"),
            "InvalidSpec",
        ),
        (
            "list",
            GROUP,
            "Tenant4",
            child("autoscaling/v1", "HorizontalPodAutoscalerList"),
            "InvalidSpec",
        ),
    ];
    // It has a kind of its own first.
    let harmless = controller("taker", "Tenant0", GROUP, &json!({}));
    let mut problems = stage.attack(std::iter::once(harmless)).await;
    let all: Vec<_> = wanted
        .iter()
        .map(|(name, group, kind, more, _)| controller(name, kind, group, more))
        .collect();
    problems.extend(stage.attack(all.into_iter()).await);
    for (name, .., reason) in &wanted {
        if let Err(error) = stage.until_refused(name, reason).await {
            problems.push(format!("{error:#}"));
        }
    }
    Outcome::of(stage, problems, Duration::from_secs(5)).await
}

/// The tenant, who may delete any Controller here, makes that of the other team again with a plugin of its own.
async fn the_name_of_another(stage: &mut Stage) -> anyhow::Result<Outcome> {
    stage.delete("echo").await?;
    let release = json!({
        "onRemoval": "releaseFinalizers",
        "plugin": {"configMap": {"name": "bomb0-plugin", "namespace": TENANT, "key": "bomb.wasm"}},
    });
    let forged = [bomb(0, 0), controller("echo", "Echo", ECHO_GROUP, &release)];
    let mut problems = stage.attack(forged.into_iter()).await;
    if let Err(error) = stage.until_refused("echo", "NameUsedBefore").await {
        problems.push(format!("{error:#}"));
    }
    stage.delete("echo").await?;
    stage.take_back_echo().await?;
    Outcome::of(stage, problems, Duration::from_secs(5)).await
}
