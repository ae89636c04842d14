//! The limits of links and memory, measured in the same run as what they bound, and printed before it.

pub use crate::collective::limits::{Limits, LinkLimit, measure};

/// The limits as comment lines of a table, one each.
pub fn comment(limits: &Limits) -> String {
    let lines: Vec<String> = limits.to_string().lines().map(|line| format!("# limit: {line}")).collect();
    lines.join("\n")
}
