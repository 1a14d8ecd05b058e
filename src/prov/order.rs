// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results in the order in which their operations began, even if they end in another order. A short message can overtake a
//! long one that is still being fetched, but layers above take the order of completions for the order of messages.

use std::collections::VecDeque;
use std::num::NonZeroU32;

/// A place in the order. Small, because every operation may carry one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(NonZeroU32);

/// The bit that keeps a ticket from being zero.
const MARK: u32 = 1 << 31;

#[derive(Debug)]
enum Slot<T> {
    Open,
    Done(T),
    /// Its result was reported in another way.
    Vacant,
}

/// The operations that have begun and whose results were not taken yet, oldest first.
#[derive(Debug)]
pub struct Order<T> {
    /// The number of the oldest operation, below `MARK`.
    first: u32,
    slots: VecDeque<Slot<T>>,
}

impl<T> Default for Order<T> {
    fn default() -> Self {
        Order { first: 0, slots: VecDeque::new() }
    }
}

impl<T> Order<T> {
    /// True if no operation is outstanding, so that one that ends now is in order.
    #[inline(always)]
    pub fn is_calm(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn under_way(&self) -> usize {
        self.slots.len()
    }

    /// Begins an operation, behind all others.
    pub fn begin(&mut self) -> Ticket {
        let number = self.first.wrapping_add(self.slots.len() as u32) & !MARK;
        self.slots.push_back(Slot::Open);
        Ticket(NonZeroU32::new(number | MARK).unwrap_or(NonZeroU32::MAX))
    }

    fn slot(&mut self, ticket: Ticket) -> Option<&mut Slot<T>> {
        let at = (ticket.0.get() & !MARK).wrapping_sub(self.first) & !MARK;
        self.slots.get_mut(at as usize).filter(|slot| matches!(slot, Slot::Open))
    }

    /// Ends an operation: `take` returns its result when its turn comes. If the ticket was used already, the result comes
    /// back.
    pub fn end(&mut self, ticket: Ticket, result: T) -> Option<T> {
        match self.slot(ticket) {
            Some(slot) => {
                *slot = Slot::Done(result);
                None
            }
            None => Some(result),
        }
    }

    /// Removes an operation from the order without a result.
    pub fn leave(&mut self, ticket: Ticket) {
        if let Some(slot) = self.slot(ticket) {
            *slot = Slot::Vacant;
        }
    }

    /// Takes the result of the oldest operation, if it has ended.
    pub fn take(&mut self) -> Option<T> {
        while let Some(Slot::Done(_) | Slot::Vacant) = self.slots.front() {
            self.first = self.first.wrapping_add(1) & !MARK;
            if let Some(Slot::Done(result)) = self.slots.pop_front() {
                return Some(result);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(order: &mut Order<u32>) -> Vec<u32> {
        std::iter::from_fn(|| order.take()).collect()
    }

    #[test]
    fn results_come_in_the_order_of_beginning() {
        let mut order = Order::default();
        let t: Vec<Ticket> = (0..4).map(|_| order.begin()).collect();
        assert_eq!(order.end(t[2], 2), None);
        assert_eq!(order.end(t[1], 1), None);
        assert!(all(&mut order).is_empty() && !order.is_calm());
        assert_eq!(order.end(t[0], 0), None);
        assert_eq!(all(&mut order), [0, 1, 2]);
        assert_eq!(order.end(t[3], 3), None);
        assert_eq!(all(&mut order), [3]);
        assert!(order.is_calm());
    }

    #[test]
    fn an_operation_that_left_delays_no_other() {
        let mut order = Order::default();
        let (a, b, c) = (order.begin(), order.begin(), order.begin());
        order.leave(b);
        order.end(c, 3);
        order.leave(a);
        assert_eq!(all(&mut order), [3]);
        assert!(order.is_calm());
    }

    #[test]
    fn a_used_ticket_does_nothing() {
        let mut order = Order::default();
        let (a, b) = (order.begin(), order.begin());
        order.end(a, 1);
        assert_eq!(order.end(a, 9), Some(9));
        assert_eq!(all(&mut order), [1]);
        assert_eq!(order.end(a, 9), Some(9));
        order.leave(a);
        order.end(b, 2);
        assert_eq!(all(&mut order), [2]);
    }

    #[test]
    fn ticket_numbers_wrap_around() {
        let mut order: Order<u32> = Order { first: !MARK - 1, slots: VecDeque::new() };
        let t: Vec<Ticket> = (0..4).map(|_| order.begin()).collect();
        for (i, ticket) in t.iter().enumerate().rev() {
            assert_eq!(order.end(*ticket, i as u32), None);
        }
        assert_eq!(all(&mut order), [0, 1, 2, 3]);
        assert_eq!(order.first, 2);
    }
}
