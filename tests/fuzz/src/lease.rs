//! Leases: two replicas never may write at the same time, whatever the order of reads and writes, the delay of a
//! response, and edits of the record by others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use operator_host_config::leadership::Timing;
use operator_host_lease::assignment::{Member, Members, allotted, surplus};
use operator_host_lease::lease::{Candidate, RELEASED_ANNOTATION, Step};

use crate::draw::RandomSource;

const TIMING: Timing = Timing {
    duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_secs(2),
};
const NAMES: [&str; 3] = ["a", "b", "c"];

pub(crate) fn run(bytes: &[u8]) {
    let mut draw = RandomSource::new(bytes);
    if draw.chance(4) {
        deal(draw);
    } else {
        elect(draw);
    }
}

/// The meaning of the step numbers, for reading a failure.
const STEPS: [&str; 13] = [
    "time", "time", "time", "look", "send", "send", "arrives", "arrives", "hears", "hears", "release",
    "late", "edit",
];

/// A simulated API server: one Lease, which can be written only with its current version.
#[derive(Default)]
struct Server {
    lease: Option<Lease>,
    version: u32,
    /// What was written, for users who put it back.
    specs: Vec<LeaseSpec>,
}

impl Server {
    fn write(&mut self, mut lease: Lease) -> Option<Lease> {
        let version = |lease: &Lease| lease.metadata.resource_version.clone();
        if version(&lease) != self.lease.as_ref().and_then(version) {
            return None;
        }
        self.version += 1;
        self.specs.extend(lease.spec.clone());
        lease.metadata.resource_version = Some(self.version.to_string());
        self.lease = Some(lease.clone());
        Some(lease)
    }
}

/// A replica, and its unanswered request.
struct Replica {
    candidate: Candidate,
    sent: Option<(Lease, Instant)>,
    answer: Option<(Option<Lease>, Instant)>,
    /// Requests that it has given up on, and that the server may still receive.
    late: Vec<Lease>,
}

fn elect(mut draw: RandomSource<'_>) {
    let start = Instant::now();
    let mut now = start;
    let mut server = Server::default();
    let mut clock = Clock::default();
    let mut replicas: Vec<Replica> = NAMES
        .iter()
        .map(|name| Replica {
            candidate: Candidate::new("host", "host", name, TIMING),
            sent: None,
            answer: None,
            late: Vec::new(),
        })
        .collect();
    let mut story = Vec::new();
    while !draw.is_empty() {
        let number = draw.below(NAMES.len());
        let replica = &mut replicas[number];
        let step = draw.below(13);
        match step {
            0..=2 => {
                now +=
                    Duration::from_millis(draw.pick(&[1, 500, 2_000, 5_000, 9_999, 10_000, 15_000, 70_000]));
            }
            3 => replica.candidate.observe(server.lease.clone(), now),
            4 | 5 => {
                // A replica has only one write in progress: it waits for the response, or gives up and reads again.
                if let Step::Write(record) = replica.candidate.step(now, clock.read(&mut draw)) {
                    replica.candidate.writing(&record, now);
                    replica.answer = None;
                    replica
                        .late
                        .extend(replica.sent.replace((*record, now)).map(|(record, _)| record));
                }
            }
            6 | 7 => {
                if let Some((record, sent)) = replica.sent.take() {
                    replica.answer = Some((server.write(record), sent));
                }
            }
            8 | 9 => match replica.answer.take() {
                Some((Some(lease), sent)) => {
                    replica.candidate.won(lease, sent, now);
                }
                Some((None, _)) => replica.candidate.observe(server.lease.clone(), now),
                None => {}
            },
            10 => {
                if let Some(record) = replica.candidate.release(now, clock.read(&mut draw)) {
                    replica.answer = None;
                    replica.late.extend(replica.sent.take().map(|(record, _)| record));
                    server.write(record);
                }
            }
            11 => {
                if let Some(record) = replica.late.pop() {
                    server.write(record);
                }
            }
            _ => tamper(&mut server, &mut clock, &mut draw),
        }
        story.push((now - start, NAMES[number], STEPS[step]));
        let holders: Vec<&str> = NAMES
            .iter()
            .zip(&replicas)
            .filter_map(|(name, replica)| replica.candidate.holds(now).then_some(*name))
            .collect();
        assert!(holders.len() <= 1, "{holders:?} hold it: {story:#?}");
        for replica in &replicas {
            let candidate = &replica.candidate;
            if let Some((until, others)) = candidate.term() {
                assert!(until < others, "it stops before another begins");
            }
            assert!(!(candidate.holds(now) && candidate.is_free(now)));
        }
    }
}

/// Edits the Lease as a user with `kubectl edit` might. The only thing that a user must not write is the annotation
/// with which a replica records that it has stopped.
fn tamper(server: &mut Server, clock: &mut Clock, draw: &mut RandomSource<'_>) {
    let Some(mut lease) = server.lease.clone() else {
        return;
    };
    let spec = lease.spec.get_or_insert_default();
    match draw.below(8) {
        0 => {
            spec.holder_identity = draw
                .pick(&[None, Some(""), Some("a"), Some("b"), Some("x")])
                .map(str::to_owned);
        }
        1 => {
            spec.lease_duration_seconds =
                draw.pick(&[None, Some(0), Some(-1), Some(1), Some(60), Some(i32::MAX)]);
        }
        2 => spec.renew_time = Some(MicroTime(clock.read(draw))),
        3 => spec.lease_transitions = draw.pick(&[None, Some(-1), Some(i32::MAX)]),
        4 => *spec = LeaseSpec::default(),
        5 => {
            lease.metadata.annotations = None;
        }
        6 => *spec = server.specs[draw.below(server.specs.len())].clone(),
        _ => {
            server.lease = None;
            return;
        }
    }
    let is_marked = |lease: &Lease| {
        let annotations = lease.metadata.annotations.as_ref();
        annotations.is_some_and(|all| all.contains_key(RELEASED_ANNOTATION))
    };
    // If a released Lease names a holder again, somebody edited it; clearing it would release that holder's Lease.
    if !is_marked(&lease) {
        server.write(lease);
    }
}

/// A clock that jumps arbitrarily but never repeats a reading, since other replicas detect from changes that a
/// replica is alive.
#[derive(Default)]
struct Clock(i64);

impl Clock {
    fn read(&mut self, draw: &mut RandomSource<'_>) -> Timestamp {
        let seconds = draw.pick(&[0, 1_700_000_000, 253_402_207_000, -1_000_000_000]);
        self.0 += 1;
        Timestamp::from_microsecond(seconds * 1_000_000 + self.0).expect("a time")
    }
}

/// Replicas with the same view share the leases: each is assigned to one replica that can hold it, and only to one.
fn deal(mut draw: RandomSource<'_>) {
    let leases: Vec<String> = (0..draw.below(6)).map(|number| format!("l{number}")).collect();
    let mut held = BTreeSet::new();
    let mut members: Members = BTreeMap::new();
    for name in NAMES {
        let able: BTreeSet<String> = leases.iter().filter(|_| draw.chance(2)).cloned().collect();
        let own = able
            .iter()
            .filter(|lease| !held.contains(*lease) && draw.chance(3));
        let own: BTreeSet<String> = own.cloned().collect();
        held.extend(own.iter().cloned());
        members.insert(name.to_owned(), Member { able, held: own });
    }
    let free: BTreeSet<String> = leases
        .iter()
        .filter(|lease| !held.contains(*lease))
        .cloned()
        .collect();
    let mut dealt = BTreeSet::new();
    for name in NAMES {
        for lease in allotted(&members, &free, name) {
            assert!(free.contains(&lease) && members[name].able.contains(&lease));
            assert!(dealt.insert(lease.clone()), "{lease} goes to two");
        }
    }
    for lease in &free {
        let wanted = members.values().any(|member| member.able.contains(lease));
        assert_eq!(dealt.contains(lease), wanted, "{lease}");
    }
    let giving = NAMES
        .iter()
        .filter_map(|name| Some((name, surplus(&members, name)?)));
    let giving: Vec<_> = giving.collect();
    assert!(giving.len() <= 1, "one moves at a time: {giving:?}");
    for (name, lease) in giving {
        assert!(members[*name].held.contains(&lease));
    }
}
