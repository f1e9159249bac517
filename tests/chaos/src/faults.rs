//! The faults, and how they are repaired.
//!
//! To add a fault: a variant of [`Fault`], a line in [`Fault::draw`], an arm in [`Fault::lane`], [`Fault::begin`],
//! [`Fault::end`] and its `Display`. Its end must repair everything, since a round is checked after all faults have ended. A
//! fault holds no state of its own: the data that its end needs is in the variant, drawn before it begins.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, bail};
use control_plane::manifests;
use control_plane::proxy::Mode;
use futures::future::try_join_all;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, PostParams};
use tokio::time::Instant;

use crate::draw::Draw;
use crate::files::{Content, Edit};
use crate::fleet::Shape;
use crate::oracle::Sample;
use crate::stage::Stage;
use crate::users;

/// How long Kubernetes has to delete a definition. Its own finalizer waits 60 s for the objects to be deleted before it
/// starts over.
const DEFINITION_DELETED: Duration = Duration::from_secs(150);

/// A fault; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// SIGKILL; restarted at the end.
    HostKilled(usize),
    /// SIGTERM, as in a rolling update.
    HostTerminated(usize),
    /// SIGSTOP; continued at the end.
    HostStopped(usize),
    /// The disk for compiled plugins and versions is full.
    DiskFull(usize),
    ApiServerKilled,
    ApiServerStopped,
    EtcdKilled,
    EtcdStopped,
    /// The controller manager is killed, and with it the garbage collector and the Deployment controller.
    ControllerManagerKilled,
    /// The definition of a kind is deleted, and with it all objects of the kind.
    DefinitionRemoved(Sample),
    /// The hosts lose all permissions.
    AllRightsTaken,
    /// The hosts lose their permissions on pods.
    RightsOnPodsTaken,
    /// Each request of the hosts is delayed.
    WireSlow(Duration),
    /// Each request of the hosts is refused with this status; 401 is the response to an expired token.
    WireRefusing(u16),
    /// All connections of the hosts are cut, including new ones.
    WireCut,
    /// Watches are cut, including new ones.
    WatchesCut,
    /// Watches become silent.
    WatchesStalled,
    /// Writes are executed, but their responses are lost.
    AnswersLost,
    /// A plugin's file is temporarily replaced.
    PluginSwapped(Sample, Content),
    /// The configuration is temporarily replaced.
    ConfigEdited(Edit),
    /// All hosts are replaced at once by new ones without any state, while a bad version is in the plugin's file.
    HostsReplaced(Content),
}

/// The resource that a fault affects. Faults of the same lane must not overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    Hosts,
    Server,
    Wire,
    Files,
}

impl Lane {
    const ALL: [Self; 4] = [Self::Hosts, Self::Server, Self::Wire, Self::Files];
}

/// A fault with its time.
#[derive(Clone, Debug)]
pub(crate) struct Planned {
    pub(crate) fault: Fault,
    after: Duration,
    lasts: Duration,
}

/// The input for drawing faults.
pub(crate) struct Possible<'a> {
    pub(crate) shape: Shape,
    pub(crate) has_disks: bool,
    /// Only faults whose name contains one of these strings; all if empty.
    pub(crate) only: &'a [String],
}

/// Draws one to four faults for a round, ordered by their start.
pub(crate) fn plan(draw: &mut Draw, possible: &Possible<'_>) -> anyhow::Result<Vec<Planned>> {
    let count = 1 + draw.below(4);
    let mut all = Vec::new();
    let mut tries = 0;
    while all.len() < count {
        let fault = Fault::draw(draw, possible);
        let planned = Planned {
            fault,
            after: draw.millis(0..1500),
            lasts: draw.millis(100..2000),
        };
        if possible.allow(fault) {
            all.push(planned);
        }
        tries += 1;
        if tries == 10_000 {
            bail!("no possible fault has a name with any of {:?}", possible.only);
        }
    }
    all.sort_by_key(|planned| planned.after);
    Ok(all)
}

/// Executes the faults. Those of the same lane run one after the other.
pub(crate) async fn carry_out(stage: &Stage, plan: &[Planned]) -> anyhow::Result<()> {
    let start = Instant::now();
    let lanes = Lane::ALL.map(|lane| async move {
        for planned in plan.iter().filter(|planned| planned.fault.lane() == lane) {
            tokio::time::sleep_until(start + planned.after).await;
            let context = || planned.fault.to_string();
            planned.fault.begin(stage).await.with_context(context)?;
            tokio::time::sleep(planned.lasts).await;
            planned.fault.end(stage).await.with_context(context)?;
        }
        anyhow::Ok(())
    });
    try_join_all(lanes).await.map(drop)
}

impl Possible<'_> {
    fn allow(&self, fault: Fault) -> bool {
        let name = fault.to_string().to_lowercase();
        let asked_for =
            self.only.is_empty() || self.only.iter().any(|only| name.contains(&only.to_lowercase()));
        let can_be = match fault {
            Fault::DiskFull(..) => self.has_disks,
            _ => true,
        };
        asked_for && can_be
    }
}

impl Fault {
    fn draw(draw: &mut Draw, possible: &Possible<'_>) -> Self {
        let replica = draw.below(possible.shape.replicas);
        let sample = *draw.pick(&Sample::ALL);
        let defined = *draw.pick(&Sample::DEFINED);
        let delay = Duration::from_millis(20 + draw.below(200) as u64);
        let status = *draw.pick(&[401, 429, 500, 503]);
        let other = *draw.pick(&[Content::Newer, Content::Torn, Content::Garbage]);
        let variant = Content::Variant(1 + draw.below(3) as u8);
        let edit = *draw.pick(&[Edit::Without(sample), Edit::Otherwise(sample), Edit::Broken]);
        let bad = Content::Variant(2 + draw.below(2) as u8);
        *draw.weighted(&[
            (4, Self::HostKilled(replica)),
            (2, Self::HostTerminated(replica)),
            (3, Self::HostStopped(replica)),
            (1, Self::DiskFull(replica)),
            (3, Self::ApiServerKilled),
            (1, Self::ApiServerStopped),
            (2, Self::EtcdKilled),
            (1, Self::EtcdStopped),
            (1, Self::ControllerManagerKilled),
            (2, Self::DefinitionRemoved(defined)),
            (1, Self::AllRightsTaken),
            (1, Self::RightsOnPodsTaken),
            (1, Self::WireSlow(delay)),
            (3, Self::WireRefusing(status)),
            (1, Self::WireCut),
            (1, Self::WatchesCut),
            (1, Self::WatchesStalled),
            (2, Self::AnswersLost),
            (2, Self::PluginSwapped(sample, other)),
            (2, Self::PluginSwapped(Sample::Puppet, variant)),
            (2, Self::ConfigEdited(edit)),
            (2, Self::HostsReplaced(bad)),
        ])
    }

    fn lane(self) -> Lane {
        match self {
            Self::HostKilled(..) | Self::HostTerminated(..) | Self::HostStopped(..) | Self::DiskFull(..) => {
                Lane::Hosts
            }
            Self::ApiServerKilled
            | Self::ApiServerStopped
            | Self::EtcdKilled
            | Self::EtcdStopped
            | Self::ControllerManagerKilled
            | Self::DefinitionRemoved(..)
            | Self::AllRightsTaken
            | Self::RightsOnPodsTaken => Lane::Server,
            Self::WireSlow(..)
            | Self::WireRefusing(..)
            | Self::WireCut
            | Self::WatchesCut
            | Self::WatchesStalled
            | Self::AnswersLost => Lane::Wire,
            Self::PluginSwapped(..) | Self::ConfigEdited(..) | Self::HostsReplaced(..) => Lane::Files,
        }
    }

    async fn begin(self, stage: &Stage) -> anyhow::Result<()> {
        match self {
            Self::HostKilled(replica) => stage.fleet.lock().await.kill(replica),
            Self::HostTerminated(replica) => stage.fleet.lock().await.terminate(replica).await?,
            Self::HostStopped(replica) => stage.fleet.lock().await.pause(replica),
            Self::DiskFull(replica) => stage.fleet.lock().await.fill_disk(replica),
            Self::ApiServerKilled => stage.server.lock().await.kill_apiserver(),
            Self::ApiServerStopped => stage.server.lock().await.pause_apiserver(),
            Self::EtcdKilled => stage.server.lock().await.kill_etcd(),
            Self::EtcdStopped => stage.server.lock().await.pause_etcd(),
            Self::ControllerManagerKilled => stage.server.lock().await.kill_controller_manager(),
            Self::DefinitionRemoved(sample) => remove_definition(stage, sample).await?,
            Self::AllRightsTaken => unbind(stage).await?,
            Self::RightsOnPodsTaken => take_pods(stage).await?,
            Self::WireSlow(delay) => stage.wire.set_mode(Mode::Delay(delay)),
            Self::WireRefusing(status) => stage.wire.set_mode(Mode::Refuse {
                status,
                retry_after: (status == 429).then_some(1),
            }),
            Self::WireCut => stage.wire.set_mode(Mode::Cut),
            Self::WatchesCut => stage.wire.set_mode_of("watch=true", Mode::Cut),
            Self::WatchesStalled => stage.wire.set_mode_of("watch=true", Mode::Stall),
            Self::AnswersLost => stage.wire.set_mode(Mode::DropAnswers),
            Self::PluginSwapped(sample, content) => stage.files.put_plugin(sample, content).await?,
            Self::ConfigEdited(edit) => stage.files.put_config(edit).await?,
            Self::HostsReplaced(content) => {
                let mut fleet = stage.fleet.lock().await;
                stage.files.put_plugin(Sample::Puppet, content).await?;
                fleet.replace().await?;
            }
        }
        Ok(())
    }

    async fn end(self, stage: &Stage) -> anyhow::Result<()> {
        match self {
            Self::HostKilled(replica) | Self::HostTerminated(replica) => {
                stage.fleet.lock().await.let_run(replica)?;
            }
            Self::HostStopped(replica) => stage.fleet.lock().await.resume(replica),
            Self::DiskFull(replica) => stage.fleet.lock().await.free_disk(replica)?,
            Self::ApiServerKilled => stage.server.lock().await.start_apiserver().await?,
            Self::ApiServerStopped => stage.server.lock().await.resume_apiserver(),
            Self::EtcdKilled => stage.server.lock().await.start_etcd().await?,
            Self::EtcdStopped => stage.server.lock().await.resume_etcd(),
            Self::ControllerManagerKilled => stage.server.lock().await.start_controller_manager()?,
            Self::DefinitionRemoved(sample) => return_definition(stage, sample).await?,
            Self::AllRightsTaken | Self::RightsOnPodsTaken => {
                manifests::apply(&stage.client, &stage.rights).await?;
            }
            Self::WireSlow(..)
            | Self::WireRefusing(..)
            | Self::WireCut
            | Self::WatchesCut
            | Self::WatchesStalled
            | Self::AnswersLost => stage.wire.set_mode(Mode::Pass),
            Self::PluginSwapped(sample, _) => stage.files.put_plugin(sample, Content::Own).await?,
            Self::ConfigEdited(..) => stage.files.put_config(Edit::None).await?,
            Self::HostsReplaced(..) => stage.files.put_plugin(Sample::Puppet, Content::Own).await?,
        }
        Ok(())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Users must not create objects of a kind that is being deleted, or block their deletion: either would prevent it.
async fn remove_definition(stage: &Stage, sample: Sample) -> anyhow::Result<()> {
    stage.close(Some(sample));
    let name = stage.definition(sample)?.name_any();
    let api = Api::<CustomResourceDefinition>::all(stage.client.clone());
    api.delete(&name, &DeleteParams::default()).await?;
    Ok(())
}

/// Waits until the hosts have released the objects and the definition is deleted, then installs it again.
async fn return_definition(stage: &Stage, sample: Sample) -> anyhow::Result<()> {
    let definition = stage.definition(sample)?;
    let api = Api::<CustomResourceDefinition>::all(stage.client.clone());
    let deadline = Instant::now() + DEFINITION_DELETED;
    while let Some(there) = api.get_opt(&definition.name_any()).await? {
        // It may have been deleted since.
        let _ = users::let_go_all(&stage.client, sample).await;
        if Instant::now() > deadline {
            let status = serde_json::to_string(&there.status)?;
            bail!("the definition was not deleted within {DEFINITION_DELETED:?}: {status}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    manifests::apply(&stage.client, std::slice::from_ref(definition)).await?;
    stage.close(None);
    // Otherwise its garbage collector discovers kinds only every half minute.
    stage.server.lock().await.restart_controller_manager().await?;
    Ok(())
}

async fn unbind(stage: &Stage) -> anyhow::Result<()> {
    for object in &stage.rights {
        let Some(types) = object
            .types
            .as_ref()
            .filter(|types| types.kind.ends_with("Binding"))
        else {
            continue;
        };
        let resource = ApiResource::from_gvk(&GroupVersionKind::try_from(types)?);
        let api: Api<DynamicObject> = match object.namespace() {
            Some(namespace) => Api::namespaced_with(stage.client.clone(), &namespace, &resource),
            None => Api::all_with(stage.client.clone(), &resource),
        };
        api.delete(&object.name_any(), &DeleteParams::default()).await?;
    }
    Ok(())
}

async fn take_pods(stage: &Stage) -> anyhow::Result<()> {
    let api = Api::<ClusterRole>::all(stage.client.clone());
    for object in &stage.rights {
        if object
            .types
            .as_ref()
            .is_none_or(|types| types.kind != "ClusterRole")
        {
            continue;
        }
        let mut role = api.get(&object.name_any()).await?;
        for rule in role.rules.iter_mut().flatten() {
            if let Some(resources) = &mut rule.resources {
                resources.retain(|resource| resource != "pods");
            }
        }
        // A rule without resources is refused.
        role.rules.iter_mut().for_each(|rules| {
            rules.retain(|rule| {
                rule.resources
                    .as_ref()
                    .is_none_or(|resources| !resources.is_empty())
            });
        });
        api.replace(&role.name_any(), &PostParams::default(), &role)
            .await?;
    }
    Ok(())
}
