//! Quantities of Kubernetes, such as `1.5Gi`, as its own package for them reads and computes them.
//!
//! Source: <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>.

use std::cmp::Ordering;

use serde_json::Value;

/// A quantity as a decimal number. A text of at most 18 digits is `short`: only such a number can be an integer.
#[derive(Clone, Copy, Debug)]
pub struct Quantity {
    /// The digits, of which `places` are after the point. A negative number of places stands for zeros before it.
    digits: i128,
    places: i32,
    short: bool,
}

/// Writes the quantities of a value in one form, so that values with equal quantities are equal: `1`, `"1"` and `"1000m"`. They
/// are where the schema allows a number or a text.
pub fn unify_quantities(value: &mut Value, schema: &Value) {
    if schema["x-kubernetes-int-or-string"] == true {
        let quantity = match value {
            Value::Number(number) => Quantity::parse(&number.to_string()),
            Value::String(text) => Quantity::parse(text),
            _ => None,
        };
        if let Some(quantity) = quantity {
            *value = quantity.in_one_form().into();
        }
        return;
    }
    match value {
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| unify_quantities(item, &schema["items"])),
        Value::Object(fields) => {
            for (name, field) in fields {
                let property = schema["properties"].get(name);
                unify_quantities(field, property.unwrap_or(&schema["additionalProperties"]));
            }
        }
        _ => {}
    }
}

/// The places of the smallest quantity.
const NANO: i32 = 9;
/// Digits of a short number.
const SHORT: i32 = 18;

/// The parts of a text that is a quantity.
struct Parts<'t> {
    negative: bool,
    whole: &'t str,
    fraction: &'t str,
    /// A power of ten.
    power: i64,
    /// A power of two.
    shift: i32,
}

impl<'t> Parts<'t> {
    fn of(text: &'t str) -> Option<Self> {
        let (negative, unsigned) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let end = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (whole, rest) = unsigned.split_at(end(unsigned));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(end(rest)),
            None => ("", rest),
        };
        let (power, shift) = match suffix {
            "n" => (-9, 0),
            "u" => (-6, 0),
            "m" => (-3, 0),
            "" => (0, 0),
            "k" => (3, 0),
            "M" => (6, 0),
            "G" => (9, 0),
            "T" => (12, 0),
            "P" => (15, 0),
            "E" => (18, 0),
            "Ki" => (0, 10),
            "Mi" => (0, 20),
            "Gi" => (0, 30),
            "Ti" => (0, 40),
            "Pi" => (0, 50),
            "Ei" => (0, 60),
            _ => (suffix.strip_prefix(['e', 'E'])?.parse().ok()?, 0),
        };
        Some(Self {
            negative,
            whole: whole.trim_start_matches('0'),
            fraction,
            power,
            shift,
        })
    }
}

impl Quantity {
    /// Returns a text that equal quantities share.
    fn in_one_form(mut self) -> String {
        while self.digits != 0 && self.digits % 10 == 0 {
            (self.digits, self.places) = (self.digits / 10, self.places - 1);
        }
        let exponent = if self.digits == 0 { 0 } else { -self.places };
        format!("{}e{exponent}", self.digits)
    }

    /// Reports whether a text is a quantity.
    #[must_use]
    pub fn is_text_of_one(text: &str) -> bool {
        Parts::of(text).is_some()
    }

    /// Parses a quantity; `None` if the text is none, or too long for 128 bits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let Parts {
            negative,
            whole,
            fraction,
            power,
            shift,
        } = Parts::of(text)?;
        let power = i32::try_from(power).ok().filter(|power| power.abs() < 100_000)?;
        let (whole, of_fraction) = (if whole.is_empty() { "0" } else { whole }, fraction.len());
        let count = i32::try_from(whole.len() + of_fraction).ok()?;
        let mut places = i32::try_from(of_fraction).ok()? - power;
        let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
        let is_short = match shift {
            0 => count <= SHORT && places <= NANO,
            // A power of two has about three digits for ten bits, and takes no fraction here.
            _ => of_fraction == 0 && 15 - count - shift * 3 / 10 > 0,
        };
        let mut digits = digits.checked_mul(1 << shift)?;
        if is_short && shift > 0 {
            // Its product fits 64 bits.
            places = 0;
        }
        if !is_short {
            // What is smaller than the smallest is rounded away from zero, and powers of two end with 64 bits.
            if places > NANO {
                let by = 10_i128.checked_pow((places - NANO).unsigned_abs());
                digits = by.map_or(i128::from(digits != 0), |by| {
                    digits / by + i128::from(digits % by != 0)
                });
                places = NANO;
            }
            let most = Self::of(i64::MAX);
            if shift > 0
                && (Self {
                    digits,
                    places,
                    short: false,
                })
                .compare(&most)
                    == Ordering::Greater
            {
                (digits, places) = (most.digits, most.places);
            }
        }
        let digits = if negative { -digits } else { digits };
        Some(Self {
            digits,
            places,
            short: is_short,
        })
    }

    /// Returns the quantity of an integer.
    #[must_use]
    pub fn of(value: i64) -> Self {
        Self {
            digits: value.into(),
            places: 0,
            short: true,
        }
    }

    /// Returns the sum; `None` if it has too many digits for 128 bits.
    #[must_use]
    pub fn plus(self, other: Self) -> Option<Self> {
        let places = self.places.max(other.places);
        let digits = self.at(places)?.checked_add(other.at(places)?)?;
        let short = self.short && other.short && i64::try_from(digits).is_ok();
        Some(Self {
            digits,
            places,
            short,
        })
    }

    /// Returns the difference; `None` if it has too many digits for 128 bits.
    #[must_use]
    pub fn minus(self, other: Self) -> Option<Self> {
        self.plus(Self {
            digits: other.digits.checked_neg()?,
            ..other
        })
    }

    /// Returns the digits with more places.
    fn at(self, places: i32) -> Option<i128> {
        if self.digits == 0 {
            return Some(0);
        }
        let by = 10_i128.checked_pow(u32::try_from(places - self.places).ok()?)?;
        self.digits.checked_mul(by)
    }

    /// Returns the value if it is written as an integer of 64 bits.
    #[must_use]
    pub fn integer(self) -> Option<i64> {
        (self.short && self.places <= 0).then(|| i64::try_from(self.at(0)?).ok())?
    }

    /// Returns the value in whole units, rounded up; `None` if it has too many digits for 128 bits.
    #[must_use]
    pub fn rounded_up(self) -> Option<i128> {
        let Ok(places) = u32::try_from(self.places) else {
            return self.at(0);
        };
        let by = 10_i128.checked_pow(places)?;
        Some(self.digits.div_euclid(by) + i128::from(self.digits.rem_euclid(by) != 0))
    }

    /// Returns the nearest floating-point number.
    #[must_use]
    pub fn float(self) -> f64 {
        // The nearest number to a text is that of the text.
        format!("{}e{}", self.digits, -i64::from(self.places))
            .parse()
            .unwrap_or_default()
    }

    /// Returns -1, 0 or 1.
    #[must_use]
    pub const fn sign(self) -> i64 {
        self.digits.signum() as i64
    }

    /// Compares the values.
    #[must_use]
    pub fn compare(&self, other: &Self) -> Ordering {
        let sign = self.sign().cmp(&other.sign());
        if sign != Ordering::Equal || self.digits == 0 {
            return sign;
        }
        let places = self.places.max(other.places);
        match (self.at(places), other.at(places)) {
            (Some(a), Some(b)) => a.cmp(&b),
            // The one that does not fit is farther from zero. Of the other, this is the number of places.
            (None, _) => self.sign().cmp(&0),
            (_, None) => 0.cmp(&other.sign()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_at_the_bounds_are_checked() {
        let most = Quantity {
            digits: i128::MAX,
            places: 0,
            short: false,
        };
        let least = Quantity {
            digits: i128::MIN,
            ..most
        };
        assert!(most.plus(Quantity::of(1)).is_none() && Quantity::of(-2).minus(most).is_none());
        assert!(least.minus(least).is_none());
        assert_eq!(
            Quantity::of(i64::MAX).plus(Quantity::of(1)).unwrap().integer(),
            None
        );
    }

    #[test]
    fn equal_quantities_become_equal_where_the_schema_has_them_and_nowhere_else() {
        use serde_json::json;

        let quantity = json!({ "x-kubernetes-int-or-string": true });
        let schema = json!({ "properties": {
            "limits": { "additionalProperties": quantity }, "list": { "items": { "properties": { "size": quantity } } }, "text": { "type": "string" },
        } });
        let same = |a: Value, b: Value| {
            let [a, b] = [a, b].map(|mut value| {
                unify_quantities(&mut value, &schema);
                value
            });
            a == b
        };
        assert!(same(
            json!({ "limits": { "cpu": 1, "x": 0.5 } }),
            json!({ "limits": { "cpu": "1000m", "x": "500m" } })
        ));
        assert!(same(
            json!({ "list": [{ "size": "1Gi" }] }),
            json!({ "list": [{ "size": "1024Mi" }] })
        ));
        assert!(!same(
            json!({ "limits": { "cpu": 1 } }),
            json!({ "limits": { "cpu": "1001m" } })
        ));
        assert!(!same(
            json!({ "list": [{ "size": "50%" }] }),
            json!({ "list": [{ "size": "0.5" }] })
        ));
        assert!(!same(json!({ "text": "1" }), json!({ "text": "1.0" })));
    }
}
