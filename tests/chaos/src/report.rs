//! The output: one line per round, and a summary.

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

/// Prints the results.
pub(crate) struct Report {
    started: Instant,
    rounds: usize,
    /// The seeds of the failed rounds, with their failures.
    failed: Vec<(u64, Vec<String>)>,
}

impl Report {
    pub(crate) fn begin(rounds: usize) -> Self {
        Self {
            started: Instant::now(),
            rounds,
            failed: Vec::new(),
        }
    }

    /// Prints the line of a round.
    pub(crate) fn add(&mut self, number: usize, seed: u64, outcome: &Outcome) {
        let Outcome { shape, counts, .. } = outcome;
        let most = outcome.memory.iter().map(|(now, _)| now / 1_000_000).max();
        let verdict = if outcome.is_exact() { "exact" } else { "WRONG" };
        println!(
            "{number:>4}/{}  seed {seed}  {verdict}  {} {:<14} {}  settled {:>5.2} s  gone {:>5.2} s  \
             {:>2} parents {:>2} children {:>4} actions {:>4} writes  {:>3} MB  {}",
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
            most.unwrap_or_default(),
            outcome.plan.join(" "),
        );
        if !outcome.is_exact() {
            let faults = outcome.faults.iter().map(Violation::what).collect();
            self.failed.push((seed, faults));
        }
    }

    /// Prints the summary.
    pub(crate) fn end(self) -> ExitCode {
        let exact = self.rounds - self.failed.len();
        let minutes = self.started.elapsed().as_secs_f64() / 60.0;
        println!(
            "\n{exact} of {} rounds exact, in {minutes:.1} minutes",
            self.rounds
        );
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
