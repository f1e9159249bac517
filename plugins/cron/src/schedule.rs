//! The times of a crontab in a time zone.

use std::collections::BTreeSet;

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

/// How many days ahead a time is looked for: a leap day may be eight years away.
const DAYS: usize = 366 * 9;

/// The five fields of a crontab.
pub(crate) struct Schedule {
    minutes: BTreeSet<i8>,
    hours: BTreeSet<i8>,
    days: BTreeSet<i8>,
    months: BTreeSet<i8>,
    weekdays: BTreeSet<i8>,
    /// With a day of the month and a day of the week, either is enough, as in any cron.
    is_either: bool,
}

impl Schedule {
    /// Parses a text such as `*/15 9-17 * * 1-5`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let fields: Vec<&str> = text.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields[..] else {
            return Err(format!(
                "{text:?} has {} fields; it must have five: minute, hour, day of the month, month, day of the week",
                fields.len()
            ));
        };
        let field = |name: &str, text: &str, from: i8, to: i8| {
            numbers(text, from, to).ok_or_else(|| {
                format!("{text:?} is no {name}: give numbers of {from} to {to}, such as {from}, {from}-{to}, */2 or *")
            })
        };
        let mut weekdays = field("day of the week", weekday, 0, 7)?;
        if weekdays.remove(&7) {
            weekdays.insert(0);
        }
        Ok(Self {
            minutes: field("minute", minute, 0, 59)?,
            hours: field("hour", hour, 0, 23)?,
            days: field("day of the month", day, 1, 31)?,
            months: field("month", month, 1, 12)?,
            weekdays,
            is_either: !day.starts_with('*') && !weekday.starts_with('*'),
        })
    }

    /// Returns the first time after this one. The clocks of a zone that go forward leave times out, which come when they
    /// have; a time that comes twice when they go back counts once.
    pub(crate) fn next_after(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let today = zone.to_datetime(after).date();
        let days = std::iter::successors(Some(today), |day| day.tomorrow().ok()).take(DAYS);
        days.filter(|day| self.has(*day))
            .flat_map(|day| self.times_of(day, zone))
            .find(|time| *time > after)
    }

    /// Returns the last time that is after `since` and not after `now`.
    pub(crate) fn last_between(
        &self,
        since: Timestamp,
        now: Timestamp,
        zone: &TimeZone,
    ) -> Option<Timestamp> {
        let (first, today) = (zone.to_datetime(since).date(), zone.to_datetime(now).date());
        let days = std::iter::successors(Some(today), |day| day.yesterday().ok()).take(DAYS);
        days.take_while(|day| *day >= first)
            .filter(|day| self.has(*day))
            .flat_map(|day| self.times_of(day, zone).into_iter().rev())
            .find(|time| *time <= now)
            .filter(|time| *time > since)
    }

    fn has(&self, day: Date) -> bool {
        let is_day = self.days.contains(&day.day());
        let is_weekday = self.weekdays.contains(&day.weekday().to_sunday_zero_offset());
        let is_one = if self.is_either {
            is_day || is_weekday
        } else {
            is_day && is_weekday
        };
        self.months.contains(&day.month()) && is_one
    }

    /// Returns the times of a day in their order.
    fn times_of(&self, day: Date, zone: &TimeZone) -> Vec<Timestamp> {
        let civil = self.hours.iter().flat_map(|hour| {
            let minutes = self.minutes.iter();
            minutes.map(|minute| day.at(*hour, *minute, 0, 0))
        });
        let times = civil.filter_map(|time| zone.to_ambiguous_timestamp(time).compatible().ok());
        times.collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// Parses one field, whose numbers are within these bounds.
fn numbers(text: &str, from: i8, to: i8) -> Option<BTreeSet<i8>> {
    let mut numbers = BTreeSet::new();
    for part in text.split(',') {
        let (range, step) = part
            .split_once('/')
            .map_or((part, None), |(range, step)| (range, Some(step)));
        let (first, last) = match range.split_once('-') {
            _ if range == "*" => (from, to),
            Some((first, last)) => (first.parse().ok()?, last.parse().ok()?),
            None if step.is_some() => (range.parse().ok()?, to),
            None => (range.parse().ok()?, range.parse().ok()?),
        };
        let step: usize = step.map_or(Some(1), |step| step.parse().ok())?;
        if step == 0 || first < from || last > to || first > last {
            return None;
        }
        numbers.extend((first..=last).step_by(step));
    }
    Some(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(schedule: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
        let (schedule, zone) = (Schedule::parse(schedule).unwrap(), TimeZone::get(zone).unwrap());
        let first = schedule.next_after(after.parse().unwrap(), &zone);
        let times = std::iter::successors(first, |time| schedule.next_after(*time, &zone));
        times.take(count).map(|time| time.to_string()).collect()
    }

    #[test]
    fn the_fields_are_those_of_any_crontab() {
        for (schedule, expected) in [
            ("*/20 * * * *", ["2026-01-01T00:20:00Z", "2026-01-01T00:40:00Z"]),
            ("0 12 * * 1-5", ["2026-01-01T12:00:00Z", "2026-01-02T12:00:00Z"]),
            ("0 0 1,15 * *", ["2026-01-15T00:00:00Z", "2026-02-01T00:00:00Z"]),
            ("0 0 13 * 5", ["2026-01-02T00:00:00Z", "2026-01-09T00:00:00Z"]),
            ("30 6 29 2 *", ["2028-02-29T06:30:00Z", "2032-02-29T06:30:00Z"]),
            ("5/25 3 * * 7", ["2026-01-04T03:05:00Z", "2026-01-04T03:30:00Z"]),
        ] {
            assert_eq!(
                times(schedule, "UTC", "2026-01-01T00:00:00Z", 2),
                expected,
                "{schedule}"
            );
        }
        assert!(times("0 0 30 2 *", "UTC", "2026-01-01T00:00:00Z", 1).is_empty());
    }

    #[test]
    fn what_is_no_schedule_is_named() {
        for (schedule, words) in [
            ("* * * *", "has 4 fields"),
            ("60 * * * *", "\"60\" is no minute"),
            ("* 5-1 * * *", "\"5-1\" is no hour"),
            ("* * 0 * *", "is no day of the month"),
            ("* * * JAN *", "is no month"),
            ("*/0 * * * *", "\"*/0\" is no minute"),
            ("* * * * 8", "is no day of the week"),
        ] {
            let error = Schedule::parse(schedule).err().unwrap();
            assert!(error.contains(words), "{error}");
        }
    }

    /// Berlin's clocks went from 2:00 to 3:00 on 2026-03-29, and from 3:00 to 2:00 on 2026-10-25.
    #[test]
    fn a_change_of_summer_time_loses_no_time_and_repeats_none() {
        let berlin = |schedule, after, count| times(schedule, "Europe/Berlin", after, count);
        assert_eq!(
            berlin("30 2 * * *", "2026-03-28T00:00:00Z", 3),
            [
                "2026-03-28T01:30:00Z",
                "2026-03-29T01:30:00Z",
                "2026-03-30T00:30:00Z"
            ]
        );
        assert_eq!(
            berlin("30 2 * * *", "2026-10-24T00:00:00Z", 3),
            [
                "2026-10-24T00:30:00Z",
                "2026-10-25T00:30:00Z",
                "2026-10-26T01:30:00Z"
            ]
        );
        let expected = ["2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"];
        assert_eq!(berlin("0 0 * * *", "2026-10-24T12:00:00Z", 2), expected);
    }
}
