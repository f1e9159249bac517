use operator_plugin::testing::{Case, Outcome};
use operator_plugin::{Failure, Object, json};

use super::{EXTERNAL, PLUGIN};

fn sample() -> Case {
    Case::new(include_str!("../sample.yaml"))
}

fn external(outcome: &Outcome) -> Object {
    let names = outcome.names_of(EXTERNAL);
    assert_eq!(names.len(), 1, "{names:?}");
    outcome.child(EXTERNAL, names[0])
}

fn contents(case: &Case) -> Vec<String> {
    let external = external(&case.run(&PLUGIN).unwrap());
    let records: Vec<operator_plugin::Value> = external.parse("/spec/set/body/rrsets/0/records").unwrap();
    assert_eq!(
        external.get("/spec/matches/rrsets/0/records"),
        Some(&json!(records))
    );
    let content = |record: &operator_plugin::Value| record["content"].as_str().unwrap().to_owned();
    records.iter().map(content).collect()
}

#[test]
fn a_record_is_observed_set_and_unset() {
    let outcome = sample().run(&PLUGIN).unwrap();
    assert_eq!(outcome.status["name"], "www.example.com");
    let external = external(&outcome);
    let records = json!([{ "content": "192.0.2.7", "disabled": false }]);
    let send =
        |rrset| json!({ "method": "PATCH", "path": "/zones/example.com", "body": { "rrsets": [rrset] } });
    let expected = json!({
        "endpoint": "dns",
        "observe": { "path": "/zones/example.com?rrset_name=www.example.com.&rrset_type=A" },
        "matches": { "rrsets": [{ "ttl": 300, "records": records }] },
        "set": send(json!({
            "name": "www.example.com.", "type": "A", "changetype": "REPLACE", "ttl": 300, "records": records,
        })),
        "unset": send(json!({ "name": "www.example.com.", "type": "A", "changetype": "DELETE" })),
        "every": "60s",
    });
    assert_eq!(external.get("/spec"), Some(&expected));
}

#[test]
fn another_value_is_the_same_external_and_another_name_zone_or_type_is_another_one() {
    let name = |case: Case| external(&case.run(&PLUGIN).unwrap()).name().to_owned();
    let first = name(sample());
    assert_eq!(name(sample().set("/spec/values", json!(["192.0.2.8"]))), first);
    assert_eq!(name(sample().set("/spec/ttl", 60)), first);
    for (path, value) in [
        ("name", json!("ftp")),
        ("zone", json!("example.org")),
        ("type", json!("TXT")),
    ] {
        assert_ne!(
            name(sample().set(&format!("/spec/{path}"), value)),
            first,
            "{path}"
        );
    }
}

#[test]
fn without_a_name_it_is_of_the_zone_itself() {
    let outcome = sample().set("/spec/name", json!(null)).run(&PLUGIN).unwrap();
    assert_eq!(outcome.status["name"], "example.com");
    let path = external(&outcome)
        .text("/spec/set/body/rrsets/0/name")
        .map(str::to_owned);
    assert_eq!(path.as_deref(), Some("example.com."));
}

#[test]
fn values_have_the_form_in_which_powerdns_returns_them_and_each_is_there_once() {
    for (type_, values, expected) in [
        ("A", json!(["192.0.2.7", "192.0.2.7"]), vec!["192.0.2.7"]),
        (
            "AAAA",
            json!(["2001:DB8:0:0::7", "2001:db8::7"]),
            vec!["2001:db8::7"],
        ),
        ("CNAME", json!(["shop.example.net"]), vec!["shop.example.net."]),
        ("CNAME", json!(["shop.example.net."]), vec!["shop.example.net."]),
        ("TXT", json!([r#"say "a\b""#]), vec![r#""say \"a\\b\"""#]),
    ] {
        let case = sample().set("/spec/type", type_).set("/spec/values", values);
        assert_eq!(contents(&case), expected, "{type_}");
    }
}

#[test]
fn what_powerdns_would_refuse_is_refused_with_its_field() {
    for (type_, values, words) in [
        (
            "A",
            json!(["192.0.2.7", "2001:db8::7"]),
            "spec.values[1]: \"2001:db8::7\" is no IPv4 address",
        ),
        (
            "AAAA",
            json!(["192.0.2.7"]),
            "spec.values[0]: \"192.0.2.7\" is no IPv6 address",
        ),
        (
            "CNAME",
            json!(["a.example.com", "b.example.com"]),
            "spec.values: a CNAME",
        ),
        (
            "CNAME",
            json!(["not a name"]),
            "spec.values[0]: \"not a name\" is no name",
        ),
    ] {
        match sample()
            .set("/spec/type", type_)
            .set("/spec/values", values)
            .run(&PLUGIN)
        {
            Err(Failure::Invalid(invalid)) => assert!(invalid.message.contains(words), "{}", invalid.message),
            other => panic!("{type_}: {other:?}"),
        }
    }
}
