mod model;

use std::sync::atomic::{AtomicI64, Ordering};

use super::*;

const S: Duration = Duration::from_secs(1);
const TIMING: Timing = Timing {
    duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_secs(2),
};

/// A fake API server: one Lease and its version.
#[derive(Default)]
pub(super) struct Server {
    pub(super) lease: Option<Lease>,
    version: u32,
}

impl Server {
    /// Accepts a record that is based on the current version.
    pub(super) fn write(&mut self, mut lease: Lease) -> Option<Lease> {
        let current = self.lease.as_ref();
        let current = current.and_then(|lease| lease.metadata.resource_version.clone());
        if lease.metadata.resource_version != current {
            return None;
        }
        self.version += 1;
        lease.metadata.resource_version = Some(self.version.to_string());
        self.lease = Some(lease.clone());
        Some(lease)
    }

    /// Edits the Lease as `kubectl edit` does, if there is one.
    pub(super) fn edit(&mut self, change: impl FnOnce(&mut LeaseSpec)) {
        if let Some(mut lease) = self.lease.clone() {
            change(lease.spec.get_or_insert_default());
            self.write(lease).unwrap();
        }
    }

    fn transitions(&self) -> Option<i32> {
        self.lease.as_ref()?.spec.as_ref()?.lease_transitions
    }
}

fn candidate(identity: &str) -> Candidate {
    Candidate::new("host", identity, TIMING)
}

/// A clock that returns a different time on each reading, forwards and backwards.
fn clock() -> Timestamp {
    static LOOKS: AtomicI64 = AtomicI64::new(0);
    let looks = LOOKS.fetch_add(1, Ordering::Relaxed);
    Timestamp::from_second(1_700_000_000 + looks * if looks % 2 == 0 { 1 } else { -1 }).unwrap()
}

/// Sends what the candidate writes next; returns the answer.
fn send(candidate: &mut Candidate, server: &mut Server, now: Instant, clock: Timestamp) -> Lease {
    let Step::Write(record) = candidate.step(now, clock) else {
        panic!("it writes")
    };
    candidate.writing(&record, now);
    server.write(*record).unwrap()
}

/// Reads the lease and performs the next action. Returns whether the candidate may write afterwards.
fn turn(candidate: &mut Candidate, server: &mut Server, now: Instant) -> bool {
    candidate.observe(server.lease.clone(), now);
    act(candidate, server, now)
}

/// Performs the next action with what the candidate knows.
fn act(candidate: &mut Candidate, server: &mut Server, now: Instant) -> bool {
    if let Step::Write(record) = candidate.step(now, clock()) {
        candidate.writing(&record, now);
        match server.write(*record) {
            Some(answer) => {
                candidate.won(answer, now, now);
            }
            None => candidate.observe(server.lease.clone(), now),
        }
    }
    candidate.holds(now)
}

/// Returns a server whose lease `a` has held since `start`, as `b` has seen.
fn led_by_a(start: Instant) -> (Server, Candidate, Candidate) {
    let (mut server, mut a, mut b) = (Server::default(), candidate("a"), candidate("b"));
    assert!(!turn(&mut a, &mut server, start - 17 * S));
    assert!(!turn(&mut a, &mut server, start - 15 * S), "it creates the Lease");
    assert!(turn(&mut a, &mut server, start));
    assert!(!turn(&mut b, &mut server, start));
    assert_eq!(b.holder(), Some("a"));
    (server, a, b)
}

fn start() -> Instant {
    Instant::now() + 1000 * S
}

#[test]
fn a_missing_lease_is_created_and_taken_after_the_last_holder_must_have_stopped() {
    let (mut server, mut a) = (Server::default(), candidate("a"));
    let start = start();
    assert_eq!(a.step(start, clock()), Step::Look);
    assert!(!turn(&mut a, &mut server, start));
    assert!(server.lease.is_none(), "a holder that is alive comes first");
    assert!(!turn(&mut a, &mut server, start + 2 * S));
    assert_eq!(a.holder(), None);
    assert!(!turn(&mut a, &mut server, start + 16 * S));
    assert!(turn(&mut a, &mut server, start + 17 * S));
    assert_eq!(server.transitions(), Some(0));
}

#[test]
fn a_create_that_arrives_late_makes_no_holder() {
    let start = start();
    let (mut server, mut a, mut b) = (Server::default(), candidate("a"), candidate("b"));
    b.observe(None, start);
    let Step::Write(late) = b.step(start + 2 * S, clock()) else {
        panic!("it creates the Lease")
    };
    b.writing(&late, start + 2 * S);
    assert!(!turn(&mut a, &mut server, start - 2 * S));
    assert!(!turn(&mut a, &mut server, start));
    assert!(turn(&mut a, &mut server, start + 15 * S));
    server.lease = None;
    let answer = server.write(*late).unwrap();
    assert!(!b.won(answer, start, start + 16 * S));
    assert!(a.holds(start + 16 * S) && !b.holds(start + 16 * S));
    // It sees that another Lease is there.
    assert!(!turn(&mut a, &mut server, start + 16 * S));
    assert!(!turn(&mut b, &mut server, start + 30 * S));
    assert!(turn(&mut b, &mut server, start + 31 * S));
}

#[test]
fn a_renewal_changes_the_record_though_the_clock_stands_still() {
    let start = start();
    let (mut server, mut a, mut b) = led_by_a(start);
    let clock = clock();
    for i in 1..20 {
        let now = start + 2 * i * S;
        a.observe(server.lease.clone(), now);
        let answer = send(&mut a, &mut server, now, clock);
        a.won(answer, now, now);
        assert!(!turn(&mut b, &mut server, now));
    }
}

#[test]
fn a_holder_that_renews_is_never_replaced_and_one_that_does_not_is_when_its_time_is_over() {
    let start = start();
    let (mut server, mut a, mut b) = led_by_a(start);
    for i in 1..20 {
        assert!(turn(&mut a, &mut server, start + 2 * i * S));
        assert!(!turn(&mut b, &mut server, start + 2 * i * S));
    }
    let last = start + 38 * S;
    assert!(!turn(&mut b, &mut server, last + 14 * S));
    assert!(!a.holds(last + 10 * S), "it stops before another begins");
    assert!(turn(&mut b, &mut server, last + 15 * S));
    assert_eq!(server.transitions(), Some(1));
    assert!(!turn(&mut a, &mut server, last + 16 * S), "the other has it");
}

#[test]
fn the_time_of_a_term_counts_from_when_its_renewal_was_sent() {
    let start = start();
    let (mut server, mut a, _) = led_by_a(start);
    let answer = send(&mut a, &mut server, start + 2 * S, clock());
    a.won(answer, start + 2 * S, start + 9 * S);
    assert_eq!(a.term(), Some((start + 12 * S, start + 17 * S)));
}

#[test]
fn the_times_in_the_record_mean_nothing() {
    let start = start();
    for year in ["1970-01-01T00:00:00Z", "9999-01-01T00:00:00Z"] {
        let (mut server, _, mut b) = led_by_a(start);
        let time: Timestamp = year.parse().unwrap();
        server.edit(|spec| {
            spec.renew_time = Some(MicroTime(time));
            spec.acquire_time = Some(MicroTime(time));
        });
        let edited = start + 5 * S;
        assert!(!turn(&mut b, &mut server, edited));
        assert!(!turn(&mut b, &mut server, edited + 14 * S), "{year}");
        assert!(turn(&mut b, &mut server, edited + 15 * S), "{year}");
    }
}

#[test]
fn a_released_lease_is_taken_at_once_but_an_empty_holder_alone_is_no_release() {
    let start = start();
    let (mut server, mut a, mut b) = led_by_a(start);
    server.edit(|spec| spec.holder_identity = Some(String::new()));
    assert!(a.holds(start + S), "it does not know yet");
    assert!(!turn(&mut b, &mut server, start + S));
    assert!(!turn(&mut a, &mut server, start + 2 * S), "now it does");
    assert!(!turn(&mut b, &mut server, start + 15 * S));
    assert!(turn(&mut b, &mut server, start + 16 * S));

    let (mut server, mut a, mut b) = led_by_a(start);
    let release = a.release(start + S, clock()).unwrap();
    assert!(!a.holds(start + S));
    server.write(release).unwrap();
    assert!(turn(&mut b, &mut server, start + S));
    assert_eq!(server.transitions(), Some(1));
    let annotations = server.lease.unwrap().metadata.annotations.unwrap();
    assert!(!annotations.contains_key(RELEASED_ANNOTATION));
}

#[test]
fn a_deleted_lease_is_recreated_by_its_holder_and_by_others_only_when_that_must_have_stopped() {
    let start = start();
    let (mut server, mut a, mut b) = led_by_a(start);
    // `b` has not read the lease for long, so what it saw is outdated.
    let deleted = start + 60 * S;
    server.lease = None;
    assert!(!turn(&mut b, &mut server, deleted));
    assert!(!turn(&mut b, &mut server, deleted + 2 * S));
    assert!(!turn(&mut b, &mut server, deleted + 16 * S));
    assert!(turn(&mut b, &mut server, deleted + 17 * S));

    let (mut server, mut a2, mut b) = led_by_a(start);
    server.lease = None;
    assert!(!turn(&mut b, &mut server, start + S));
    assert!(turn(&mut a2, &mut server, start + 2 * S));
    // No longer by a create.
    assert_eq!(a2.term(), Some((start + 10 * S, start + 15 * S)));
    assert!(!turn(&mut b, &mut server, start + 2 * S));
    assert_eq!(b.holder(), Some("a"));
    assert!(turn(&mut a2, &mut server, start + 2 * S));
    assert_eq!(a2.term(), Some((start + 12 * S, start + 17 * S)));
    // But not when its term has ended: another replica could have begun and lost it.
    server.lease = None;
    assert!(!turn(&mut a, &mut server, start + 12 * S));
}

#[test]
fn a_holder_keeps_a_lease_that_was_edited_but_still_names_it() {
    let start = start();
    let (mut server, mut a, mut b) = led_by_a(start);
    server.edit(|spec| {
        spec.lease_duration_seconds = Some(1);
        spec.lease_transitions = Some(i32::MAX);
    });
    assert!(!act(&mut b, &mut server, start + S));
    // Never sooner than we would.
    assert!(!turn(&mut b, &mut server, start + 3 * S));
    assert!(!act(&mut candidate("c"), &mut server, start + 3 * S));
    // It does not know: refused, and looked at.
    assert!(act(&mut a, &mut server, start + 3 * S));
    assert!(act(&mut a, &mut server, start + 3 * S));
    let spec = server.lease.clone().unwrap().spec.unwrap();
    assert_eq!(spec.lease_duration_seconds, Some(15));
    assert!(!turn(&mut b, &mut server, start + 4 * S));
    assert!(turn(&mut b, &mut server, start + 19 * S));
    assert_eq!(server.transitions(), Some(i32::MAX), "counted no further");
}

#[test]
fn a_longer_duration_of_another_host_is_respected_and_an_absurd_one_is_not() {
    let start = start();
    for (stated, counts) in [(60, 60 * S), (i32::MAX, MAX_DURATION), (-5, 15 * S)] {
        let (mut server, _, mut b) = led_by_a(start);
        server.edit(|spec| spec.lease_duration_seconds = Some(stated));
        assert!(!turn(&mut b, &mut server, start));
        assert!(!turn(&mut b, &mut server, start + counts - S), "{stated}");
        assert!(turn(&mut b, &mut server, start + counts), "{stated}");
    }
}
