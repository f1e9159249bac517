//! How much the callers of the webhook can make the host hold, by the memory that the process has for them.

/// The sizes of what callers share, and of what one request may take of it, in bytes. In a process with little memory,
/// all are smaller in proportion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Maximum size of the body of a review: two versions of an object, each limited to 1.5 MiB by etcd. The API server
    /// limits requests to itself to 3 MiB.
    pub(super) review: usize,
    /// Maximum total size of the received bodies of reviews.
    pub(super) reviews: usize,
    /// Maximum size of the body of one conversion. A list in another version is converted as a whole: this is a list of
    /// 10,000 objects of 2.4 KiB.
    pub(super) conversion: usize,
    /// Maximum size of the body of a small conversion. Large ones do not delay small ones.
    pub(super) small: usize,
    /// Maximum total size of the received bodies of conversions: of small ones and of large ones.
    pub(super) small_conversions: usize,
    pub(super) large_conversions: usize,
    /// Maximum total size of converted objects that wait until they are sent: of small conversions and of large ones.
    pub(super) small_results: usize,
    pub(super) large_results: usize,
    /// Maximum memory of one object under review, and of those from one address.
    pub(super) object: usize,
    /// Maximum total memory of objects under review.
    pub(super) objects: usize,
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

impl Sizes {
    /// The sizes in a process with enough memory.
    pub(super) const FULL: Self = Self {
        review: 3 * MIB,
        reviews: 24 * MIB,
        conversion: 24 * MIB,
        small: MIB,
        small_conversions: 16 * MIB,
        large_conversions: 48 * MIB,
        small_results: 16 * MIB,
        large_results: 48 * MIB,
        object: 64 * MIB,
        objects: 96 * MIB,
    };

    /// Returns the sizes for callers who may hold `memory` bytes in total.
    pub(super) fn within(memory: usize) -> Self {
        let full = Self::FULL;
        // Whole KiB for each quarter, so that one request fits into the half of one address.
        let part = |size: usize| match memory / KIB {
            room if room < full.total() / KIB => {
                (size / KIB * room / (full.total() / KIB) / 4 * 4).max(4) * KIB
            }
            _ => size,
        };
        let (reviews, small_conversions) = (part(full.reviews), part(full.small_conversions));
        let (large_conversions, large_results) = (part(full.large_conversions), part(full.large_results));
        let (small_results, objects) = (part(full.small_results), part(full.objects));
        Self {
            review: full.review.min(reviews / 2),
            reviews,
            conversion: full.conversion.min(large_conversions / 2),
            small: full.small.min(small_results / 4),
            small_conversions,
            large_conversions,
            small_results,
            large_results,
            object: part(full.object),
            objects,
        }
    }

    /// Returns the bytes of all that callers can make the host hold.
    pub(super) const fn total(&self) -> usize {
        self.reviews
            + self.small_conversions
            + self.large_conversions
            + self.small_results
            + self.large_results
            + self.objects
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rooms_together_fit_the_memory_and_one_request_fits_each_room() {
        for memory in [1, 3, 16, 31, 64, 100, 128, 247, 248, 500].map(|mebibytes| mebibytes * MIB) {
            let sizes = Sizes::within(memory);
            assert!(sizes.total() <= memory.min(Sizes::FULL.total()), "{sizes:?}");
            assert!(
                sizes.total() > memory.min(Sizes::FULL.total()) / 10 * 9,
                "{sizes:?}"
            );
            // The half of one address.
            assert!(sizes.review <= sizes.reviews / 2, "{sizes:?}");
            assert!(sizes.conversion <= sizes.large_conversions / 2, "{sizes:?}");
            assert!(sizes.small <= sizes.small_conversions / 2, "{sizes:?}");
            // The results may be twice as large as the body.
            assert!(2 * sizes.small <= sizes.small_results / 2, "{sizes:?}");
            assert!(2 * sizes.conversion <= sizes.large_results, "{sizes:?}");
            assert!(sizes.object <= sizes.objects, "{sizes:?}");
        }
        assert_eq!(Sizes::within(usize::MAX), Sizes::FULL);
        assert_eq!(Sizes::within(Sizes::FULL.total()), Sizes::FULL);
        // With the 512 MiB of manifests/deploy, the largest review is as large as everywhere.
        assert_eq!(Sizes::within(128 * MIB).review, Sizes::FULL.review);
    }
}
