//! The page on limits says what the constants in the sources say.

use std::fs;

use crate::support::root;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

const ENGINE: &str = "host/runtime/src/engine.rs";
const LIMITS: &str = "host/runtime/src/limits.rs";
const COUNTS: &str = "host/runtime/src/counts.rs";
const LOG: &str = "host/runtime/src/log.rs";
const SIZES: &str = "host/webhook/src/bounds.rs";
const RULES: &str = "host/schema/src/cel/rules.rs";

/// The beginning of a row, its words with `{}` for a number, and where the number is: a file, the code before it, and the
/// unit in the row.
const ROWS: [(&str, &str, &str, &str, u64); 51] = [
    (
        "writes of one child",
        "{} in quick succession",
        "host/engine/src/reconcile/context/pace.rs",
        "Self::Change => (",
        1,
    ),
    (
        "writes of one child",
        "or {} creations",
        "host/engine/src/reconcile/context/pace.rs",
        "Self::Removal => (",
        1,
    ),
    (
        "depth of JSON",
        "{} levels in a field",
        "host/core/src/object.rs",
        "const MAX_DEPTH: usize = ",
        1,
    ),
    (
        "message of a failure",
        "{} KiB",
        "host/runtime/src/error.rs",
        "const MAX_TEXT: usize = ",
        KIB,
    ),
    (
        "connections to the health port",
        "{}, of which",
        "host/instruments/src/health/server.rs",
        "const CONNECTIONS: usize = ",
        1,
    ),
    ("plugin file", "{} MiB", LIMITS, "module: ", MIB),
    (
        "manifest",
        "{} MiB",
        "host/delivery/src/oci/artifact.rs",
        "const MANIFEST_LIMIT: usize = ",
        MIB,
    ),
    (
        "signatures",
        "{} of each",
        "host/delivery/src/oci/pull.rs",
        "const MAX_SIGNATURES: usize = ",
        1,
    ),
    (
        "functions",
        "{}, each",
        COUNTS,
        "const FUNCTIONS: Limit = (\"functions\", ",
        1,
    ),
    (
        "functions",
        "{} MiB",
        COUNTS,
        "const BODY: Limit = (\"bytes in one function\", ",
        MIB,
    ),
    (
        "functions",
        "{} local variables",
        COUNTS,
        "const LOCALS: Limit = (\"local variables in one function\", ",
        1,
    ),
    (
        "parts",
        "{} core instances",
        LIMITS,
        "const INSTANCES_PER_CALL: u32 = ",
        1,
    ),
    (
        "parts",
        "{} memories, ",
        LIMITS,
        "const MEMORIES_PER_CALL: u32 = ",
        1,
    ),
    ("parts", "{} tables.", LIMITS, "const TABLES_PER_CALL: u32 = ", 1),
    (
        "parts",
        "than {} memories",
        ENGINE,
        "const POOLED_MEMORIES: u32 = ",
        1,
    ),
    ("parts", "{} tables or", ENGINE, "const POOLED_TABLES: u32 = ", 1),
    (
        "parts",
        "{} elements",
        ENGINE,
        "const POOLED_TABLE_ELEMENTS: usize = ",
        1,
    ),
    (
        "compiling",
        "{} GiB",
        "host/runtime/src/subprocess.rs",
        "const MOST: usize = ",
        1024 * MIB,
    ),
    ("log lines of one call", "{} lines", LIMITS, "log_lines: ", 1),
    ("log lines of one call", "of {} KiB", LIMITS, "log_line: ", KIB),
    (
        "log lines of one plugin",
        "{} per second",
        LOG,
        "const LINES_PER_SECOND: u32 = ",
        1,
    ),
    (
        "log lines of one plugin",
        "burst of {}",
        LOG,
        "const LINES_AT_ONCE: u32 = ",
        1,
    ),
    (
        "needs",
        "{}. ",
        "host/engine/src/reconcile/needs.rs",
        "const MAX_NEEDS: usize = ",
        1,
    ),
    (
        "Events",
        "{} in one",
        "host/engine/src/reconcile/outcome.rs",
        "const MAX_EVENTS: usize = ",
        1,
    ),
    (
        "conditions",
        "{}, and of",
        LIMITS,
        "const CONDITIONS: usize = ",
        1,
    ),
    (
        "conditions",
        "first {} KiB",
        "host/desired/src/conditions.rs",
        "const LONGEST_MESSAGE: usize = ",
        KIB,
    ),
    (
        "answer of `describe`",
        "{} MiB",
        LIMITS,
        "const DESCRIPTION: usize = ",
        MIB,
    ),
    (
        "answer of `describe`",
        "{} JSON",
        LIMITS,
        "const DESCRIPTION_VALUES: usize = ",
        1,
    ),
    (
        "a rule",
        "{} KiB",
        "host/schema/src/cel/parser.rs",
        "const TEXT: usize = ",
        KIB,
    ),
    (
        "a rule",
        "{} levels",
        "host/schema/src/cel/parser.rs",
        "const DEPTH: usize = ",
        1,
    ),
    ("a rule", "cost {} for", RULES, "const RULE: u64 = ", 1),
    ("a rule", "and {} for", RULES, "const OBJECT: u64 = ", 1),
    (
        "`requeueAfterMs`",
        "{} ms",
        "host/engine/src/reconcile/action.rs",
        "const MIN_DELAY: Duration = Duration::from_millis(",
        1,
    ),
    (
        "connections",
        "{}, of",
        "host/webhook/src/server.rs",
        "const CONNECTIONS: usize = ",
        1,
    ),
    (
        "`uid` of a review",
        "{} bytes",
        "host/webhook/src/lib.rs",
        "const LONGEST_UID: usize = ",
        1,
    ),
    ("body of a review", "{} MiB", SIZES, " review: ", MIB),
    ("an object", "{} MiB", SIZES, " object: ", MIB),
    ("body of a conversion", "{} MiB", SIZES, " conversion: ", MIB),
    (
        "body of a conversion",
        "{} objects",
        "host/webhook/src/conversion_review.rs",
        "const MAX_OBJECTS: usize = ",
        1,
    ),
    (
        "bodies, together",
        "{} MiB for those",
        SIZES,
        " small_bodies: ",
        MIB,
    ),
    ("bodies, together", "at most {} MiB", SIZES, " small: ", MIB),
    (
        "bodies, together",
        "{} MiB for larger",
        SIZES,
        " large_bodies: ",
        MIB,
    ),
    (
        "objects in memory",
        "{} MiB for those",
        SIZES,
        " small_work: ",
        MIB,
    ),
    (
        "objects in memory",
        "{} MiB for larger",
        SIZES,
        " large_work: ",
        MIB,
    ),
    (
        "1/",
        "{} | all plugin calls",
        "host/config/src/memory_limit.rs",
        "const CALLS_PART: usize = ",
        1,
    ),
    (
        "1/",
        "{} | what callers",
        "host/config/src/memory_limit.rs",
        "const WEBHOOK_PART: usize = ",
        1,
    ),
    (
        "1/",
        "{} | calls that wait",
        "host/config/src/memory_limit.rs",
        "const RECORDS_PART: usize = ",
        1,
    ),
    (
        "the rest",
        "{} KiB of each",
        "host/src/rollout/answer.rs",
        "const MAX_SHOWN: usize = ",
        KIB,
    ),
    (
        "",
        "longer than {} ms",
        "host/runtime/src/ticker.rs",
        "const TICK: Duration = Duration::from_millis(",
        1,
    ),
    (
        "",
        "within {} µs",
        "host/runtime/src/lane.rs",
        "const SHORT: Duration = Duration::from_micros(",
        1,
    ),
    (
        "",
        "calls of up to {} MiB",
        "host/runtime/src/memory_budget.rs",
        "const SMALL: usize = ",
        MIB,
    ),
];

/// Evaluates `32 * MIB`, `1 << 20` and `50_000`.
fn evaluate(code: &str) -> Option<u64> {
    let number = |text: &str| match text.trim() {
        "MIB" => Some(MIB),
        "KIB" => Some(KIB),
        text => text.replace('_', "").parse::<u64>().ok(),
    };
    if let Some((a, b)) = code.split_once("<<") {
        return Some(number(a)? << number(b)?);
    }
    code.split('*').map(number).product()
}

/// Returns the number after the first occurrence of this code that a number follows.
fn constant(file: &str, before: &str) -> u64 {
    let source = fs::read_to_string(root().join(file)).unwrap();
    let values = source.split(before).skip(1);
    let codes = values.filter_map(|rest| rest.split([';', ',', ')', '\n']).next());
    codes
        .filter_map(evaluate)
        .next()
        .unwrap_or_else(|| panic!("{file}: no number after {before:?}"))
}

/// Writes a number with commas, as the page does.
fn written(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[test]
fn the_page_on_limits_has_the_numbers_of_the_sources() {
    let page = fs::read_to_string(root().join("host/docs/reference/limits.md")).unwrap();
    for (row, words, file, before, unit) in ROWS {
        let value = constant(file, before);
        assert!(value.is_multiple_of(unit), "{before}");
        let (start, expected) = (format!("| {row}"), words.replace("{}", &written(value / unit)));
        let is_right = match row {
            "" => page.replace('\n', " ").contains(&expected),
            _ => page
                .lines()
                .any(|line| line.starts_with(&start) && line.contains(&expected)),
        };
        assert!(
            is_right,
            "limits.md, {start}: {expected:?} is expected, because of {before:?} in {file}"
        );
    }
}

#[test]
fn readme_has_a_link_to_the_limits() {
    let page = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(page.contains("](host/docs/reference/limits.md)"));
}
