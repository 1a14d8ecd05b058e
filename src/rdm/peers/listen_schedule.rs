// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When progress looks at the listeners for callers.

/// Looks of progress for one at the doors: where somebody calls, and at most. Each is a call of the kernel's at every door.
const MIN_INTERVAL: u32 = 4;
const MAX_INTERVAL: u32 = 32;

/// How often the doors are looked at: the more seldom, the longer nobody has called.
pub struct ListenSchedule {
    every: u32,
    left: u32,
}

impl Default for ListenSchedule {
    fn default() -> ListenSchedule {
        ListenSchedule { every: MIN_INTERVAL, left: MIN_INTERVAL }
    }
}

impl ListenSchedule {
    /// One more look of progress: whether it is time for a round.
    pub fn is_due(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    /// One was made; `busy`: somebody called, or lanes are being connected.
    pub fn polled(&mut self, busy: bool) {
        self.every = if busy { MIN_INTERVAL } else { (2 * self.every).min(MAX_INTERVAL) };
        self.left = self.every;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many looks are rounds.
    fn due_polls(of: &mut ListenSchedule, looks: u32, busy: bool) -> usize {
        let mut look = || {
            let due = of.is_due();
            if due {
                of.polled(busy);
            }
            due
        };
        (0..looks).filter(|_| look()).count()
    }

    #[test]
    fn listeners_without_callers_are_polled_less_often() {
        let mut of = ListenSchedule::default();
        assert_eq!(due_polls(&mut of, MIN_INTERVAL + 8 + 16, false), 3);
        assert_eq!(due_polls(&mut of, 100 * MAX_INTERVAL, false), 100);
        assert_eq!(due_polls(&mut of, MAX_INTERVAL, true), 1);
        assert_eq!(due_polls(&mut of, 100 * MIN_INTERVAL, true), 100, "somebody calls");
    }
}
