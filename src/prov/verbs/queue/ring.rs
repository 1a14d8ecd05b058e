// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operations that the device holds, in the order of posting. Their completions come in the same order, except over
//! iWARP.

/// A ring of slots. Elements have sequence numbers that only grow and wrap around.
pub struct Ring<T> {
    places: Box<[T]>,
    /// The number of slots, a power of two, minus 1.
    mask: u32,
    /// The number of the oldest element.
    head: u32,
    /// The number after the newest element.
    tail: u32,
    /// Most elements that the ring may hold.
    limit: u32,
}

impl<T: Default> Ring<T> {
    pub fn new(limit: usize) -> Ring<T> {
        let places: Box<[T]> = (0..limit.max(1).next_power_of_two()).map(|_| T::default()).collect();
        Ring { mask: (places.len() - 1) as u32, places, head: 0, tail: 0, limit: limit as u32 }
    }

    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.tail.wrapping_sub(self.head)
    }

    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.tail == self.head
    }

    #[inline(always)]
    pub fn is_full(&self) -> bool {
        self.len() >= self.limit
    }

    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// The number of the oldest element.
    #[inline(always)]
    pub fn first(&self) -> u32 {
        self.head
    }

    /// The number that the next element gets.
    #[inline(always)]
    pub fn next(&self) -> u32 {
        self.tail
    }

    #[inline(always)]
    fn at(&self, seq: u32) -> usize {
        (seq & self.mask) as usize
    }

    /// Adds an element; the caller has checked `is_full`.
    #[inline(always)]
    pub fn push(&mut self, op: T) {
        let at = self.at(self.tail);
        if let Some(place) = self.places.get_mut(at) {
            *place = op;
        }
        self.tail = self.tail.wrapping_add(1);
    }

    /// The slot of the next element; the caller has checked `is_full`. The slot holds a default value, or an old value
    /// that `forget` left there.
    #[inline(always)]
    pub fn place(&mut self) -> &mut T {
        let at = self.at(self.tail);
        debug_assert!(at < self.places.len());
        // SAFETY: the mask keeps the index inside, and the number of slots never changes.
        unsafe { self.places.get_unchecked_mut(at) }
    }

    /// Adds the element that the caller has written into the slot of `place`.
    #[inline(always)]
    pub fn advance(&mut self) {
        self.tail = self.tail.wrapping_add(1);
    }

    /// The slot of the oldest element. If the ring is empty, the content of the slot has no meaning.
    #[inline(always)]
    pub fn oldest(&mut self) -> &mut T {
        let at = self.at(self.head);
        // SAFETY: the mask keeps the index inside, and the number of slots never changes.
        unsafe { self.places.get_unchecked_mut(at) }
    }

    /// Removes the oldest element and leaves its value in the slot; the caller knows that the ring is not empty.
    #[inline(always)]
    pub fn forget(&mut self) {
        self.head = self.head.wrapping_add(1);
    }

    /// Removes the newest element, whose posting has failed.
    pub fn unpush(&mut self) -> T {
        self.tail = self.tail.wrapping_sub(1);
        let at = self.at(self.tail);
        std::mem::take(&mut self.places[at])
    }

    /// Removes the oldest element if `seq` is its number or the number of a newer element in the ring.
    #[inline(always)]
    pub fn pop_until(&mut self, seq: u32) -> Option<T> {
        if seq.wrapping_sub(self.head) >= self.len() {
            return None;
        }
        self.pop()
    }

    /// The element that `seq` names, if the ring holds it.
    pub fn get_mut(&mut self, seq: u32) -> Option<&mut T> {
        if seq.wrapping_sub(self.head) >= self.len() {
            return None;
        }
        let at = self.at(seq);
        self.places.get_mut(at)
    }

    /// Removes the oldest element if `fits` accepts it.
    pub fn pop_if(&mut self, fits: impl FnOnce(&T) -> bool) -> Option<T> {
        let oldest = self.places.get(self.at(self.head)).filter(|_| !self.is_empty())?;
        if fits(oldest) { self.pop() } else { None }
    }

    #[inline(always)]
    pub fn pop(&mut self) -> Option<T> {
        if self.is_empty() {
            return None;
        }
        let at = self.at(self.head);
        self.head = self.head.wrapping_add(1);
        self.places.get_mut(at).map(std::mem::take)
    }

    /// True if `seq` names the oldest element.
    #[inline(always)]
    pub fn is_next(&self, seq: u32) -> bool {
        self.head == seq && !self.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        (0..self.len()).filter_map(move |i| self.places.get(self.at(self.head.wrapping_add(i))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outlive_the_places() {
        let mut ring: Ring<u32> = Ring::new(3);
        for round in 0..10 {
            for i in 0..3 {
                assert!(!ring.is_full());
                assert_eq!(ring.next(), round * 3 + i);
                ring.push(round * 3 + i);
            }
            assert!(ring.is_full());
            assert_eq!(ring.iter().copied().collect::<Vec<_>>(), [round * 3, round * 3 + 1, round * 3 + 2]);
            assert_eq!(ring.pop_until(round * 3 + 3), None, "not held");
            assert_eq!(ring.unpush(), round * 3 + 2);
            ring.push(round * 3 + 2);
            assert_eq!(ring.pop_until(round * 3 + 1), Some(round * 3));
            assert!(ring.is_next(round * 3 + 1));
            assert_eq!(ring.pop_until(round * 3), None, "over");
            assert_eq!(ring.first(), round * 3 + 1);
            assert_eq!(*ring.oldest(), round * 3 + 1);
            ring.forget();
            assert_eq!((ring.pop(), ring.pop()), (Some(round * 3 + 2), None));
        }
    }
}
