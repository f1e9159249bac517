//! The calls for the API server: conversions, defaults and validations. They depend only on a plugin.
//!
//! Reads of the kind fail while nothing converts it, so a conversion needs neither caches, which need conversions
//! themselves, nor a leader.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::Instant;

use super::bounds::{Asker, Part, Parts};
use super::deciding::{default, validate};
use super::review::Review;
use super::server::Ask;
use super::{Decision, MESSAGE, NoDecision, memory_of};
use crate::conversion::{self, Before, ConversionError, Purpose};
use operator_host_config::ControllerConfig;
use operator_host_contract::Kind;
use operator_host_core::json_text;
use operator_host_core::text::shorten;
use operator_host_delivery::registry::Live;
use operator_host_engine::calls::Calls;
use operator_host_instruments::Instruments;
use operator_host_runtime::Plugin;

/// Conversions that are answered at the same time, and reviews.
const TURNS: usize = 4;

/// Calls the plugin of one controller while it is held, whatever the state of the controller.
pub struct PluginTarget {
    pub(super) config: Arc<ControllerConfig>,
    calls: Calls,
    plugin: watch::Receiver<Live>,
    /// Converts until `plugin` does: the plugin that did so before the controller had another version of its kind, or
    /// another name.
    fallback: Option<watch::Receiver<Live>>,
    /// Converts what `plugin` cannot: versions that only this one knows, since its definition is installed before it is
    /// live, and objects for which `plugin` fails. It was proved to lose nothing.
    next: watch::Receiver<Option<Plugin>>,
    /// The requests that are answered at the same time. They are separate from the reconciles of the controller, so that
    /// neither delays the other. Reads wait for conversions, so reviews must not delay these.
    conversions: Parts,
    reviews: Parts,
}

impl PluginTarget {
    /// `fallback` converts until `plugin` does, and `next` while it knows more versions.
    pub fn new(
        config: &Arc<ControllerConfig>,
        plugin: watch::Receiver<Live>,
        fallback: Option<watch::Receiver<Live>>,
        next: watch::Receiver<Option<Plugin>>,
        instruments: &Instruments,
    ) -> Self {
        Self {
            config: Arc::clone(config),
            calls: Calls::new(config, instruments),
            plugin,
            fallback,
            next,
            conversions: Parts::new(TURNS),
            reviews: Parts::new(TURNS),
        }
    }

    /// Reports whether it reconciles this kind as its own, in any version.
    pub(super) fn is_for(&self, kind: &Kind) -> bool {
        self.config.decorates.is_none() && self.config.parent.is_version_of(kind)
    }

    /// Returns the plugin that converts at the moment, for the target that replaces this one.
    pub fn converter(&self) -> watch::Receiver<Live> {
        let live = |plugin: &&watch::Receiver<Live>| matches!(*plugin.borrow(), Live::Plugin(_));
        let fallback = self.fallback.as_ref().filter(live);
        let converter = Some(&self.plugin).filter(live).or(fallback);
        converter.unwrap_or(&self.plugin).clone()
    }

    /// Converts objects to a version, each in its place. Returns them with their part of the room. `body` is the size
    /// of the request, whose caller waits until a time. An error says which object cannot be converted and why.
    pub(super) async fn convert(
        &self,
        to: &str,
        objects: &[&RawValue],
        body: usize,
        asker: Asker<'_>,
        until: Instant,
    ) -> Result<(Vec<String>, Part), NoDecision> {
        // First the turn: requests that wait for a plugin must not hold the room of others.
        let _turn = self.conversions.take(asker.peer, 1).await;
        let plugin = self.converting(to, objects).await?;
        let room = asker.rooms.sizes.converted(body);
        let part = asker.rooms.work.take(asker.peer, room).await;
        let convert = |plugin, until| {
            let purpose = Purpose::Request(&self.calls, until);
            conversion::convert(purpose, plugin, to, objects, room)
        };
        let next = self.next.borrow().clone();
        let converted = match next.filter(|next| next.digest() != plugin.digest()) {
            None => convert(&plugin, until).await,
            // It was proved that the next one loses nothing. It needs a part of the time.
            Some(next) => {
                let now = Instant::now();
                match convert(&plugin, now + until.saturating_duration_since(now) / 2).await {
                    Err(error) if !error.is_of_host() => convert(&next, until).await.or(Err(error)),
                    converted => converted,
                }
            }
        };
        let converted = converted.map_err(|error| NoDecision {
            public: error.public_message(),
            detail: error.to_string(),
            try_again: matches!(error, ConversionError::UnknownVersion(_)),
        })?;
        Ok((converted, part))
    }

    /// Sets the defaults of an object, or decides whether it may be written.
    pub(super) async fn decide(
        &self,
        ask: Ask,
        review: &Review<'_>,
        object: &str,
        asker: Asker<'_>,
    ) -> Result<Decision, NoDecision> {
        if let Err(why) = Before::read(object) {
            return Ok(Decision::Denied(shorten(&why, MESSAGE)));
        }
        // One that cannot be read may be mended.
        let is_asked_about = |old: &&str| ask == Ask::Validate && Before::read(old).is_ok();
        let old = review.replaced().filter(is_asked_about);
        let memory = memory_of([Some(object), old], asker.rooms.sizes.object)?;
        let _turn = self.reviews.take(asker.peer, 1).await;
        let _room = asker.rooms.work.take(asker.peer, memory).await;
        let plugin = self.plugin().await?;
        let description = plugin.description();
        let (is_asked, does) = match ask {
            Ask::Default => (description.defaults, "sets the defaults of"),
            Ask::Validate | Ask::Convert => (description.validates, "validates"),
        };
        if !is_asked {
            return Ok(Decision::Allowed);
        }
        // Only now is there room for what is read.
        let unread = |why| NoDecision::new(format!("cannot read the object: {why}"));
        let read = |object| Before::read(object).map_err(unread);
        let before = read(object)?;
        if before.api_version != description.parent.api_version {
            return Err(NoDecision::new(format!(
                "the object is in {}, but the plugin {does} {}: print the webhook again with `operator-host \
                 webhook-manifests`",
                shorten(&before.api_version, 63),
                description.parent.api_version
            )));
        }
        let old = old.map(read).transpose()?;
        match ask {
            Ask::Default => default(&plugin, &self.calls, review, &before).await,
            Ask::Validate | Ask::Convert => {
                validate(&plugin, &self.calls, review, &before, old.as_ref()).await
            }
        }
    }

    /// Returns the version that converts these objects: the live one, or, without one or for versions of the kind that it does
    /// not know, the next one, whose definition may be installed already.
    async fn converting(&self, to: &str, objects: &[&RawValue]) -> Result<Plugin, NoDecision> {
        let live = self.converter().borrow().plugin().cloned();
        let next = self.next.borrow().clone();
        let (live, next) = match (live, next) {
            (Some(live), Some(next)) => (live, next),
            (Some(one), None) | (None, Some(one)) => return Ok(one),
            (None, None) => return self.plugin().await,
        };
        let known = |api_version: &str| {
            let version = api_version.rsplit('/').next().unwrap_or_default();
            live.description().versions.iter().any(|known| known == version)
        };
        let is_known = known(to) && objects.iter().all(|object| known(&api_version(object)));
        Ok(if is_known { live } else { next })
    }

    /// Returns the live version; waits while it is being loaded.
    async fn plugin(&self) -> Result<Plugin, NoDecision> {
        let mut plugin = self.plugin.clone();
        let live = plugin.wait_for(|live| !matches!(live, Live::Loading)).await;
        match live.as_deref() {
            Ok(Live::Plugin(plugin)) => Ok(plugin.clone()),
            Ok(Live::Failed(failed)) => Err(NoDecision {
                detail: failed.why.to_string(),
                ..NoDecision::elsewhere("no version of the plugin can be used: the host's log says why")
            }),
            Ok(Live::Loading) | Err(_) => Err(NoDecision::elsewhere("the host is stopping")),
        }
    }
}

/// Returns the API version of an object; empty if it has none.
fn api_version(object: &RawValue) -> String {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Versioned {
        api_version: String,
    }
    json_text::object(object.get()).map_or_else(|_| String::new(), |object: Versioned| object.api_version)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns plugins of these versions, each with the versions of its kind that it converts.
    async fn load<const N: usize>(plugins: [(&str, &[&str]); N]) -> [Live; N] {
        let runtime =
            operator_host_runtime::Runtime::new(operator_host_runtime::EngineOptions::default()).unwrap();
        let load = plugins.map(async |(version, versions)| {
            let case = plugin_fixtures::Fixture::new(plugin_fixtures::cases::ANSWER);
            let case = case.plugin_version(version).versions(versions);
            let file = case.build(plugin_fixtures::Form::Command);
            let limits = operator_host_runtime::Limits::default();
            Live::Plugin(runtime.load(file, limits).await.unwrap())
        });
        futures::future::join_all(load).await.try_into().ok().unwrap()
    }

    #[tokio::test]
    async fn the_plugin_from_before_converts_until_the_new_one_does() {
        let config = Arc::new(operator_host_config::testing::config());
        let [first, second] = load([("1.0.0", &[]), ("2.0.0", &[])]).await;
        let (_before, before) = watch::channel(first);
        let (plugin, live) = watch::channel(Live::Loading);
        let none = || watch::channel(None).1;
        let instruments = Instruments::unread();
        let target = PluginTarget::new(&config, live.clone(), Some(before), none(), &instruments);
        let version = async |target: &PluginTarget| {
            let plugin = target.converting("fixtures.dev/v1", &[]).await.unwrap();
            plugin.description().version.clone()
        };
        assert_eq!(version(&target).await, "1.0.0");
        plugin.send_replace(Live::Failed("no".into()));
        assert_eq!(version(&target).await, "1.0.0");
        // Changed again, and still nothing new to convert with.
        let loading = watch::channel(Live::Loading).1;
        let next = PluginTarget::new(&config, loading, Some(target.converter()), none(), &instruments);
        assert_eq!(version(&next).await, "1.0.0");
        plugin.send_replace(second);
        assert_eq!(version(&target).await, "2.0.0");
    }

    #[tokio::test]
    async fn the_next_plugin_converts_only_versions_that_the_live_one_does_not_know() {
        let versions = ["v1", "v2", "v3"];
        let [live, next] = load([("1.0.0", &versions[..2]), ("2.0.0", &versions)]).await;
        let (_live, live) = watch::channel(live);
        let (_next, next) = watch::channel(next.plugin().cloned());
        let config = Arc::new(operator_host_config::testing::config());
        let target = PluginTarget::new(&config, live, None, next, &Instruments::unread());
        for (from, to, expected) in [
            ("v1", "v2", "1.0.0"),
            ("v2", "v1", "1.0.0"),
            ("v1", "v3", "2.0.0"),
            ("v3", "v1", "2.0.0"),
        ] {
            let object = format!(r#"{{"kind":"Fixture","apiVersion":"fixtures.dev/{from}"}}"#);
            let object = RawValue::from_string(object).unwrap();
            let plugin = target.converting(&format!("fixtures.dev/{to}"), &[&object]).await;
            assert_eq!(plugin.unwrap().description().version, expected, "{from} to {to}");
        }
    }
}
