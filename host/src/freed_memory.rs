//! Returns freed memory to the system.
//!
//! glibc keeps what is freed between blocks that are still in use, as after a first list or a resync of all parents. It
//! gives those pages back only when asked. That costs a few milliseconds, so it is done only after some work.
//!
//! The code and constants that only a start or a burst needs, such as those of the command line and of TLS keys, stay mapped as
//! well. They are unmapped then, too: the kernel keeps them among its cached files, and maps again what is used.

use std::ops::Range;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::{MissedTickBehavior, interval};

/// How often memory is returned at most.
const PERIOD: Duration = Duration::from_secs(5);
/// Less processor time than this since the last time is not worth the effort.
const WORK: Duration = Duration::from_millis(100);

/// Returns freed memory after the start, and after work. Never returns.
pub(crate) async fn keep_returning() {
    let mut tick = interval(PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick.tick().await;
    let (program, mut returned) = (program(), None);
    loop {
        tick.tick().await;
        if returned.is_none_or(|before| processor_time().saturating_sub(before) >= WORK) {
            trim();
            if let Some(program) = &program {
                unmap(program);
            }
            returned = Some(processor_time());
        }
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[allow(unsafe_code, reason = "see SAFETY")]
fn trim() {
    // SAFETY: the function has no precondition, and every thread may call it at any time.
    unsafe { libc::malloc_trim(0) };
}

/// Returns the addresses of what the program never writes, which stay the same.
fn program() -> Option<Range<usize>> {
    let program = std::fs::read_link("/proc/self/exe").ok()?;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    never_written(&program.to_string_lossy(), &maps)
}

/// Unmaps the pages of the [`program`]. Each is mapped again, without a read from the disk, when it is used.
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "see SAFETY")]
fn unmap(program: &Range<usize>) {
    let (start, length) = (program.start as *mut libc::c_void, program.len());
    // SAFETY: the range is private mappings of a file that are never written, so each of its pages is that of the file, and will
    // be so again when it is mapped on the next access.
    unsafe { libc::madvise(start, length, libc::MADV_DONTNEED) };
}

#[cfg(not(target_os = "linux"))]
const fn unmap(_: &Range<usize>) {}

/// Returns the addresses of the program's constants and code, as the lines of `/proc/self/maps` have them. The linker places
/// constants before the code. What is read-only after it may have been written: the loader relocates some of it first.
fn never_written(program: &str, maps: &str) -> Option<Range<usize>> {
    let mut mappings = maps.lines().filter(|line| line.ends_with(program));
    let first = mappings
        .clone()
        .find(|line| line.contains(" r--p ") || line.contains(" r-xp "))?;
    let code = mappings.find(|line| line.contains(" r-xp "))?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let (start, _) = first.split_once('-')?;
    let (_, end) = code.split_once(' ')?.0.split_once('-')?;
    Some(address(start)?..address(end)?)
}

/// Other allocators decide for themselves.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
const fn trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_what_it_never_writes() {
        let maps = "1000-2000 r--p 0 fe:00 1 /bin/host\n2000-5000 r-xp 1000 fe:00 1 /bin/host\n5000-6000 r--p 4000 fe:00 1 /bin/host\n\
                    6000-7000 rw-p 5000 fe:00 1 /bin/host\n8000-9000 r-xp 0 fe:00 2 /lib/libc.so\n";
        assert_eq!(never_written("/bin/host", maps), Some(0x1000..0x5000));
        assert_eq!(never_written("/lib/libc.so", maps), Some(0x8000..0x9000));
        assert_eq!(never_written("/bin/other", maps), None);
    }

    #[test]
    fn the_program_goes_on_when_it_is_unmapped() {
        unmap(&program().expect("the addresses of this program"));
        assert!(!processor_time().is_zero());
    }
}
