// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Control messages: sending them, and waiting for those of the peer.

use crate::io::{LETTER, Link};
use crate::layout::LETTERS;
use crate::wire::{self, Kinds, MAIL_MAX, Mail, peer_failed, silent};
use gdrfab::error::{Code, Error, Result, errno};
use gdrfab::fabric::Endpoint;
use gdrfab::prov::flags;
use gdrfab::prov::op::{Common, Iov};
use gdrfab::sys::time::ticks;

/// The number of polls in which the ends of all receives are surely read.
const LEAVE_TURNS: usize = 10_000;

impl Link {
    pub fn post_mail(&mut self, kind: Kinds, bytes: &[u8]) -> Result<()> {
        self.post_flagged(kind, bytes, Endpoint::INJECT)
    }

    /// Sends the last message before this side closes.
    pub fn post_last(&mut self, kind: Kinds, bytes: &[u8]) -> Result<()> {
        if !self.traits.network {
            return self.post_mail(kind, bytes);
        }
        self.post_flagged(kind, bytes, flags::INJECT | flags::COMPLETION)?;
        match self.wait("end of the last message", |l| l.letters_under_way() == 0) {
            // The peer may leave once it has the message, before this side learns that it arrived.
            Err(e) if e.code == Code::PeerGone || e.errno == errno::ECANCELED => Ok(()),
            ended => ended,
        }
    }

    fn post_flagged(&mut self, kind: Kinds, bytes: &[u8], how: u64) -> Result<()> {
        let wrapped = if self.traits.data { Vec::new() } else { [wire::envelope(kind).as_slice(), bytes].concat() };
        let bytes = if self.traits.data { bytes } else { &wrapped };
        let beside = if self.traits.data { flags::REMOTE_CQ_DATA } else { 0 };
        let fits = bytes.len() <= self.traits.inject;
        let (local, how, desc) = if fits {
            // SAFETY: this is an inject call, which does not use the bytes after it returns.
            (unsafe { Iov::of(bytes) }, how, 0)
        } else {
            // This queue pair carries no inline data, or less: the message goes from the mailbox, where each has a place.
            self.wait("end of an earlier message", |l| l.letters_under_way() < LETTERS as u64)?;
            let place = self.layout.letter(self.letters);
            self.mailbox.put(place, bytes);
            (self.mailbox.iov(place, bytes.len()), flags::COMPLETION, self.mail_desc)
        };
        let common = Common { context: LETTER, flags: how | beside, data: kind as u64, desc, ..Common::default() };
        self.must("room for a control message", |l| l.send_from(0, local, &common))?;
        self.letters += u64::from(how & flags::COMPLETION != 0);
        Ok(())
    }

    /// True if the client's last message has arrived, although its end was noticed first, perhaps on another endpoint.
    pub fn took_leave(&mut self) -> bool {
        (0..LEAVE_TURNS).any(|_| {
            let _ = self.poll();
            self.mail.iter().any(|m| m.kind == Kinds::Bye)
        })
    }

    pub fn has_mail(&self) -> bool {
        !self.mail.is_empty()
    }

    /// Waits for the next control message, asleep if asked.
    pub fn next_mail(&mut self, what: &str, asleep: bool) -> Result<Mail> {
        if asleep {
            let start = ticks();
            while !self.has_mail() {
                self.nap(100)?;
                let now = ticks();
                self.look_at_peer(now)?;
                if now.saturating_sub(start.max(self.heard)) > self.patience {
                    return Err(silent(what));
                }
                self.check_time(now)?;
            }
        } else {
            self.wait(what, Link::has_mail)?;
        }
        match self.mail.pop_front() {
            Some(m) if m.kind == Kinds::Fail => Err(peer_failed(&m)),
            Some(m) => Ok(m),
            None => Err(silent(what)),
        }
    }

    pub fn expect(&mut self, kind: Kinds, what: &str) -> Result<Mail> {
        let mail = self.next_mail(what, false)?;
        if mail.kind != kind {
            return Err(Error::new(errno::EPROTO, format!("the peer sent {:?} where {kind:?} was due", mail.kind)));
        }
        Ok(mail)
    }

    /// Sends the peer the reason why this side gives up; the peer may be gone already.
    pub fn complain(&mut self, e: &Error) {
        let text = e.to_string();
        let room = MAIL_MAX.saturating_sub(if self.traits.data { 0 } else { wire::ENVELOPE });
        let _ = self.post_last(Kinds::Fail, wire::clip(&text, room));
    }
}
