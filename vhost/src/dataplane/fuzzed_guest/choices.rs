//! The bytes of the fuzzer, read as choices. Bytes that are missing are zeroes, so every input is whole.

/// What is left of an input.
pub(super) struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Choices<'a> {
        Choices(bytes)
    }

    /// True if nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next bytes, as many as there are.
    pub(super) fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (taken, left) = self.0.split_at(count.min(self.0.len()));
        self.0 = left;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let taken = self.bytes(N);
        let mut array = [0; N];
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    pub(super) fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    pub(super) fn is(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// A number below `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound
    }

    /// One of these.
    pub(super) fn of<T: Copy, const N: usize>(&mut self, all: [T; N]) -> T {
        all[self.below(N)]
    }
}
