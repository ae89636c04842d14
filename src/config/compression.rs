//! How gradients are shortened on their way: the value of `--compress`.

use std::fmt;
use std::str::FromStr;

/// A scheme of gradient compression with its one number (`fusion::compress` has the schemes).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Compression {
    /// Sends of each piece of a tensor this share of the numbers, those of largest magnitude.
    TopK {
        /// The share, above 0 and at most 1.
        share: f32,
    },
    /// The sign of each number, and two means a piece.
    OneBit,
    /// Plus, minus or nothing: whether a number has reached the threshold, as a gradient of a rank's own mean loss.
    TwoBit {
        /// What is sent, up to its sign.
        threshold: f32,
    },
    /// Two thin matrices of this rank whose product stands for a tensor.
    PowerSgd {
        /// Columns of each factor.
        rank: usize,
    },
}

const SCHEMES: &str = "topk[:SHARE], 1bit, 2bit[:THRESHOLD] or powersgd[:RANK]";

impl FromStr for Compression {
    type Err = String;

    fn from_str(text: &str) -> Result<Compression, String> {
        let (name, number) = match text.split_once(':') {
            Some((name, number)) => (name, Some(number)),
            None => (text, None),
        };
        match name {
            "topk" => {
                let share = parse(number.unwrap_or("0.01"), "a share")?;
                if !(share > 0.0 && share <= 1.0) {
                    return Err(format!("the share {share} must be above 0 and at most 1"));
                }
                Ok(Compression::TopK { share })
            }
            "1bit" if number.is_none() => Ok(Compression::OneBit),
            "1bit" => Err("1bit has no number of its own".into()),
            "2bit" => {
                let threshold: f32 = parse(number.unwrap_or("0.01"), "a threshold")?;
                if !(threshold > 0.0 && threshold.is_finite()) {
                    return Err(format!("the threshold {threshold} must be above 0, and finite"));
                }
                Ok(Compression::TwoBit { threshold })
            }
            "powersgd" => {
                let rank = parse(number.unwrap_or("2"), "a rank")?;
                if !(1..=256).contains(&rank) {
                    return Err(format!("the rank {rank} must be between 1 and 256"));
                }
                Ok(Compression::PowerSgd { rank })
            }
            _ => Err(format!("no such scheme; there is {SCHEMES}")),
        }
    }
}

fn parse<T: FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is not {what}"))
}

/// As it is typed, its number included.
impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Compression::TopK { share } => write!(f, "topk:{share}"),
            Compression::OneBit => write!(f, "1bit"),
            Compression::TwoBit { threshold } => write!(f, "2bit:{threshold}"),
            Compression::PowerSgd { rank } => write!(f, "powersgd:{rank}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_is_read_as_it_is_written() {
        for (text, full) in [
            ("topk", "topk:0.01"),
            ("topk:1", "topk:1"),
            ("1bit", "1bit"),
            ("2bit:0.5", "2bit:0.5"),
            ("powersgd:4", "powersgd:4"),
        ] {
            assert_eq!(text.parse::<Compression>().unwrap().to_string(), full);
        }
    }
}
