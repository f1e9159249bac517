//! Quantities of Kubernetes, such as `1.5Gi`.
//!
//! Source: <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>.

/// A quantity in units of 10⁻⁹, the smallest that there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Quantity(i128);

const UNIT: i128 = 1_000_000_000;

impl Quantity {
    /// Parses a quantity; `None` if the text is none, or too large.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (negative, unsigned) = match text.as_bytes().first()? {
            b'-' => (true, &text[1..]),
            b'+' => (false, &text[1..]),
            _ => (false, text),
        };
        let end = unsigned
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        // In decimal digits and a power of ten, times a factor.
        let (mut power, mut factor) = (9_i32, 1_i128);
        match suffix {
            "n" => power -= 9,
            "u" => power -= 6,
            "m" => power -= 3,
            "" => {}
            "k" => power += 3,
            "M" => power += 6,
            "G" => power += 9,
            "T" => power += 12,
            "P" => power += 15,
            "E" => power += 18,
            "Ki" => factor = 1 << 10,
            "Mi" => factor = 1 << 20,
            "Gi" => factor = 1 << 30,
            "Ti" => factor = 1 << 40,
            "Pi" => factor = 1 << 50,
            "Ei" => factor = 1 << 60,
            _ => {
                let exponent = suffix.strip_prefix(['e', 'E'])?;
                power += exponent
                    .parse::<i32>()
                    .ok()
                    .filter(|exponent| (-60..=60).contains(exponent))?;
            }
        }
        let fraction = fraction.trim_end_matches('0');
        let digits = format!("{whole}{fraction}");
        let digits = digits.trim_start_matches('0');
        let digits: i128 = if digits.is_empty() {
            0
        } else {
            digits.parse().ok()?
        };
        power -= i32::try_from(fraction.len()).ok()?;
        let mut value = digits.checked_mul(factor)?;
        if power >= 0 {
            value = value.checked_mul(10_i128.checked_pow(power.unsigned_abs())?)?;
        } else {
            // A smaller part is rounded up, away from zero.
            value = match 10_i128.checked_pow(power.unsigned_abs()) {
                Some(by) => value / by + i128::from(value % by != 0),
                None => i128::from(value != 0),
            };
        }
        Some(Self(if negative { -value } else { value }))
    }

    pub(super) fn of(value: i64) -> Self {
        Self(i128::from(value) * UNIT)
    }

    pub(super) fn plus(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }

    pub(super) fn minus(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }

    /// Returns the value if it is an integer of 64 bits.
    pub(super) fn integer(self) -> Option<i64> {
        (self.0 % UNIT == 0).then(|| i64::try_from(self.0 / UNIT).ok())?
    }

    pub(super) fn float(self) -> f64 {
        self.0 as f64 / UNIT as f64
    }

    pub(super) const fn sign(self) -> i64 {
        self.0.signum() as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_compared_by_their_value() {
        let parse = |text: &str| Quantity::parse(text).unwrap_or_else(|| panic!("{text}"));
        for (a, b) in [
            ("1Gi", "1024Mi"),
            ("1.5", "1500m"),
            ("1e3", "1k"),
            ("0.5Ki", "512"),
            ("-1", "-1000m"),
            ("0.1n", "1n"),
            (".5", "0.50"),
            ("1.", "1"),
            ("0e0", "0"),
        ] {
            assert_eq!(parse(a), parse(b), "{a} {b}");
        }
        assert!(parse("1Gi") > parse("1G") && parse("-2") < parse("-1"));
        assert_eq!((parse("2k").integer(), parse("1m").integer()), (Some(2000), None));
        for wrong in [
            "",
            "1 Gi",
            "Gi",
            "1gi",
            "1.2.3",
            ".",
            "--1",
            "1e",
            "1e99999999999",
            "1e-2147483648",
            "1e61",
            "1KiB",
            "+",
        ] {
            assert_eq!(Quantity::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Quantity::parse(&"9".repeat(1000)), None);
    }
}
