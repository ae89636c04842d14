//! Dates in UTC, for file names and the record.

use std::time::{SystemTime, UNIX_EPOCH};

/// "2026-05-09T07:35:25Z".
pub fn iso(time: SystemTime) -> String {
    let (year, month, day, seconds) = civil(time);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// "20260509T073525Z": the same without the signs that file systems and shells dislike.
pub fn compact(time: SystemTime) -> String {
    iso(time).replace(['-', ':'], "")
}

/// Year, month, day, and the seconds of the day. Howard Hinnant's `civil_from_days`
/// (howardhinnant.github.io/date_algorithms.html), for times after 1970.
fn civil(time: SystemTime) -> (u64, u64, u64, u64) {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let days = seconds / 86_400 + 719_468; // since 0000-03-01
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day, seconds % 86_400)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(iso(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        }
        assert_eq!(compact(UNIX_EPOCH), "19700101T000000Z");
    }
}
