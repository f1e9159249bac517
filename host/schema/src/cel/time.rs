//! Durations and times, as Go reads and writes them.

use std::ops::RangeInclusive;
use std::str::FromStr;

use jiff::SignedDuration;
use jiff::civil::{Date, DateTime, Time};

const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 24 * 60 * 60;
const EPOCH: DateTime = DateTime::constant(1970, 1, 1, 0, 0, 0, 0);
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

/// Parses a date such as `2024-02-29`.
pub(crate) fn date(text: &str) -> Option<Date> {
    let (year, rest) = text.split_once('-')?;
    let (month, day) = rest.split_once('-')?;
    Date::new(number(year, 4..=4)?, number(month, 2..=2)?, number(day, 2..=2)?).ok()
}

/// Parses a time in RFC 3339. Go takes one digit for the hour, and a comma before the fraction.
pub(super) fn parse(text: &str) -> Option<DateTime> {
    let (day, rest) = text.split_once('T')?;
    let (clock, zone) = rest.split_at(rest.find(['Z', '+', '-'])?);
    let (clock, nanos) = match clock.split_once(['.', ',']) {
        Some((clock, fraction)) => (clock, nanos(fraction)?),
        None => (clock, 0),
    };
    let (hour, rest) = clock.split_once(':')?;
    let (minute, second) = rest.split_once(':')?;
    let (hour, minute, second) = (
        number(hour, 1..=2)?,
        number(minute, 2..=2)?,
        number(second, 2..=2)?,
    );
    let time = Time::new(hour, minute, second, nanos).ok()?;
    let time = date(day)?.to_datetime(time).checked_sub(offset(zone)?);
    time.ok().filter(|time| is_time(*time))
}

/// Reads the places after the point of a second. Those after the ninth are smaller than a nanosecond.
fn nanos(fraction: &str) -> Option<i32> {
    let is_fraction = !fraction.is_empty() && fraction.bytes().all(|b| b.is_ascii_digit());
    format!("{fraction:0<9.9}").parse().ok().filter(|_| is_fraction)
}

/// Reads an offset such as `+02:00`, or `Z`.
fn offset(text: &str) -> Option<SignedDuration> {
    let (sign, rest) = text.split_at(1);
    if sign == "Z" {
        return rest.is_empty().then_some(SignedDuration::ZERO);
    }
    let (hours, minutes) = rest.split_once(':')?;
    let (hours, minutes): (i64, i64) = (number(hours, 2..=2)?, number(minutes, 2..=2)?);
    if hours > 24 || minutes > 60 {
        return None;
    }
    let offset = SignedDuration::from_mins(hours * 60 + minutes);
    Some(if sign == "-" { -offset } else { offset })
}

/// Reads a number that has so many digits.
fn number<T: FromStr>(text: &str, digits: RangeInclusive<usize>) -> Option<T> {
    let is_number = digits.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// Returns a time that is so much later, if CEL has it.
pub(super) fn later(time: DateTime, by: SignedDuration) -> Option<DateTime> {
    time.checked_add(by).ok().filter(|time| is_time(*time))
}

/// Returns the time of so many seconds since 1970, if CEL has it.
pub(super) fn of_seconds(seconds: i64) -> Option<DateTime> {
    later(EPOCH, SignedDuration::from_secs(seconds))
}

/// Returns the seconds since 1970, rounded down.
pub(super) fn seconds(time: DateTime) -> i64 {
    let nanos = time.duration_since(EPOCH).as_nanos();
    nanos.div_euclid(i128::from(SECOND)) as i64
}

/// CEL has the years 1 to 9999.
fn is_time(time: DateTime) -> bool {
    time.year() >= 1
}

/// Returns the local time of a zone; `None` for one that has a name.
pub(super) fn local(time: DateTime, zone: &str) -> Option<DateTime> {
    if zone.is_empty() || zone == "UTC" {
        return Some(time);
    }
    // CEL takes `02:00` for `+02:00`, and has no bounds.
    let (hours, minutes) = zone.split_once(':')?;
    let (hours, minutes): (i32, i32) = (hours.parse().ok()?, minutes.parse().ok()?);
    let minutes = if zone.starts_with('-') {
        -i64::from(minutes)
    } else {
        minutes.into()
    };
    time.checked_add(SignedDuration::from_mins(i64::from(hours) * 60 + minutes))
        .ok()
}

/// Returns a part of a time, as its methods name it; `None` for another method.
pub(super) fn part(name: &str, time: DateTime) -> Option<i64> {
    Some(match name {
        "getFullYear" => time.year().into(),
        "getMonth" => i64::from(time.month()) - 1,
        "getDayOfYear" => i64::from(time.day_of_year()) - 1,
        "getDayOfMonth" => i64::from(time.day()) - 1,
        "getDate" => time.day().into(),
        "getDayOfWeek" => time.weekday().to_sunday_zero_offset().into(),
        "getHours" => time.hour().into(),
        "getMinutes" => time.minute().into(),
        "getSeconds" => time.second().into(),
        "getMilliseconds" => time.millisecond().into(),
        _ => return None,
    })
}

/// Returns the text of a duration, which is in seconds.
pub(super) fn shown_duration(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let (nanos, second) = (nanos.unsigned_abs(), SECOND.unsigned_abs());
    let text = format!("{sign}{}.{:09}", nanos / second, nanos % second);
    format!("{}s", text.trim_end_matches('0').trim_end_matches('.'))
}
