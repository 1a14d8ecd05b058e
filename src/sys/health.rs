// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a TCP connection does, and whether the other end's kernel still answers, as this side's kernel sees it.

use std::os::fd::{AsRawFd, BorrowedFd};

const MS: u64 = 1_000_000;
/// Bytes of TCP_INFO that are asked for, by the kernel's layout, which only grows.
const BYTES: usize = 232;

/// TCP_INFO of a socket; what this kernel does not know is 0.
struct TcpInfo([u8; BYTES]);

impl TcpInfo {
    fn of(fd: BorrowedFd<'_>) -> Option<TcpInfo> {
        let mut raw = [0u8; BYTES];
        let mut len = BYTES as libc::socklen_t;
        // SAFETY: the buffer is live and as long as the length says.
        let rc = unsafe { libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, raw.as_mut_ptr().cast(), &raw mut len) };
        (rc == 0).then_some(TcpInfo(raw))
    }

    fn word(&self, at: usize) -> u32 {
        self.0[at..at + 4].try_into().map_or(0, u32::from_ne_bytes)
    }

    fn long(&self, at: usize) -> u64 {
        self.0[at..at + 8].try_into().map_or(0, u64::from_ne_bytes)
    }
}

/// Bytes that the peer's kernel has not acknowledged.
fn queued(fd: BorrowedFd<'_>) -> Option<u64> {
    let mut queued: libc::c_int = 0;
    // SAFETY: the kernel writes one int.
    (unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut queued) } == 0).then_some(queued.max(0) as u64)
}

/// What a connection has sent since it is there, and what has held it up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Bytes that have arrived.
    pub acked: u64,
    pub queued: u64,
    /// Of these, those that the path or the peer does not let go yet.
    pub unsent: u64,
    /// Time with something on its way, and of that with a window that was full.
    pub busy_us: u64,
    pub full_us: u64,
    /// Bytes that the peer would take now, at the time of its last word.
    pub window: u32,
    /// The shortest round trip.
    pub rtt_us: u32,
}

impl Tally {
    pub fn of(fd: BorrowedFd<'_>) -> Option<Tally> {
        let raw = TcpInfo::of(fd)?;
        Some(Tally {
            acked: raw.long(120),
            queued: queued(fd)?,
            unsent: raw.word(144).into(),
            busy_us: raw.long(168),
            full_us: raw.long(176),
            window: raw.word(228),
            rtt_us: raw.word(148),
        })
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Health {
    /// Bytes per second that it has delivered at its best lately; 0: not known.
    pub rate: u64,
    /// Bytes that the peer's kernel has not acknowledged.
    pub queued: u64,
    pub rtt_us: u64,
    /// When the peer's kernel began to leave something unanswered, as far as is known; 0: it answers.
    unanswered: u64,
}

impl Health {
    /// Asks the kernel (TCP_INFO) at `now`; what it does not say stays as it was.
    pub fn update(&mut self, fd: BorrowedFd<'_>, now: u64) {
        let Some(raw) = TcpInfo::of(fd) else { return };
        self.rtt_us = raw.word(68).into();
        self.update_silence((raw.0[2], raw.word(24), raw.word(8) / 1000), raw.0[3], raw.word(52).min(raw.word(56)), now);
        let rate = raw.long(160);
        // Where the program has sent too little, it says too little.
        let limited = raw.0[7] & 1 != 0;
        self.rate = if limited { self.rate.max(rate) } else { rate.max(self.rate - self.rate / 8) };
        self.queued = queued(fd).unwrap_or(self.queued);
    }

    /// `repeats`: how often the oldest of `unacked` packets was sent again; `pause_ms`: until it is again; `probes`: of a closed
    /// window, without an answer since the last; `quiet_ms`: since anything was heard.
    fn update_silence(&mut self, (repeats, unacked, pause_ms): (u8, u32, u32), probes: u8, quiet_ms: u32, now: u64) {
        let ago = |ms: u32| now.saturating_sub(u64::from(ms) * MS).max(1);
        let heard = ago(quiet_ms);
        self.unanswered = match unacked > 0 && repeats > 0 {
            // It was quiet for good reason until something was sent.
            true if self.unanswered > heard => self.unanswered,
            // Pauses double: those before it were half of it at least.
            true => heard.max(ago(pause_ms / 2)),
            // A kernel that lives may leave one probe unanswered, if it comes soon after another.
            false if probes > 1 => heard,
            false => 0,
        };
    }

    /// Time until `bytes` more have arrived.
    pub fn delay_ns(&self, bytes: u64) -> u64 {
        let sent = (self.queued + bytes).saturating_mul(1_000_000_000).checked_div(self.rate).unwrap_or(0);
        sent.saturating_add(self.rtt_us * 500)
    }

    /// The nanoseconds after which the peer is to be taken for dead at `now`, unless it answers; `None`: it answers.
    pub fn patience_ns(&self, ms: u32, now: u64) -> Option<u64> {
        (self.unanswered > 0).then(|| (self.unanswered + u64::from(ms) * MS).saturating_sub(now))
    }

    /// Whether nothing was answered for so long.
    pub fn is_silent_for(&self, ms: u32, now: u64) -> bool {
        self.patience_ns(ms, now) == Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1000 * MS;

    /// What the kernel says at a second, of a peer that was last heard at `heard`.
    fn at(second: u64, heard: u64) -> (u32, u64) {
        ((second - heard) as u32 * 1000, second * S)
    }

    #[test]
    fn a_closed_window_whose_probes_are_answered_is_no_silence() {
        let mut health = Health::default();
        for second in 100..200 {
            // Every tenth second a probe is answered, and one alone may not be.
            let (quiet, now) = at(second, second / 10 * 10);
            health.update_silence((0, 0, 200), u8::from(second % 10 > 7), quiet, now);
            assert!(!health.is_silent_for(1000, now) && health.patience_ns(1000, now).is_none(), "{second}");
        }
        let (quiet, now) = at(205, 199);
        health.update_silence((0, 0, 200), 2, quiet, now);
        assert_eq!(health.patience_ns(30_000, now), Some(24 * S));
        assert!(health.is_silent_for(6000, now) && !health.is_silent_for(6001, now));
        let (quiet, now) = at(206, 206);
        health.update_silence((0, 0, 200), 0, quiet, now);
        assert!(health.patience_ns(1, now).is_none());
    }

    #[test]
    fn what_was_sent_is_unanswered_since_it_was_sent() {
        let mut health = Health::default();
        // Idle for long: then a packet, which is lost at once.
        let (quiet, now) = at(1000, 10);
        health.update_silence((0, 1, 200), 0, quiet, now);
        assert!(health.patience_ns(30_000, now).is_none());
        let (quiet, now) = at(1001, 10);
        health.update_silence((2, 1, 800), 0, quiet, now);
        assert_eq!(health.patience_ns(30_000, now), Some(29 * S + 600 * MS));
        for second in 1002..1030 {
            let (quiet, now) = at(second, 10);
            health.update_silence((5, 1, 7500), 0, quiet, now);
            assert!(!health.is_silent_for(30_000, now), "{second}");
        }
        let (quiet, now) = at(1031, 10);
        health.update_silence((9, 1, 7500), 0, quiet, now);
        assert!(health.is_silent_for(30_000, now));
        // One answer is enough, also where more is lost.
        let (quiet, now) = at(1032, 1032);
        health.update_silence((1, 3, 400), 0, quiet, now);
        assert_eq!(health.patience_ns(30_000, now), Some(30 * S));
    }
}
