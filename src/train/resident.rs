//! What the operating system says of this process's memory.

/// Bytes that this process has in physical memory now: its own, and pages of libraries and shared windows that it has
/// touched. `None` where the system does not say.
pub fn now() -> Option<usize> {
    field("VmRSS:")
}

/// The most that it had at any time.
pub fn peak() -> Option<usize> {
    field("VmHWM:")
}

fn field(name: &str) -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with(name))?;
    Some(line.split_whitespace().nth(1)?.parse::<usize>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    /// A page counts once it is touched.
    #[test]
    fn what_is_touched_is_counted() {
        let before = super::now().unwrap();
        let block = std::hint::black_box(vec![1u8; 64 << 20]);
        assert!(super::now().unwrap() >= before + block.len() * 9 / 10);
        assert!(super::peak().unwrap() >= super::now().unwrap());
    }
}
