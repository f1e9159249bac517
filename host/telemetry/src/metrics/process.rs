//! Memory and processor time of this process, from Linux's `/proc`.

/// One reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Usage {
    /// Bytes of resident memory.
    pub(super) memory: u64,
    /// Seconds in user mode.
    pub(super) user: f64,
    /// Seconds in the kernel.
    pub(super) system: f64,
}

/// Linux reports times to user space in hundredths of a second on every machine.
const TICKS: f64 = 100.0;

/// Reads the current usage; returns `None` where there is no `/proc`.
pub(super) fn usage() -> Option<Usage> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let (user, system) = times(&stat)?;
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    Some(Usage {
        memory: resident(&status)?,
        user,
        system,
    })
}

/// Returns the 14th and 15th field of proc_pid_stat(5). The second field is the program's name, which can
/// contain any characters.
fn times(stat: &str) -> Option<(f64, f64)> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(11).map(str::parse::<f64>);
    Some((fields.next()?.ok()? / TICKS, fields.next()?.ok()? / TICKS))
}

/// Returns the bytes in the line `VmRSS:  1234 kB`.
fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_past_a_name_with_spaces_and_brackets() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 250 75 0 0 20 0 9 0 1 2 3";
        assert_eq!(times(stat), Some((2.5, 0.75)));
    }

    #[test]
    fn this_process_uses_memory() {
        assert!(usage().unwrap().memory > 1 << 20);
    }
}
