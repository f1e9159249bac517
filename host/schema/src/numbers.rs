//! Numbers as the API server sees them: integers of 64 bits, and all others as floating-point numbers.

use serde_json::Value;

/// A number of a resource.
#[derive(Clone, Copy, PartialEq)]
enum Number {
    Integer(i64),
    Float(f64),
}

/// The largest integer that the API server takes from a floating-point number, such as `1e3`.
const LARGEST: f64 = 9_007_199_254_740_991.0;

impl Number {
    fn of(value: &Value) -> Option<Self> {
        let number = value.as_number()?;
        number
            .as_i64()
            .map(Self::Integer)
            .or_else(|| number.as_f64().map(Self::Float))
    }

    const fn float(self) -> f64 {
        match self {
            Self::Integer(value) => value as f64,
            Self::Float(value) => value,
        }
    }
}

/// Whether a value is an integer, such as `1` or `1.0`.
pub(super) fn is_integer(value: &Value) -> bool {
    match Number::of(value) {
        Some(Number::Integer(_)) => true,
        Some(Number::Float(value)) => value.fract() == 0.0 && value.abs() <= LARGEST,
        None => false,
    }
}

/// Whether a value is this one of an `enum`. The API server makes a number of the type of the other one.
pub(super) fn is_enum_value(value: &Value, allowed: &Value) -> bool {
    match (Number::of(value), Number::of(allowed)) {
        (Some(Number::Float(value)), Some(Number::Integer(allowed))) => value as i64 == allowed,
        (Some(value), Some(Number::Float(allowed))) => value.float() == allowed,
        _ => value == allowed,
    }
}

/// Whether a schema's type and format have a number.
fn fits(number: Number, schema: &Value) -> bool {
    // Kubernetes' own quantities have no type.
    if schema["type"].is_null() && schema["x-kubernetes-int-or-string"] != true {
        return true;
    }
    if schema["type"] == "number" {
        return schema["format"] != "float" || (number.float() as f32).is_finite();
    }
    let value = number.float();
    match (&schema["format"], number) {
        (format, _) if format == "int32" && schema["type"] == "integer" => {
            value.fract() == 0.0 && (-2_147_483_648.0..=2_147_483_647.0).contains(&value)
        }
        (_, Number::Integer(_)) => true,
        (_, Number::Float(value)) => value.fract() == 0.0 && value.abs() < 9_223_372_036_854_775_808.0,
    }
}

/// Checks the rules for numbers. A limit that the type cannot have is a problem of every value.
pub(super) fn check(value: &Value, schema: &Value, wrong: &mut impl FnMut(String)) {
    let Some(number) = Number::of(value) else {
        return;
    };
    if !fits(number, schema) {
        let format = schema["format"].as_str().unwrap_or("int64");
        wrong(format!("{value} does not fit the format {format}"));
    }
    let mut limit = |name: &str, label: &str, is_kept: &dyn Fn(Number, Number) -> bool, words: &str| {
        let Some(limit) = Number::of(&schema[name]) else {
            return;
        };
        if !fits(limit, schema) {
            wrong(format!(
                "the schema's {name} {} is not of its type, so no value is valid",
                schema[name]
            ));
        }
        // The API server cuts a limit off for an integer.
        let limit = match (number, limit) {
            (Number::Integer(_), Number::Float(of)) if fits(limit, schema) => Number::Integer(of as i64),
            _ => limit,
        };
        if !is_kept(number, limit) {
            wrong(format!("{value} {words} {} ({label})", schema[name]));
        }
    };
    let less = |a: Number, b: Number, or_equal: bool| match (a, b) {
        (Number::Integer(a), Number::Integer(b)) => a < b || or_equal && a == b,
        _ => a.float() < b.float() || or_equal && a.float() == b.float(),
    };
    let inclusive = |name: &str| schema[name] != true;
    let (least, most) = (inclusive("exclusiveMinimum"), inclusive("exclusiveMaximum"));
    let words = |inclusive: bool, yes: &'static str, no: &'static str| if inclusive { yes } else { no };
    limit(
        "minimum",
        words(least, "minimum", "exclusiveMinimum"),
        &|number, limit| less(limit, number, least),
        words(least, "is less than", "must be greater than"),
    );
    limit(
        "maximum",
        words(most, "maximum", "exclusiveMaximum"),
        &|number, limit| less(number, limit, most),
        words(most, "is greater than", "must be less than"),
    );
    limit("multipleOf", "multipleOf", &is_multiple, "is not a multiple of");
}

fn is_multiple(number: Number, of: Number) -> bool {
    match (number, of) {
        (Number::Integer(number), Number::Integer(of)) => of > 0 && number % of == 0,
        _ => {
            let (number, of) = (number.float(), of.float());
            let quotient = if of < 1.0 { 1.0 / of * number } else { number / of };
            of > 0.0 && quotient.abs() <= LARGEST && is_nearly_integer(quotient)
        }
    }
}

/// Whether a quotient is an integer but for what computing it has lost.
fn is_nearly_integer(value: f64) -> bool {
    let difference = (value - value.round()).abs();
    difference == 0.0 || difference / (value.abs() + value.round().abs()) < 1e-9
}
