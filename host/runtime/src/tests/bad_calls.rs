//! Plugins that misbehave when they are called. Each ends with an error of the right class without delay, and
//! other calls continue meanwhile.

use std::time::{Duration, Instant};

use plugin_fixtures::{FORMS, Form, cases};

use super::*;

/// How much later than its deadline a call may end: a tick of the epoch, and the delay of a busy machine.
const SLACK: Duration = Duration::from_secs(5);

/// Long enough for `describe` on a busy machine.
fn short() -> Limits {
    Limits {
        deadline: Duration::from_millis(500),
        ..Limits::default()
    }
}

#[tokio::test]
async fn a_trap_is_reported_with_its_backtrace() {
    for form in FORMS {
        match failure(form, cases::TRAP, Limits::default()).await {
            CallError::Trap { message, backtrace } => {
                assert!(message.contains("divide by zero"), "{form:?}: {message}");
                assert!(backtrace.contains("case"), "{form:?}: {backtrace}");
            }
            other => panic!("{form:?}: {other}"),
        }
    }
}

/// Only a line of several lines: a plugin may log an error and then panic for another reason.
#[tokio::test]
async fn an_exception_with_its_stack_in_the_log_explains_how_the_guest_ended() {
    let case = |text: &str| {
        format!(
            r#"(data (i32.const 8192) "{text}") (data (i32.const 8448) "panicked\n")
               (func $case
                 (call $log (i32.const 4) (i32.const 8192) (i32.const {}))
                 (call $write (i32.const 2) (i32.const 8448) (i32.const 9))
                 (unreachable))"#,
            text.replace("\\n", "n").len()
        )
    };
    let end = "(wasm trap: wasm `unreachable` instruction executed)";
    for (text, expected) in [
        (
            "TypeError: no image\\n at plugin.js:7",
            format!("TypeError: no image\n at plugin.js:7 {end}"),
        ),
        ("TypeError: no image", format!("panicked {end}")),
    ] {
        let error = failure(Form::Component, &case(text), Limits::default()).await;
        assert_eq!(error.to_string(), format!("the plugin stopped: {expected}"));
    }
}

/// Languages exit with such codes on an assertion (134) or `exit(-1)`. WASI allows only codes below 126.
#[tokio::test]
async fn an_exit_with_any_code_is_a_failure_that_says_why() {
    for code in [126, 134, 255, -1] {
        let case = format!(
            r#"(data (i32.const 8192) "out of paper\n")
               (func $case
                 (call $write (i32.const 2) (i32.const 8192) (i32.const 13))
                 (call $proc_exit (i32.const {code})))"#
        );
        for form in FORMS {
            let error = failure(form, &case, Limits::default()).await;
            assert_eq!(error.class(), Class::Trap, "{form:?}: {error}");
            let code = if form == Form::Component { 1 } else { code };
            assert_eq!(
                error.to_string(),
                format!("the plugin stopped: out of paper (it exited with code {code})"),
                "{form:?}"
            );
        }
    }
}

#[tokio::test(flavor = "current_thread")]
async fn an_endless_loop_ends_at_its_deadline_and_others_go_on_meanwhile() {
    // Uses its own runtime: in the shared one, the slow calls of other tests take turns with it.
    let runtime = Runtime::new(EngineOptions::default()).unwrap();
    for form in FORMS {
        let load = async |case, limits| {
            let file = Fixture::new(case).build(form);
            runtime
                .load(file, limits)
                .await
                .unwrap_or_else(|error| panic!("{form:?}: {error}"))
        };
        let looping = load(cases::ENDLESS_LOOP, short()).await;
        let good = load(cases::ANSWER, Limits::default()).await;
        let request = request("2026-01-02T03:04:05Z");

        let start = Instant::now();
        let end = looping.reconcile(&request);
        let mut others = 0;
        let others_go_on = async {
            loop {
                good.reconcile(&request).await.outcome.unwrap();
                others += 1;
                tokio::task::yield_now().await;
            }
        };
        let call = tokio::select! {
            call = end => call,
            () = others_go_on => unreachable!("it never ends"),
        };
        let took = start.elapsed();
        assert!(took < short().deadline + SLACK, "{form:?}: {took:?}");
        assert_eq!(call.outcome.unwrap_err(), CallError::timeout(short().deadline));
        assert!(
            call.stats.guest_time > Duration::from_millis(20),
            "{form:?}: {:?}",
            call.stats
        );
        assert!(
            others >= 5,
            "{form:?}: only {others} other calls on the same thread"
        );
    }
}

#[tokio::test]
async fn a_sleeping_guest_ends_at_its_deadline() {
    for form in FORMS {
        let start = Instant::now();
        let error = failure(form, cases::SLEEP, short()).await;
        assert_eq!(error.class(), Class::Timeout, "{form:?}: {error}");
        let took = start.elapsed();
        assert!(took < short().deadline * 2 + SLACK, "{form:?}: {took:?}");
    }
}

/// A compiler puts large variables on a stack of its own in linear memory, which grows down to address 0.
#[tokio::test]
async fn a_stack_overflow_in_linear_memory_is_called_one() {
    const RECURSION: &str = "
        (global $stack (mut i32) (i32.const 65536))
        (func $down
          (global.set $stack (i32.sub (global.get $stack) (i32.const 1024)))
          (i32.store (global.get $stack) (i32.const 1))
          (call $down))
        (func $case (call $down))";
    const WILD_POINTER: &str = "(func $case (i32.store (i32.const -4) (i32.const 1)))";
    for form in FORMS {
        let error = failure(form, RECURSION, Limits::default()).await.to_string();
        assert_contains(&error, "stack overflow … `down`");
        let error = failure(form, WILD_POINTER, Limits::default()).await.to_string();
        assert!(
            error.contains("out of bounds memory access") && !error.contains("stack"),
            "{form:?}: {error}"
        );
    }
}

#[tokio::test]
async fn a_command_that_answers_with_something_else_gets_a_precise_error() {
    let table = [
        (" ", "standard output is empty"),
        ("{}", "expected value"),
        (
            r#"{"validated":[]}"#,
            "its answer to `reconcile` has the field `validated`",
        ),
        (r#"{"response":[]}"#, "expected an object"),
        (
            r#"{"response":{},"done":true}"#,
            "must have one field, and has done, response",
        ),
        (
            r#"{"response":{"kids":[]}}"#,
            "unknown field `kids`, expected one of `done`",
        ),
        (
            r#"{"response":{"status":"fine"}}"#,
            "invalid type: string \"fine\", expected a map",
        ),
        (r#"{"response":{}} and more"#, "trailing characters"),
    ];
    for (text, expected) in table {
        let error = failure(Form::Command, &writing(text), Limits::default()).await;
        assert_eq!(error.class(), Class::Protocol, "{text}: {error}");
        assert_contains(&error.to_string(), expected);
    }
}

#[tokio::test]
async fn a_failed_call_leaves_nothing_behind_for_the_next() {
    for form in FORMS {
        let good = plugin(form, cases::ANSWER, Limits::default()).await;
        for bad in [
            cases::TRAP,
            cases::MEMORY_BOMB,
            cases::DEEP_RECURSION,
            cases::ENDLESS_LOOP,
        ] {
            failure(form, bad, short()).await;
            assert_eq!(children(&good).await.len(), 1, "{form:?}");
        }
    }
}

#[tokio::test]
async fn more_calls_than_the_engine_takes_wait_for_their_turn() {
    for form in FORMS {
        let looping = plugin(form, cases::ENDLESS_LOOP, short()).await;
        let patient = plugin(form, cases::ANSWER, Limits::default()).await;
        let request = Arc::new(request("2026-01-02T03:04:05Z"));
        let call = |plugin: &Plugin| {
            let (plugin, request) = (plugin.clone(), Arc::clone(&request));
            tokio::spawn(async move { plugin.reconcile(&request).await.outcome })
        };
        let concurrency = EngineOptions::default().concurrency;
        let loops: Vec<_> = (0..2 * concurrency).map(|_| call(&looping)).collect();
        let answers: Vec<_> = (0..2 * concurrency).map(|_| call(&patient)).collect();
        for call in loops {
            // No call waits for longer than it may run.
            let class = call.await.unwrap().unwrap_err().class();
            assert!(
                matches!(class, Class::Timeout | Class::Busy),
                "{form:?}: {class:?}"
            );
        }
        for call in answers {
            call.await.unwrap().unwrap();
        }
    }
}
