//! Quantities of resources, such as `10Gi` and `500m`.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

/// A Kubernetes quantity: a decimal number with a suffix, such as `10Gi`, `500m`, `1.5` or `2e3`.
///
/// Compared by value (`1Gi` equals `1024Mi`), displayed as written.
#[derive(Clone, Debug)]
pub struct Quantity {
    text: String,
    /// In billionths, the finest unit that Kubernetes keeps, rounded up.
    nanos: i128,
}

impl Quantity {
    /// Reports whether it is greater than zero.
    #[must_use]
    pub fn is_positive(&self) -> bool {
        self.nanos > 0
    }

    /// Returns the value in whole units, such as bytes, rounded up.
    #[must_use]
    pub fn value(&self) -> i128 {
        const ONE: i128 = 1_000_000_000;
        self.nanos.div_euclid(ONE) + i128::from(self.nanos.rem_euclid(ONE) != 0)
    }
}

/// A text that is not a [`Quantity`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidQuantity(String);

impl fmt::Display for InvalidQuantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"")?;
        f.write_str(&self.0)?;
        f.write_str("\" is not a quantity; expected a value such as 10Gi or 500m")
    }
}

impl std::error::Error for InvalidQuantity {}

impl FromStr for Quantity {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, InvalidQuantity> {
        match nanos(text) {
            Some(nanos) => Ok(Self {
                text: text.to_owned(),
                nanos,
            }),
            None => Err(InvalidQuantity(text.to_owned())),
        }
    }
}

/// Returns the value of a quantity; `None` when the text is not one, or is unreasonably large.
fn nanos(text: &str) -> Option<i128> {
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = unsigned
        .find(|c: char| c != '.' && !c.is_ascii_digit())
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let (multiplier, parts) = factor(suffix)?;

    let mut mantissa: i128 = 0;
    for digit in whole.bytes().chain(fraction.bytes()) {
        mantissa = mantissa.checked_mul(10)?.checked_add(i128::from(digit - b'0'))?;
    }
    let mut divisor = 10_i128
        .checked_pow(u32::try_from(fraction.len()).ok()?)?
        .checked_mul(parts)?;
    // Reduced, so that the digits of a fraction do not take the room of a large suffix, as in 0.123456789012E.
    let mut multiplier = multiplier;
    while divisor % 10 == 0 && multiplier % 10 == 0 {
        (divisor, multiplier) = (divisor / 10, multiplier / 10);
    }
    let scaled = mantissa.checked_mul(multiplier)?;
    let nanos = scaled / divisor + i128::from(scaled % divisor != 0);
    Some(if negative { -nanos } else { nanos })
}

/// Returns the value of a suffix in billionths, as a numerator and a denominator, since `1e-10` is less than one.
fn factor(suffix: &str) -> Option<(i128, i128)> {
    const ONE: i128 = 1_000_000_000;
    let decimal = |power: u32| ONE.checked_mul(10_i128.checked_pow(power)?);
    let binary = |power: u32| ONE.checked_mul(1024_i128.checked_pow(power)?);
    let whole = match suffix {
        "n" => Some(1),
        "u" => Some(1_000),
        "m" => Some(1_000_000),
        "" => Some(ONE),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            match u32::try_from(exponent) {
                Ok(power) => decimal(power),
                Err(_) => return Some((ONE, 10_i128.checked_pow(exponent.unsigned_abs())?)),
            }
        }
    };
    Some((whole?, 1))
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantity(text: &str) -> Quantity {
        text.parse().unwrap()
    }

    #[test]
    fn quantities_compare_by_value() {
        for (smaller, larger) in [
            ("10Gi", "12Gi"),
            ("500m", "1"),
            ("1G", "1Gi"),
            ("0.5", "501m"),
            ("-1", "0"),
        ] {
            assert!(quantity(smaller) < quantity(larger), "{smaller} < {larger}");
        }
        for (one, other) in [
            ("1Gi", "1024Mi"),
            ("1Ki", "1024"),
            ("1.5", "1500m"),
            ("2e3", "2k"),
            ("1E", "1e18"),
            ("10e-1", "1"),
            // Fractions below Kubernetes' precision are rounded up.
            ("1e-10", "1n"),
            ("15e-10", "2n"),
            ("0.5e-9", "1n"),
        ] {
            assert_eq!(quantity(one), quantity(other));
        }
    }

    #[test]
    fn a_fraction_may_have_a_large_suffix() {
        assert_eq!(quantity(".2008000000432E"), quantity("200800000043200000"));
    }

    #[test]
    fn a_value_is_in_whole_units_rounded_up() {
        for (text, value) in [("1Ki", 1024), ("1500m", 2), ("-1500m", -1), ("0", 0)] {
            assert_eq!(quantity(text).value(), value, "{text}");
        }
    }

    #[test]
    fn a_quantity_shows_as_it_was_written() {
        assert_eq!(quantity("1024Mi").to_string(), "1024Mi");
    }

    #[test]
    fn what_is_no_quantity_is_refused() {
        for text in [
            "", "Gi", ".", "1.2.3", "10 Gi", "10gi", "1e", "ten", "--1", "1e99", "1Ki1",
        ] {
            assert_eq!(
                text.parse::<Quantity>(),
                Err(InvalidQuantity(text.to_owned())),
                "{text}"
            );
        }
    }
}
