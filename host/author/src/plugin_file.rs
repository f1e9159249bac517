//! Reads and loads the plugin that the command line names.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow};
use bytes::Bytes;
use tracing_subscriber::EnvFilter;

use super::Failure;
use super::registry::{RegistryArgs, reference};
use operator_host_config::memory_limit::Memory;
use operator_host_config::{Config, ControllerConfig};
use operator_host_core::files;
use operator_host_delivery::Location;
use operator_host_delivery::oci::pull::Puller;
use operator_host_delivery::oci::reference::Reference;
use operator_host_delivery::oci::settings::Settings;
use operator_host_delivery::pack::Compression;
use operator_host_delivery::source;
use operator_host_runtime::{
    Cache, Compiler, Digest, EngineOptions, Limits, LoadError, Part, Plugin, Runtime, Subprocess,
    compile_memory,
};

/// Maximum size of the cache of compiled plugins: the default of `run`.
const CACHE_SIZE: u64 = 1 << 30;

/// Maximum size of a plugin's file in bytes: more than any limit for plugins.
const MAX_FILE: usize = 1 << 30;

/// Reads a plugin's file and returns the plugin's name and bytes. The plugin may be compressed or in parts. A
/// compressed plugin can be named with or without the compression's suffix.
///
/// # Errors
/// When the file does not exist or cannot be unpacked.
pub fn read(file: &Path) -> Result<(String, Vec<u8>), Failure> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    // Look the file up as `run` does for a configuration.
    if !file.is_file() && source::is_there(file) {
        let content = source::read_now(file, Limits::default().module);
        let content = content.map_err(|reason| anyhow!("{}: {reason}", file.display()));
        return Ok((name.into_owned(), content.map_err(Failure::Usage)?.bytes.to_vec()));
    }
    // Not from a pipe, which might never have a writer.
    let packed = files::read(file, MAX_FILE);
    let packed = packed.with_context(|| format!("cannot read {}", file.display()));
    let compression = Compression::of(file);
    let bytes = packed.and_then(|packed| {
        if compression == Compression::None {
            return Ok(packed);
        }
        let unpacked = compression.unpack(&packed, Limits::default().module);
        unpacked.with_context(|| file.display().to_string())
    });
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

/// Reads and loads a plugin. The inner error reports what is wrong with the file.
///
/// # Errors
/// When the file does not exist, or the engine cannot start.
pub async fn load(file: &Path) -> Result<Result<Plugin, LoadError>, Failure> {
    load_bytes(read(file)?.1, Limits::default()).await
}

/// Loads a plugin from its bytes.
///
/// # Errors
/// When the engine cannot start.
pub async fn load_bytes(bytes: Vec<u8>, limits: Limits) -> Result<Result<Plugin, LoadError>, Failure> {
    // As `run` does, so that both accept the same plugins.
    compile_within(bytes, limits, Memory::of_process(None).process).await
}

/// Loads a plugin as a process with this much memory would.
async fn compile_within(
    bytes: Vec<u8>,
    limits: Limits,
    process: usize,
) -> Result<Result<Plugin, LoadError>, Failure> {
    let options = EngineOptions {
        concurrency: 1,
        pooling: false,
        ..EngineOptions::default()
    };
    let memory = compile_memory(process);
    let compiler = Compiler::Subprocess(Subprocess::this_program(memory));
    let runtime = Runtime::with(options, compiler, cache()?)?;
    Ok(runtime.load(bytes, limits).await)
}

/// The memory limit of the container in `manifests/deploy` and in the chart, in bytes.
pub const CONTAINER: usize = 512 << 20;

/// A plugin, and what was learned while it was loaded.
pub struct Loaded<'a> {
    /// The plugin.
    pub plugin: Plugin,
    /// The controller of its kind, when a configuration has one.
    pub controller: Option<&'a ControllerConfig>,
    /// Whether a container with the default memory can compile it.
    pub fits_container: bool,
}

/// Reads or pulls a plugin and loads it with the limits of its controller, if there is a configuration.
///
/// # Errors
/// As [`load`], and when it cannot be pulled.
pub async fn load_for<'a>(
    file: &Path,
    registry: &RegistryArgs,
    config: Option<&'a Config>,
) -> Result<Result<Loaded<'a>, LoadError>, Failure> {
    let bytes = read_or_pull(file, registry).await?;
    let mut fits_container = true;
    let mut plugin = compile_within(bytes.clone(), Limits::default(), CONTAINER).await?;
    if plugin.as_ref().is_err_and(|error| error.part() == Part::Size) {
        fits_container = false;
        plugin = load_bytes(bytes.clone(), Limits::default()).await?;
    }
    let plugin = match plugin {
        Ok(plugin) => plugin,
        Err(error) => return Ok(Err(error)),
    };
    let mut controllers = config.into_iter().flat_map(|config| &config.controllers);
    let controller = controllers.find(|controller| controller.parent == plugin.description().parent);
    let plugin = match controller.map(|controller| controller.limits) {
        Some(limits) if limits != *plugin.limits() => load_bytes(bytes, limits).await?,
        _ => Ok(plugin),
    };
    Ok(plugin.map(|plugin| Loaded {
        plugin,
        controller,
        fits_container,
    }))
}

/// Opens the cache of compiled plugins that the environment names, as for `run`. A plugin with an interpreter takes ten
/// seconds to compile.
fn cache() -> Result<Option<Cache>, Failure> {
    let folder = std::env::var_os("OPERATOR_HOST_CACHE_DIR").filter(|folder| !folder.is_empty());
    let cache = folder.map(|folder| Cache::open(Path::new(&folder), CACHE_SIZE));
    cache.transpose().map_err(|error| Failure::Usage(error.into()))
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
            controller
                .trust
                .check_pin(Digest::of(&bytes))
                .with_context(|| location.to_string())?;
            bytes.to_vec()
        }
        Location::ConfigMap(key) => {
            return Err(Failure::Usage(anyhow!(
                "{key} is in a cluster, which this command does not read: give the plugin's file with --plugin FILE"
            )));
        }
    };
    let plugin = load_bytes(bytes, limits).await?;
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
    settings: &Arc<Settings>,
    limit: usize,
    signed: bool,
) -> Result<(Bytes, Vec<Bytes>), Failure> {
    let mut puller = Puller::new(reference.clone(), Arc::clone(settings), Arc::default(), limit)?;
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
        .with_ansi(std::io::stderr().is_terminal() && colour())
        .init();
    Ok(())
}

/// Whether the user allows colour.
pub fn colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
