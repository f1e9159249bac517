//! Clocks and randomness derived from the request, so that the same request gives the same response.
//!
//! A language's standard library requests both even in programs that do not need them (hash map seeds, a
//! runtime's scheduler). All values here can be predicted from the request, so they must never become a
//! password. The host generates Secrets, from `generate` in the response.

use std::cell::Cell;
use std::convert::Infallible;
use std::time::Duration;

use jiff::Timestamp;
use rand_core::TryRng;
use sha2::{Digest as _, Sha256};
use wasmtime_wasi::{HostMonotonicClock, HostWallClock};

use crate::contract::Request;

/// The values that a call's clocks and randomness start from.
#[derive(Clone, Copy)]
pub(crate) struct Origin {
    now: Timestamp,
    seed: [u8; 32],
}

impl Origin {
    /// Returns the origin for a call with a request: its clock reading, and a seed derived from that and the
    /// parent's UID.
    pub(crate) fn of(request: &Request) -> Self {
        let uid = request.parent.metadata.uid.as_deref().unwrap_or_default();
        let mut hash = Sha256::new();
        hash.update(uid);
        hash.update([0]);
        hash.update(request.now.as_second().to_be_bytes());
        Self {
            now: request.now,
            seed: hash.finalize().into(),
        }
    }

    /// Returns the same clock reading with other random numbers, to detect answers that depend on randomness.
    pub(crate) fn drawn_again(self) -> Self {
        Self {
            now: self.now,
            seed: Sha256::digest(self.seed).into(),
        }
    }

    /// Returns the constant origin for `describe`, whose answer must not depend on anything.
    pub(crate) fn fixed() -> Self {
        Self {
            now: Timestamp::UNIX_EPOCH,
            seed: [0; 32],
        }
    }

    pub(crate) fn wall_clock(&self) -> WallClock {
        // WASI cannot represent a time before 1970.
        WallClock(Duration::try_from(self.now.as_duration()).unwrap_or_default())
    }

    /// Randomness for `wasi:random/random`.
    pub(crate) fn random(&self) -> SplitMix64 {
        SplitMix64(self.word(0))
    }

    /// Randomness for `wasi:random/insecure`.
    pub(crate) fn insecure_random(&self) -> SplitMix64 {
        SplitMix64(self.word(1))
    }

    /// Seed for `wasi:random/insecure-seed`.
    pub(crate) fn insecure_seed(&self) -> u128 {
        u128::from(self.word(2)) << 64 | u128::from(self.word(3))
    }

    fn word(&self, index: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.seed[index * 8..][..8]);
        u64::from_be_bytes(word)
    }
}

/// A wall clock that always returns the request's clock reading.
pub(crate) struct WallClock(Duration);

impl HostWallClock for WallClock {
    fn resolution(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn now(&self) -> Duration {
        self.0
    }
}

/// A clock that advances by a microsecond with each reading. If it stood still, a guest that spins until some
/// time has passed would run into its deadline.
#[derive(Default)]
pub(crate) struct MonotonicClock(Cell<u64>);

impl HostMonotonicClock for MonotonicClock {
    fn resolution(&self) -> u64 {
        1_000
    }

    fn now(&self) -> u64 {
        let next = self.0.get() + 1_000;
        self.0.set(next);
        next
    }
}

/// The generator of Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014). It is
/// small and will never change, so a recorded call can be replayed on a later host.
pub(crate) struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl TryRng for SplitMix64 {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        // The high half has the better quality, and the cast cannot truncate.
        Ok((self.next() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(self.next())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn split_mix_gives_the_published_sequence() {
        let mut random = SplitMix64(1_234_567);
        let drawn: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(
            drawn,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn the_monotonic_clock_never_stands_still() {
        let clock = MonotonicClock::default();
        assert!(clock.now() < clock.now());
    }
}
