//! Generates values that a structural schema allows. Equal seeds give equal values.

use regex_syntax::hir::{Class, Hir, HirKind};
use serde_json::{Map, Value, json};

/// How deep values are nested.
const DEPTH: usize = 12;
/// How often an unlimited repetition is repeated at most.
const REPEATS: u64 = 4;

pub(super) struct Generator {
    state: u64,
}

impl Generator {
    pub(super) const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Draws a number up to and including `most`: SplitMix64, <https://prng.di.unimi.it/splitmix64.c>.
    fn draw(&mut self, most: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % most.saturating_add(1).max(1)
    }

    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.draw(most.saturating_sub(least))
    }

    /// Returns a value of this schema, with its defaults, as the API server stores it.
    pub(super) fn value(&mut self, schema: &Value) -> Value {
        self.within(schema, DEPTH)
    }

    fn within(&mut self, schema: &Value, depth: usize) -> Value {
        if let Some(Value::Array(allowed)) = schema.get("enum") {
            return self.pick(allowed).cloned().unwrap_or_default();
        }
        if schema["x-kubernetes-int-or-string"] == true {
            return match self.draw(1) {
                0 => self.between(0, 100).into(),
                _ => format!("{}%", self.draw(100)).into(),
            };
        }
        match schema["type"].as_str() {
            Some("object") => self.object(schema, depth),
            Some("array") => {
                let least = schema["minItems"].as_u64().unwrap_or_default();
                let most = schema["maxItems"].as_u64().unwrap_or(least + 3).min(least + 3);
                let count = match depth {
                    0 => least,
                    _ => self.between(least, most),
                };
                let items = (0..count).map(|_| self.within(&schema["items"], depth.saturating_sub(1)));
                items.collect()
            }
            Some("string") => self.text(schema).into(),
            Some("boolean") => (self.draw(1) == 1).into(),
            Some("integer") => self.integer(schema).into(),
            Some("number") => json!(self.integer(schema) as f64 + 0.5),
            _ => json!({ "anything": self.draw(9) }),
        }
    }

    fn object(&mut self, schema: &Value, depth: usize) -> Value {
        let mut fields = Map::new();
        let mut required: Vec<&Value> = schema["required"].as_array().into_iter().flatten().collect();
        // An alternative of a tagged enum: which of the fields are there.
        let alternatives = schema["oneOf"].as_array().or(schema["anyOf"].as_array());
        let alternative = alternatives.and_then(|all| self.pick(all)).cloned();
        let chosen = alternative.as_ref().map(|chosen| &chosen["properties"]);
        let more = alternative.as_ref().and_then(|it| it["required"].as_array());
        required.extend(more.into_iter().flatten());
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let is_required = required.iter().any(|required| *required == name);
            let is_chosen = alternative.is_none() || is_required;
            let narrower = chosen.and_then(|chosen| chosen.get(name));
            if let Some(narrower) = narrower.filter(|it| it.get("enum").is_some()) {
                fields.insert(name.clone(), self.within(narrower, depth));
            } else if is_required || (is_chosen && depth > 0 && self.draw(1) == 1) {
                fields.insert(name.clone(), self.within(property, depth.saturating_sub(1)));
            } else if let Some(default) = property.get("default") {
                fields.insert(name.clone(), default.clone());
            }
        }
        if let Some(values @ Value::Object(_)) = schema.get("additionalProperties") {
            for index in 0..self.draw(2) {
                let value = self.within(values, depth.saturating_sub(1));
                fields.insert(format!("key-{index}"), value);
            }
        }
        Value::Object(fields)
    }

    fn integer(&mut self, schema: &Value) -> i64 {
        let least = schema["minimum"].as_f64().map_or(0, |least| least as i64);
        let most = schema["maximum"].as_f64();
        let most = most.map_or(least.saturating_add(1000), |most| most as i64);
        let step = schema["multipleOf"]
            .as_f64()
            .map_or(1, |step| (step as i64).max(1));
        let span = u64::try_from(most.saturating_sub(least)).unwrap_or_default();
        let number = least.saturating_add(i64::try_from(self.draw(span)).unwrap_or_default());
        let up = number + (step - number.rem_euclid(step)) % step;
        if up > most { up - step } else { up }
    }

    fn text(&mut self, schema: &Value) -> String {
        let least = schema["minLength"].as_u64().unwrap_or_default();
        let most = schema["maxLength"].as_u64().unwrap_or(least + 8);
        if let Some(pattern) = schema["pattern"].as_str()
            && let Ok(pattern) = regex_syntax::parse(pattern)
        {
            let mut text = String::new();
            self.matching(&pattern, &mut text);
            return text;
        }
        if schema["format"] == "date-time" {
            return format!("2026-01-02T03:04:{:02}Z", self.draw(59));
        }
        let length = self.between(least, most.min(least + 8));
        let letters = (0..length).map(|_| char::from(b'a' + self.draw(25) as u8));
        letters.collect()
    }

    /// Appends a text that matches.
    fn matching(&mut self, pattern: &Hir, text: &mut String) {
        match pattern.kind() {
            HirKind::Empty | HirKind::Look(_) => {}
            HirKind::Literal(literal) => text.push_str(&String::from_utf8_lossy(&literal.0)),
            HirKind::Class(Class::Unicode(class)) => {
                let ranges: Vec<_> = class.iter().collect();
                if let Some(range) = self.pick(&ranges) {
                    let (start, end) = (u32::from(range.start()), u32::from(range.end()).min(0x7e));
                    let code = self.between(start.into(), end.max(start).into());
                    text.extend(u32::try_from(code).ok().and_then(char::from_u32));
                }
            }
            HirKind::Class(Class::Bytes(_)) => {}
            HirKind::Repetition(repetition) => {
                let least = u64::from(repetition.min);
                let most = repetition.max.map_or(u64::MAX, u64::from).min(least + REPEATS);
                for _ in 0..self.between(least, most) {
                    self.matching(&repetition.sub, text);
                }
            }
            HirKind::Capture(capture) => self.matching(&capture.sub, text),
            HirKind::Concat(parts) => parts.iter().for_each(|part| self.matching(part, text)),
            HirKind::Alternation(parts) => {
                if let Some(part) = self.pick(parts) {
                    self.matching(part, text);
                }
            }
        }
    }

    fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let last = u64::try_from(items.len()).ok()?.checked_sub(1)?;
        items.get(usize::try_from(self.draw(last)).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_allowed_by_the_schema_and_repeatable() {
        let schema = json!({
            "type": "object", "required": ["size", "mode"],
            "properties": {
                "size": { "type": "string", "pattern": "^[1-9][0-9]{0,2}(Ki|Mi)?$" },
                "mode": { "type": "string", "enum": ["a", "b"] },
                "replicas": { "type": "integer", "minimum": 2, "maximum": 9, "multipleOf": 3 },
                "list": { "type": "array", "items": { "type": "boolean" }, "maxItems": 2 },
                "with-default": { "type": "integer", "default": 7 },
            },
        });
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..100 {
            let value = Generator::new(seed).value(&schema);
            assert_eq!(value, Generator::new(seed).value(&schema));
            let size = value["size"].as_str().unwrap();
            let digits = size.trim_end_matches("Ki").trim_end_matches("Mi");
            assert!((1..=999).contains(&digits.parse::<u32>().unwrap()), "{size}");
            assert!(value["mode"] == "a" || value["mode"] == "b");
            assert!(
                value["replicas"]
                    .as_i64()
                    .is_none_or(|it| [3, 6, 9].contains(&it)),
                "{value}"
            );
            assert!(value["list"].as_array().is_none_or(|list| list.len() <= 2));
            assert!(value["with-default"].is_i64() || value["with-default"].is_u64());
            seen.insert(value.to_string());
        }
        assert!(seen.len() > 50, "{}", seen.len());
    }
}
