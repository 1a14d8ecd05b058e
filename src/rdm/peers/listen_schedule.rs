// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When progress looks at the listeners for callers.

/// Looks of progress for one at the doors: where somebody calls, and at most. Each is a call of the kernel's at every door.
const OFTEN: u32 = 4;
const SELDOM: u32 = 32;

/// How often the doors are looked at: the more seldom, the longer nobody has called.
pub struct Rounds {
    every: u32,
    left: u32,
}

impl Default for Rounds {
    fn default() -> Rounds {
        Rounds { every: OFTEN, left: OFTEN }
    }
}

impl Rounds {
    /// One more look of progress: whether it is time for a round.
    pub fn look(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }

    /// One was made; `busy`: somebody called, or lanes are being connected.
    pub fn made(&mut self, busy: bool) {
        self.every = if busy { OFTEN } else { (2 * self.every).min(SELDOM) };
        self.left = self.every;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of so many looks are rounds.
    fn rounds(of: &mut Rounds, looks: u32, busy: bool) -> usize {
        let mut look = || {
            let due = of.look();
            if due {
                of.made(busy);
            }
            due
        };
        (0..looks).filter(|_| look()).count()
    }

    #[test]
    fn doors_at_which_nobody_calls_are_looked_at_more_seldom() {
        let mut of = Rounds::default();
        assert_eq!(rounds(&mut of, OFTEN + 8 + 16, false), 3);
        assert_eq!(rounds(&mut of, 100 * SELDOM, false), 100);
        assert_eq!(rounds(&mut of, SELDOM, true), 1);
        assert_eq!(rounds(&mut of, 100 * OFTEN, true), 100, "somebody calls");
    }
}
