//! Message sizes as people write them: `4K`, `1M`, `4K..256M` (in steps of four), and lists of these.

/// Bytes of one size, or of every size of a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeRange(pub Vec<usize>);

impl std::str::FromStr for SizeRange {
    type Err = String;

    fn from_str(text: &str) -> Result<SizeRange, String> {
        let Some((from, to)) = text.split_once("..") else {
            return Ok(SizeRange(vec![bytes(text)?]));
        };
        let (from, to) = (bytes(from)?, bytes(to)?);
        if from == 0 || from > to {
            return Err(format!("`{text}` is not a range from a small size to a larger one"));
        }
        let steps = std::iter::successors(Some(from), |size| size.checked_mul(4));
        Ok(SizeRange(steps.take_while(|&size| size <= to).collect()))
    }
}

fn bytes(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor = match &text[digits.len()..] {
        "" | "B" => 1,
        "K" | "KB" | "KiB" => 1 << 10,
        "M" | "MB" | "MiB" => 1 << 20,
        "G" | "GB" | "GiB" => 1 << 30,
        unit => return Err(format!("unknown unit `{unit}` in `{text}`; use K, M or G")),
    };
    let number: usize = digits.parse().map_err(|_| format!("`{text}` is not a size such as 64K"))?;
    number.checked_mul(factor).ok_or_else(|| format!("`{text}` is too large"))
}

/// Bytes as people read them: 4 KB, 256 MB.
pub fn show(bytes: usize) -> String {
    let units = [(30, "GB"), (20, "MB"), (10, "KB")];
    match units.iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift)) {
        Some((shift, unit)) => format!("{} {unit}", bytes >> shift),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ranges_are_read() {
        let read = |text: &str| text.parse::<SizeRange>().map(|sizes| sizes.0);
        assert_eq!(read("4K..256K"), Ok(vec![4096, 16384, 65536, 262144]));
        assert_eq!(read("12"), Ok(vec![12]));
        assert_eq!(read("1M..1M"), Ok(vec![1 << 20]));
        for wrong in ["", "K", "4X", "8K..4K", "0..4K", "4K..", "99999999999G", "-1"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            (show(4096), show(3 << 20), show(1), show(0)),
            ("4 KB".into(), "3 MB".into(), "1 B".into(), "0 B".into())
        );
    }
}
