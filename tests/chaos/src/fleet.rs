//! The hosts: one or more replicas as processes, restarted when they end, as a kubelet would do.

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use control_plane::{Component, Output, last_lines, process};

use crate::draw::Draw;
use crate::stage::Paths;

const SIGTERM: i32 = 15;
/// How long a host may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(20);
/// Size of the disk for compiled plugins and their versions.
const DISK: &str = "size=128m";
/// Exit codes of `run` in `host/docs/reference/command-line.md`: success, a failure, and wrong usage or configuration.
const DOCUMENTED: [i32; 3] = [0, 1, 2];
/// Set when this process has its own mount namespace.
const UNSHARED: &str = "CHAOS_UNSHARED";
const NAMES: [&str; 3] = ["a", "b", "c"];

/// The number of replicas, and which of them write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Shape {
    pub(crate) replicas: usize,
    pub(crate) leadership: &'static str,
    /// Whether some samples are Controllers of the cluster.
    pub(crate) objects: bool,
}

impl Shape {
    pub(crate) fn draw(draw: &mut Draw) -> Self {
        let objects = draw.fork(1).percent(50);
        let shape = |replicas, leadership| Self {
            replicas,
            leadership,
            objects,
        };
        *draw.weighted(&[
            (3, shape(1, "none")),
            (4, shape(2, "single")),
            (3, shape(3, "single")),
        ])
    }
}

/// Gives this process its own mount namespace, which ends with it, where that is allowed: restarts the process
/// once.
pub(crate) fn unshare_mounts() {
    let may = || {
        let tried = Command::new("unshare").args(["-m", "true"]).output();
        tried.is_ok_and(|tried| tried.status.success())
    };
    if std::env::var_os(UNSHARED).is_some() || !may() {
        return;
    }
    if let Ok(program) = std::env::current_exe() {
        let mut command = Command::new("unshare");
        command
            .args(["-m", "--"])
            .arg(program)
            .args(std::env::args_os().skip(1));
        // It returns only on failure; then continue without a mount namespace.
        let _ = command.env(UNSHARED, "1").exec();
    }
}

/// The replicas; see the module.
pub(crate) struct Fleet {
    pub(crate) shape: Shape,
    program: PathBuf,
    config: PathBuf,
    kubeconfig: PathBuf,
    replicas: Vec<Replica>,
    /// Whether each replica has its own small disk.
    disks: bool,
    /// Compiled plugins from earlier runs and for later ones.
    compiled: PathBuf,
}

struct Replica {
    folder: PathBuf,
    process: Option<Component>,
    /// Whether it should be running.
    wanted: bool,
    /// The earliest time of its next start.
    not_before: Instant,
    /// Resident memory at the end of its first full round.
    memory: Option<u64>,
    /// Its unexpected exits since the last check.
    ends: Vec<ExitStatus>,
}

impl Fleet {
    /// Starts the hosts. Their folders are created below `folder`.
    pub(crate) fn start(
        shape: Shape,
        paths: &Paths,
        config: &Path,
        kubeconfig: &Path,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let mut this = Self {
            shape,
            program: paths.host.clone(),
            config: config.to_owned(),
            kubeconfig: kubeconfig.to_owned(),
            replicas: Vec::new(),
            disks: true,
            compiled: paths.compiled.clone(),
        };
        for name in &NAMES[..shape.replicas] {
            let folder = folder.join(name);
            let cache = folder.join("cache");
            std::fs::create_dir_all(&cache).with_context(|| cache.display().to_string())?;
            // Without its own mount namespace this process would leave its disks mounted on the machine.
            this.disks &= std::env::var_os(UNSHARED).is_some() && mount_disk(&cache);
            copy_compiled(&this.compiled, &cache)?;
            this.replicas.push(Replica {
                folder,
                process: None,
                wanted: true,
                not_before: Instant::now(),
                memory: None,
                ends: Vec::new(),
            });
        }
        this.tend()?;
        Ok(this)
    }

    /// Saves the compiled plugins of the first host for the next hosts.
    pub(crate) fn keep_compiled(&self) -> anyhow::Result<()> {
        copy_compiled(&self.replicas[0].folder.join("cache"), &self.compiled)
    }

    /// Reports whether disks can be filled without filling this machine's.
    pub(crate) fn has_disks(&self) -> bool {
        self.disks
    }

    /// Starts replicas that should run but do not.
    pub(crate) fn tend(&mut self) -> anyhow::Result<()> {
        for (replica, name) in self.replicas.iter_mut().zip(NAMES) {
            if let Some(status) = replica.process.as_mut().and_then(Component::exited) {
                replica.ends.push(status);
                replica.process = None;
                replica.not_before = Instant::now() + Duration::from_millis(500);
            }
            if !replica.wanted || replica.process.is_some() || Instant::now() < replica.not_before {
                continue;
            }
            let cache = replica.folder.join("cache").display().to_string();
            let config = self.config.display().to_string();
            let arguments = ["run", "--config", &config, "--cache-dir", &cache].map(str::to_owned);
            let environment = [
                ("KUBECONFIG", self.kubeconfig.as_path()),
                ("HOSTNAME", Path::new(name)),
                ("OPERATOR_HOST_LOG", Path::new("info,operator_host=debug")),
                ("OPERATOR_HOST_HEALTH_ADDR", Path::new("127.0.0.1:0")),
            ];
            let output = Output::File(replica.folder.join("host.log"));
            replica.memory = None;
            replica.process = Some(Component::spawn(
                "operator-host",
                &self.program,
                &arguments,
                &environment,
                output,
            )?);
        }
        Ok(())
    }

    /// Sends SIGKILL. The replica stays down until [`Fleet::let_run`].
    pub(crate) fn kill(&mut self, replica: usize) {
        let replica = &mut self.replicas[replica];
        replica.wanted = false;
        replica.process = None;
    }

    /// Sends SIGTERM and waits for the end. The replica stays down until [`Fleet::let_run`].
    pub(crate) async fn terminate(&mut self, replica: usize) -> anyhow::Result<()> {
        let replica = &mut self.replicas[replica];
        replica.wanted = false;
        let Some(mut process) = replica.process.take() else {
            return Ok(());
        };
        process.terminate();
        let status = process.wait(GRACE).await;
        let status = status.with_context(|| format!("a host did not end {GRACE:?} after SIGTERM"))?;
        if !status.code().is_some_and(|code| DOCUMENTED.contains(&code)) {
            replica.ends.push(status);
        }
        Ok(())
    }

    /// Lets the replica run again.
    pub(crate) fn let_run(&mut self, replica: usize) -> anyhow::Result<()> {
        self.replicas[replica].wanted = true;
        self.tend()
    }

    /// Terminates all replicas and removes the versions that they have stored; those that should run start again at once.
    pub(crate) async fn replace(&mut self) -> anyhow::Result<()> {
        for index in 0..self.replicas.len() {
            let wanted = self.replicas[index].wanted;
            // One that is stopped would not end.
            self.resume(index);
            self.terminate(index).await?;
            let replica = &mut self.replicas[index];
            (replica.wanted, replica.not_before) = (wanted, Instant::now());
            let versions = replica.folder.join("cache/versions");
            match std::fs::remove_dir_all(&versions) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| versions.display().to_string());
                }
                _ => {}
            }
        }
        self.tend()
    }

    /// Sends SIGSTOP.
    pub(crate) fn pause(&self, replica: usize) {
        if let Some(process) = &self.replicas[replica].process {
            process.pause();
        }
    }

    /// Sends SIGCONT.
    pub(crate) fn resume(&self, replica: usize) {
        if let Some(process) = &self.replicas[replica].process {
            process.resume();
        }
    }

    /// Fills a replica's disk completely.
    pub(crate) fn fill_disk(&self, replica: usize) {
        let filler = self.replicas[replica].folder.join("cache/filler");
        // It ends with an error when the disk is full.
        let _ = std::fs::File::create(filler)
            .and_then(|mut file| std::io::copy(&mut std::io::repeat(0), &mut file));
    }

    /// Removes the file of [`Fleet::fill_disk`].
    pub(crate) fn free_disk(&self, replica: usize) -> anyhow::Result<()> {
        let filler = self.replicas[replica].folder.join("cache/filler");
        std::fs::remove_file(&filler).with_context(|| filler.display().to_string())
    }

    /// Returns the unexpected exits since the last call, except documented failures.
    pub(crate) fn take_crashes(&mut self) -> Vec<String> {
        let each = self.replicas.iter_mut().zip(NAMES);
        each.flat_map(|(replica, name)| {
            let ends = std::mem::take(&mut replica.ends).into_iter();
            // A host that gets SIGTERM right after its start has no handler yet and is ended by the kernel.
            let is_told = |end: &ExitStatus| end.signal() == Some(SIGTERM);
            let is_documented = |end: &ExitStatus| end.code().is_some_and(|code| DOCUMENTED.contains(&code));
            let ends = ends.filter(|end| !is_told(end) && !is_documented(end));
            ends.map(move |end| format!("host {name} ended by itself: {end}"))
                .collect::<Vec<_>>()
        })
        .collect()
    }

    /// Returns the anonymous memory of each host in bytes, now and at the end of its first full round.
    pub(crate) fn memory(&mut self) -> Vec<(u64, u64)> {
        let each = self.replicas.iter_mut();
        each.filter_map(|replica| {
            let now = process::memory(replica.process.as_ref()?.id()).ok()?.anonymous;
            Some((now, *replica.memory.get_or_insert(now)))
        })
        .collect()
    }

    /// Returns the last lines of each host's log.
    pub(crate) fn log_tails(&self, lines: usize) -> String {
        let mut all = String::new();
        for (name, log) in self.logs() {
            all.push_str(&format!("the log of host {name} ends:\n"));
            for line in last_lines(&log, "", lines) {
                all.push_str(&format!("  | {line}\n"));
            }
        }
        all
    }

    /// Returns the last lines of each host's log that contain `text`.
    pub(crate) fn last_logged(&self, text: &str, lines: usize) -> Vec<String> {
        let mut all = Vec::new();
        for (name, log) in self.logs() {
            let last = last_lines(&log, text, lines);
            all.extend(last.into_iter().map(|line| format!("host {name}: {line}")));
        }
        all
    }

    /// Truncates the logs after a round without failures.
    pub(crate) fn clear_logs(&self) {
        for replica in &self.replicas {
            // The hosts append, so they continue at the beginning.
            let _ = std::fs::write(replica.folder.join("host.log"), "");
        }
    }

    /// Returns each host's name and log file.
    pub(crate) fn logs(&self) -> impl Iterator<Item = (&'static str, PathBuf)> + '_ {
        let each = self.replicas.iter().zip(NAMES);
        each.map(|(replica, name)| (name, replica.folder.join("host.log")))
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for replica in &mut self.replicas {
            replica.process = None;
            if self.disks {
                let _ = Command::new("umount").arg(replica.folder.join("cache")).output();
            }
        }
    }
}

/// Copies the compiled plugins, without the plugins' versions, which are the host's state.
fn copy_compiled(from: &Path, to: &Path) -> anyhow::Result<()> {
    let what = || {
        format!(
            "copy compiled plugins from {} to {}",
            from.display(),
            to.display()
        )
    };
    std::fs::create_dir_all(to).with_context(what)?;
    for entry in std::fs::read_dir(from).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with("compiled") {
            continue;
        }
        // Preserve the mode: the host refuses a folder that others can write to.
        let copied = Command::new("cp").arg("-a").arg(entry.path()).arg(to).output();
        let copied = copied.with_context(what)?;
        ensure!(
            copied.status.success(),
            "{}: {}",
            what(),
            String::from_utf8_lossy(&copied.stderr)
        );
    }
    Ok(())
}

fn mount_disk(folder: &Path) -> bool {
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", DISK, "tmpfs"]).arg(folder);
    mount.output().is_ok_and(|mount| mount.status.success())
}
