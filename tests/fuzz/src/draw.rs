//! Converts bytes to choices, so that a fuzzer that changes a byte changes one choice.

/// Takes choices from the front of the bytes; zeros at the end.
pub(crate) struct RandomSource<'a>(&'a [u8]);

impl<'a> RandomSource<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit.max(1)
    }

    pub(crate) fn chance(&mut self, of: usize) -> bool {
        self.below(of) == 1 % of
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Returns the remaining bytes.
    pub(crate) fn rest(self) -> &'a [u8] {
        self.0
    }
}
