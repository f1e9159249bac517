//! Durations and times, as Go reads and writes them.

use std::borrow::Cow;

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 24 * 60 * 60;
/// The seconds of the first and of the last time that CEL has: the years 1 to 9999.
const TIMES: std::ops::RangeInclusive<i128> = -62_135_596_800..=253_402_300_799;
/// Go's units.
const UNITS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ms", 1_000_000),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 3600 * SECOND),
];

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
    loop {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let unit = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .map_or(after, |end| &after[..end]);
        let (_, length) = UNITS.iter().find(|(known, _)| *known == unit)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let digits = |digits: &str| match digits {
            "" => Some(0),
            digits => digits
                .parse::<i128>()
                .ok()
                .filter(|number| *number <= i128::from(u64::MAX)),
        };
        // Further places are smaller than a nanosecond.
        let fraction = &fraction[..fraction.len().min(18)];
        let by = 10_i128.pow(u32::try_from(fraction.len()).ok()?);
        let length = i128::from(*length);
        total = total.checked_add(digits(whole)?.checked_mul(length)?)? + digits(fraction)? * length / by;
        rest = &after[unit.len()..];
        if rest.is_empty() {
            return i64::try_from(if negative { -total } else { total }).ok();
        }
    }
}

/// Parses a duration as the format `duration` of a schema does: as [`duration`], and such as `1 day` or `2 weeks`.
pub(crate) fn lenient_duration(text: &str) -> Option<i64> {
    const LONG: [(&[&str], i64); 8] = [
        (&["ns", "nano"], 1),
        (&["us", "µs", "micro"], 1_000),
        (&["ms", "milli"], 1_000_000),
        (&["s", "sec"], SECOND),
        (&["m", "min"], 60 * SECOND),
        (&["h", "hr", "hour"], 3600 * SECOND),
        (&["d", "day"], DAY * SECOND),
        (&["w", "wk", "week"], 7 * DAY * SECOND),
    ];
    if let Some(duration) = duration(text) {
        return Some(duration);
    }
    let (mut total, mut found, mut rest) = (0_i64, false, text);
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let number = &rest[start..];
        let end = number.find(|c: char| !c.is_ascii_digit()).unwrap_or(number.len());
        let (digits, after) = number.split_at(end);
        let after = after.trim_start_matches(['\t', '\n', '\u{c}', '\r', ' ']);
        let end = after
            .find(|c: char| !c.is_ascii_alphabetic() && c != 'µ')
            .unwrap_or(after.len());
        rest = &after[end..];
        if end == 0 {
            continue;
        }
        let unit = after[..end].to_lowercase();
        let factor: i64 = digits.parse().ok()?;
        for (names, length) in LONG {
            for (index, name) in names.iter().enumerate() {
                // The longest name may go on, as in `hours`.
                if unit == *name || index + 1 == names.len() && unit.starts_with(name) {
                    found = true;
                    total = total.wrapping_add(factor.wrapping_mul(length));
                }
            }
        }
    }
    found.then_some(total)
}

/// Returns the days since 1970 of a date such as `2024-02-29`.
pub(crate) fn date(text: &str) -> Option<i64> {
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| digits(text.get(from..to)?);
    if bytes.len() != 10 || bytes[4] != b'-' || bytes[7] != b'-' {
        return None;
    }
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let days = [31, 28 + i64::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let last = days.get(usize::try_from(month - 1).ok()?)?;
    if !(1..=*last).contains(&day) {
        return None;
    }
    // With years that begin in March.
    let years = if month <= 2 { year - 1 } else { year };
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(
        365 * years + years.div_euclid(4) - years.div_euclid(100) + years.div_euclid(400) + of_year - 719_468,
    )
}

fn digits(text: &str) -> Option<i64> {
    text.bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| text.parse().ok())?
}

/// Parses a time in RFC 3339 into nanoseconds since 1970.
pub(super) fn parse(text: &str) -> Option<i128> {
    let (day, rest) = (date(text.get(..10)?)?, text.get(10..)?.strip_prefix('T')?);
    // Go takes one digit for the hour, and a comma before the fraction.
    let (hour, rest) = rest.split_once(':')?;
    let (minute, rest) = rest.split_once(':')?;
    let (second, mut rest) = rest.split_at_checked(2)?;
    if !(1..=2).contains(&hour.len()) || minute.len() != 2 {
        return None;
    }
    let (hour, minute, second) = (digits(hour)?, digits(minute)?, digits(second)?);
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut nanos = 0_i64;
    if let Some(fraction) = rest.strip_prefix(['.', ',']) {
        let end = fraction
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(fraction.len());
        let places: String = fraction[..end]
            .chars()
            .chain("000000000".chars())
            .take(9)
            .collect();
        nanos = places.parse().ok().filter(|_| end > 0)?;
        rest = &fraction[end..];
    }
    let offset = match rest {
        "Z" => 0,
        _ => offset(rest)?,
    };
    let seconds = day * DAY + hour * 3600 + minute * 60 + second - offset;
    let is_time = TIMES.contains(&i128::from(seconds));
    is_time.then(|| i128::from(seconds) * i128::from(SECOND) + i128::from(nanos))
}

/// Returns the seconds of an offset such as `+02:00`.
fn offset(text: &str) -> Option<i64> {
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = text.get(1..)?.split_once(':')?;
    if hours.len() != 2 || minutes.len() != 2 {
        return None;
    }
    let (hours, minutes) = (digits(hours)?, digits(minutes)?);
    (hours <= 24 && minutes <= 60).then_some(sign * (hours * 3600 + minutes * 60))
}

/// Returns the time of so many seconds since 1970, if CEL has it.
pub(super) fn of_seconds(seconds: i64) -> Option<i128> {
    let seconds = i128::from(seconds);
    TIMES.contains(&seconds).then(|| seconds * i128::from(SECOND))
}

/// Reports whether CEL has a time.
pub(super) fn is_time(nanos: i128) -> bool {
    TIMES.contains(&nanos.div_euclid(i128::from(SECOND)))
}

/// A part of a time, as its methods name it; `None` for another method. A zone that has a name is an error.
pub(super) fn part(name: &str, nanos: i128, zone: &str) -> Option<Result<i64, ()>> {
    const PARTS: [&str; 10] = [
        "getFullYear",
        "getMonth",
        "getDayOfYear",
        "getDayOfMonth",
        "getDate",
        "getDayOfWeek",
        "getHours",
        "getMinutes",
        "getSeconds",
        "getMilliseconds",
    ];
    let which = PARTS.iter().position(|part| *part == name)?;
    let shift = match zone.split_once(':') {
        None if zone.is_empty() || zone == "UTC" => Some(0),
        // CEL takes `02:00` for `+02:00`, and has no bounds.
        Some((hours, minutes)) => match (hours.parse::<i32>(), minutes.parse::<i32>()) {
            (Ok(hours), Ok(minutes)) => {
                let minutes = if hours < 0 || zone.starts_with('-') {
                    -i64::from(minutes)
                } else {
                    minutes.into()
                };
                Some((i64::from(hours) * 60 + minutes) * 60)
            }
            _ => None,
        },
        None => None,
    };
    let Some(shift) = shift else {
        return Some(Err(()));
    };
    let nanos = nanos + i128::from(shift) * i128::from(SECOND);
    let of_second = nanos.rem_euclid(i128::from(SECOND)) as i64;
    let seconds = nanos.div_euclid(i128::from(SECOND)) as i64;
    let (days, of_day) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
    let (year, month, day) = civil(days);
    let first = date(&format!("{year:04}-01-01")).unwrap_or(days);
    Some(Ok(match which {
        0 => year,
        1 => month - 1,
        2 => days - first,
        3 => day - 1,
        4 => day,
        // 1970 began on a Thursday.
        5 => (days + 4).rem_euclid(7),
        6 => of_day / 3600,
        7 => of_day / 60 % 60,
        8 => of_day % 60,
        _ => of_second / 1_000_000,
    }))
}

/// Returns the date of so many days since 1970.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months = (5 * of_year + 2) / 153;
    let month = if months < 10 { months + 3 } else { months - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, of_year - (153 * months + 2) / 5 + 1)
}

/// Returns the text of a time.
pub(super) fn shown(nanos: i128) -> String {
    let seconds = nanos.div_euclid(i128::from(SECOND)) as i64;
    let (year, month, day) = civil(seconds.div_euclid(DAY));
    let of_day = seconds.rem_euclid(DAY);
    let fraction = fraction(nanos.rem_euclid(i128::from(SECOND)) as i64);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// Returns the text of a duration, which is in seconds.
pub(super) fn shown_duration(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let nanos = nanos.unsigned_abs();
    let second = SECOND.unsigned_abs();
    format!("{sign}{}{}s", nanos / second, fraction((nanos % second) as i64))
}

/// Returns the places of nanoseconds after the point, if there are any.
fn fraction(nanos: i64) -> Cow<'static, str> {
    if nanos == 0 {
        return Cow::Borrowed("");
    }
    Cow::Owned(format!(".{nanos:09}").trim_end_matches('0').to_owned())
}
