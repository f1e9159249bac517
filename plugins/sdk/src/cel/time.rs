//! Durations and times.

const SECOND: i64 = 1_000_000_000;

/// Parses a duration such as `1h30m` into nanoseconds.
pub(super) fn duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut total = 0_i128;
    while total >= 0 {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let units = [
            ("ns", 1),
            ("us", 1_000),
            ("µs", 1_000),
            ("ms", 1_000_000),
            ("s", SECOND),
            ("m", 60 * SECOND),
            ("h", 3600 * SECOND),
        ];
        let (unit, length) = units.iter().find(|(unit, _)| after.starts_with(unit))?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if number.len() > 20 || (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
        let by = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        total = total.checked_add(digits.checked_mul(i128::from(*length))? / by)?;
        rest = &after[unit.len()..];
        if rest.is_empty() {
            return i64::try_from(if negative { -total } else { total }).ok();
        }
    }
    None
}

/// Parses a time in RFC 3339 into nanoseconds since 1970.
pub(super) fn parse(text: &str) -> Option<i128> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| {
        let digits = text.get(from..to)?;
        digits
            .bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| digits.parse::<i64>().ok())?
    };
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let signs = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    let is_separated = signs.iter().all(|(at, sign)| bytes.get(*at) == Some(sign));
    if !is_separated || !matches!(bytes.get(10), Some(b'T' | b't')) {
        return None;
    }
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = [31, 28 + i64::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let last = days.get(usize::try_from(month - 1).ok()?)?;
    if !(1..=*last).contains(&day) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut rest = text.get(19..)?;
    let mut nanos = 0_i64;
    if let Some(fraction) = rest.strip_prefix('.') {
        let end = fraction
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(fraction.len());
        let digits: String = fraction[..end]
            .chars()
            .chain("000000000".chars())
            .take(9)
            .collect();
        nanos = digits.parse().ok().filter(|_| end > 0)?;
        rest = &fraction[end..];
    }
    let offset = match rest {
        "Z" | "z" => 0,
        _ => {
            let sign = match rest.as_bytes().first()? {
                b'+' => 1,
                b'-' => -1,
                _ => return None,
            };
            let (hours, minutes) = rest.get(1..)?.split_once(':')?;
            if hours.len() != 2 || minutes.len() != 2 {
                return None;
            }
            sign * (hours.parse::<i64>().ok()? * 3600 + minutes.parse::<i64>().ok()? * 60)
        }
    };
    // Days since 1970 of a date, with years that begin in March.
    let years = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days =
        365 * years + years.div_euclid(4) - years.div_euclid(100) + years.div_euclid(400) + of_year - 719_468;
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second - offset;
    Some(i128::from(seconds) * i128::from(SECOND) + i128::from(nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_times_are_read() {
        assert_eq!(duration("1h30m"), Some(5400 * SECOND));
        assert_eq!(duration("-1.5s"), Some(-3 * SECOND / 2));
        for wrong in ["", "1", "h", "1d", "1h ", "9999999999h", "1.2.3s"] {
            assert_eq!(duration(wrong), None, "{wrong}");
        }
        assert_eq!(parse("1970-01-01T00:00:01Z"), Some(i128::from(SECOND)));
        assert_eq!(
            parse("2024-02-29T12:00:00.5+02:00"),
            Some(1_709_200_800_500_000_000)
        );
        for wrong in [
            "2023-02-29T00:00:00Z",
            "2024-01-01",
            "2024-01-01T25:00:00Z",
            "2024-01-01T00:00:00",
            "ä",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
