//! The SDK's quantities against a second implementation of Kubernetes' grammar with floating point.
//!
//! Source: `k8s.io/apimachinery/pkg/api/resource`, the grammar in the documentation of `Quantity`.

use crate::quantity::Quantity;

pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let quantities: Vec<(Quantity, f64)> = text.lines().filter_map(read).collect();
    for (one, about_one) in &quantities {
        assert_eq!(one.is_positive(), *about_one > 0.0, "{one}");
        for (other, about_other) in &quantities {
            assert_eq!(one.cmp(other), other.cmp(one).reverse(), "{one} and {other}");
            // Both are rounded to billionths, and a float has 15 digits.
            let apart = (about_one - about_other).abs();
            if apart > 2e-9 && apart > about_one.abs() * 1e-12 {
                assert_eq!(
                    one.partial_cmp(other),
                    about_one.partial_cmp(about_other),
                    "{one} and {other}"
                );
            }
        }
    }
}

fn read(text: &str) -> Option<(Quantity, f64)> {
    let Ok(quantity) = text.parse::<Quantity>() else {
        // Values that occur in manifests must be parsed. Unreasonably large or small ones may be refused.
        if let Some(value) = value(text) {
            assert!(
                !(1e-18..=1e18).contains(&value.abs()) || text.len() > 16,
                "{text:?} is refused"
            );
        }
        return None;
    };
    assert_eq!(quantity.to_string(), text);
    let Some(value) = value(text) else {
        panic!("{text:?} is no quantity and was taken for one");
    };
    if let Some(rest) = text.strip_prefix('+') {
        assert_eq!(rest.parse::<Quantity>(), Ok(quantity.clone()));
    }
    Some((quantity, value))
}

/// Returns the value, or `None` when the text does not match the grammar.
fn value(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
    let end = unsigned
        .bytes()
        .take_while(|b| b.is_ascii_digit() || *b == b'.')
        .count();
    let (number, suffix) = unsigned.split_at(end);
    let well_formed =
        number.bytes().filter(|b| *b == b'.').count() <= 1 && number.bytes().any(|b| b.is_ascii_digit());
    let number: f64 = well_formed.then(|| format!("0{number}0"))?.parse().ok()?;
    // Appending a zero multiplies an integer by ten.
    let number = if unsigned[..end].contains('.') {
        number
    } else {
        number / 10.0
    };
    let factor = match suffix {
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "" => 1.0,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => f64::from(1 << 10),
        "Mi" => f64::from(1 << 20),
        "Gi" => f64::from(1 << 30),
        "Ti" => 2_f64.powi(40),
        "Pi" => 2_f64.powi(50),
        "Ei" => 2_f64.powi(60),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            let digits =
                (!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())).then_some(exponent)?;
            10_f64.powf(digits.parse().ok()?)
        }
    };
    Some(sign * number * factor)
}
