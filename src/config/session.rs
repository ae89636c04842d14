//! How a run is stopped and goes on.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::values::at_least_one;
use crate::error::{Error, Result};

/// How often a checkpoint is written.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Interval {
    /// Every so many steps.
    Steps(usize),
    /// Every so many seconds.
    Seconds(f64),
    /// Every so many epochs.
    Epochs(usize),
}

/// Where a run goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Resume {
    /// At the newest whole checkpoint of the directory, or at the beginning where there is none.
    Auto,
    /// At this checkpoint.
    File(PathBuf),
}

/// How a run is stopped and goes on.
#[derive(Debug, Clone, PartialEq, Serialize, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Stop and resume")]
pub struct Session {
    /// Directory for checkpoints: all that is needed to go on, written in the background. SIGTERM, SIGUSR1, SIGINT and
    /// SIGHUP write one and stop.
    #[arg(long, value_name = "DIR")]
    pub checkpoint: Option<PathBuf>,
    /// How often: 500steps, 10min, 2h or 1epochs.
    #[arg(long = "checkpoint-every", default_value = "10min", value_name = "N<UNIT>", value_parser = interval)]
    pub every: Interval,
    /// How many of the newest checkpoints are kept; the one with the best test accuracy is kept besides.
    #[arg(long = "checkpoint-keep", default_value_t = 3, value_name = "K")]
    pub keep: usize,
    /// Every N steps the state is copied to memory of the node (/dev/shm), and of a second node where there is one.
    /// After a crash --resume auto goes on from the newest copy, if it is newer than the last checkpoint.
    #[arg(long, value_name = "N")]
    pub commit: Option<usize>,
    /// Go on at a checkpoint: a file, or auto for the newest whole one in the directory of --checkpoint (from the
    /// beginning where there is none).
    #[arg(long, value_name = "auto|FILE", value_parser = resume)]
    pub resume: Option<Resume>,
    /// Stop in time, with a checkpoint: minutes, or [DAYS-]HH:MM:SS, from the program's start [default with
    /// --checkpoint: the end of the Slurm job].
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub time_limit: Option<f64>,
}

impl Session {
    /// The checkpoint to go on at, where one was named.
    pub fn resumed_file(&self) -> Option<&Path> {
        match &self.resume {
            Some(Resume::File(path)) => Some(path),
            _ => None,
        }
    }

    /// # Errors
    /// `Usage`, naming the flag.
    pub fn check(&self) -> Result<()> {
        at_least_one("checkpoint-keep", self.keep)?;
        at_least_one("commit", self.commit.unwrap_or(1))?;
        if self.resume == Some(Resume::Auto) && self.checkpoint.is_none() {
            return Err(Error::usage("--resume auto needs --checkpoint, the directory to look in"));
        }
        if self.commit.is_some() && self.checkpoint.is_none() {
            return Err(Error::usage("--commit needs --checkpoint, whose newest is what commits follow"));
        }
        Ok(())
    }
}

fn resume(text: &str) -> std::result::Result<Resume, String> {
    Ok(if text == "auto" { Resume::Auto } else { Resume::File(text.into()) })
}

fn interval(text: &str) -> std::result::Result<Interval, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let number: usize = number.parse().map_err(|_| "a number and a unit, such as 500steps or 10min")?;
    if number == 0 {
        return Err("must be at least 1".into());
    }
    match unit.trim() {
        "step" | "steps" => Ok(Interval::Steps(number)),
        "epoch" | "epochs" => Ok(Interval::Epochs(number)),
        "min" => Ok(Interval::Seconds(60.0 * number as f64)),
        "h" => Ok(Interval::Seconds(3600.0 * number as f64)),
        _ => Err("the unit is steps, min, h or epochs".into()),
    }
}

/// Seconds from what Slurm takes too: "90" (minutes), "23:50:00", "1-12:00:00", and "50:00" (minutes and seconds).
fn time(text: &str) -> std::result::Result<f64, String> {
    let wrong = || "minutes, or [DAYS-]HH:MM:SS".to_string();
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let days: u32 = days.parse().map_err(|_| wrong())?;
    let parts: Vec<u32> = clock
        .split(':')
        .map(|part| part.parse().map_err(|_| wrong()))
        .collect::<std::result::Result<_, _>>()?;
    let [hours, minutes, seconds] = match (parts.as_slice(), text.contains('-')) {
        (&[minutes], false) => [0, minutes, 0],
        (&[minutes, seconds], false) => [0, minutes, seconds],
        (&[hours], true) => [hours, 0, 0],
        (&[hours, minutes], true) => [hours, minutes, 0],
        (&[hours, minutes, seconds], _) => [hours, minutes, seconds],
        _ => return Err(wrong()),
    };
    let total = [(days, 86_400.0), (hours, 3600.0), (minutes, 60.0), (seconds, 1.0)];
    Ok(total.iter().map(|&(count, unit)| f64::from(count) * unit).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_and_times_have_the_units_that_are_documented() {
        assert_eq!(interval("500steps"), Ok(Interval::Steps(500)));
        assert_eq!(interval("10min"), Ok(Interval::Seconds(600.0)));
        assert_eq!(interval("2h"), Ok(Interval::Seconds(7200.0)));
        assert_eq!(interval("1epochs"), Ok(Interval::Epochs(1)));
        for wrong in ["500", "0steps", "min", "-1min", "5 weeks", "1.5h"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
        for (text, seconds) in [
            ("90", 5400.0),
            ("50:30", 3030.0),
            ("23:50:00", 85_800.0),
            ("1-12", 129_600.0),
            ("1-12:30", 131_400.0),
            ("2-00:00:01", 172_801.0),
        ] {
            assert_eq!(time(text), Ok(seconds), "{text}");
        }
        for wrong in ["", "1h", "1:2:3:4", "-5", "1-"] {
            assert!(time(wrong).is_err(), "{wrong}");
        }
    }
}
