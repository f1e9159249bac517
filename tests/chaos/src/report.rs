//! The output: one line per round, and a summary.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::check::{Counts, Violation};
use crate::fleet::Shape;

/// The result of a round.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) shape: Shape,
    /// The names of the faults.
    plan: Vec<String>,
    /// Number of users' actions.
    pub(crate) actions: usize,
    /// Number of the hosts' writes until everything was exact.
    pub(crate) writes: usize,
    pub(crate) counts: Counts,
    /// Time from the last fault until everything was exact.
    pub(crate) settled: Duration,
    /// Time from the deletion of all parents until nothing was left.
    pub(crate) gone: Duration,
    /// Resident bytes of each host: now, and after its first round.
    pub(crate) memory: Vec<(u64, u64)>,
    /// The failures.
    pub(crate) faults: Vec<Violation>,
}

impl Outcome {
    pub(crate) fn new(shape: Shape, plan: Vec<String>) -> Self {
        Self {
            shape,
            plan,
            actions: 0,
            writes: 0,
            counts: Counts::default(),
            settled: Duration::ZERO,
            gone: Duration::ZERO,
            memory: Vec::new(),
            faults: Vec::new(),
        }
    }

    pub(crate) fn is_exact(&self) -> bool {
        self.faults.is_empty()
    }
}

/// Collects and prints the results.
pub(crate) struct Report {
    started: Instant,
    rounds: usize,
    /// The seeds of the failed rounds, with their failures.
    failed: Vec<(u64, Vec<String>)>,
    settled: Vec<f64>,
    gone: Vec<f64>,
    writes: Vec<f64>,
    memory: Vec<f64>,
    growth: Vec<f64>,
    /// How often each fault was drawn, without its parameters.
    faults: BTreeMap<String, usize>,
}

impl Report {
    pub(crate) fn begin(rounds: usize) -> Self {
        Self {
            started: Instant::now(),
            rounds,
            failed: Vec::new(),
            settled: Vec::new(),
            gone: Vec::new(),
            writes: Vec::new(),
            memory: Vec::new(),
            growth: Vec::new(),
            faults: BTreeMap::new(),
        }
    }

    /// Prints the line of a round.
    pub(crate) fn add(&mut self, number: usize, seed: u64, outcome: &Outcome) {
        let Outcome { shape, counts, .. } = outcome;
        let megabytes: Vec<_> = outcome.memory.iter().map(|(now, _)| mb(*now)).collect();
        let most = megabytes.iter().copied().fold(0.0, f64::max);
        let verdict = if outcome.is_exact() { "exact" } else { "WRONG" };
        println!(
            "{number:>4}/{}  seed {seed}  {verdict}  {} {:<14} {}  settled {:>5.2} s  gone {:>5.2} s  \
             {:>2} parents {:>2} children {:>4} actions {:>4} writes  {most:>3.0} MB  {}",
            self.rounds,
            shape.replicas,
            shape.leadership,
            if shape.objects { "objects" } else { "file   " },
            outcome.settled.as_secs_f64(),
            outcome.gone.as_secs_f64(),
            counts.parents,
            counts.children,
            outcome.actions,
            outcome.writes,
            outcome.plan.join(" "),
        );
        for name in &outcome.plan {
            *self.faults.entry(name.clone()).or_default() += 1;
        }
        if !outcome.is_exact() {
            self.failed
                .push((seed, outcome.faults.iter().map(Violation::what).collect()));
            return;
        }
        self.settled.push(outcome.settled.as_secs_f64());
        self.gone.push(outcome.gone.as_secs_f64());
        self.writes.push(outcome.writes as f64);
        self.memory.extend(megabytes);
        self.growth
            .extend(outcome.memory.iter().map(|(now, first)| mb(*now) - mb(*first)));
    }

    /// Prints the summary.
    pub(crate) fn end(self) -> ExitCode {
        println!();
        let exact = self.rounds - self.failed.len();
        let minutes = self.started.elapsed().as_secs_f64() / 60.0;
        println!("{exact} of {} rounds exact, in {minutes:.1} minutes", self.rounds);
        println!("                                    median   10th to 90th     most");
        row("settled after the last fault, s", self.settled);
        row("gone after the last deletion, s", self.gone);
        row("writes of the hosts, a round", self.writes);
        row("resident memory of a host, MB", self.memory);
        row("its growth since its first round, MB", self.growth);
        let faults: Vec<_> = self
            .faults
            .iter()
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        println!("faults: {}", faults.join(", "));
        if self.failed.is_empty() {
            return ExitCode::SUCCESS;
        }
        println!("a seed that found a defect belongs into tests/chaos/regressions, with what it found");
        for (seed, faults) in &self.failed {
            println!("failed: make chaos ROUNDS=1 SEED={seed}");
            for fault in faults {
                println!("  {fault}");
            }
        }
        ExitCode::FAILURE
    }
}

fn mb(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn row(name: &str, mut values: Vec<f64>) {
    values.sort_by(f64::total_cmp);
    let at = |part: f64| {
        let last = values.len().saturating_sub(1) as f64;
        values
            .get((last * part).round() as usize)
            .copied()
            .unwrap_or_default()
    };
    println!(
        "{name:<36}{:>7.2} {:>6.2} to {:>6.2}  {:>6.2}",
        at(0.5),
        at(0.1),
        at(0.9),
        at(1.0)
    );
}
