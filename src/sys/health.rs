// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of a TCP connection as this side's kernel reports it: its speed, and whether the peer's kernel still
//! answers.

use std::os::fd::{AsRawFd, BorrowedFd};

const MS: u64 = 1_000_000;
/// Bytes of TCP_INFO that are read. The kernel's layout only grows.
const BYTES: usize = 232;

/// TCP_INFO of a socket; fields that this kernel does not have are 0.
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

/// Totals of a connection since it was made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Bytes that the peer's kernel has acknowledged.
    pub acked: u64,
    pub queued: u64,
    /// The part of `queued` that the kernel has not sent, because the path or the peer does not let it yet.
    pub unsent: u64,
    /// Time with unacknowledged data, and the part of that time in which the window was full.
    pub busy_us: u64,
    pub full_us: u64,
    /// Bytes that the peer would accept now, by its last packet.
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

/// The speed of a connection and the silence of its peer, from one `update` to the next.
#[derive(Clone, Copy, Debug, Default)]
pub struct Health {
    /// Best rate lately, in bytes per second; 0 if not known.
    pub rate: u64,
    /// Bytes that the peer's kernel has not acknowledged.
    pub queued: u64,
    pub rtt_us: u64,
    /// Time from which on the peer's kernel has answered nothing although something was sent, as far as is known; 0 if
    /// it answers.
    unanswered: u64,
}

impl Health {
    /// Queries the kernel (TCP_INFO) at time `now`. Fields that it does not report stay unchanged.
    pub fn update(&mut self, fd: BorrowedFd<'_>, now: u64) {
        let Some(raw) = TcpInfo::of(fd) else { return };
        self.rtt_us = raw.word(68).into();
        self.update_silence((raw.0[2], raw.word(24), raw.word(8) / 1000), raw.0[3], raw.word(52).min(raw.word(56)), now);
        let rate = raw.long(160);
        // If the program sent too little to fill the path, the kernel's rate is too low.
        let limited = raw.0[7] & 1 != 0;
        self.rate = if limited { self.rate.max(rate) } else { rate.max(self.rate - self.rate / 8) };
        self.queued = queued(fd).unwrap_or(self.queued);
    }

    /// Updates `unanswered`. `repeats`: how often the oldest of `unacked` packets was retransmitted; `pause_ms`: time
    /// until the next retransmission; `probes`: unanswered probes of a closed window; `quiet_ms`: time since the last
    /// packet of the peer.
    fn update_silence(&mut self, (repeats, unacked, pause_ms): (u8, u32, u32), probes: u8, quiet_ms: u32, now: u64) {
        let ago = |ms: u32| now.saturating_sub(u64::from(ms) * MS).max(1);
        let heard = ago(quiet_ms);
        self.unanswered = match unacked > 0 && repeats > 0 {
            // The silence goes on. The peer's last packet is older than the silence, because before the first
            // unanswered packet the peer had nothing to answer.
            true if self.unanswered > heard => self.unanswered,
            // The pauses between retransmissions double, so the earlier pauses together took at least half as long as
            // this one, and the silence is at least that old.
            true => heard.max(ago(pause_ms / 2)),
            // A live kernel may leave one probe unanswered if it comes soon after another.
            false if probes > 1 => heard,
            false => 0,
        };
    }

    /// Estimated time until `bytes` more have arrived.
    pub fn delay_ns(&self, bytes: u64) -> u64 {
        let sent = (self.queued + bytes).saturating_mul(1_000_000_000).checked_div(self.rate).unwrap_or(0);
        sent.saturating_add(self.rtt_us * 500)
    }

    /// Nanoseconds from `now` after which the peer counts as dead unless it answers. `None`: the peer answers.
    pub fn patience_ns(&self, ms: u32, now: u64) -> Option<u64> {
        (self.unanswered > 0).then(|| (self.unanswered + u64::from(ms) * MS).saturating_sub(now))
    }

    /// True if the peer has answered nothing for `ms`.
    pub fn is_silent_for(&self, ms: u32, now: u64) -> bool {
        self.patience_ns(ms, now) == Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1000 * MS;

    /// The quiet time that the kernel reports at `second` if the peer was last heard at `heard`, and the current time.
    fn at(second: u64, heard: u64) -> (u32, u64) {
        ((second - heard) as u32 * 1000, second * S)
    }

    #[test]
    fn a_closed_window_whose_probes_are_answered_is_no_silence() {
        let mut health = Health::default();
        for second in 100..200 {
            // A probe is answered every tenth second, and one alone may stay unanswered.
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
        // Idle for long; then a packet is sent and lost.
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
        // One answer is enough, even if more packets are lost.
        let (quiet, now) = at(1032, 1032);
        health.update_silence((1, 3, 400), 0, quiet, now);
        assert_eq!(health.patience_ns(30_000, now), Some(30 * S));
    }
}
