// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interval at which progress polls the listeners for callers. Each poll costs a system call per listener, so the
//! interval grows while nobody calls.

/// Polls of rare matters (callers, deadlines and the like, see `transfer/progress`) from one poll of the listeners to the
/// next. `MIN_INTERVAL`: while callers arrive. `MAX_INTERVAL`: after none has come for long.
const MIN_INTERVAL: u32 = 4;
const MAX_INTERVAL: u32 = 32;

/// Counts down to the next poll of the listeners, and doubles the interval while nobody calls.
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
    /// Counts one poll of rare matters. True if the listeners are to be polled now.
    pub fn is_due(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    /// Sets the next interval after a poll of the listeners. `busy`: somebody called, or lanes are being connected.
    pub fn polled(&mut self, busy: bool) {
        self.every = if busy { MIN_INTERVAL } else { (2 * self.every).min(MAX_INTERVAL) };
        self.left = self.every;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how many of `looks` polls of rare matters polled the listeners.
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
