//! Compares what two plugin files answer to `convert` and `default`, without a cluster.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, anyhow};
use serde_json::Value;

use crate::dry_run::documents;
use crate::{Failure, plugin_file, rendering};
use operator_host_contract::{Conversion, Json};
use operator_host_instruments::record::{RecordedAnswer, mask};
use operator_host_runtime::Plugin;
use operator_host_webhook::conversion::Before;

/// Prints how the answers of `after` differ from those of `before`, for the resources in files.
///
/// # Errors
/// When a file cannot be read, a plugin does not load, or they are for different kinds.
pub(super) async fn run(before: &Path, after: &Path, files: &[PathBuf]) -> Result<ExitCode, Failure> {
    let load = async |file: &Path| {
        let plugin = plugin_file::load(file).await?;
        Ok::<Plugin, Failure>(plugin.with_context(|| file.display().to_string())?)
    };
    let (before, after) = (load(before).await?, load(after).await?);
    let (parent, other) = (&before.description().parent, &after.description().parent);
    if !parent.is_version_of(other) {
        return Err(anyhow!("the plugins are for different kinds: {parent} and {other}").into());
    }
    let mut out = std::io::stdout().lock();
    let colour = out.is_terminal() && plugin_file::colour();
    let (mut compared, mut differs) = (0, false);
    for file in files {
        for document in documents::read(file).map_err(anyhow::Error::from)? {
            if !parent.is_version_of(&document.kind()) {
                continue;
            }
            compared += 1;
            let (was, is) = (
                answers(&before, &document.object).await?,
                answers(&after, &document.object).await?,
            );
            let mut names: Vec<&String> = was.iter().chain(&is).map(|(name, _)| name).collect();
            names.sort();
            names.dedup();
            for name in names {
                let text = |answers: &[(String, Value)]| match answers.iter().find(|(known, _)| known == name)
                {
                    Some((_, answer)) => serde_saphyr::to_string(answer),
                    None => Ok(String::new()),
                };
                let (was, is) = (text(&was)?, text(&is)?);
                if was == is {
                    continue;
                }
                differs = true;
                let object = document.object["metadata"]["name"].as_str().unwrap_or_default();
                let title = |plugin: &Plugin| {
                    format!(
                        "{} {object}: {name} ({})",
                        parent.kind,
                        plugin.description().name_and_version()
                    )
                };
                let titles = (&*title(&before), &*title(&after));
                out.write_all(rendering::diff(titles, &was, &is, colour).as_bytes())
                    .map_err(anyhow::Error::from)?;
            }
        }
    }
    if compared == 0 {
        return Err(anyhow!("the files contain no resource of the kind {}", parent.kind).into());
    }
    Ok(ExitCode::from(u8::from(differs)))
}

/// Returns the answers of a plugin for one object, each with what it was asked.
async fn answers(plugin: &Plugin, object: &Value) -> Result<Vec<(String, Value)>, Failure> {
    let description = plugin.description();
    let text = object.to_string();
    let before = Before::read(&text).map_err(|why| anyhow!(why))?;
    let json =
        serde_json::value::RawValue::from_string(before.for_plugin(None)).map_err(anyhow::Error::from)?;
    let (json, mut found) = (Json::from(json), Vec::new());
    let own = before.api_version == description.parent.api_version;
    if description.defaults && own {
        let answer = RecordedAnswer::of(&plugin.default(&json).await.outcome);
        found.push(("default".to_owned(), shown(&answer)?));
    }
    let group = description.parent.group();
    for version in description.versions.iter().filter(|_| description.converts()) {
        let api_version = format!("{group}/{version}");
        if api_version == before.api_version {
            continue;
        }
        let conversion = Arc::new(Conversion {
            api_version: api_version.clone(),
            objects: vec![Arc::clone(&json)],
        });
        let answer = RecordedAnswer::of(&plugin.convert(&conversion).await.outcome);
        found.push((format!("convert to {api_version}"), shown(&answer)?));
    }
    Ok(found)
}

fn shown(answer: &RecordedAnswer) -> Result<Value, Failure> {
    let mut value = serde_json::to_value(answer).map_err(anyhow::Error::from)?;
    mask(&mut value);
    Ok(value)
}
