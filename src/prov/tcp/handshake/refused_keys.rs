// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reports of callers whose key a listener refused. The first refusal is reported at once, the refusals of the
//! following second together, because anybody may connect as often as they like.

use crate::error::{Error, errno};
use std::net::SocketAddr;

/// Least time between two reports.
const PAUSE_NS: u64 = 1_000_000_000;

#[derive(Default)]
pub struct RefusedKeys {
    /// The time of the last report.
    told: Option<u64>,
    /// The latest refusal that was not reported yet.
    last: Option<(SocketAddr, Error)>,
    /// Number of refusals since the last report.
    count: u64,
}

/// True if `why` says that a caller's key, or its choice of sealing, was refused.
fn is_of_key(why: &Error) -> bool {
    matches!(why.errno, errno::EACCES | errno::EKEYREJECTED)
}

impl RefusedKeys {
    /// Counts a refusal, if the caller's key was the reason.
    pub fn note(&mut self, peer: SocketAddr, why: Error) {
        if is_of_key(&why) {
            self.count = self.count.saturating_add(1);
            self.last = Some((peer, why));
        }
    }

    /// The report that is due now, if there is one.
    pub fn tell(&mut self, now: u64) -> Option<Error> {
        if self.last.is_none() || self.told.is_some_and(|told| now.saturating_sub(told) < PAUSE_NS) {
            return None;
        }
        let (peer, why) = self.last.take()?;
        let others = match std::mem::take(&mut self.count) - 1 {
            0 => String::new(),
            n => format!(", and {n} other attempts since the last report"),
        };
        self.told = Some(now);
        Some(Error::new(why.errno, format!("a connection attempt was refused: {peer} {}{others}", why.words)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn callers_are_told_of_once_a_second_together() {
        let peer: SocketAddr = (Ipv4Addr::LOCALHOST, 7).into();
        let mut refused = RefusedKeys::default();
        assert!(refused.tell(0).is_none());
        refused.note(peer, Error::fixed(errno::EPROTO, "nonsense"));
        assert!(refused.tell(0).is_none());
        refused.note(peer, Error::fixed(errno::EACCES, "has another key"));
        let first = refused.tell(5).unwrap();
        assert!(first.errno == errno::EACCES && first.words.contains("127.0.0.1:7 has another key"), "{first}");
        for _ in 0..1000 {
            refused.note(peer, Error::fixed(errno::EKEYREJECTED, "has another key"));
            assert!(refused.tell(PAUSE_NS).is_none());
        }
        let more = refused.tell(PAUSE_NS + 5).unwrap();
        assert!(more.words.contains("999 other"), "{more}");
        assert!(refused.tell(u64::MAX).is_none());
    }
}
