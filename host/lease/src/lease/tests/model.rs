//! A model test with replicas, a server that answers late or never, reads that lag behind and go back, people who
//! edit the Lease, and clocks that differ. Whatever the order of events, two replicas never hold the Lease at once, and one holds it
//! once no more events occur.

use proptest::prelude::*;

use super::*;

const REPLICAS: usize = 3;

#[derive(Clone, Debug)]
enum Op {
    /// Milliseconds pass.
    Wait(u64),
    /// A replica reads the Lease.
    Look(usize),
    /// A replica that does not hold the Lease reads what the Lease was this many steps ago.
    Hear(usize, usize),
    /// A replica sends what it may write, unless it waits for an answer.
    Send(usize),
    /// A replica's request arrives at the server; whether it receives the answer.
    Arrive(usize, bool),
    /// A replica's request is lost.
    Lose(usize),
    /// A replica releases the Lease; whether that request arrives.
    Release(usize, bool),
    /// A replica is killed, and another starts in its place.
    Restart(usize),
    /// Someone writes another holder, or none.
    Edit(Option<usize>),
    /// Someone writes other times.
    EditTimes(i64),
    /// Someone writes another duration, or none.
    EditDuration(Option<i32>),
    /// Someone puts back what the Lease contained when it was last saved.
    Restore,
    /// Someone saves it.
    Save,
    Delete,
}

fn op() -> impl Strategy<Value = Op> {
    let replica = 0..REPLICAS;
    prop_oneof![
        6 => (0..6000_u64).prop_map(Op::Wait),
        6 => replica.clone().prop_map(Op::Look),
        6 => (replica.clone(), 0..12_usize).prop_map(|(i, ago)| Op::Hear(i, ago)),
        6 => replica.clone().prop_map(Op::Send),
        6 => (replica.clone(), prop::bool::weighted(0.8)).prop_map(|(i, answers)| Op::Arrive(i, answers)),
        1 => replica.clone().prop_map(Op::Lose),
        1 => (replica.clone(), any::<bool>()).prop_map(|(i, arrives)| Op::Release(i, arrives)),
        1 => replica.clone().prop_map(Op::Restart),
        1 => prop::option::of(replica).prop_map(Op::Edit),
        1 => (0..4_000_000_000_i64).prop_map(Op::EditTimes),
        1 => prop::sample::select(vec![None, Some(-1), Some(0), Some(1), Some(20)]).prop_map(Op::EditDuration),
        1 => Just(Op::Save),
        1 => Just(Op::Restore),
        1 => Just(Op::Delete),
    ]
}

struct Replica {
    candidate: Candidate,
    /// The request on its way to the server, and since when.
    sent: Option<(Lease, Instant)>,
}

struct World {
    now: Instant,
    server: Server,
    /// The Lease after each step.
    past: Vec<Option<Lease>>,
    replicas: Vec<Replica>,
    saved: Option<LeaseSpec>,
    starts: usize,
    looks: i64,
}

impl World {
    fn new() -> Self {
        let mut this = Self {
            now: Instant::now(),
            server: Server::default(),
            past: Vec::new(),
            replicas: Vec::new(),
            saved: None,
            starts: 0,
            looks: 0,
        };
        this.replicas = (0..REPLICAS).map(|_| this.start()).collect();
        this
    }

    fn start(&mut self) -> Replica {
        self.starts += 1;
        let identity = format!("replica-{}", self.starts);
        Replica {
            candidate: Candidate::new("host", &identity, TIMING),
            sent: None,
        }
    }

    /// Each reading of the wall clock returns a different time, later or earlier.
    fn clock(&mut self) -> Timestamp {
        self.looks += 1;
        Timestamp::from_second(1_700_000_000 + self.looks * 7919 % 100_003).unwrap()
    }

    fn act(&mut self, op: &Op) {
        let (now, clock) = (self.now, self.clock());
        match *op {
            Op::Wait(millis) => self.now += Duration::from_millis(millis),
            Op::Look(i) => {
                let lease = self.server.lease.clone();
                self.replicas[i].candidate.observe(lease, now);
            }
            Op::Hear(i, ago) => {
                let candidate = &mut self.replicas[i].candidate;
                if let Some(lease) = self.past.iter().nth_back(ago)
                    && !candidate.holds(now)
                {
                    candidate.observe(lease.clone(), now);
                }
            }
            Op::Send(i) => {
                let replica = &mut self.replicas[i];
                if replica.sent.is_none()
                    && let Step::Write(record) = replica.candidate.step(now, clock)
                {
                    replica.candidate.writing(&record, now);
                    replica.sent = Some((*record, now));
                }
            }
            Op::Arrive(i, answers) => {
                let Some((record, sent)) = self.replicas[i].sent.take() else {
                    return;
                };
                let written = self.server.write(record);
                let lease = self.server.lease.clone();
                let candidate = &mut self.replicas[i].candidate;
                match written {
                    Some(answer) if answers => {
                        candidate.won(answer, sent, now);
                    }
                    None if answers => candidate.observe(lease, now),
                    _ => {}
                }
            }
            Op::Lose(i) => self.replicas[i].sent = None,
            Op::Release(i, arrives) => {
                // It waits for the answer to its last request first.
                if self.replicas[i].sent.is_none()
                    && let Some(record) = self.replicas[i].candidate.release(now, clock)
                    && arrives
                {
                    self.server.write(record);
                }
            }
            Op::Restart(i) => self.replicas[i] = self.start(),
            Op::Edit(holder) => {
                let holder = holder.map(|i| self.replicas[i].candidate.identity.clone());
                self.server.edit(|spec| spec.holder_identity = holder);
            }
            Op::EditTimes(second) => self.server.edit(|spec| {
                spec.renew_time = Some(MicroTime(Timestamp::from_second(second).unwrap()));
            }),
            Op::EditDuration(seconds) => self.server.edit(|spec| spec.lease_duration_seconds = seconds),
            Op::Save => self.saved = spec(self.server.lease.as_ref()).cloned(),
            Op::Restore => {
                let saved = self.saved.clone().unwrap_or_default();
                self.server.edit(|spec| *spec = saved);
            }
            Op::Delete => self.server.lease = None,
        }
        self.past.push(self.server.lease.clone());
    }

    fn holders(&self) -> Vec<&str> {
        let replicas = self.replicas.iter().map(|replica| &replica.candidate);
        let holding = replicas.filter(|candidate| candidate.holds(self.now));
        holding.map(|candidate| candidate.identity.as_str()).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn two_never_hold_it_and_without_faults_one_does(ops in prop::collection::vec(op(), 1..120)) {
        let mut world = World::new();
        for op in &ops {
            world.act(op);
            let holders = world.holders();
            prop_assert!(holders.len() <= 1, "{holders:?} hold it");
        }
        // Longer than any valid lease in this model.
        for _ in 0..40 {
            for i in 0..REPLICAS {
                for op in [Op::Look(i), Op::Send(i), Op::Arrive(i, true)] {
                    world.act(&op);
                    let holders = world.holders();
                    prop_assert!(holders.len() <= 1, "{holders:?} hold it");
                }
            }
            world.act(&Op::Wait(1000));
        }
        prop_assert_eq!(world.holders().len(), 1);
    }
}
