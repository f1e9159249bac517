//! Plugins are compiled in a separate process with limited time and memory.

use crate::support::prelude::*;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Stdio};

use operator_host_runtime::{
    Cache, CodeOrigin, Compiler, EngineOptions, Limits, LoadError, Part, Plugin, Runtime, Subprocess,
};
use plugin_fixtures::{FORMS, Fixture, Form, another_world, cases, hard, library};
use rustix::process::{Pid, Signal, kill_process};

use crate::samples::echo::{CONTROLLER, ECHO, echo};
use crate::support::measure::{MB, report};
use crate::support::reload_memory::before_and_after;

const PROGRAM: &str = env!("CARGO_BIN_EXE_operator-host");
const MIB: usize = 1 << 20;
/// Enough for every plugin here with an unoptimized host.
const MEMORY: usize = 512 * MIB;

fn outside(memory: usize) -> Compiler {
    Compiler::Subprocess(Subprocess::program(PROGRAM, memory))
}

fn runtime(compiler: Compiler, cache: Option<&Path>) -> Runtime {
    let cache = cache.map(|folder| Cache::open(folder, 1 << 30).unwrap());
    let options = EngineOptions {
        concurrency: 1,
        ..EngineOptions::default()
    };
    Runtime::with(options, compiler, cache).unwrap()
}

fn within(compile: Duration) -> Limits {
    Limits {
        compile,
        ..Limits::default()
    }
}

fn answer(form: Form) -> Vec<u8> {
    Fixture::new(cases::ANSWER).build(form)
}

/// Returns the error of a file that must not load.
fn refused(loaded: Result<Plugin, LoadError>) -> LoadError {
    match loaded {
        Ok(_) => panic!("it was loaded"),
        Err(error) => error,
    }
}

/// Returns the bytes of memory of this sort that a process has.
fn memory(process: u32, sort: &str) -> usize {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(sort)).unwrap();
    let kib: usize = line.trim_matches([':', ' ', '\t', 'k', 'B']).parse().unwrap();
    kib * 1024
}

/// Returns the compiling processes of this one.
fn compiling(parent: u32) -> Vec<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let processes = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let ours = |process: &u32| {
        let read = |file: &str| fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default();
        let command = read("cmdline");
        let last = command.split('\0').rfind(|word| !word.is_empty());
        command.contains("\0compile-plugin\0") && last == Some(&parent.to_string())
    };
    processes.filter(ours).collect()
}

/// Reports whether a compiling process has set its limits and waits for the file: the priority is the last one set.
fn is_limited(process: u32) -> bool {
    niceness(process) == ["5"]
}

/// Returns the niceness of each thread of a process.
fn niceness(process: u32) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{process}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let of = |thread: fs::DirEntry| {
        let stat = fs::read_to_string(thread.path().join("stat")).ok()?;
        let fields = stat.rsplit(')').next()?;
        fields.split_whitespace().nth(16).map(str::to_owned)
    };
    threads.filter_map(of).collect()
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    until_true(what, async || condition()).await;
}

#[tokio::test]
async fn what_a_process_of_its_own_compiles_runs() {
    let folder = tempfile::tempdir().unwrap();
    for form in FORMS {
        for made in [CodeOrigin::Compiled, CodeOrigin::Cached] {
            let runtime = runtime(outside(MEMORY), Some(folder.path()));
            let plugin = runtime.load(answer(form), Limits::default()).await.unwrap();
            assert_eq!(plugin.code_origin(), made, "{form:?}");
            assert_eq!(plugin.description().name, "fixture");
        }
    }
    let echo = fs::read(plugin("echo")).unwrap();
    let runtime = runtime(outside(MEMORY), None);
    runtime.load(echo, Limits::default()).await.unwrap();
}

#[tokio::test]
async fn a_file_is_refused_with_the_same_words_inside_and_outside() {
    let cut = answer(Form::Component);
    let sockets = Fixture::new(cases::ANSWER).import(r#"(import "env" "connect" (func))"#);
    let files = [
        Vec::new(),
        b"apiVersion: v1".to_vec(),
        cut[..cut.len() / 2].to_vec(),
        another_world(),
        library("add"),
        sockets.build(Form::Component),
        Fixture::new(cases::ANSWER)
            .version("2.0.0")
            .build(Form::Component),
        hard::command("i32.const 1", ""),
    ];
    let (inside, outside) = (runtime(Compiler::InProcess, None), runtime(outside(MEMORY), None));
    for file in files {
        let inside = refused(inside.load(file.clone(), Limits::default()).await);
        let outside = refused(outside.load(file, Limits::default()).await);
        assert_eq!(inside.to_string(), outside.to_string());
        assert_eq!(inside.part(), outside.part(), "{outside}");
    }
}

#[tokio::test]
async fn a_plugin_that_takes_a_gigabyte_to_compile_is_refused_and_this_process_does_not_grow() {
    let file = hard::large();
    assert!(file.len() < 50_000, "{}", file.len());
    let runtime = runtime(outside(100 * MIB), None);
    let before = memory(std::process::id(), "VmRSS");
    let error = refused(runtime.load(file, Limits::default()).await);
    let words = "takes more than 100 MiB of memory";
    assert!(error.to_string().contains(words), "{error}");
    let after = memory(std::process::id(), "VmRSS");
    // Other tests run in this process at the same time.
    assert!(after < before + 300 * MIB, "{before} {after}");
    // A file that is not hard to compile has enough.
    runtime
        .load(answer(Form::Command), Limits::default())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_plugin_that_compiles_for_long_is_ended_by_the_kernel() {
    let runtime = runtime(outside(MEMORY), None);
    let (file, limits) = (hard::slow(), within(Duration::from_secs(1)));
    assert!(file.len() < 200_000, "{}", file.len());
    loop {
        let error = refused(runtime.load(file.clone(), limits).await).to_string();
        if error.contains("of processor time") {
            return;
        }
        // The machine is busy with other work.
        assert_contains(&error, "of wall-clock time");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_compiles_for_long_gives_way_to_those_that_come_later() {
    let own = std::process::id();
    let before = compiling(own);
    let runtime = std::sync::Arc::new(runtime(outside(MEMORY), None));
    let slow = {
        let runtime = std::sync::Arc::clone(&runtime);
        tokio::spawn(async move {
            runtime
                .load(hard::slow(), within(Duration::from_secs(60)))
                .await
                .is_ok()
        })
    };
    let all = |nice: &str| {
        let new = compiling(own).into_iter().filter(|it| !before.contains(it));
        new.map(niceness)
            .any(|threads| !threads.is_empty() && threads.iter().all(|it| it == nice))
    };
    until("it begins", || all("5")).await;
    until("each of its threads gives way", || all("10")).await;
    slow.abort();
}

#[tokio::test]
async fn a_compiler_that_fails_is_distinguished_from_a_bad_plugin() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken");
    fs::write(
        &broken,
        "#!/bin/sh\ncat >/dev/null\necho oh no >&2\nkill -SEGV $$\n",
    )
    .unwrap();
    Command::new("chmod")
        .args(["+x".as_ref(), broken.as_os_str()])
        .status()
        .unwrap();
    let runtime = runtime(Compiler::Subprocess(Subprocess::program(&broken, MEMORY)), None);
    let error = refused(runtime.load(answer(Form::Command), Limits::default()).await).to_string();
    let words = "internal error: the compiler failed … signal: 11 … oh no … report it";
    assert_contains(&error, words);
}

/// What fuzzing found: files that end the compiler, or that it refuses.
#[tokio::test]
async fn every_file_of_the_corpus_is_refused_in_words() {
    let runtime = runtime(outside(MEMORY), None);
    let corpus = fs::read_dir(root().join("tests/fuzz/corpora/plugin-file")).unwrap();
    for entry in corpus {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let error = refused(runtime.load(fs::read(&path).unwrap(), Limits::default()).await);
        let words = error.to_string();
        assert!(!words.is_empty() && words.len() < 64 << 10, "{name}: {words}");
        let ends_the_compiler = error.part() == Part::Compiler;
        let is_known = ["bindings-that-panic", "circular-packages"].contains(&name.as_str());
        assert_eq!(ends_the_compiler, is_known, "{name}: {words}");
    }
}

#[tokio::test]
async fn a_host_that_can_start_no_process_says_so_and_the_file_is_not_remembered_as_bad() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = Compiler::Subprocess(Subprocess::program("/nowhere/operator-host", MEMORY));
    let without = runtime(nowhere, Some(folder.path()));
    let error = refused(without.load(answer(Form::Command), Limits::default()).await).to_string();
    let words = "cannot start a process … /nowhere/operator-host … allow the container";
    assert_contains(&error, words);
    let with = runtime(outside(MEMORY), Some(folder.path()));
    with.load(answer(Form::Command), Limits::default()).await.unwrap();
}

/// Starts a compiling process that waits for its file; the result keeps its standard input open.
fn waiting(seconds: u64) -> Child {
    Command::new(PROGRAM)
        .args(["compile-plugin", &MEMORY.to_string(), &seconds.to_string()])
        .arg(std::process::id().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn a_compiling_process_has_its_limits_before_it_reads_the_file() {
    let mut child = waiting(7);
    let read = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", child.id())).unwrap_or_default();
    let limit = |name: &str| {
        let limits = read("limits");
        let line = limits
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_default();
        line.trim_start_matches(name)
            .split_whitespace()
            .next()
            .map(str::to_owned)
    };
    until("its limits", || is_limited(child.id())).await;
    let expected = [
        ("Max data size", MEMORY.to_string()),
        ("Max address space", (MEMORY + (1 << 30)).to_string()),
        ("Max cpu time", "7".to_owned()),
        ("Max core file size", "0".to_owned()),
        ("Max file size", "0".to_owned()),
        ("Max open files", "16".to_owned()),
    ];
    for (name, value) in expected {
        assert_eq!(limit(name), Some(value), "{name}");
    }
    assert_eq!(read("oom_score_adj").trim(), "1000");
    child.stdin.take().unwrap().write_all(b"no plugin").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("not WebAssembly"),
        "{output:?}"
    );
}

#[tokio::test]
async fn a_compiling_process_ends_with_its_host_and_works_for_no_other() {
    // A host is killed while its compiling process waits for the file.
    let script = format!("exec 3<&0; \"{PROGRAM}\" compile-plugin {MEMORY} 60 $$ <&3 & wait");
    let mut host = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let id = host.id();
    until("the compiling process", || {
        compiling(id).iter().any(|process| is_limited(*process))
    })
    .await;
    host.kill().unwrap();
    host.wait().unwrap();
    until("its end", || compiling(id).is_empty()).await;

    // A compiling process whose host has ended.
    let output = Command::new(PROGRAM)
        .args(["compile-plugin", "100000000", "60", "1"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(70), "{output:?}");
    assert_eq!(output.status.signal(), None);
}

/// Returns the compiling process of this test program that has this time limit, in seconds.
fn compiling_within(seconds: u64) -> Option<u32> {
    let limit = format!("\0{seconds}\0");
    let command = |process: &u32| fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let mut processes = compiling(std::process::id()).into_iter();
    processes.find(|process| command(process).contains(&limit))
}

#[tokio::test]
async fn a_plugin_is_compiled_while_another_one_takes_long_and_compiling_ends_with_its_load() {
    let runtime = runtime(outside(MEMORY), None);
    let other = runtime.clone();
    // No other test has this time limit.
    let endless = async move { other.load(hard::slow(), within(Duration::from_secs(51))).await };
    let endless = tokio::spawn(endless);
    until("the compiling process", || compiling_within(51).is_some()).await;
    let process = Pid::from_raw(compiling_within(51).unwrap() as i32).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    let quick = runtime.load(answer(Form::Component), Limits::default());
    let quick = tokio::time::timeout(LIMIT, quick)
        .await
        .expect("it waits for the other");
    quick.unwrap();
    assert!(!endless.is_finished() && compiling_within(51).is_some());
    endless.abort();
    until("its end", || compiling_within(51).is_none()).await;
}

/// Creates a scenario with Echo's plugin in a folder like a mounted ConfigMap, and a controller for its own kind.
fn mounted(scenario: &Scenario, files: &BTreeMap<String, Vec<u8>>, controllers: &str) -> (Mount, PathBuf) {
    let mut mount = Mount::new(&scenario.folder.path().join("mount"), "none.wasm", b"");
    mount.project(files);
    let config = scenario.config_in(&mount.path, controllers);
    (mount, config)
}

fn echo_file() -> Vec<u8> {
    fs::read(plugin("echo")).unwrap()
}

#[tokio::test]
async fn twenty_reloads_leave_the_hosts_memory_as_it_was() {
    let [before, after] = before_and_after(&Scenario::new("compile-memory").await).await;
    let [b, a] = [before, after].map(|bytes| bytes as f64 / MB);
    report(
        "reload-memory",
        &format!("anonymous memory before 20 reloads {b:.1} MB, after {a:.1} MB"),
    );
    assert!(after < before + 4_000_000, "{before} {after}");
}

#[tokio::test]
async fn a_neighbour_that_is_hard_to_compile_costs_the_host_neither_memory_nor_answers() {
    let scenario = Scenario::new("compile-hard").await;
    let hard = |puppet: Vec<u8>| {
        BTreeMap::from([
            ("echo.wasm".to_owned(), echo_file()),
            ("puppet.wasm".to_owned(), puppet),
        ])
    };
    let puppet = controller("puppet.wasm", "limits: {compile: 3s}");
    let controllers = format!("{CONTROLLER}{puppet}");
    let (mut mount, config) = mounted(&scenario, &hard(hard::slow()), &controllers);
    let cache = scenario.folder.path().join("cache").display().to_string();
    let arguments = ["--cache-dir", cache.as_str()];
    let host = scenario.start_with(&config, &arguments);
    let process = host.process().id();
    scenario.apply(&echo(1)).await;
    let ready = |replicas: u64| {
        move |e: &DynamicObject| {
            e.data["status"]["currentReplicas"] == replicas && e.data["status"]["isReady"] == true
        }
    };
    scenario.until(ECHO, "e", "one ready pod", ready(1)).await;
    let before = memory(process, "VmHWM");
    host.until_log("not compiled within 3s of processor time").await;
    let start = Instant::now();
    mount.project(&hard(hard::large()));
    scenario.apply(&echo(2)).await;
    scenario.until(ECHO, "e", "two ready pods", ready(2)).await;
    eprintln!("served after {:?}", start.elapsed());
    host.until_log("compiling the plugin takes more than").await;
    let peak = memory(process, "VmHWM");
    eprintln!(
        "at most {:.1} MB resident before, {:.1} MB after",
        before as f64 / 1e6,
        peak as f64 / 1e6
    );
    assert!(peak < before + 20_000_000, "{before} {peak}");
    assert_eq!(compiling(process), [0; 0]);
    assert_eq!(host.stop().await.code(), Some(0));
}
