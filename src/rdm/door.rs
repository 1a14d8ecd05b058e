// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A passive endpoint whose connections match messages.

use super::wire::{MATCHED_LEN, matched_from};
use crate::error::{Error, Result};
use crate::prov::info::Info;
use crate::prov::{Listener, Request};
use crate::sys::epoll::Poller;

/// Lets those in that match messages as well.
pub struct Door(pub Box<dyn Listener>);

impl Listener for Door {
    fn address(&self) -> String {
        self.0.address()
    }

    fn cm_data_size(&self) -> usize {
        self.0.cm_data_size() - MATCHED_LEN
    }

    fn listen(&mut self) -> Result<()> {
        self.0.listen()
    }

    fn poll(&mut self) -> (Vec<Box<dyn Request>>, Option<Error>) {
        let (requests, trouble) = self.0.poll();
        let mut callers: Vec<Box<dyn Request>> = Vec::new();
        for request in requests {
            match matched_from(request.data()).map(|(grant, _)| grant) {
                Ok(grant) => callers.push(Box::new(Caller { request, grant })),
                Err(why) => {
                    let from = request.from();
                    let sent = request.reject(why.words.as_bytes()).err().map_or(String::new(), |e| format!("; {e}"));
                    crate::log!(Warn, "{from} is rejected: {}{sent}", why.words);
                }
            }
        }
        (callers, trouble)
    }

    fn watched(&self) -> u64 {
        self.0.watched()
    }

    fn watch(&self, poller: &Poller) -> Result<()> {
        self.0.watch(poller)
    }
}

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

/// Who has come in.
pub struct Caller {
    pub request: Box<dyn Request>,
    pub grant: u64,
}

impl Request for Caller {
    fn from(&self) -> String {
        self.request.from()
    }

    fn data(&self) -> &[u8] {
        self.request.data().get(MATCHED_LEN..).unwrap_or_default()
    }

    fn adjust(&self, info: &mut Info) {
        self.request.adjust(info);
    }

    fn reject(self: Box<Self>, data: &[u8]) -> Result<()> {
        self.request.reject(data)
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
