//! Calls that together need more memory than there is.

use std::time::Duration;

use futures::future::{Either, join_all, select};
use plugin_fixtures::{FORMS, Form, cases};

use super::*;
use crate::limits::MIB;

/// Allocates 20 MiB, then does what `case` specifies.
fn taking(case: &str) -> String {
    case.replace("(func $case", "(func $case (drop (memory.grow (i32.const 320)))")
}

fn limits(deadline: Duration) -> Limits {
    Limits {
        memory: 24 * MIB,
        request: 2 * MIB,
        response: 2 * MIB,
        deadline,
        ..Limits::default()
    }
}

/// Creates a runtime with room for 8 calls that need little, and for one more that takes 20 MiB.
fn runtime() -> Runtime {
    let options = EngineOptions {
        memory: 40 * MIB,
        ..EngineOptions::default()
    };
    Runtime::new(options).unwrap()
}

async fn load_in(runtime: &Runtime, form: Form, case: &str, deadline: Duration) -> Plugin {
    let file = Fixture::new(case).build(form);
    runtime.load(file, limits(deadline)).await.unwrap()
}

const PATIENT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn calls_of_two_plugins_wait_for_memory_and_all_are_answered() {
    for form in FORMS {
        let runtime = runtime();
        let case = taking(cases::ANSWER);
        let (one, other) = (
            load_in(&runtime, form, &case, PATIENT).await,
            load_in(&runtime, form, &case, PATIENT).await,
        );
        let request = request("2026-01-02T03:04:05Z");
        let calls = join_all((0..24).map(|number| {
            let plugin = if number % 2 == 0 { &one } else { &other };
            plugin.reconcile(&request)
        }))
        .await;
        for call in calls {
            assert_eq!(call.outcome.unwrap().children.len(), 1, "{form:?}");
            assert!(call.stats.peak_memory > 20 * MIB, "{form:?}");
        }
        // Their memory is available again.
        children(&one).await;
    }
}

#[tokio::test]
async fn a_call_that_gets_no_memory_in_time_fails_and_a_small_one_is_not_delayed() {
    for form in FORMS {
        let runtime = runtime();
        let endless = taking(cases::ENDLESS_LOOP);
        let hog = load_in(&runtime, form, &endless, PATIENT).await;
        let hasty = load_in(&runtime, form, &taking(cases::ANSWER), Duration::from_millis(300)).await;
        let patient = load_in(&runtime, form, &taking(cases::ANSWER), PATIENT).await;
        let small = load_in(&runtime, form, cases::ANSWER, PATIENT).await;
        let request = request("2026-01-02T03:04:05Z");
        let mut held = Box::pin(hog.reconcile(&request));
        let busy = loop {
            match select(&mut held, Box::pin(hasty.reconcile(&request))).await {
                // A tick of the epoch can hand over the hog's first attempt before it needs the memory.
                Either::Right((call, _)) if call.outcome.is_ok() => {}
                Either::Right((call, _)) => break call,
                Either::Left((call, _)) => panic!("{form:?}: {:?}", call.outcome),
            }
        };
        let error = busy.outcome.unwrap_err();
        assert_eq!(error.class(), Class::Busy, "{form:?}: {error}");
        assert!(busy.stats.waited >= Duration::from_millis(300), "{form:?}");
        assert_contains(&error.to_string(), "`--memory` … `limits.memory` … `concurrency`");
        children(&small).await;
        drop(held);
        children(&patient).await;
    }
}

#[tokio::test]
async fn an_answer_that_would_take_more_than_the_call_may_is_refused() {
    // Half a megabyte of text, and 30,000 maps.
    let dense = "(data (i32.const 8192) \"{\\22a\\22:[\")
        (func $case (local $at i32)
          (drop (memory.grow (i32.const 32)))
          (memory.copy (i32.const 70000) (i32.const 8192) (i32.const 6))
          (local.set $at (i32.const 70006))
          (loop $next
            (i64.store (local.get $at) (i64.const 0x2c7d313a2261227b))
            (local.set $at (i32.add (local.get $at) (i32.const 8)))
            (br_if $next (i32.lt_u (local.get $at) (i32.const 310006))))
          (i32.store (i32.sub (local.get $at) (i32.const 1)) (i32.const 0x00007d5d))
          (call $answer (i32.const 70000) (i32.sub (i32.add (local.get $at) (i32.const 1)) (i32.const 70000))))";
    for form in FORMS {
        let error = failure(form, dense, limits(PATIENT)).await;
        assert_eq!(error.class(), Class::Output, "{form:?}: {error}");
        let words = "more than 28 MiB in the host … `limits.memory`";
        assert_contains(&error.to_string(), words);
        let more = Limits {
            memory: 64 * MIB,
            ..limits(PATIENT)
        };
        let plugin = plugin(form, dense, more).await;
        assert_eq!(children(&plugin).await.len(), 1, "{form:?}");
    }
}
