//! The slow lane: calls that take longer than a tick of the epoch continue here, so that they do not block
//! the threads that serve everything else.
//!
//! A call begins on the thread that requests it, because most calls end sooner than a hand-over takes. A call
//! that is still running when the epoch ticks is handed to a thread of low priority for one slice after
//! another, a tick each. There are fewer of those threads than processors, and plugins take turns on them, so
//! that one with many calls gets no more than one with a single call. The calls of a plugin that has recently taken
//! too much of the serving threads' time begin in the lane, whether it took that by long calls or by many.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use opentelemetry::trace::FutureExt as _;
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tracing::Instrument as _;
use tracing::instrument::WithSubscriber as _;

use crate::fair::{Fair, Member, Permit};
use crate::ticker::TICK;

/// The niceness of the threads: when others compete, they get a third of the others' time. With less, the
/// deadlines of well-behaved plugins would depend on the load of the machine.
const NICE: i32 = 5;

/// A call that ends sooner does not count. Another request can wait behind one such call of each worker of a controller,
/// several times in a reconcile.
const SHORT: Duration = Duration::from_micros(100);
/// The share of its time in which a plugin may block a serving thread with calls that count, and the maximum at once.
const SLOW_SHARE: f64 = 0.1;
const SLOW_AT_ONCE: Duration = Duration::from_millis(20);
/// One call counts as at most this long: a machine that was suspended is no reason to distrust a plugin for hours.
const SLOW_AT_MOST: Duration = Duration::from_secs(1);

/// The threads of the lane.
#[derive(Debug)]
pub(crate) struct Lane {
    slots: Fair,
    jobs: mpsc::Sender<Job>,
}

type Job = Box<dyn FnOnce() + Send>;

impl Lane {
    /// Starts the threads. They end with the lane.
    pub(crate) fn start() -> std::io::Result<Self> {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let threads = processors.saturating_sub(1).max(1);
        let (jobs, queue) = mpsc::channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        for number in 0..threads {
            let queue = Arc::clone(&queue);
            thread::Builder::new()
                .name(format!("plugin-slow-{number}"))
                .spawn(move || work(&queue))?;
        }
        Ok(Self {
            slots: Fair::new(threads, 0),
            jobs,
        })
    }

    /// Registers a plugin with the lane.
    pub(crate) fn join(&self) -> Slow {
        let now = Instant::now();
        Slow {
            slots: self.slots.join(),
            jobs: self.jobs.clone(),
            used_up: Mutex::new(now.checked_sub(SLOW_AT_ONCE.div_f64(SLOW_SHARE)).unwrap_or(now)),
        }
    }
}

fn work(queue: &Mutex<mpsc::Receiver<Job>>) {
    // On Linux, "this process" means the calling thread here. If it fails, the lane only has a higher
    // priority.
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!(%error, "cannot lower the priority of slow plugin calls");
    }
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        match job {
            Ok(job) => job(),
            Err(mpsc::RecvError) => return,
        }
    }
}

/// A plugin's access to the lane.
#[derive(Debug)]
pub(crate) struct Slow {
    slots: Member,
    jobs: mpsc::Sender<Job>,
    /// When the allowance was used up. A call that took more than was left moves this into the future: a poll ends
    /// when the guest yields, and what becomes of a large answer takes several times the whole allowance.
    used_up: Mutex<Instant>,
}

/// Returns the processor time of this thread: a plugin is not to blame when the machine is busy.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// A future that is polled in slices; it owns everything it needs.
pub(crate) type Owned<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Slow {
    /// Runs a call to its end: on this thread while it is short, in the lane afterwards.
    ///
    /// From `deadline` on the call must be ready when it is polled: it is then polled on this thread, so that
    /// no queue can delay it. Dropping this future ends the call at the next tick at the latest.
    pub(crate) async fn run<T: Send + 'static>(&self, deadline: Instant, mut call: Owned<T>) -> T {
        if self.may_begin_here(Instant::now()) {
            let start = thread_time();
            let first = std::future::poll_fn(|context| Poll::Ready(call.as_mut().poll(context))).await;
            self.charge(Instant::now(), thread_time().saturating_sub(start));
            if let Poll::Ready(result) = first {
                return result;
            }
        }
        let woken = Arc::new(Woken(Notify::new()));
        woken.0.notify_one();
        let waker = Waker::from(Arc::clone(&woken));
        // Its logs and its timers work the same on another thread.
        let runtime = Handle::current();
        let call = call.with_current_context().in_current_span();
        let mut call: Owned<T> = Box::pin(call.with_current_subscriber());
        loop {
            let turn = async {
                woken.0.notified().await;
                self.slots.acquire(1).await
            };
            let Ok(turn) = tokio::time::timeout_at(deadline.into(), turn).await else {
                return call.await;
            };
            match self.slice(turn, call, waker.clone(), runtime.clone()).await {
                (_, Poll::Ready(result)) => return result,
                (rest, Poll::Pending) => call = rest,
            }
        }
    }

    /// Polls a call once on a thread of the lane. The turn ends with that poll, even when the caller stopped
    /// waiting.
    async fn slice<T: Send + 'static>(
        &self,
        turn: Permit,
        mut call: Owned<T>,
        waker: Waker,
        runtime: Handle,
    ) -> (Owned<T>, Poll<T>) {
        let (done, wait) = oneshot::channel();
        let job = Box::new(move || {
            let polled = catch_unwind(AssertUnwindSafe(|| {
                let _runtime = runtime.enter();
                call.as_mut().poll(&mut Context::from_waker(&waker))
            }));
            // If the caller stopped waiting, the call is dropped here.
            let _ = done.send(polled.map(|polled| (call, polled)));
            drop(turn);
        });
        // The threads live as long as there is a sender.
        let _ = self.jobs.send(job);
        match wait.await {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => resume_unwind(panic),
            // The threads have ended: the process is shutting down, and this call will not return.
            Err(_) => std::future::pending().await,
        }
    }

    /// Whether the remaining allowance covers the time until a call is handed over.
    fn may_begin_here(&self, now: Instant) -> bool {
        let used_up = *self.used_up.lock().unwrap_or_else(PoisonError::into_inner);
        now.saturating_duration_since(used_up).mul_f64(SLOW_SHARE) >= TICK
    }

    fn charge(&self, now: Instant, taken: Duration) {
        if taken < SHORT {
            return;
        }
        let mut used_up = self.used_up.lock().unwrap_or_else(PoisonError::into_inner);
        let earned = now.saturating_duration_since(*used_up);
        let kept = earned.min(SLOW_AT_ONCE.div_f64(SLOW_SHARE));
        *used_up += earned - kept + taken.min(SLOW_AT_MOST).div_f64(SLOW_SHARE);
    }
}

/// Remembers that a call was woken.
struct Woken(Notify);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    /// Computes until its deadline, a millisecond at a time.
    fn spin(deadline: Instant, polls: Arc<AtomicUsize>) -> Owned<()> {
        Box::pin(std::future::poll_fn(move |context| {
            if Instant::now() >= deadline {
                return Poll::Ready(());
            }
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(1) {}
            polls.fetch_add(1, SeqCst);
            context.waker().wake_by_ref();
            Poll::Pending
        }))
    }

    fn soon(milliseconds: u64) -> Instant {
        Instant::now() + Duration::from_millis(milliseconds)
    }

    #[tokio::test]
    async fn a_short_call_stays_on_its_thread_and_a_long_one_leaves_it() {
        let lane = Lane::start().unwrap();
        let slow = lane.join();
        let here = thread::current().id();
        let at = slow
            .run(soon(1000), Box::pin(async { thread::current().id() }))
            .await;
        assert_eq!(at, here);
        let twice = async {
            let first = thread::current();
            tokio::task::yield_now().await;
            (first.id(), thread::current())
        };
        let (first, second) = slow.run(soon(1000), Box::pin(twice)).await;
        assert_eq!(first, here);
        assert!(
            second.name().is_some_and(|name| name.starts_with("plugin-slow-")),
            "{second:?}"
        );
    }

    #[tokio::test]
    async fn what_spins_leaves_its_turn_to_others_and_ends_at_its_deadline() {
        let lane = Lane::start().unwrap();
        let (hog, quiet) = (lane.join(), lane.join());
        let polls = Arc::new(AtomicUsize::new(0));
        let start = Instant::now();
        let deadline = soon(300);
        let spins = (0..20).map(|_| hog.run(deadline, spin(deadline, Arc::clone(&polls))));
        let spins = futures::future::join_all(spins);
        let mut others = 0;
        let other = async {
            while Instant::now() < deadline {
                quiet.run(soon(1000), Box::pin(tokio::task::yield_now())).await;
                others += 1;
            }
        };
        tokio::join!(spins, other);
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        assert!(others > 0 || polls.load(SeqCst) < 50, "{others} beside {polls:?}");
    }

    /// Regression: a call that took many times the allowance was forgiven as soon as one that took all of it.
    #[tokio::test]
    async fn a_plugin_begins_on_other_threads_again_when_it_has_made_up_for_its_slow_calls() {
        let lane = Lane::start().unwrap();
        let slow = lane.join();
        let now = Instant::now();
        let after = |milliseconds| now + Duration::from_millis(milliseconds);
        assert!(slow.may_begin_here(now));
        slow.charge(now, SLOW_AT_ONCE);
        assert!(!slow.may_begin_here(after(50)) && slow.may_begin_here(after(150)));
        slow.charge(after(150), Duration::from_millis(200));
        assert!(!slow.may_begin_here(after(1000)) && slow.may_begin_here(after(2200)));
        // Nothing is saved for later.
        slow.charge(after(100_000), SLOW_AT_ONCE);
        assert!(!slow.may_begin_here(after(100_050)));
        assert!(lane.join().may_begin_here(Instant::now()));
    }

    /// Regression: calls of almost a millisecond each were free, and eight at once took the serving threads.
    #[tokio::test]
    async fn many_calls_of_half_a_millisecond_count_and_those_of_microseconds_do_not() {
        let lane = Lane::start().unwrap();
        let slow = lane.join();
        let now = Instant::now();
        for _ in 0..1_000 {
            slow.charge(now, Duration::from_micros(60));
        }
        assert!(slow.may_begin_here(now));
        for _ in 0..40 {
            slow.charge(now, Duration::from_micros(500));
        }
        assert!(!slow.may_begin_here(now));
    }

    #[tokio::test]
    async fn a_call_that_is_dropped_is_not_polled_again() {
        let lane = Lane::start().unwrap();
        let slow = lane.join();
        let polls = Arc::new(AtomicUsize::new(0));
        let never = soon(60_000);
        let call = slow.run(never, spin(never, Arc::clone(&polls)));
        assert!(
            tokio::time::timeout(Duration::from_millis(50), call)
                .await
                .is_err()
        );
        // Its turn has been returned once it is over.
        drop(slow.slots.acquire(lane.slots.capacity()).await);
        assert_eq!(Arc::strong_count(&polls), 1, "it is gone");
    }

    #[tokio::test]
    #[should_panic(expected = "the guest's bug")]
    async fn a_panic_in_the_lane_is_one_of_the_caller() {
        let lane = Lane::start().unwrap();
        let slow = lane.join();
        let call = async {
            tokio::task::yield_now().await;
            panic!("the guest's bug")
        };
        slow.run::<()>(soon(1000), Box::pin(call)).await;
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn its_threads_have_a_low_priority_and_the_others_keep_theirs() {
        let nice = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let fields = stat.rsplit_once(')').unwrap().1.to_owned();
            // Source: proc_pid_stat(5), field 19; the third field is the first here.
            fields.split_whitespace().nth(16).unwrap().parse::<i32>().unwrap()
        };
        let lane = Lane::start().unwrap();
        let slow = lane.join();
        let before = nice();
        let call = async move {
            tokio::task::yield_now().await;
            nice()
        };
        assert_eq!(slow.run(soon(1000), Box::pin(call)).await, NICE);
        assert_eq!(nice(), before);
    }
}
