//! Reads and loads the plugin that the command line names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use tracing_subscriber::EnvFilter;

use super::Failure;
use super::output::Paint;
use super::registry::{RegistryArgs, reference};
use operator_host_config::location::Location;
use operator_host_config::memory_limit::Memory;
use operator_host_config::reference::Reference;
use operator_host_config::registry::RegistryConfig;
use operator_host_config::{Config, ControllerConfig};
use operator_host_core::digest::Digest;
use operator_host_core::files;
use operator_host_delivery::oci::pull::Puller;
use operator_host_delivery::pack::Compression;
use operator_host_delivery::{acceptance, source};
use operator_host_runtime::{
    Cache, Compiler, EngineOptions, Limits, LoadError, Plugin, Runtime, Subprocess, compile_memory,
};

/// Maximum size of the cache of compiled plugins: the default of `run`.
const CACHE_SIZE: u64 = 1 << 30;

/// Maximum size of a plugin's file in bytes: more than any limit for plugins.
const MAX_FILE: usize = 1 << 30;

/// A plugin, with the file that it is from.
pub struct Loaded {
    /// The name of the file, without the suffix of a compression.
    pub name: String,
    /// The plugin's WebAssembly.
    pub bytes: Vec<u8>,
    /// The plugin.
    pub plugin: Plugin,
}

/// Reads and loads a plugin. It may be compressed or in parts. A compressed plugin can be named with or without the
/// compression's suffix.
///
/// # Errors
/// When the file does not exist, cannot be unpacked, or is no plugin.
pub async fn load(file: &Path) -> Result<Loaded, Failure> {
    let (name, bytes) = read(file)?;
    let plugin = compile(bytes.clone(), Limits::default(), memory()).await?;
    Ok(Loaded {
        name,
        bytes,
        plugin: plugin.with_context(|| file.display().to_string())?,
    })
}

fn read(file: &Path) -> Result<(String, Vec<u8>), Failure> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    // Look the file up as `run` does for a configuration.
    if !file.is_file() && source::is_there(file) {
        let content = source::read_now(file, Limits::default().module);
        let content = content.map_err(|reason| Failure::Usage(anyhow!("{}: {reason}", file.display())))?;
        return Ok((name.into_owned(), content.bytes.to_vec()));
    }
    // Not from a pipe, which might never have a writer.
    let packed = files::read(file, MAX_FILE).with_context(|| format!("cannot read {}", file.display()));
    let compression = Compression::of(file);
    let unpack = |packed: Vec<u8>| compression.unpack(&packed, Limits::default().module);
    let bytes = match compression {
        Compression::None => packed,
        _ => packed.and_then(|packed| unpack(packed).with_context(|| file.display().to_string())),
    };
    let name = name.strip_suffix(compression.suffix()).unwrap_or(&name);
    Ok((name.to_owned(), bytes.map_err(Failure::Usage)?))
}

/// Reads the plugin's file, or pulls it when its path is a reference in a registry (`oci://…`).
///
/// # Errors
/// When the file does not exist, or the registry does not give it.
pub async fn read_or_pull(plugin: &Path, registry: &RegistryArgs) -> Result<Vec<u8>, Failure> {
    match reference(plugin)? {
        Some(reference) => {
            let limit = Limits::default().module;
            let (bytes, _) = pull(&reference, &registry.settings(&reference), limit, false).await?;
            Ok(bytes.to_vec())
        }
        None => Ok(read(plugin)?.1),
    }
}

/// Loads a plugin as [`compile`] does, with the limits of the controller of its kind, if a configuration has one.
///
/// # Errors
/// As [`compile`].
pub async fn load_for(
    bytes: Vec<u8>,
    config: Option<&Config>,
    memory: usize,
) -> Result<Result<(Plugin, Option<&ControllerConfig>), LoadError>, Failure> {
    let plugin = match compile(bytes.clone(), Limits::default(), memory).await? {
        Ok(plugin) => plugin,
        Err(error) => return Ok(Err(error)),
    };
    let mut controllers = config.into_iter().flat_map(|config| &config.controllers);
    let controller = controllers.find(|controller| controller.parent == plugin.description().parent);
    let plugin = match controller.map(|controller| controller.limits) {
        Some(limits) if limits != *plugin.limits() => compile(bytes, limits, memory).await?,
        _ => Ok(plugin),
    };
    Ok(plugin.map(|plugin| (plugin, controller)))
}

/// The memory limit of the container in `manifests/deploy` and in the chart, in bytes.
pub const CONTAINER: usize = 512 << 20;

/// The memory of this process, of which `run` uses a part to compile a plugin: with it, both accept the same plugins.
pub fn memory() -> usize {
    Memory::of_process(None).process
}

/// Loads a plugin as a process with this much memory would. The inner error reports what is wrong with the plugin.
///
/// # Errors
/// When the engine cannot start.
pub async fn compile(
    bytes: Vec<u8>,
    limits: Limits,
    memory: usize,
) -> Result<Result<Plugin, LoadError>, Failure> {
    let options = EngineOptions {
        concurrency: 1,
        pooling: false,
        ..EngineOptions::default()
    };
    let compiler = Compiler::Subprocess(Subprocess::this_program(compile_memory(memory)));
    let runtime = Runtime::with(options, compiler, cache()?)?;
    Ok(runtime.load(bytes, limits).await)
}

/// Opens the cache of compiled plugins that the environment names, as for `run`. A plugin with an interpreter takes ten
/// seconds to compile.
fn cache() -> Result<Option<Cache>, Failure> {
    let folder = std::env::var_os("OPERATOR_HOST_CACHE_DIR").filter(|folder| !folder.is_empty());
    let cache = folder.map(|folder| Cache::open(Path::new(&folder), CACHE_SIZE));
    cache.transpose().map_err(Failure::usage)
}

/// The files of plugins that a configuration takes from elsewhere.
#[derive(Debug, Default, clap::Args)]
pub struct PluginFiles {
    /// The file of a controller's plugin, in place of what the configuration names: a ConfigMap is not read; repeatable
    #[arg(long = "plugin", value_name = "CONTROLLER=FILE", value_parser = named_file)]
    files: Vec<(String, PathBuf)>,
}

fn named_file(text: &str) -> Result<(String, PathBuf), String> {
    let (name, file) = text.split_once('=').ok_or("expected CONTROLLER=FILE")?;
    Ok((name.to_owned(), file.into()))
}

impl PluginFiles {
    /// Returns the names of the controllers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|(name, _)| name.as_str())
    }

    /// Loads the plugin of a controller.
    ///
    /// # Errors
    /// As [`load_from`].
    pub async fn load(&self, controller: &ControllerConfig) -> Result<Plugin, Failure> {
        let name = &controller.name;
        let named = self.files.iter().find(|(of, _)| of == name);
        let location = match (named, &controller.plugin) {
            (Some((_, file)), _) => &Location::File(file.clone()),
            (None, Location::ConfigMap(key)) => {
                return Err(Failure::Usage(anyhow!(
                    "the plugin of the controller {name:?} is in {key}, which this command does not read: give its file with \
                     --plugin {name}=FILE"
                )));
            }
            (None, location) => location,
        };
        load_from(location, controller).await
    }
}

/// Reads or pulls the plugin of a controller, and loads it. A registry must give the pinned plugin, if one is: its tag
/// may name another by now.
///
/// # Errors
/// As [`load`], when the registry does not give it, and when it is for another kind.
pub async fn load_from(location: &Location, controller: &ControllerConfig) -> Result<Plugin, Failure> {
    let limits = controller.limits;
    let bytes = match location {
        Location::File(file) => read(file)?.1,
        Location::Registry { reference, settings } => {
            let (bytes, _) = pull(reference, settings, limits.module, false).await?;
            acceptance::check_pin(&controller.trust, Digest::of(&bytes))
                .with_context(|| location.to_string())?;
            bytes.to_vec()
        }
        Location::ConfigMap(key) => {
            return Err(Failure::Usage(anyhow!(
                "{key} is in a cluster, which this command does not read: give the plugin's file with --plugin FILE"
            )));
        }
    };
    let plugin = compile(bytes, limits, memory()).await?;
    let plugin = plugin.with_context(|| location.to_string())?;
    let found = &plugin.description().parent;
    if *found != controller.parent {
        return Err(Failure::Usage(anyhow!(
            "{location}: the plugin reconciles {found}, but the controller {:?} reconciles {}: configure the plugin for that kind",
            controller.name,
            controller.parent
        )));
    }
    Ok(plugin)
}

/// Pulls a plugin, and with `signed` its signatures.
///
/// # Errors
/// When the registry does not give them.
pub async fn pull(
    reference: &Reference,
    settings: &Arc<RegistryConfig>,
    limit: usize,
    signed: bool,
) -> Result<(Bytes, Vec<Bytes>), Failure> {
    let mut puller = Puller::new(reference.clone(), Arc::clone(settings), Arc::default(), limit);
    let found = puller.find(None).await?;
    let found = found.ok_or_else(|| anyhow!("{reference} is not there"))?;
    let bytes = puller.fetch(&found).await?;
    let signatures = match signed {
        // All of them: what a key signed is compared with the plugin once it is loaded.
        true => puller.signatures(&found, |_| false).await?,
        false => Vec::new(),
    };
    Ok((bytes, signatures))
}

/// Prints the plugins' log lines on standard error.
pub fn show_log(level: &str) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(format!("{}={level}", operator_host_runtime::LOG_TARGET))
        .map_err(|error| Failure::Usage(anyhow!("--log {level:?}: {error}")))?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .without_time()
        .with_ansi(Paint::of(&std::io::stderr()).0)
        .init();
    Ok(())
}
