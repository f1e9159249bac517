//! The results, and the page that is written from them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::stage::Stage;
use crate::stats::Spread;
use crate::{Measure, Part, plot, progress};

const HEAD: &str = "\
# Scale

How the host's cost grows with controllers, parents, and objects of others. `make bench-scale` measures it and writes
this page, and `make soak` the section about churn. Do not edit it. Figures are medians, with the smallest and the
largest value in parentheses where they differ. Megabytes are 10⁶ bytes. `scale/results.json` has all of it as data.
[Figures](figures.md) has those of single calls and objects.
";

/// What the page is written from.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Results {
    sections: Vec<Section>,
    #[serde(skip)]
    output: PathBuf,
}

/// A part that was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Section {
    part: Part,
    run: Run,
    /// What was measured and how, in Markdown.
    pub(crate) text: String,
    pub(crate) tables: Vec<Table>,
    pub(crate) plots: Vec<Plot>,
}

/// Where, when and how it was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Run {
    date: String,
    machine: String,
    kubernetes: String,
    host: String,
    /// The commit that was checked out, if there was one.
    #[serde(default)]
    commit: Option<String>,
    command: String,
}

/// A table of formatted figures.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// A plot, which becomes the file `NAME.svg`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plot {
    name: String,
    pub(crate) title: String,
    pub(crate) x: String,
    pub(crate) y: String,
    /// Whether both axes are logarithmic.
    pub(crate) logarithmic: bool,
    /// Lines with their names.
    pub(crate) lines: Vec<(String, Vec<(f64, Spread)>)>,
}

impl Results {
    /// Reads the results of earlier runs.
    pub(crate) fn of(output: &Path) -> anyhow::Result<Self> {
        let file = output.join("scale/results.json");
        let mut results = match std::fs::read(&file) {
            Ok(text) => serde_json::from_slice(&text).with_context(|| {
                format!(
                    "{} is from another version: remove it, and measure all parts again",
                    file.display()
                )
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Self::default(),
            Err(error) => return Err(error).with_context(|| file.display().to_string()),
        };
        output.clone_into(&mut results.output);
        Ok(results)
    }

    /// Replaces the section of a part, and writes page, plots and results.
    pub(crate) fn replace(&mut self, section: Section) -> anyhow::Result<()> {
        self.sections.retain(|other| other.part != section.part);
        self.sections.push(section);
        self.sections.sort_by_key(|section| section.part);
        let write = |file: &str, text: &str| {
            let path = self.output.join(file);
            std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
        };
        std::fs::create_dir_all(self.output.join("scale")).context("create the folder of the plots")?;
        for plot in self.sections.iter().flat_map(|section| &section.plots) {
            write(&format!("scale/{}.svg", plot.name), &plot::svg(plot)?)?;
        }
        let json = serde_json::to_string_pretty(self).context("write JSON")?;
        write("scale/results.json", &format!("{json}\n"))?;
        write("scale.md", &self.page())?;
        progress::step(&format!("written to {}", self.output.join("scale.md").display()));
        Ok(())
    }

    fn page(&self) -> String {
        let mut page = HEAD.to_owned();
        for section in &self.sections {
            // Writing to a string cannot fail.
            let _ = write!(page, "\n{section}");
        }
        page
    }
}

impl Section {
    /// Returns the empty section of a part of `make bench-scale`; `options` chose its sizes.
    pub(crate) async fn new(
        part: Part,
        measure: &Measure,
        options: &str,
        stage: &Stage,
    ) -> anyhow::Result<Self> {
        let name = format!("{part:?}").to_lowercase();
        let command = format!(
            "make bench-scale ARGS=\"--only {name} --repeat {} {options}\"",
            measure.repeat
        );
        Self::named(part, command, stage, &measure.common.host).await
    }

    /// Returns the empty section of a part that this command measures.
    pub(crate) async fn named(
        part: Part,
        command: String,
        stage: &Stage,
        host: &Path,
    ) -> anyhow::Result<Self> {
        let kubernetes = stage
            .client
            .apiserver_version()
            .await
            .context("ask for the version")?;
        let version = Command::new(host).arg("--version").output();
        let version = version.with_context(|| format!("run {}", host.display()))?;
        Ok(Self {
            part,
            run: Run {
                date: jiff::Zoned::now().strftime("%Y-%m-%d").to_string(),
                machine: machine(),
                kubernetes: kubernetes.git_version,
                host: String::from_utf8_lossy(&version.stdout).trim().to_owned(),
                commit: commit(),
                command,
            },
            text: String::new(),
            tables: Vec::new(),
            plots: Vec::new(),
        })
    }
}

impl std::fmt::Display for Section {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let title = match self.part {
            Part::Controllers => "Controllers",
            Part::Parents => "Parents",
            Part::Together => "Many controllers with objects",
            Part::Foreign => "Objects of others",
            Part::Edit => "An edit during a resync",
            Part::Soak => "Churn",
        };
        writeln!(f, "## {title}\n\n{}\n", self.text)?;
        for table in &self.tables {
            writeln!(f, "{table}")?;
        }
        for plot in &self.plots {
            writeln!(f, "![{}](scale/{}.svg)\n", plot.title, plot.name)?;
        }
        let Run {
            date,
            machine,
            kubernetes,
            host,
            commit,
            command,
        } = &self.run;
        let commit = commit.as_ref().map(|commit| format!(" ({commit})"));
        let commit = commit.unwrap_or_default();
        writeln!(
            f,
            "{date}: {host}{commit}, Kubernetes {kubernetes}, {machine}. `{command}`"
        )
    }
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self {
            head: head.iter().map(ToString::to_string).collect(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "| {} |", self.head.join(" | "))?;
        writeln!(f, "|{}", "---|".repeat(self.head.len()))?;
        for row in &self.rows {
            writeln!(f, "| {} |", row.join(" | "))?;
        }
        Ok(())
    }
}

impl Plot {
    pub(crate) fn new(name: &str, title: &str, x: &str, y: &str) -> Self {
        Self {
            name: name.to_owned(),
            title: title.to_owned(),
            x: x.to_owned(),
            y: y.to_owned(),
            logarithmic: false,
            lines: Vec::new(),
        }
    }

    pub(crate) fn logarithmic(mut self) -> Self {
        self.logarithmic = true;
        self
    }

    /// Adds a point to the line of this name.
    pub(crate) fn add(&mut self, line: &str, x: usize, y: Spread) {
        let point = (x as f64, y);
        match self.lines.iter_mut().find(|(name, _)| name == line) {
            Some((_, points)) => points.push(point),
            None => self.lines.push((line.to_owned(), vec![point])),
        }
    }

    /// Adds a line without spread.
    pub(crate) fn line(&mut self, name: &str, points: impl Iterator<Item = (f64, f64)>) {
        let points = points.map(|(x, y)| (x, Spread::of([y])));
        self.lines.push((name.to_owned(), points.collect()));
    }
}

/// Returns the commit that is checked out; `-dirty` says that files have changed since, other than this page.
fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some(text)
    };
    let commit = git(&["rev-parse", "--short=10", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--", ":/", ":/!host/docs/reference"])?;
    let dirty = if changed.is_empty() { "" } else { "-dirty" };
    Some(format!("{commit}{dirty}"))
}

fn machine() -> String {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    let field = |file: &str, name: &str| {
        let text = read(file);
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map(|line| line.trim_start_matches([' ', '\t', ':']).to_owned())
            .unwrap_or_default()
    };
    let memory: u64 = field("/proc/meminfo", "MemTotal")
        .trim_end_matches(" kB")
        .parse()
        .unwrap_or_default();
    let release = read("/proc/sys/kernel/osrelease");
    // What follows is the name that the distribution gave its build.
    let linux = release.trim().split('-').next().unwrap_or_default().to_owned();
    format!(
        "{}, {} cores, {} GiB, Linux {linux}",
        field("/proc/cpuinfo", "model name"),
        std::thread::available_parallelism().map_or(0, usize::from),
        memory >> 20,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(part: Part, text: &str) -> Section {
        let mut table = Table::new(&["parents", "s"]);
        table.row(vec!["100".to_owned(), "1.20".to_owned()]);
        let mut plot = Plot::new("time", "Time", "parents", "s").logarithmic();
        plot.add("host", 100, Spread::of([1.0, 1.2, 1.3]));
        plot.add("host", 500, Spread::of([6.0]));
        plot.line("idle", [(100.0, 0.0), (500.0, 2.0)].into_iter());
        Section {
            part,
            run: Run {
                date: "2026-01-02".to_owned(),
                machine: "a processor, 2 cores".to_owned(),
                kubernetes: "v1.36.0".to_owned(),
                host: "operator-host 0.1.0".to_owned(),
                commit: Some("0123456789".to_owned()),
                command: "make bench-scale".to_owned(),
            },
            text: text.to_owned(),
            tables: vec![table],
            plots: vec![plot],
        }
    }

    #[test]
    fn a_part_measured_again_replaces_its_section_only() {
        let folder = tempfile::tempdir().unwrap();
        let mut results = Results::of(folder.path()).unwrap();
        results.replace(section(Part::Parents, "First parents.")).unwrap();
        results
            .replace(section(Part::Controllers, "Controllers."))
            .unwrap();
        let mut again = Results::of(folder.path()).unwrap();
        again.replace(section(Part::Parents, "Second parents.")).unwrap();

        let page = std::fs::read_to_string(folder.path().join("scale.md")).unwrap();
        let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("no {text:?} in {page}"));
        assert!(place("## Controllers\n\nControllers.\n") < place("## Parents\n\nSecond parents.\n"));
        assert!(!page.contains("First"));
        place("| parents | s |\n|---|---|\n| 100 | 1.20 |\n");
        place("![Time](scale/time.svg)");
        place(
            "2026-01-02: operator-host 0.1.0 (0123456789), Kubernetes v1.36.0, a processor, 2 cores. `make bench-scale`",
        );
        let svg = std::fs::read_to_string(folder.path().join("scale/time.svg")).unwrap();
        assert!(
            svg.starts_with("<svg") && svg.contains("host") && svg.contains("parents"),
            "{svg}"
        );
    }

    #[test]
    fn the_machine_has_cores_and_memory() {
        let machine = machine();
        assert!(
            machine.contains(" cores, ") && !machine.contains(" 0 GiB"),
            "{machine}"
        );
    }
}
