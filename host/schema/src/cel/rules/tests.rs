use std::time::{Duration, Instant};

use serde_json::json;

use super::*;

/// Objects and the rules that they violate. In the words of Kubernetes 1.36.
const CASES: &str = include_str!("../cases.json");

#[test]
fn each_object_violates_the_rules_that_it_violates_for_an_api_server() {
    let cases: Vec<Value> = serde_json::from_str(CASES).unwrap();
    let mut wrong = Vec::new();
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let properties = json!({ name: case["schema"] });
        let spec = json!({ "type": "object", "properties": properties });
        let schema = json!({ "type": "object", "properties": { "spec": spec } });
        assert_eq!(problems(&schema, ""), [], "{name}");
        for object in case["objects"].as_array().unwrap() {
            let violations = object["violations"].as_array().into_iter().flatten();
            let wanted: Vec<String> = violations
                .map(|text| text.as_str().unwrap().replace("{}", &format!("spec.{name}")))
                .collect();
            let whole = |value: &Value| json!({ "spec": { name: value } });
            let old = object.get("old").map(whole);
            let mut verdict = validate(&schema, &whole(&object["new"]), old.as_ref());
            verdict.violations.sort();
            if verdict.violations != wanted || !verdict.left.is_empty() {
                wrong.push(format!("{name}: {object}\n  is {verdict:#?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns what one rule about a value says.
fn one(rule: &str, schema: Value, value: &Value) -> RuleVerdict {
    let mut schema = schema;
    schema["x-kubernetes-validations"] = json!([{ "rule": rule }]);
    let schema = json!({ "type": "object", "properties": { "a": schema } });
    validate(&schema, &json!({ "a": value }), None)
}

#[test]
fn a_function_that_is_missing_here_is_left_to_the_api_server() {
    let text = || json!({ "type": "string" });
    let verdict = one("semver(self).major() > 1", text(), &json!("1.0.0"));
    assert_eq!(verdict.violations, [""; 0]);
    assert_eq!(
        verdict.left,
        [
            "a: the rule \"semver(self).major() > 1\" is left to the API server: `semver` is not evaluated here"
        ]
    );
    // What is known decides.
    let verdict = one("semver(self).major() > 1 || self == '1'", text(), &json!("1"));
    assert_eq!(verdict, RuleVerdict::default());
    let verdict = one("semver(self).major() > 1 && self != '1'", text(), &json!("1"));
    assert_eq!((verdict.violations.len(), verdict.left.len()), (1, 0));
}

#[test]
fn what_a_rule_costs_is_limited() {
    let numbers = "[1,2,3,4,5,6,7,8,9,10]";
    let nested = (0..12).fold("true".to_owned(), |inner, depth| {
        format!("{numbers}.all(x{depth}, {inner})")
    });
    let doubled = format!("size(['x']{}) == 1", ".map(x, x + x)".repeat(60));
    let wide = format!("[1]{}", ".map(x, [x, x, x, x, x, x, x, x])".repeat(60));
    let lists = format!("{wide} == {wide}");
    let pattern = "'a'.matches('(((a{100}){100}){100}){100}')";
    let patterns = format!(
        "{numbers}.all(a, {numbers}.all(b, {numbers}.all(c, string(a*b*c).matches('x' + string(a)) || true)))"
    );
    let start = std::time::Instant::now();
    for rule in [nested.as_str(), &doubled, &lists, pattern, &patterns] {
        let verdict = one(rule, json!({ "type": "string" }), &json!("x"));
        let first = verdict.violations.first();
        assert!(first.is_some() || rule == patterns, "{rule}");
        if let Some(first) = first {
            assert!(
                first.contains("cost limit") || first.contains("regexp"),
                "{first}"
            );
        }
    }
    let took = start.elapsed();
    assert!(took < std::time::Duration::from_secs(20), "{took:?}");
}

/// Returns what one rule about a value costs, and what it says.
fn cost(rule: &str, schema: Value, value: &Value) -> (u64, Vec<String>) {
    let mut schema = schema;
    schema["x-kubernetes-validations"] = json!([{ "rule": rule }]);
    let late = Instant::now() + Duration::from_secs(60);
    let walk = applied(&schema, value, None, late);
    (OBJECT - walk.fuel.rest(), walk.verdict.violations)
}

fn is_limited((cost, violations): (u64, Vec<String>)) -> bool {
    cost >= RULE && violations.len() == 1 && violations[0].contains("cost limit")
}

#[test]
fn a_search_costs_the_length_of_its_text_times_that_of_its_expression() {
    let text = || json!({ "type": "string" });
    let long = json!("A".repeat(10_000));
    // Each search reads to the end before it takes one letter.
    let quadratic = "self.findAll('.*[^A-Z]|[A-Z]').size() >= 0";
    assert!(is_limited(cost(quadratic, text(), &long)));
    let (some, violations) = cost(quadratic, text(), &json!("A".repeat(100)));
    assert_eq!(violations, [""; 0]);
    assert!(some > 100 * 50 * 14 / 40, "{some}");
    let (short, _) = cost("self.matches('^(a|b)$') || true", text(), &long);
    let (large, _) = cost("self.matches('^([a-c]{30}){30}$') || true", text(), &long);
    assert!(
        short > 10_000 * 7 / 40 && large > 10 * short && large > 100_000,
        "{short} {large}"
    );
    // What is usual costs little.
    for (rule, most) in [
        ("self.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')", 20_000),
        ("self.findAll('[a-z]+').size() == 2", 6_000),
        ("self.split('-') == ['my', 'name']", 100),
    ] {
        let (cost, violations) = cost(rule, text(), &json!("my-name"));
        assert!(
            cost < most && violations.is_empty(),
            "{rule}: {cost} {violations:?}"
        );
    }
}

#[test]
fn each_part_of_a_text_costs_the_memory_that_it_takes() {
    let long = json!("x,".repeat(300_000));
    for rule in [
        "self.split(',').size() > 0",
        "self.split('').size() > 0",
        "self.findAll('x').size() > 0",
    ] {
        assert!(
            is_limited(cost(rule, json!({ "type": "string" }), &long)),
            "{rule}"
        );
    }
    assert!(size_of::<Val<'_>>() <= 48, "{}", size_of::<Val<'_>>());
    // A copy of a part of a URL as well.
    let many = format!(
        "[url(self)].all(u, {:?}.all(x, u.getEscapedPath() != ''))",
        [1; 1000]
    );
    let path = json!(format!("/{}", "x".repeat(100_000)));
    assert!(is_limited(cost(&many, json!({ "type": "string" }), &path)));
    let names: Vec<String> = (0..10_000).map(|name| format!("{name}=")).collect();
    let query = json!(format!("/?{}", names.join("&")));
    assert!(is_limited(cost(
        "isURL(self)",
        json!({ "type": "string" }),
        &query
    )));
}

#[test]
fn what_takes_too_long_is_stopped_as_what_costs_too_much() {
    let late = Instant::now();
    let item = |rule: &str| json!({ "type": "integer", "x-kubernetes-validations": [{ "rule": rule }] });
    let numbers = format!("{:?}", [1; 1000]);
    // Within one evaluation.
    let schema = item(&format!("{numbers}.all(x, x == self)"));
    let walk = applied(&schema, &json!(1), None, late);
    assert!(
        walk.verdict.violations[0].contains("cost limit"),
        "{:?}",
        walk.verdict
    );
    assert_eq!((walk.fuel.rest(), walk.is_exhausted), (0, true));
    // Between the evaluations, of many values.
    let schema = json!({ "type": "array", "items": item("self == 1") });
    let walk = applied(&schema, &json!(vec![1; 10_000]), None, late);
    assert_eq!(walk.verdict.violations.len(), 1, "{:?}", walk.verdict);
    assert!(walk.is_exhausted);
    // What costs little does not depend on the clock.
    let walk = applied(&item("self == 1"), &json!(1), None, late);
    assert_eq!(walk.verdict, RuleVerdict::default());
}

#[test]
fn many_rules_of_many_values_end_with_the_budget_of_the_object() {
    let rules: Vec<Value> = (0..500)
        .map(|add| json!({ "rule": format!("self >= oldSelf + {add}") }))
        .collect();
    let item = json!({ "type": "integer", "x-kubernetes-validations": rules });
    let schema = json!({ "type": "array", "items": item });
    let start = std::time::Instant::now();
    let verdict = validate(&schema, &json!(vec![1; 100_000]), None);
    assert_eq!(verdict.violations.len(), 1, "{verdict:?}");
    let words = "running out of cost budget";
    assert!(verdict.violations[0].contains(words), "{verdict:?}");
    let took = start.elapsed();
    assert!(took < std::time::Duration::from_secs(30), "{took:?}");
}

#[test]
fn the_deepest_expression_fits_the_stack_of_a_thread() {
    let deepest =
        |open: &str, close: &str, count: usize| format!("{}true{}", open.repeat(count), close.repeat(count));
    for rule in [
        deepest("[1].all(x, ", ")", 97),
        deepest("dyn(", ")", 97),
        deepest("[", "][0]", 45),
        deepest("false ? false : ", "", 96),
        deepest("(", ")", 97),
    ] {
        let verdict = one(&rule, json!({ "type": "string" }), &json!("x"));
        assert_eq!(verdict, RuleVerdict::default(), "{rule}");
    }
}

/// With `SEED` in the environment it tries other expressions. With `VERDICTS` it writes what it says about each to that file:
/// `tests/fuzz/profiles.sh` compares those of a debug and of a release build.
#[test]
fn no_expression_makes_the_evaluator_panic() {
    const SHORT: [&str; 48] = [
        "self", "oldSelf", "self.a", "self.l", "self.m", "self.t", "x", "i", "1", "-1", "0", "2u", "1.5",
        "'ä'", "b'x'", "''", "null", "true", "false", "(", ")", "[", "]", "{", "}", ",", ":", "?", ".", ".?",
        "+", "-", "*", "/", "%", "==", "!=", "<", ">=", "&&", "||", "!", " in ", "has(", "size(", ".all(x, ",
        ".map(i, ", ".split('",
    ];
    const LONG: [&str; 10] = [
        ".exists(i, x, ",
        ".substring(",
        ".lastIndexOf('', ",
        ".format([",
        "'%s%.3f%d%%'",
        "quantity('9e99')",
        "duration('9h')",
        ".indexOf(",
        ".replace('', ",
        "9223372036854775807",
    ];
    let parts = [&SHORT[..], &LONG].concat();
    let schema = |rule: &str| {
        json!({
            "type": "object", "x-kubernetes-validations": [{ "rule": rule, "messageExpression": rule }],
            "properties": {
                "a": { "type": "integer" }, "t": { "type": "string" },
                "l": { "type": "array", "items": { "type": "integer" }, "x-kubernetes-list-type": "set" },
                "m": { "type": "object", "additionalProperties": { "type": "string" } },
            },
        })
    };
    let object = json!({ "a": i64::MIN, "l": [1, 2], "m": { "k": "ä" }, "t": "ä%" });
    // SplitMix64.
    let seed = std::env::var("SEED").ok();
    let mut state: u64 = seed.map_or(1, |seed| seed.parse().unwrap());
    let mut draw = |most: usize| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % most as u64) as usize
    };
    let (mut parsed, start) = (0, std::time::Instant::now());
    let mut verdicts = String::new();
    for _ in 0..20_000 {
        let mut rule: String = (0..1 + draw(12)).map(|_| parts[draw(parts.len())]).collect();
        // Most of them are expressions with their parentheses closed.
        for (open, close) in [('[', ']'), ('(', ')')] {
            let count = |sign| rule.matches(sign).count();
            let missing = count(open).saturating_sub(count(close));
            rule.extend(std::iter::repeat_n(close, missing));
        }
        parsed += usize::from(parse(&rule).is_ok());
        let verdict = validate(&schema(&rule), &object, Some(&object));
        verdicts += &format!("{rule:?} {:?} {:?}\n", verdict.violations, verdict.left);
    }
    if let Some(file) = std::env::var_os("VERDICTS") {
        std::fs::write(file, verdicts).unwrap();
    }
    assert!(parsed > 500, "{parsed}");
    let took = start.elapsed();
    assert!(took < std::time::Duration::from_secs(60), "{took:?}");
}

#[test]
fn what_an_update_leaves_as_it_is_may_break_a_rule_also_without_an_identity() {
    let even = json!({ "type": "integer", "x-kubernetes-validations": [{ "rule": "self % 2 == 0" }] });
    for type_ in ["atomic", "set"] {
        let list = json!({ "type": "array", "x-kubernetes-list-type": type_, "items": even });
        let schema = json!({ "type": "object", "properties": { "a": list, "b": { "type": "integer" } } });
        let violations = |new: Value| {
            validate(&schema, &new, Some(&json!({ "a": [1, 2], "b": 1 })))
                .violations
                .len()
        };
        assert_eq!(violations(json!({ "a": [1, 2], "b": 2 })), 0, "{type_}");
        assert_eq!(violations(json!({ "a": [1, 4], "b": 1 })), 1, "{type_}");
        assert_eq!(violations(json!({ "a": [2, 1], "b": 1 })), 1, "{type_}");
    }
}

#[test]
fn every_operation_is_checked_at_its_bounds() {
    let least = "-9223372036854775808";
    let most = "9223372036854775807";
    let all = "18446744073709551615u";
    for (expression, error) in [
        (format!("-({least}) > 0"), "integer overflow"),
        (format!("{most} + 1 > 0"), "integer overflow"),
        (format!("{least} - 1 < 0"), "integer overflow"),
        (format!("{most} * 2 > 0"), "integer overflow"),
        (format!("{least} * -1 > 0"), "integer overflow"),
        (format!("{least} / -1 > 0"), "integer overflow"),
        (format!("{least} % -1 == 0"), "integer overflow"),
        ("1 / 0 == 0".to_owned(), "division by zero"),
        ("1 % 0 == 0".to_owned(), "modulus by zero"),
        (format!("{all} + 1u > 0u"), "unsigned integer overflow"),
        ("0u - 1u > 0u".to_owned(), "unsigned integer overflow"),
        (format!("{all} * 2u > 0u"), "unsigned integer overflow"),
        ("1u / 0u == 0u".to_owned(), "division by zero"),
        ("1u % 0u == 0u".to_owned(), "modulus by zero"),
        (format!("[{most}, 1].sum() > 0"), "integer overflow"),
        (format!("int({all}) > 0"), "integer overflow"),
        ("int(9.3e18) > 0".to_owned(), "integer overflow"),
        ("int(double('NaN')) > 0".to_owned(), "integer overflow"),
        (format!("uint({least}) > 0u"), "unsigned integer overflow"),
        ("uint(-1.0) > 0u".to_owned(), "unsigned integer overflow"),
        (
            "duration('2562047h') + duration('2562047h') > duration('0')".to_owned(),
            "integer overflow",
        ),
        (
            "duration('-2562047h') - duration('2562047h') < duration('0')".to_owned(),
            "integer overflow",
        ),
        (
            "timestamp('9999-12-31T23:59:59Z') + duration('1s') > timestamp(0)".to_owned(),
            "timestamp overflow",
        ),
        (
            "timestamp('0001-01-01T00:00:00Z') - duration('1s') < timestamp(0)".to_owned(),
            "timestamp overflow",
        ),
        (
            "timestamp('9999-12-31T23:59:59Z') - timestamp('0001-01-01T00:00:00Z') > duration('0')"
                .to_owned(),
            "integer overflow",
        ),
        (format!("timestamp({most}) > timestamp(0)"), "timestamp overflow"),
        (format!("lists.range({most}).size() > 0"), "cost limit"),
        (format!("'a'.charAt({least}) == ''"), "out of range"),
        (format!("'a'.substring({most}) == ''"), "out of range"),
        (format!("[1].slice({least}, {most}) == []"), "cannot slice"),
        (format!("[1][{most}] == 1"), "out of bounds"),
    ] {
        let verdict = one(&expression, json!({ "type": "string" }), &json!("x"));
        let found = verdict.violations.iter().chain(&verdict.left).next();
        assert!(
            found.is_some_and(|found| found.contains(error)),
            "{expression}: {verdict:?}"
        );
    }
    for right in [
        format!("{least} < 0 && {least} + {most} == -1 && {least} / 1 == {least}"),
        format!("{all} - {all} == 0u && {all} % 2u == 1u"),
        "1.0 / 0.0 > 1.0e308 && -1.0 / 0.0 < 0.0".to_owned(),
        format!("'a'.replace('a', 'b', {least}) == 'b' && 'a,b'.split(',', {least}).size() == 2"),
        format!(
            "'%d %d %x'.format([{least}, {all}, {least}]) == '{least} 18446744073709551615 -8000000000000000'"
        ),
        "duration('-9223372036.854775808s').getMilliseconds() == -9223372036854".to_owned(),
    ] {
        let verdict = one(&right, json!({ "type": "string" }), &json!("x"));
        assert_eq!(verdict, RuleVerdict::default(), "{right}");
    }
}

#[test]
fn a_rule_of_the_wrong_types_is_refused_with_its_definition() {
    let spec = json!({ "type": "object", "properties": {
        "a": { "type": "integer" },
        "s": { "type": "string" },
        "p": { "x-kubernetes-int-or-string": true },
        "any": { "x-kubernetes-preserve-unknown-fields": true },
        "d-e": { "type": "integer" },
        "l": { "type": "array", "items": { "type": "string" } },
        "nets": { "type": "array", "items": { "type": "object", "properties": { "IP": { "type": "string" } } } },
        "o": { "type": "object", "properties": { "x": { "type": "integer" } } },
        "t": { "type": "string", "format": "date-time" },
    } });
    let problems = |rule: Value| {
        let mut spec = spec.clone();
        spec["x-kubernetes-validations"] = json!([rule]);
        problems(&json!({ "type": "object", "properties": { "spec": spec } }), "")
    };
    for right in [
        "self.a > 1 && self.s.startsWith('x')",
        "type(self.p) == int ? self.p < 5 : self.p.endsWith('%')",
        "self.d__dash__e == self.a",
        "self.l.all(x, x.size() < self.a) && self.l.map(x, x + 'y') == ['ay']",
        "has(self.o.x) && self.?o.?x.orValue(0) == 1",
        "self.nets.all(net, has(net.IP))",
        "self.t > timestamp('2020-01-01T00:00:00Z') && self.t.getFullYear() == 2021",
        "!has(oldSelf.a) || self.a >= oldSelf.a",
        "self.o == oldSelf.o",
        "semver(self.s).isGreaterThan(semver('1.0.0'))",
        "format.dns1123Label().validate(self.s).hasValue()",
        "self.l.sortBy(x, x)[0] == 'a'",
        "dyn(self.l)[0] == 'a' && dyn({'k': [1]}).k[0] == 1",
        "self.a == self.p",
    ] {
        assert_eq!(problems(json!({ "rule": right })), [], "{right}");
    }
    for (wrong, why) in [
        ("self.a", "must be of type bool"),
        ("self.nope == 1", "undefined field 'nope'"),
        ("self.any == 1", "undefined field 'any'"),
        ("self.a == 1.0", "found no matching overload"),
        ("self.s > 5", "found no matching overload"),
        ("self.a.size() == 1", "found no matching overload"),
        ("self.o == {}", "found no matching overload"),
        ("self['a'] == 1", "found no matching overload"),
        ("self.l == [1]", "found no matching overload"),
        ("self.l.all(x, x)", "not 'bool'"),
        ("self.l.all(net.IP, true)", "undeclared reference to 'all'"),
        ("self.a.all(x, true)", "of type 'int'"),
        ("self.s.matches('(')", "missing closing )"),
        ("self.s.shout() == ''", "undeclared reference to 'shout'"),
        ("math.least(1, 2) == 1", "undeclared reference"),
        ("nope == 1", "undeclared reference to 'nope'"),
        ("self.`d-e` == 1", "is no expression"),
        ("[1, 'a'].size() == 2", "expected type 'int' but found 'string'"),
        ("duration('1d') > duration('1s')", "type conversion error"),
        ("'%d'.format([self.s]) == ''", "%d takes no string"),
        ("self.a > 0 ? self.s : self.a == 1", "found no matching overload"),
    ] {
        let problems = problems(json!({ "rule": wrong }));
        assert!(
            problems.len() == 1 && problems[0].1.contains(why),
            "{wrong}: {problems:?}"
        );
    }
    let message = json!({ "rule": "self.a > 1", "messageExpression": "self.a" });
    assert!(problems(message)[0].1.contains("must be of type string"));
    let optional = json!({ "rule": "self.a > 1", "optionalOldSelf": true });
    assert!(problems(optional)[0].1.contains("does not use oldSelf"));
}

#[test]
fn the_types_of_the_deepest_and_the_longest_expression_are_checked_soon() {
    let begin = Instant::now();
    let repeated =
        |open: &str, close: &str, count: usize| format!("{}'x'{}", open.repeat(count), close.repeat(count));
    for rule in [
        format!("{} == ''", repeated("'%s'.format([[", "]])", 23)),
        format!("{} != []", repeated("[", "]", 94)),
        format!("{} == 'x'", repeated("dyn(", ")", 94)),
        vec!["self.size() + 1 > 2 * self.size()"; 850].join(" || "),
        format!("[{}] != []", vec!["self + 'x'"; 2_000].join(",")),
    ] {
        let schema = json!({ "type": "string", "x-kubernetes-validations": [{ "rule": rule }] });
        let schema = json!({ "type": "object", "properties": { "a": schema } });
        assert_eq!(problems(&schema, ""), [], "{rule:.60}");
    }
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
}
