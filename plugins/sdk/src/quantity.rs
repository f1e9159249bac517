//! Quantities of resources, such as `10Gi` and `500m`.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use operator_host_schema::quantity::Quantity as Number;

/// A Kubernetes quantity: a decimal number with a suffix, such as `10Gi`, `500m`, `1.5` or `2e3`.
///
/// Compared by value (`1Gi` equals `1024Mi`), displayed as written.
#[derive(Clone, Debug)]
pub struct Quantity {
    text: String,
    number: Number,
    whole: i128,
}

impl Quantity {
    /// Reports whether it is greater than zero.
    #[must_use]
    pub const fn is_positive(&self) -> bool {
        self.number.sign() > 0
    }

    /// Returns the value in whole units, such as bytes, rounded up.
    #[must_use]
    pub const fn value(&self) -> i128 {
        self.whole
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
        let invalid = || InvalidQuantity(text.to_owned());
        // The API server's own parser accepts a suffix alone.
        let digits = text.trim_start_matches(['+', '-', '.']);
        let number = Number::parse(text).filter(|_| digits.starts_with(|c: char| c.is_ascii_digit()));
        let number = number.ok_or_else(invalid)?;
        Ok(Self {
            text: text.to_owned(),
            number,
            whole: number.rounded_up().ok_or_else(invalid)?,
        })
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
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
        self.number.compare(&other.number)
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
            (".2008000000432E", "200800000043200000"),
        ] {
            assert_eq!(quantity(one), quantity(other));
        }
    }

    #[test]
    fn a_value_is_in_whole_units_rounded_up_and_a_quantity_shows_as_it_was_written() {
        for (text, value) in [("1Ki", 1024), ("1500m", 2), ("-1500m", -1), ("0", 0)] {
            assert_eq!(quantity(text).value(), value, "{text}");
            assert_eq!(quantity(text).to_string(), text);
        }
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
